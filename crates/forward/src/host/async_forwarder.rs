//! A forwarder whose interfaces are watched by a detection server.

use std::{fmt, io};

use vigie_detect::{
    ArmOutcome, Engine, EngineContext, EngineEvents, EngineHost, Instant, Progress, RegisterError,
    Registration, Server, WaitError, WatchedDescriptor,
};

use super::{Forwarder, HostEvent};

/// The maximum number of ticks per poll pass, so that other engines get their turn.
const TICKS_MAX: usize = 8;

/// A [`Forwarder`] registered with a detection server: it forwards whenever its host polls for events; its host sleeps
/// until a frame arrives, or polls first, as its policy decides.
///
/// ```no_run
/// # use vigie_forward::host::{Forwarder, AsyncForwarder};
/// # async fn example(forwarder: Forwarder) -> Result<(), Box<dyn std::error::Error>> {
/// let host = vigie_detect::Server::spawn_thread()?;
/// let forwarder = AsyncForwarder::new(host.server(), forwarder)?;
/// let mut events = forwarder.start()?;
/// while let Some(event) = events.next().await {
///     println!("{:?}", event?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncForwarder {
    host: EngineHost<HostEngine>,
}

/// The events of an [`AsyncForwarder`]'s interfaces. Forwarding goes on as long as this lives.
#[must_use = "nothing is forwarded once it is dropped"]
pub struct HostEvents {
    events: EngineEvents<HostEngine>,
}

impl AsyncForwarder {
    /// Registers a forwarder with a detection server: [`Server::current`] inside a vigie runtime, or a host thread's
    /// server elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, forwarder: Forwarder) -> Result<Self, RegisterError> {
        Self::with_registration(server, forwarder, Registration::named("forwarder"))
    }

    /// As [`new`](Self::new), with a name and a policy: [`Fixed`](vigie_detect::Fixed) with
    /// `Strategy::PollGroup` spins.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn with_registration(
        server: &Server,
        forwarder: Forwarder,
        registration: Registration,
    ) -> Result<Self, RegisterError> {
        let engine = HostEngine { forwarder: Some(forwarder) };
        Ok(Self { host: EngineHost::new(server, engine, registration)? })
    }

    /// Starts forwarding, for as long as the returned value lives.
    ///
    /// # Errors
    /// [`WaitError`] if the server is closed.
    pub fn start(&self) -> Result<HostEvents, WaitError> {
        Ok(HostEvents { events: self.host.events(())? })
    }

    /// Calls `f` with the forwarder, under its lock: for counters and settings. `None` if the server is closed, or in a
    /// forked child.
    pub fn with<T>(&self, f: impl FnOnce(&mut Forwarder) -> T) -> Option<T> {
        if self.host.is_inherited() {
            return None;
        }
        self.host.post(|engine| engine.forwarder.as_mut().map(f))
    }
}

impl HostEvents {
    /// Waits for the next event of an interface. `None` once the server is closed.
    ///
    /// # Cancel safety
    /// Cancel safe; forwarding goes on.
    ///
    /// # Errors
    /// [`WaitError`].
    pub async fn next(&mut self) -> Option<Result<HostEvent, WaitError>> {
        self.events.next().await
    }
}

impl fmt::Debug for AsyncForwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncForwarder").finish_non_exhaustive()
    }
}

impl fmt::Debug for HostEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEvents").finish_non_exhaustive()
    }
}

/// The forwarder as an engine.
struct HostEngine {
    /// `None` once the server has ended, with the forwarder's interfaces.
    forwarder: Option<Forwarder>,
}

impl Engine for HostEngine {
    type Request = ();
    type Output = HostEvent;

    fn take(&mut self, (): &()) -> Option<HostEvent> {
        self.forwarder.as_mut()?.next_event()
    }

    fn put_back(&mut self, (): &(), event: HostEvent) -> Option<HostEvent> {
        match &mut self.forwarder {
            Some(forwarder) => {
                forwarder.events.push_front(event);
                None
            }
            None => Some(event),
        }
    }

    fn progress(&mut self, context: &EngineContext<'_>) -> Progress {
        // It forwards only while a `HostEvents` exists.
        let Some(forwarder) = self.forwarder.as_mut().filter(|_| context.has_waiters()) else {
            return Progress::Done;
        };
        let now = context.now();
        for _ in 0..TICKS_MAX {
            if forwarder.tick(now) == 0 {
                return Progress::Done;
            }
        }
        Progress::More
    }

    fn arm(&mut self, context: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        let Some(forwarder) = &mut self.forwarder else { return Ok(ArmOutcome::Armed) };
        forwarder.watch(context.now());
        let is_ready = forwarder.arm().map_err(io::Error::other)?;
        Ok(ArmOutcome::ready_if(is_ready))
    }

    /// The descriptors of the open links, numbered by port.
    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        let ports = self.forwarder.iter().flat_map(|forwarder| &forwarder.ports);
        for (key, attachment) in (0..).zip(ports) {
            if let Some(link) = attachment.link() {
                let named = WatchedDescriptor::readable(link.descriptor());
                each(named.key(key).generation(attachment.generation()));
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.forwarder.as_ref()?.next_deadline()
    }

    fn closed(&mut self) {
        self.forwarder = None;
    }
}
