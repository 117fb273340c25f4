//! Sets of requests: a wait for any, some or all of them.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    task::Poll,
};

use super::{
    Message, MessageError, ReceiveRequest, SendRequest, endpoint_engine::EndpointInner,
    request::UntilReady,
};
use crate::{
    protocol::{MessageEngine, RequestError, RequestId},
    vi::Provider,
};

/// The most requests that one poll of a set polls.
const POLLS_MAX: usize = 256;

/// The outcome of a request of a [`RequestSet`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a request sends or receives")]
pub enum RequestOutcome {
    /// The message was sent, as its mode says.
    Sent,
    /// This message was received.
    Received(Message),
}

/// A request of a set that has ended: the number that the set gave it, and its result.
pub type Ended = (usize, Result<RequestOutcome, MessageError>);

/// Requests that are waited for together: `MPI_Waitany`, `MPI_Waitsome`, `MPI_Waitall`, `MPI_Testany`, `MPI_Testsome` and
/// `MPI_Testall`.
///
/// Each request gets a number when it joins, counted from 0 and never given again. A request leaves the set with its result.
/// If you drop the set, its sends go on and its receives are taken back, as if you had dropped the requests.
///
/// # Cost
/// A request that becomes ready is put on a list, so that a poll of the set costs as much as there are ready requests, and not as
/// there are requests.
///
/// # Examples
/// ```
/// # use vigie_via::{message::{Communicator, RequestOutcome, MessageError}, protocol::SendMode, vi::Provider};
/// /// Sends a number to all ranks, and adds those of all ranks as they come.
/// async fn sum<P: Provider>(all: &Communicator<P>, own: u8) -> Result<u64, MessageError> {
///     let mut requests = all.request_set();
///     for rank in 0..all.size() {
///         let _ = requests.push_recv(all.start_recv(rank, 1));
///         let _ = requests.push_send(all.start_send(rank, 1, SendMode::Standard, vec![own])?);
///     }
///     let mut sum = 0;
///     while let Some((_, ended)) = requests.wait_any().await {
///         if let RequestOutcome::Received(message) = ended? {
///             sum += u64::from(message.bytes[0]);
///         }
///     }
///     Ok(sum)
/// }
/// ```
pub struct RequestSet<P: Provider> {
    inner: Arc<EndpointInner<P>>,
    id: RequestId,
    /// By their keys in the engine.
    members: BTreeMap<u64, (usize, SetRequest<P>)>,
    /// Those that have ended and were not returned yet.
    ended: VecDeque<Ended>,
    next: usize,
}

enum SetRequest<P: Provider> {
    Send(SendRequest<P>),
    Receive(ReceiveRequest<P>),
}

/// Polls the requests of a set that may have made progress, until `wanted` have ended or none is left to poll.
fn poll_set<P: Provider>(
    engine: &mut MessageEngine<P>,
    set: RequestId,
    members: &mut BTreeMap<u64, (usize, SetRequest<P>)>,
    ended: &mut VecDeque<Ended>,
    wanted: usize,
) {
    for _ in 0..POLLS_MAX {
        if ended.len() >= wanted {
            return;
        }
        let Some(id) = engine.next_in_set(set) else { return };
        let Some((_, request)) = members.get_mut(&id.0) else { continue };
        let polled = match request {
            SetRequest::Send(_) => engine.poll_send(id, None).map_ok(|()| RequestOutcome::Sent),
            SetRequest::Receive(receive) => engine
                .poll_receive(id, &mut receive.bytes)
                .map_ok(|status| RequestOutcome::Received(receive.take_message(status))),
        };
        if let Poll::Ready(result) = polled
            && let Some((number, request)) = members.remove(&id.0)
        {
            request.end();
            ended.push_back((number, result.map_err(Into::into)));
        }
    }
    engine.poll_again(set);
}

impl<P: Provider> SetRequest<P> {
    /// Drops a request that has ended.
    fn end(self) {
        match self {
            Self::Send(mut send) => send.pending = None,
            Self::Receive(mut receive) => receive.id = None,
        }
    }
}

impl<P: Provider> RequestSet<P> {
    pub(super) fn new(inner: &Arc<EndpointInner<P>>) -> Self {
        let id = inner.with(MessageEngine::open_set);
        let inner = Arc::clone(inner);
        Self { inner, id, members: BTreeMap::new(), ended: VecDeque::new(), next: 0 }
    }

    /// Adds a send. Returns its number.
    ///
    /// # Errors
    /// The request, if it has not ended and is of another endpoint than the set.
    pub fn push_send(&mut self, request: SendRequest<P>) -> Result<usize, SendRequest<P>> {
        let id = match &request.pending {
            Some((inner, _)) if !Arc::ptr_eq(&self.inner, inner) => return Err(request),
            pending => pending.as_ref().map(|(_, id)| *id),
        };
        Ok(self.push(id, SetRequest::Send(request), Ok(RequestOutcome::Sent)))
    }

