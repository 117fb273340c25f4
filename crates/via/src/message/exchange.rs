//! A send and a receive at once.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use super::{Communicator, Message, MessageError, SourceFilter, TagFilter};
use crate::{protocol::SendMode, vi::Provider};

/// Runs both to their ends. If both fail, the first one's error is returned.
async fn both<A, B>(
    one: impl Future<Output = Result<A, MessageError>>,
    other: impl Future<Output = Result<B, MessageError>>,
) -> Result<(A, B), MessageError> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(ended) = one.as_mut().poll(cx)
        {
            first = Some(ended);
        }
        if second.is_none()
            && let Poll::Ready(ended) = other.as_mut().poll(cx)
        {
            second = Some(ended);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => {
                Poll::Ready(first.and_then(|first| second.map(|second| (first, second))))
            }
            unended => {
                (first, second) = unended;
                Poll::Pending
            }
        }
    })
    .await
}

impl<P: Provider> Communicator<P> {
    /// Sends `bytes` to `(rank, tag)` and receives a message from `(source, tag)` at the same time, so that ranks that exchange
    /// messages do not wait for each other: `MPI_Sendrecv`.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send) and [`recv`](Self::recv): a message already matched is lost.
    ///
    /// # Errors
    /// [`MessageError`], after both have ended.
    pub async fn send_recv(
        &self,
        (dest, send_tag): (u32, u32),
        bytes: &[u8],
        (source, tag): (impl Into<SourceFilter>, impl Into<TagFilter>),
    ) -> Result<Message, MessageError> {
        let mut receive = self.start_recv(source, tag);
        let ((), message) = both(self.send(dest, send_tag, bytes), receive.wait()).await?;
        Ok(message)
    }

    /// As [`send_recv`](Self::send_recv), but sends the bytes of `buffer` and puts the received ones in their place:
    /// `MPI_Sendrecv_replace`. No byte is copied for that.
    ///
    /// # Cancel safety
    /// The bytes are sent nevertheless, and `buffer` is empty; a message already matched is lost.
    ///
    /// # Errors
    /// [`MessageError`], after both have ended; `buffer` is then empty.
    pub async fn send_recv_replace(
        &self,
        (dest, send_tag): (u32, u32),
        buffer: &mut Vec<u8>,
        (source, tag): (impl Into<SourceFilter>, impl Into<TagFilter>),
    ) -> Result<crate::protocol::Status, MessageError> {
        let mut receive = self.start_recv(source, tag);
        let bytes = std::mem::take(buffer);
        let mut send = self.start_send(dest, send_tag, SendMode::Standard, bytes)?;
        let ((), message) = both(send.wait(), receive.wait()).await?;
        *buffer = message.bytes;
        Ok(message.status)
    }
}
