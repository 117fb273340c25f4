//! A forwarder whose interfaces a detection server watches.

use std::{fmt, io, os::fd::AsFd};

use vigie_detect::{
    Armed, Detector, Emitted, EventStream, Handle, Instant, Interest, Methods, Notice,
    RegisterError, Registration, Round, Server, Site, WaitError,
};

use super::{Forwarder, HostEvent};

/// Turns in one look: then others' events have their turn.
const TURNS_MAX: usize = 8;

/// A [`Forwarder`] at a detection server: it forwards whenever its host looks for events, and its host sleeps
/// until a frame is there, or polls before, as its policy decides.
///
/// ```no_run
/// # use vigie_forward::host::{Forwarder, Hosted};
/// # async fn example(forwarder: Forwarder) -> Result<(), Box<dyn std::error::Error>> {
/// let host = vigie_detect::Server::spawn_thread()?;
/// let hosted = Hosted::new(host.server(), forwarder)?;
/// let mut events = hosted.start()?;
/// while let Some(event) = events.next().await {
///     println!("{:?}", event?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Hosted {
    handle: Handle<Watch>,
}

/// What happens to the interfaces of a [`Hosted`] forwarder, which forwards as long as this lives.
#[must_use = "nothing is forwarded once it is dropped"]
pub struct HostEvents {
    stream: EventStream<Watch>,
}

impl Hosted {
    /// Brings a forwarder to a detection server: [`Server::current`] inside a vigie runtime, or a host thread's
    /// elsewhere.
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
        let count = forwarder.ports.len();
        let watch = Watch { forwarder, site: None, watched: vec![None; count] };
        Ok(Self { handle: server.register(watch, registration)? })
    }

    /// Begins to forward, for as long as what is returned lives.
    ///
    /// # Errors
    /// [`WaitError`] if the server is closed.
    pub fn start(&self) -> Result<HostEvents, WaitError> {
        Ok(HostEvents { stream: self.handle.stream(())? })
    }

    /// Calls `f` with the forwarder, under its lock: for counters and settings. `None` once the server is
    /// closed.
    pub fn with<T>(&self, f: impl FnOnce(&mut Forwarder) -> T) -> Option<T> {
        self.handle.with_detector(|watch| f(&mut watch.forwarder))
    }
}

impl HostEvents {
    /// Waits until something happens to an interface. `None` once the server is closed.
    ///
    /// # Cancel safety
    /// Cancel safe; forwarding goes on.
    ///
    /// # Errors
    /// [`WaitError`].
    pub async fn next(&mut self) -> Option<Result<HostEvent, WaitError>> {
        self.stream.next().await
    }
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").finish_non_exhaustive()
    }
}

impl fmt::Debug for HostEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEvents").finish_non_exhaustive()
    }
}

/// The forwarder as a detector.
struct Watch {
    forwarder: Forwarder,
    site: Option<Site>,
    /// Of each port, the descriptor that is watched, and the number of its interface.
    watched: Vec<Option<(std::sync::Arc<std::os::fd::OwnedFd>, u32)>>,
}

impl Watch {
    /// Watches the links that are open, and no others.
    fn follow_links(&mut self) -> io::Result<()> {
        let Some(site) = &self.site else { return Ok(()) };
        for (number, attachment) in self.forwarder.ports.iter_mut().enumerate() {
            let Some(place) = self.watched.get_mut(number) else { continue };
            let generation = attachment.generation();
            if place.as_ref().map(|(_, seen)| *seen) == attachment.link().map(|_| generation) {
                continue;
            }
            if let Some((descriptor, _)) = place.take() {
                site.unwatch(descriptor.as_fd())?;
            }
            if let Some(link) = attachment.link() {
                let descriptor = link.descriptor().try_clone_to_owned()?;
                let key = u32::try_from(number).map_err(io::Error::other)?;
                site.watch(descriptor.as_fd(), key, Interest::Readable)?;
                *place = Some((std::sync::Arc::new(descriptor), generation));
            }
        }
        Ok(())
    }

    /// Gives events to the oldest stream.
    fn report(&mut self, round: &mut Round<'_, Self>) {
        while let Some(key) = round.oldest() {
            let Some(event) = self.forwarder.event() else { return };
            if let Emitted::Full(event) = round.emit(key, event) {
                self.forwarder.events.push_front(event);
                return;
            }
        }
    }
}

impl Detector for Watch {
    type Request = ();
    type Event = HostEvent;

    fn methods(&self) -> Methods {
        Methods::GROUP | Methods::NOTIFY
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.site = Some(site.clone());
        self.follow_links()
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        if round.oldest().is_none() {
            return;
        }
        let mut turns = 0;
        while self.forwarder.turn(round.now()) > 0 {
            turns += 1;
            if turns == TURNS_MAX {
                round.more();
                break;
            }
        }
        self.report(round);
    }

    fn notified(&mut self, _: &[Notice], round: &mut Round<'_, Self>) {
        self.poll(round);
    }

    fn arm(&mut self) -> io::Result<Armed> {
        self.follow_links()?;
        let now = self.site.as_ref().map_or(Instant::from_nanos(0), Site::now);
        self.forwarder.watch(now);
        self.follow_links()?;
        let is_ready = self.forwarder.arm().map_err(io::Error::other)?;
        Ok(if is_ready { Armed::Ready } else { Armed::Armed })
    }

    fn unclaimed(&mut self, event: HostEvent) -> Option<HostEvent> {
        self.forwarder.events.push_front(event);
        None
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.forwarder.next_deadline()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(site) = &self.site {
            for (descriptor, _) in self.watched.iter().flatten() {
                // The server may be gone.
                let _ = site.unwatch(descriptor.as_fd());
            }
        }
    }
}
