//! The endpoint of a rank: what its program holds of the message engine.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use vigie_detect::{
    EngineHost, Instant, RegisterError, Registration, Server, SharedWaiter, WaitError,
};

use super::{
    CloseError, Communicator,
    context::ContextTable,
    endpoint_engine::{EndpointEngine, EndpointInner, EndpointOutput, EndpointRequest},
};
use crate::{
    protocol::{EngineEvent, MessageEngine},
    vi::Provider,
};

/// Polls between two reads of the clock: about 1 µs.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// The message engine of one rank, hosted by a detection server. Clones share the endpoint; its connections
/// end with the last clone and the last of its communicators and requests.
///
/// # The end
/// A send is done before its receiver has the message: the message may wait for credit, for its receive, or for an acknowledgement.
/// [`close`](Self::close) waits until nothing does. After a drop, the server goes on with that for at most
/// [`EngineConfig::linger`](crate::protocol::EngineConfig::linger); if the server ends meanwhile, as it does with its runtime, its end
/// takes that long at most. What is not handed over then is lost, and logged as a warning. A process that ends without dropping its
/// runtime, as by [`std::process::exit`], loses it without a word: call `close` before.
pub struct Endpoint<P: Provider> {
    pub(super) inner: Arc<EndpointInner<P>>,
}

impl<P: Provider> Endpoint<P> {
    /// Registers an engine with a detection server: [`Server::current`] inside a vigie runtime, a host
    /// thread's elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, engine: MessageEngine<P>) -> Result<Self, RegisterError> {
        let registration = Registration::named(engine.nic().attributes().name);
        let waiter = SharedWaiter::at(server, engine.size(), POLLS_PER_CLOCK_READ);
        let host = EngineHost::new(server, EndpointEngine::new(server, engine), registration)?;
        host.run_in_background().map_err(|_| RegisterError::ServerClosed)?;
        let inner =
            EndpointInner { host, waiter, contexts: ContextTable::new(), watch: OnceLock::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Calls `f` with the engine, under the endpoint's lock. Use it for everything that does not wait.
    #[inline]
    pub fn with<T>(&self, f: impl FnOnce(&mut MessageEngine<P>) -> T) -> T {
        self.inner.with(f)
    }

    /// Returns the communicator of all ranks, in context 0. Each call returns the same context.
    #[must_use]
    pub fn communicator(&self) -> Communicator<P> {
        Communicator::new(Arc::clone(&self.inner), 0)
    }

    /// Waits for the next event of the engine: a connection that was made, refused or requested, or a rank
    /// that failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`WaitError`] when the server ends.
    pub async fn next_event(&self) -> Result<EngineEvent, WaitError> {
        match self.inner.host.wait(EndpointRequest::Event).await? {
            EndpointOutput::Event(event) => Ok(event),
            _ => unreachable!("invariant: a wait gets what it wants"),
        }
    }

    /// Waits until everything that was sent has been handed over, to this rank's communicators' peers and at most until `deadline`, and
    /// drops this clone of the endpoint: `MPI_Finalize`. Handed over is what the receiver's process has, or has acknowledged, whether or
    /// not a receive has matched it; of a message that is sent piece by piece, or that the receiver has only heard of, that is
    /// all of it. What was sent to ranks that have failed is not waited for.
    ///
    /// # Cancel safety
    /// Cancel safe: what is left is handed over as after a drop.
    ///
    /// # Errors
    /// [`CloseError`]. What has not been handed over by then is handed over as after a drop.
    pub async fn close(self, deadline: Instant) -> Result<(), CloseError> {
        match self.inner.host.wait(EndpointRequest::AllLeft(Some(deadline))).await? {
            EndpointOutput::AllLeft(ranks) if ranks.is_empty() => Ok(()),
            EndpointOutput::AllLeft(ranks) => {
                Err(CloseError::TimedOut { ranks: ranks.into_iter().collect() })
            }
            _ => unreachable!("invariant: a wait gets what it wants"),
        }
    }
}

impl<P: Provider> Clone for Endpoint<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("host", &self.inner.host).finish_non_exhaustive()
    }
}
