//! A link whose frames you can await.

use std::{collections::VecDeque, io};

use vigie_detect::{ArmOutcome, Engine, EngineContext, RegisterError, Server, WatchedDescriptor};

use super::{
    Checksum, EthernetHeader, Frame, FrameError, Link, LinkError, LinkEvent, MacAddress, Statistics,
};
use crate::spinning::{SpinningHost, UNCLAIMED_READINESS_MAX};

/// The most frames that one poll takes in.
const POLL_FRAMES: usize = 32;

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedFrame {
    /// The frame's bytes, with the header.
    pub bytes: Vec<u8>,
    /// The state of the checksum of the packet inside.
    pub checksum: Checksum,
    /// The VLAN tag that the kernel has removed.
    pub tag: Option<u16>,
    /// True if the frame was longer than a slot.
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
    pub fn header(&self) -> Result<EthernetHeader, FrameError> {
        EthernetHeader::parse(&self.bytes)
    }

    /// Returns the bytes behind the header. Ethernet pads short frames with zeros.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn payload(&self) -> Result<&[u8], FrameError> {
        let header = self.header()?;
        Ok(self.bytes.get(header.payload_offset..).unwrap_or_default())
    }
}

#[derive(Clone, Copy, Debug)]
enum LinkRequest {
    Frame,
    Room,
    Event,
}

#[derive(Debug)]
enum LinkOutput {
    Frame(OwnedFrame),
    Room,
    Event(LinkEvent),
    Failed(LinkError),
}

#[derive(Debug)]
struct LinkEngine {
    link: Link,
    /// Frames taken in and not yet returned: at most those of one poll and those of dropped waits.
    arrived: VecDeque<OwnedFrame>,
}

impl Engine for LinkEngine {
    type Request = LinkRequest;
    type Output = LinkOutput;

    fn take(&mut self, want: &LinkRequest) -> Option<LinkOutput> {
        match want {
            LinkRequest::Frame => {
                if self.arrived.is_empty() {
                    let arrived = &mut self.arrived;
                    let polled = self.link.recv_each(POLL_FRAMES, |frame| {
                        arrived.push_back(OwnedFrame::new(frame));
                    });
                    match polled {
                        // Frames come again when the interface is up.
                        Ok(_) | Err(LinkError::Down) => {}
                        Err(error) => return Some(LinkOutput::Failed(error)),
                    }
                }
                match self.arrived.pop_front() {
                    Some(frame) => Some(LinkOutput::Frame(frame)),
                    None => {
                        self.link.is_removed().then_some(LinkOutput::Failed(LinkError::Removed))
                    }
                }
            }
            LinkRequest::Room => match self.link.flush() {
                Err(error) if error.is_final() => Some(LinkOutput::Failed(error)),
                _ if self.link.has_room() => Some(LinkOutput::Room),
                _ => None,
            },
            LinkRequest::Event => match self.link.next_event() {
                Ok(Some(event)) => Some(LinkOutput::Event(event)),
                Ok(None) => {
                    self.link.is_removed().then_some(LinkOutput::Failed(LinkError::Removed))
                }
                Err(error) => Some(LinkOutput::Failed(error)),
            },
        }
    }

    fn put_back(&mut self, _: &LinkRequest, found: LinkOutput) -> Option<LinkOutput> {
        match found {
            LinkOutput::Frame(frame) => self.arrived.push_front(frame),
            LinkOutput::Event(event) => self.link.put_back(event),
            LinkOutput::Room | LinkOutput::Failed(_) => return Some(found),
        }
        None
    }

    fn arm(&mut self, _: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        self.link.poll_monitor().map_err(io::Error::other)?;
        let _ = self.link.flush();
        // While the interface is down, only the news that it is up again makes room.
        let awaits_room = !self.link.has_room() || self.link.has_unsent();
        let awaits_room = awaits_room && self.link.is_up();
        self.link.await_room(awaits_room).map_err(io::Error::other)?;
        let is_ready = !self.arrived.is_empty() || self.link.is_removed() || self.link.is_ready();
        Ok(ArmOutcome::ready_if(is_ready))
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        each(WatchedDescriptor::readable(self.link.descriptor()));
    }

    fn spurious_events_max(&self) -> Option<u32> {
        Some(UNCLAIMED_READINESS_MAX)
    }
}

/// A [`Link`] at a detection server. Clones share it.
#[derive(Clone, Debug)]
pub struct AsyncLink {
    host: SpinningHost<LinkEngine>,
}

impl AsyncLink {
    /// Registers a link with a detection server: [`Server::current`] inside a vigie runtime, a host thread's
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn new(server: &Server, link: Link) -> Result<Self, RegisterError> {
        let engine = LinkEngine { link, arrived: VecDeque::new() };
        Ok(Self { host: SpinningHost::new(server, "link", engine)? })
    }

    /// Calls `f` with the link, under its lock. Use it for everything that does not wait.
    pub fn with<T>(&self, f: impl FnOnce(&mut Link) -> T) -> T {
        self.host.with(|engine| f(&mut engine.link))
    }

    /// Waits for the next frame. Of several waiters, each gets a different one.
    ///
    /// # Cancel safety
    /// Cancel safe: a frame that arrived for a dropped wait goes to the next one.
    ///
    /// # Errors
    /// [`LinkError::Removed`]. While the interface is down, the call keeps waiting.
    pub async fn recv(&self) -> Result<OwnedFrame, LinkError> {
        match self.host.wait(LinkRequest::Frame).await? {
            LinkOutput::Frame(frame) => Ok(frame),
            LinkOutput::Failed(error) => Err(error),
            found => unreachable!("invariant: {found:?} is not a frame"),
        }
    }

    /// Sends a frame, waiting for room.
    ///
    /// # Cancel safety
    /// Cancel safe: the frame is either sent or not sent at all.
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
            match self.host.wait(LinkRequest::Room).await? {
                LinkOutput::Failed(error) => return Err(error),
                _room => {}
            }
        }
    }

    /// Waits for the next change of the interface.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LinkError::Removed`], once [`LinkEvent::Removed`] was returned.
    pub async fn next_event(&self) -> Result<LinkEvent, LinkError> {
        match self.host.wait(LinkRequest::Event).await? {
            LinkOutput::Event(event) => Ok(event),
            LinkOutput::Failed(error) => Err(error),
            found => unreachable!("invariant: {found:?} is not an event"),
        }
    }

    /// Returns the traffic counters.
    ///
    /// # Errors
    /// As [`Link::statistics`].
    pub fn statistics(&self) -> Result<Statistics, LinkError> {
        self.with(Link::statistics)
    }
}
