//! A link whose frames are awaited.

use std::{collections::VecDeque, io};

use vigie_detect::{Armed, Engine, RegisterError, Server, Turn, WatchedDescriptor};

use super::{
    Checksum, Frame, FrameError, Header, Link, LinkError, LinkEvent, MacAddress, Statistics,
};
use crate::{VAIN_ANNOUNCEMENTS_MAX, spin::SpinHost};

/// Frames that are taken in with one look.
const LOOK_FRAMES: usize = 32;

/// A frame that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedFrame {
    /// Its bytes, with the header.
    pub bytes: Vec<u8>,
    /// What is known of the checksum inside.
    pub checksum: Checksum,
    /// The VLAN tag that the kernel has taken out.
    pub tag: Option<u16>,
    /// It was longer than a slot.
    pub is_cut: bool,
}

impl OwnedFrame {
    fn new(frame: &Frame<'_>) -> Self {
        Self {
            bytes: frame.to_vec(),
            checksum: frame.checksum(),
            tag: frame.tag(),
            is_cut: frame.is_cut(),
        }
    }

    /// Returns the header.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn header(&self) -> Result<Header, FrameError> {
        Header::parse(&self.bytes)
    }

    /// Returns what is behind the header. Ethernet pads short frames with zeros.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn payload(&self) -> Result<&[u8], FrameError> {
        let header = self.header()?;
        Ok(self.bytes.get(header.payload_offset..).unwrap_or_default())
    }
}

#[derive(Clone, Copy, Debug)]
enum Want {
    Frame,
    Room,
    Event,
}

#[derive(Debug)]
enum Found {
    Frame(OwnedFrame),
    Room,
    Event(LinkEvent),
    Failed(LinkError),
}

#[derive(Debug)]
struct LinkEngine {
    link: Link,
    /// Taken in and not yet given out: at most as many as a look takes, and those of waits that left.
    arrived: VecDeque<OwnedFrame>,
}

impl Engine for LinkEngine {
    type Want = Want;
    type Found = Found;

    fn take(&mut self, want: &Want) -> Option<Found> {
        match want {
            Want::Frame => {
                if self.arrived.is_empty() {
                    let arrived = &mut self.arrived;
                    let looked = self.link.receive(LOOK_FRAMES, |frame| {
                        arrived.push_back(OwnedFrame::new(frame));
                    });
                    match looked {
                        // Frames come again when it is up.
                        Ok(_) | Err(LinkError::Down) => {}
                        Err(error) => return Some(Found::Failed(error)),
                    }
                }
                match self.arrived.pop_front() {
                    Some(frame) => Some(Found::Frame(frame)),
                    None => self.link.is_removed().then_some(Found::Failed(LinkError::Removed)),
                }
            }
            Want::Room => match self.link.flush() {
                Err(error) if error.is_final() => Some(Found::Failed(error)),
                _ if self.link.has_room() => Some(Found::Room),
                _ => None,
            },
            Want::Event => match self.link.event() {
                Ok(Some(event)) => Some(Found::Event(event)),
                Ok(None) => self.link.is_removed().then_some(Found::Failed(LinkError::Removed)),
                Err(error) => Some(Found::Failed(error)),
            },
        }
    }

    fn put_back(&mut self, _: &Want, found: Found) -> Option<Found> {
        match found {
            Found::Frame(frame) => self.arrived.push_front(frame),
            Found::Event(event) => self.link.put_back(event),
            Found::Room | Found::Failed(_) => return Some(found),
        }
        None
    }

    fn arm(&mut self, _: &Turn<'_>) -> io::Result<Armed> {
        self.link.look().map_err(io::Error::other)?;
        let _ = self.link.flush();
        // While it is down, nothing but the news that it is up again makes room.
        let awaits_room = !self.link.has_room() || self.link.has_unsent();
        let awaits_room = awaits_room && self.link.is_up();
        self.link.await_room(awaits_room).map_err(io::Error::other)?;
        let is_ready = !self.arrived.is_empty() || self.link.is_removed() || self.link.is_ready();
        Ok(if is_ready { Armed::Ready } else { Armed::Armed })
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.link.descriptor()));
    }

    fn vain_announcements_max(&self) -> Option<u32> {
        Some(VAIN_ANNOUNCEMENTS_MAX)
    }
}

/// A [`Link`] at a detection server. Clones are the same one.
#[derive(Clone, Debug)]
pub struct HostedLink {
    host: SpinHost<LinkEngine>,
}

impl HostedLink {
    /// Brings a link to a detection server: [`Server::current`] inside a vigie runtime, or a host thread's
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, link: Link) -> Result<Self, RegisterError> {
        let engine = LinkEngine { link, arrived: VecDeque::new() };
        Ok(Self { host: SpinHost::new(server, "link", engine)? })
    }

    /// Calls `f` with the link, under its lock: for everything that does not wait.
    pub fn with<T>(&self, f: impl FnOnce(&mut Link) -> T) -> T {
        self.host.with(|engine| f(&mut engine.link))
    }

    /// Waits for the next frame. With several waiters each gets another one.
    ///
    /// # Cancel safety
    /// Cancel safe: a frame that came in for a wait that was dropped goes to the next one.
    ///
    /// # Errors
    /// [`LinkError::Removed`]. While the interface is down it waits.
    pub async fn receive(&self) -> Result<OwnedFrame, LinkError> {
        match self.host.wait(Want::Frame).await? {
            Found::Frame(frame) => Ok(frame),
            Found::Failed(error) => Err(error),
            found => unreachable!("invariant: {found:?} is no frame"),
        }
    }

    /// Sends a frame, waiting for room.
    ///
    /// # Cancel safety
    /// Cancel safe: it was sent, or not at all.
    ///
    /// # Errors
    /// [`LinkError::TooLong`], [`LinkError::Down`], [`LinkError::Removed`].
    pub async fn send(&self, destination: MacAddress, payload: &[u8]) -> Result<(), LinkError> {
        loop {
            let sent = self.with(|link| {
                link.send(destination, &[payload])?;
                link.flush()
            });
            match sent {
                Err(LinkError::Full) => {}
                sent => return sent,
            }
            match self.host.wait(Want::Room).await? {
                Found::Failed(error) => return Err(error),
                _room => {}
            }
        }
    }

    /// Waits until something becomes of the interface.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LinkError::Removed`] after that was told once.
    pub async fn event(&self) -> Result<LinkEvent, LinkError> {
        match self.host.wait(Want::Event).await? {
            Found::Event(event) => Ok(event),
            Found::Failed(error) => Err(error),
            found => unreachable!("invariant: {found:?} is no event"),
        }
    }

    /// Returns what went through.
    ///
    /// # Errors
    /// As [`Link::statistics`].
    pub fn statistics(&self) -> Result<Statistics, LinkError> {
        self.with(Link::statistics)
    }
}
