//! A send and a receive at once.

use std::{
    future::{Future, poll_fn},
    io::IoSlice,
    pin::pin,
    task::Poll,
};

use super::{Communicator, Message, MessageError, SourceFilter, TagFilter};
use crate::{
    protocol::{SendMode, SendState},
    vi::Provider,
};

/// Waits for both; a send that fails does not wait for the receive. If the receive has failed before, that error is returned: a
/// communicator is told of a failed rank only once, while a send to it fails again.
async fn both<T>(
    send: impl Future<Output = Result<(), MessageError>>,
    receive: impl Future<Output = Result<T, MessageError>>,
) -> Result<T, MessageError> {
    let (mut send, mut receive) = (pin!(send), pin!(receive));
    let (mut is_sent, mut received) = (false, None);
    poll_fn(|cx| {
        if !is_sent && let Poll::Ready(ended) = send.as_mut().poll(cx) {
            match (ended, received.take()) {
                (Ok(()), earlier) => (is_sent, received) = (true, earlier),
                (Err(_), Some(Err(error))) | (Err(error), _) => return Poll::Ready(Err(error)),
            }
        }
        if received.is_none()
            && let Poll::Ready(ended) = receive.as_mut().poll(cx)
        {
            received = Some(ended);
        }
        if is_sent { received.take().map_or(Poll::Pending, Poll::Ready) } else { Poll::Pending }
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
    /// [`MessageError`]. A send that cannot begin fails before the receive is posted. One that fails later takes the receive back, and a
    /// message that this has already matched is lost: if you need it, use [`start_recv`](Self::start_recv) and [`send`](Self::send). If the
    /// receive fails, the error comes when the send has ended.
    pub async fn send_recv(
        &self,
        (dest, send_tag): (u32, u32),
        bytes: &[u8],
        (source, tag): (impl Into<SourceFilter>, impl Into<TagFilter>),
    ) -> Result<Message, MessageError> {
        let sent = self.begin_bytes(dest, send_tag, SendMode::Standard, bytes)?;
        let mut receive = self.start_recv(source, tag);
        let slices = [IoSlice::new(bytes)];
        let send = async {
            match sent {
                SendState::Done => Ok(()),
                SendState::Pending(id) => self.send_rest(id, Some(&slices)).await,
            }
        };
        both(send, receive.wait()).await
    }

    /// As [`send_recv`](Self::send_recv), but sends the bytes of `buffer` and puts the received ones in their place:
    /// `MPI_Sendrecv_replace`. No byte is copied for that.
    ///
    /// # Cancel safety
    /// The bytes are sent nevertheless, and `buffer` is empty; a message already matched is lost.
    ///
    /// # Errors
    /// As [`send_recv`](Self::send_recv); `buffer` is then empty.
    pub async fn send_recv_replace(
        &self,
        (dest, send_tag): (u32, u32),
        buffer: &mut Vec<u8>,
        (source, tag): (impl Into<SourceFilter>, impl Into<TagFilter>),
    ) -> Result<crate::protocol::Status, MessageError> {
        let bytes = std::mem::take(buffer);
        let mut send = self.start_send(dest, send_tag, SendMode::Standard, bytes)?;
        let mut receive = self.start_recv(source, tag);
        let message = both(send.wait(), receive.wait()).await?;
        *buffer = message.bytes;
        Ok(message.status)
    }
}
