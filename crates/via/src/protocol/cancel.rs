//! Sends that are taken back, abandoned or dropped.

use super::{
    CancelState, MessageEngine, RequestError, RequestId,
    envelope::{Control, Envelope, FrameKind},
    link::SendOutcome,
    request::{RequestEntry, SendBody, SendPhase},
};
use crate::vi::Provider;

impl<P: Provider> MessageEngine<P> {
    /// Tries to take a message back. If it has begun to leave, the receiver is asked, and the request ends
    /// either in [`RequestError::Cancelled`] or in the message's delivery, never in both.
    pub fn cancel_send(&mut self, id: RequestId) -> CancelState {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(id.0) else {
            return CancelState::TooLate;
        };
        let (rank, stage) = (send.peer, send.stage);
        if send.result.is_some() || send.is_matched || send.is_settled {
            return CancelState::TooLate;
        }
        if stage == SendPhase::Queued {
            self.unqueue(id.0, rank);
            return CancelState::Cancelled;
        }
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(id.0) else {
            return CancelState::TooLate;
        };
        if !std::mem::replace(&mut send.awaits_answer, true) {
            self.queue_control(rank, Control::Cancel { request: id.0 });
        }
        CancelState::Asked
    }

    fn unqueue(&mut self, key: u64, rank: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.outbox.retain(|one| *one != key);
        }
        self.release_buffered(key);
        self.requests.remove(key);
    }

    pub(super) fn cancel_answered(
        &mut self,
        rank: u32,
        key: u64,
        is_cancelled: bool,
    ) -> Result<(), &'static str> {
        // It may have been dropped since.
        let Some(send) = self.send_of(rank, key) else { return Ok(()) };
        if !std::mem::take(&mut send.awaits_answer) {
            return Err("an answer to nothing");
        }
        if send.result.is_some() {
            if send.is_detached && send.stage == SendPhase::Sent {
                self.requests.remove(key);
            }
            return Ok(());
        }
        if !is_cancelled {
            // It was matched, or all of it was received.
            send.is_matched = true;
            self.finish_send(key);
            return Ok(());
        }
        if send.is_matched {
            return Err("a cancelled message that was matched");
        }
        self.abort_stream(key);
        self.end_send(key, Err(RequestError::Cancelled));
        Ok(())
    }

    fn abort_stream(&mut self, key: u64) {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(key) else { return };
        let SendPhase::Open { stream } = send.stage else { return };
        send.stage = SendPhase::Aborted { stream };
        let rank = send.peer;
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.stalled.retain(|one| *one != key);
            peer.pumps.retain(|one| *one != key);
            peer.pumps.push_back(key);
        }
        self.list(rank);
    }

    pub(super) fn send_abort(&mut self, key: u64, rank: u32, stream: u32) -> SendOutcome {
        let kind = FrameKind::Abort;
        let head = Envelope { kind, flags: 0, context: 0, tag: 0, id: stream, length: 0 }.encode();
        let sent = self.push_frame(rank, &head, &[], 0, 0);
        if sent == SendOutcome::Done {
            self.answered(key);
            if let Some(peer) = self.peers.get_mut(rank as usize) {
                peer.close_stream(stream);
            }
            match self.requests.get_mut(key) {
                // No other message may get its index while the peer looks for it.
                Some(RequestEntry::Send(send)) if !send.is_detached || send.awaits_answer => {
                    send.stage = SendPhase::Sent;
                }
                _ => drop(self.requests.remove(key)),
            }
        }
        sent
    }

    /// Forgets a send whose owner was dropped. Bytes that the engine owns are still sent; of a borrowed
    /// message that has not wholly been sent, the receiver is told that the rest will not come.
    pub fn drop_send(&mut self, id: RequestId) {
        let Some(RequestEntry::Send(send)) = self.requests.get_mut(id.0) else { return };
        let (rank, stage) = (send.peer, send.stage);
        let is_borrowed = matches!(send.body, SendBody::Borrowed);
        if send.result.is_some() && !matches!(stage, SendPhase::Aborted { .. }) {
            self.requests.remove(id.0);
            return;
        }
        send.is_detached = true;
        match stage {
            SendPhase::Queued if is_borrowed => self.unqueue(id.0, rank),
            SendPhase::Open { .. } if is_borrowed => {
                self.abort_stream(id.0);
                self.end_send(id.0, Err(RequestError::Cancelled));
            }
            _ => {}
        }
    }
}
