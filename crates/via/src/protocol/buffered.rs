//! The buffers for sends in buffered mode: the engine's, and those that communicators have of their own.

use std::{io::IoSlice, task::Poll};

use super::{
    MessageEngine, RequestError, RequestId, SendError,
    payload::{copy_range, total},
    request::{ReadyList, RequestEntry, SendRequest},
    state::SendBuffer,
    to_u64, to_usize,
};
use crate::vi::Provider;

/// The most completions that a poll takes.
const BUDGET: usize = 64;

impl<P: Provider> MessageEngine<P> {
    /// Gives a context a buffer of its own for sends in buffered mode. Returns `false` if it has one.
    pub(crate) fn attach_buffer(&mut self, context: u16, bytes_max: u64) -> bool {
        if self.buffers.contains_key(&context) {
            return false;
        }
        let name = self.requests.insert(RequestEntry::Set(ReadyList::default()));
        self.buffers.insert(context, SendBuffer { bytes_max, used: 0, name });
        true
    }

    /// Takes the buffer of a context away. Its messages are still sent.
    pub(crate) fn detach_buffer(&mut self, context: u16) {
        if let Some(buffer) = self.buffers.remove(&context) {
            self.requests.remove(buffer.name);
        }
    }

    /// Returns by what name a wait for an empty buffer is woken.
    pub(crate) fn buffer_name(&self, context: u16) -> Option<RequestId> {
        self.buffers.get(&context).map(|buffer| RequestId(buffer.name))
    }

    /// Returns whether everything in the buffer of a context has been sent.
    pub(crate) fn poll_buffer(&mut self, context: u16) -> Poll<Result<(), RequestError>> {
        for _ in 0..BUDGET {
            if self.buffers.get(&context).is_none_or(|buffer| buffer.used == 0) {
                return Poll::Ready(Ok(()));
            }
            if !self.step_aside() && !self.flush() {
                return Poll::Pending;
            }
        }
        self.ready.extend(self.buffer_name(context));
        Poll::Pending
    }

    /// Copies a message for buffered mode, if there is room for it. Returns whether its context has a buffer of its own.
    pub(super) fn keep_buffered(
        &mut self,
        context: u16,
        body: &[IoSlice<'_>],
    ) -> Result<(Vec<u8>, bool), SendError> {
        let own = self.buffers.get_mut(&context);
        let has_own = own.is_some();
        let (used, max) = match own {
            Some(buffer) => (&mut buffer.used, buffer.bytes_max),
            None => (&mut self.buffered_bytes, self.config.buffered_bytes_max),
        };
        let (needed, free) = (total(body), max.saturating_sub(*used));
        if needed > free {
            return Err(SendError::BufferFull { needed, free });
        }
        let mut bytes = Vec::with_capacity(to_usize(needed));
        copy_range(body, 0, to_usize(needed), &mut bytes);
        *used += to_u64(bytes.len());
        Ok((bytes, has_own))
    }

    /// Gives back the room that a send has in its buffer.
    pub(super) fn release_buffered(&mut self, key: u64) {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        let SendRequest { context, has_own_buffer, .. } = **send;
        let bytes = std::mem::take(&mut send.buffered);
        if !has_own_buffer {
            self.buffered_bytes -= bytes;
        } else if let Some(buffer) = self.buffers.get_mut(&context) {
            // Another buffer may have been attached since.
            buffer.used = buffer.used.saturating_sub(bytes);
            if buffer.used == 0 {
                self.ready.push(RequestId(buffer.name));
            }
        }
    }
}