    /// Adds a receive. Returns its number.
    ///
    /// # Errors
    /// The request, if it is of another endpoint than the set.
    pub fn push_recv(&mut self, request: ReceiveRequest<P>) -> Result<usize, ReceiveRequest<P>> {
        if !Arc::ptr_eq(&self.inner, &request.inner) {
            return Err(request);
        }
        let id = request.id;
        Ok(self.push(id, SetRequest::Receive(request), Err(RequestError::Unknown.into())))
    }

    fn push(
        &mut self,
        id: Option<RequestId>,
        request: SetRequest<P>,
        over: Result<RequestOutcome, MessageError>,
    ) -> usize {
        let number = self.next;
        self.next += 1;
        match id {
            Some(id) => {
                self.members.insert(id.0, (number, request));
                self.inner.with(|engine| engine.join_set(id, self.id));
            }
            None => self.ended.push_back((number, over)),
        }
        number
    }

    /// Returns the number of requests whose result was not returned yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len() + self.ended.len()
    }

    /// Returns whether the results of all requests were returned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Polls without waiting, until `wanted` requests have ended.
    fn poll_members(&mut self, wanted: usize) {
        let Self { inner, id, members, ended, .. } = self;
        inner.with(|engine| poll_set(engine, *id, members, ended, wanted));
    }

    /// Waits until `wanted` requests have ended, and takes more as long as there are some ready.
    async fn fill(&mut self, wanted: usize, most: usize) -> Result<(), MessageError> {
        let Self { inner, id, members, ended, .. } = self;
        UntilReady::new(inner, *id, |engine: &mut MessageEngine<P>, id| {
            poll_set(engine, id, members, ended, most);
            if ended.len() >= wanted { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    /// Waits until one request has ended, and returns it; `None` if the set is empty. Requests are returned in the order in which they end.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing leaves the set before it is returned.
    pub async fn wait_any(&mut self) -> Option<Ended> {
        if self.ended.is_empty() && !self.members.is_empty() {
            self.wait_for(1, 1).await;
        }
        self.ended.pop_front()
    }

    /// Waits until at least one request has ended, and returns all that have; nothing if the set is empty.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing leaves the set before it is returned.
    pub async fn wait_some(&mut self) -> Vec<Ended> {
        if self.ended.is_empty() && !self.members.is_empty() {
            self.wait_for(1, usize::MAX).await;
        }
        self.test_some()
    }

    /// Waits until all requests have ended, and returns them in the order of their numbers.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing leaves the set before it is returned.
    pub async fn wait_all(&mut self) -> Vec<Ended> {
        if !self.members.is_empty() {
            self.wait_for(self.len(), usize::MAX).await;
        }
        self.take_all()
    }

    /// Waits for requests. If the detection server ends, so does every request.
    async fn wait_for(&mut self, wanted: usize, most: usize) {
        if let Err(first) = self.fill(wanted, most).await {
            let mut error = Some(first);
            for (number, request) in std::mem::take(&mut self.members).into_values() {
                drop(request);
                let error =
                    error.take().unwrap_or_else(|| vigie_detect::WaitError::ServerClosed.into());
                self.ended.push_back((number, Err(error)));
            }
        }
    }

    /// Returns a request that has ended, without waiting.
    pub fn test_any(&mut self) -> Option<Ended> {
        if self.ended.is_empty() {
            self.poll_members(1);
        }
        self.ended.pop_front()
    }

    /// Returns all requests that have ended, without waiting.
    pub fn test_some(&mut self) -> Vec<Ended> {
        self.poll_members(usize::MAX);
        self.ended.drain(..).collect()
    }

    /// Returns all requests in the order of their numbers, if all have ended.
    pub fn test_all(&mut self) -> Option<Vec<Ended>> {
        self.poll_members(usize::MAX);
        self.members.is_empty().then(|| self.take_all())
    }

    fn take_all(&mut self) -> Vec<Ended> {
        let mut all: Vec<_> = self.ended.drain(..).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }
}

impl<P: Provider> Drop for RequestSet<P> {
    fn drop(&mut self) {
        let members = std::mem::take(&mut self.members);
        self.inner.drop_with(|engine| {
            members.keys().for_each(|key| engine.leave_set(RequestId(*key)));
            engine.close_set(self.id);
        });
    }
}

impl<P: Provider> fmt::Debug for RequestSet<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSet")
            .field("pending", &self.members.len())
            .field("ended", &self.ended.len())
            .finish_non_exhaustive()
    }
}
