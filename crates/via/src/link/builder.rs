//! The settings with which a link is opened.

use std::time::Duration;

use vigie_detect::refuse_in_simulation;

use super::{
    BackEnd, Link,
    address::{EtherType, MacAddress},
    error::OpenError,
    monitor::Monitor,
    packet::{ForeignFrames, LinkSettings, PacketSocket},
    socket::LinkSocket,
    xdp::Xdp,
};

/// The settings of a [`Link`].
#[derive(Clone, Debug)]
#[must_use = "no link is opened without `open`"]
pub struct LinkBuilder {
    pub(crate) name: String,
    pub(crate) ether_type: EtherType,
    pub(crate) back_end: BackEnd,
    pub(crate) receive_frames: u32,
    pub(crate) send_frames: u32,
    pub(crate) busy_poll: Duration,
    foreign: ForeignFrames,
    bypasses_queue: bool,
    pub(crate) queue: u32,
    takes_segments: bool,
    sends_segments: bool,
    adds_headers: bool,
}

/// The most frames of a ring.
const FRAMES_MAX: u32 = 1 << 16;
/// The highest queue number of an interface.
const QUEUE_MAX: u32 = 4095;

impl LinkBuilder {
    pub(super) const fn new(name: String) -> Self {
        Self {
            name,
            ether_type: EtherType::EXPERIMENTAL_1,
            back_end: BackEnd::Automatic,
            receive_frames: 512,
            send_frames: 128,
            busy_poll: Duration::ZERO,
            foreign: ForeignFrames::Dropped,
            bypasses_queue: false,
            queue: 0,
            takes_segments: false,
            sends_segments: false,
            adds_headers: false,
        }
    }

    /// Sets the protocol of the frames that are received and sent. Default: [`EtherType::EXPERIMENTAL_1`].
    pub const fn ether_type(mut self, ether_type: EtherType) -> Self {
        self.ether_type = ether_type;
        self
    }

    /// Sets the back end. Default: [`BackEnd::Automatic`].
    pub const fn back_end(mut self, back_end: BackEnd) -> Self {
        self.back_end = back_end;
        self
    }

    /// Sets how many frames the kernel keeps until they are taken: 1 to 65 536, 512 by default, rounded up to
    /// whole blocks of memory. Further frames are dropped and counted.
    pub const fn receive_frames(mut self, frames: u32) -> Self {
        self.receive_frames = frames;
        self
    }

    /// Sets how many frames may wait to be sent: 1 to 65 536, 128 by default, rounded up.
    pub const fn send_frames(mut self, frames: u32) -> Self {
        self.send_frames = frames;
        self
    }

    /// Sets how long the kernel polls the network card in a call before it sleeps (`SO_BUSY_POLL`), in whole
    /// microseconds, at most one second; more than the host's limit needs `CAP_NET_ADMIN`. Default: not at
    /// all.
    pub const fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// Also receives frames to other interfaces. Default: no.
    pub const fn promiscuous(mut self) -> Self {
        self.foreign = ForeignFrames::Wanted;
        self
    }

    /// Also receives, by AF_PACKET, frames to this interface that a program has marked as another host's (`PACKET_OTHERHOST`), so that the
    /// kernel ignores them. With them come those to other interfaces, if something else has made the interface promiscuous. Default: no.
    pub const fn marked_foreign(mut self) -> Self {
        if matches!(self.foreign, ForeignFrames::Dropped) {
            self.foreign = ForeignFrames::Received;
        }
        self
    }

    /// Passes frames to the network card without its queueing discipline: they are sent sooner, but dropped
    /// when it is busy. Default: no.
    pub const fn bypass_queue(mut self) -> Self {
        self.bypasses_queue = true;
        self
    }

    /// Receives whole segments of up to 64 KiB that no network card has cut yet. Slots then take 128 KiB, so
    /// set fewer [`receive_frames`](Self::receive_frames). Default: no, and such frames are cut off. AF_XDP
    /// never receives whole segments, and its program makes this host's kernel cut them where it can.
    pub const fn segments(mut self) -> Self {
        self.takes_segments = true;
        self
    }

    /// Also sends whole segments ([`Link::send_segments`]), by a socket of their own, with AF_PACKET. Default: no.
    pub const fn sends_segments(mut self) -> Self {
        self.sends_segments = true;
        self
    }

    /// Also opens, by AF_PACKET, interfaces whose packets have no Ethernet header: tun, WireGuard, tunnels of IPv4. Each packet received
    /// then gets a header with addresses of zeros and the link's protocol (or, for [`EtherType::ALL`], that of its version of IP), and loses the
    /// header when it is sent. Default: no, and [`open`](Self::open) refuses such interfaces.
    pub const fn adds_headers(mut self) -> Self {
        self.adds_headers = true;
        self
    }

    /// Sets which receive queue of the interface is used, for [`BackEnd::Xdp`]. Default: 0.
    pub const fn queue(mut self, queue: u32) -> Self {
        self.queue = queue;
        self
    }

    /// Opens the link, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(self) -> Result<Link, OpenError> {
        for (name, value) in
            [("receive_frames", self.receive_frames), ("send_frames", self.send_frames)]
        {
            if !(1..=FRAMES_MAX).contains(&value) {
                let range = "between 1 and 65536";
                return Err(OpenError::InvalidSetting { name, value: value.into(), range });
            }
        }

        let busy_poll_us = self.busy_poll.as_micros();
        if busy_poll_us > 1_000_000 {
            let value = u64::try_from(busy_poll_us).unwrap_or(u64::MAX);
            let range = "at most 1000000 (microseconds)";
            return Err(OpenError::InvalidSetting { name: "busy_poll", value, range });
        }

        refuse_in_simulation("interfaces for raw frames", "use datagrams over UDP there")
            .map_err(|source| OpenError::Kernel { what: "opening a link", source })?;
        let monitor = Monitor::open(&self.name)?;
        let by_packets = !matches!(self.back_end, BackEnd::Xdp | BackEnd::XdpOrPacket);
        if monitor.interface().is_headerless && !(self.adds_headers && by_packets) {
            return Err(OpenError::NotEthernet { name: self.name });
        }
        let settings = LinkSettings {
            index: monitor.interface().index,
            ether_type: self.ether_type,
            mtu: monitor.interface().mtu,
            receive_frames: self.receive_frames,
            send_frames: self.send_frames,
            busy_poll_us: u32::try_from(busy_poll_us).unwrap_or(u32::MAX),
            foreign: self.foreign,
            bypasses_queue: self.bypasses_queue,
            takes_segments: self.takes_segments,
            sends_segments: self.sends_segments,
            is_headerless: monitor.interface().is_headerless,
        };

        let socket = match self.back_end {
            BackEnd::Xdp => self.open_xdp(&monitor, &settings)?,
            BackEnd::XdpOrPacket => match self.open_xdp(&monitor, &settings) {
                Ok(socket) => socket,
                Err(error) if error.is_in_use() => return Err(error),
                Err(error @ OpenError::NoQueue { .. }) => return Err(error),
                Err(reason) => {
                    tracing::warn!(
                        interface = self.name,
                        reason = &reason as &dyn std::error::Error,
                        "AF_PACKET instead of AF_XDP"
                    );
                    LinkSocket::Packet(PacketSocket::open(&settings, true, false)?)
                }
            },
            BackEnd::Automatic | BackEnd::PacketRings | BackEnd::PacketCalls => {
                let wants_rings = self.back_end != BackEnd::PacketCalls;
                let needs_rings = self.back_end == BackEnd::PacketRings;
                LinkSocket::Packet(PacketSocket::open(&settings, wants_rings, needs_rings)?)
            }
        };

        tracing::debug!(
            interface = self.name,
            back_end = ?socket.back_end(),
            mode = ?socket.xdp_mode(),
            "link opened"
        );
        Link::new(self.name, monitor, socket, self.ether_type)
            .map_err(|source| OpenError::Kernel { what: "watching the interface", source })
    }

    fn open_xdp(
        &self,
        monitor: &Monitor,
        settings: &LinkSettings,
    ) -> Result<LinkSocket, OpenError> {
        let queue = self.queue;
        if queue > QUEUE_MAX {
            return Err(OpenError::NoQueue { name: self.name.clone(), queue });
        }
        let own = monitor.interface().address.unwrap_or(MacAddress::BROADCAST);
        Ok(LinkSocket::Xdp(Box::new(Xdp::open(&self.name, settings, queue, own)?)))
    }
}
