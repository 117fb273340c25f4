//! The provider over raw Ethernet frames: VIs between the hosts of one network, bypassing the kernel's
//! network stack.
//!
//! An [`Ether`] is a [software NIC](crate::software_nic) over a [`Link`]. It reaches every NIC on the
//! same network; nothing is routed. Frames travel through the link's rings: one call makes the kernel
//! send all that were filled in, and polling for arrivals takes no call.
//!
//! # Ports
//! A port of 16 bits, carried in each frame, distinguishes the NICs of one interface and protocol. The
//! kernel arbitrates ports through the addresses of abstract Unix sockets, which belong to the network
//! namespace, as the interface does, and vanish with their process; it also drops frames for other ports
//! before they arrive. With AF_XDP an interface has only one NIC, since its queue has only one owner.
//!
//! A frame to the interface's own address would never come back, so NICs that share an interface reach
//! each other through those Unix sockets.
//!
//! # Long packets
//! Packets are as long as the interface's frames. If the MTU shrinks, packets that were made before are
//! fragmented, and reassembled at the other end. The interface needs an MTU of at least [`MTU_MIN`].
//!
//! # Changes of the interface
//! | event | effect |
//! | --- | --- |
//! | down, then up | packets meanwhile are lost, and sent again later; a peer that is silent for
//! [`dead_after`](SoftwareNicConfig::dead_after) is dead |
//! | MTU changes | packets become shorter at once, but longer only after a peer was silent or for new
//! connections; an MTU above that at opening is not used |
//! | removed | as down, but for good: connections end with
//! [`TransportFailed`](crate::vi::DisconnectReason::TransportFailed), and [`EtherWire::is_removed`] returns `true`
//! |
//! | new address | peers do not know it: as removed, until the NIC is reopened |
//!
//! # Trust
//! Any sender of frames can forge addresses and ports; [`software_nic`](crate::software_nic#trust) says
//! what that gains. Any process of the host can take a port by its Unix socket, and send to those of
//! others, but must know the secret too.
//!
//! # Examples
//! ```no_run
//! use vigie_via::{ether::Ether, software_nic::Secret, vi::Provider};
//!
//! let secret = Secret::new([7; 16]); // of 16 random bytes that all ranks have been given
//! let mut nic = Ether::builder("eth0").open(secret)?;
//! nic.listen(b"greeter")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod encap;
mod error;
mod neighbours;
mod reassembly;
mod wire;

use std::time::Duration;

use vigie_detect::Instant;

use crate::{
    auth::random,
    link::{BackEnd, EtherType, Link, LinkBuilder, OpenError},
    software_nic::{Secret, SoftwareNic, SoftwareNicConfig},
};

use self::neighbours::Neighbours;
pub use self::{
    encap::{EtherPath, MTU_MIN},
    error::EtherError,
    wire::{EtherCounters, EtherWire},
};

/// The longest time that an AF_XDP queue may take to become free after its last owner has closed it.
const QUEUE_PATIENCE: Duration = Duration::from_millis(100);

/// A NIC over raw Ethernet frames.
pub type Ether = SoftwareNic<EtherWire>;

impl Ether {
    /// Starts the configuration of a NIC on an interface.
    pub fn builder(interface: impl Into<String>) -> EtherBuilder {
        let link = Link::builder(interface)
            .ether_type(EtherType::EXPERIMENTAL_2)
            .receive_frames(1024)
            .send_frames(256);
        EtherBuilder { link, port: 0, config: SoftwareNicConfig::default() }
    }
}

/// The settings of an [`Ether`].
#[derive(Clone, Debug)]
#[must_use = "no NIC is opened without `open`"]
pub struct EtherBuilder {
    link: LinkBuilder,
    port: u16,
    config: SoftwareNicConfig,
}

impl EtherBuilder {
    /// Sets the protocol of the frames: the same for all peers, and used by no other program on this
    /// network. Default: [`EtherType::EXPERIMENTAL_2`], since [datagrams](crate::datagram) have the
    /// other one.
    pub const fn ether_type(mut self, ether_type: EtherType) -> Self {
        self.link.ether_type = ether_type;
        self
    }

    /// Sets what carries the frames; peers may use another. Default: [`BackEnd::Automatic`], which is
    /// AF_PACKET.
    pub const fn back_end(mut self, back_end: BackEnd) -> Self {
        self.link.back_end = back_end;
        self
    }

    /// Sets the port of the NIC. Default 0: any free port.
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the receive queue of the interface for [`BackEnd::Xdp`]. Default: 0.
    pub const fn queue(mut self, queue: u32) -> Self {
        self.link.queue = queue;
        self
    }

    /// Sets how many frames the kernel keeps until they are taken: 1 to 65 536, 1024 by default. Each
    /// connection may have [`window_bytes`](SoftwareNicConfig::window_bytes) in flight to this NIC; what does not
    /// fit is lost, and sent again.
    pub const fn receive_frames(mut self, frames: u32) -> Self {
        self.link.receive_frames = frames;
        self
    }

    /// Sets how many frames may wait to be sent: 1 to 65 536, 256 by default.
    pub const fn send_frames(mut self, frames: u32) -> Self {
        self.link.send_frames = frames;
        self
    }

    /// Sets for how long the kernel polls the network card before it sleeps, as
    /// [`LinkBuilder::busy_poll`](crate::link::LinkBuilder::busy_poll). Default: not at all.
    pub const fn busy_poll(mut self, time: Duration) -> Self {
        self.link.busy_poll = time;
        self
    }

    /// Sets the configuration of the software NIC. Default: [`SoftwareNicConfig::default`].
    pub const fn config(mut self, config: SoftwareNicConfig) -> Self {
        self.config = config;
        self
    }

    /// Opens the NIC, in the network namespace of the calling thread. Only NICs with the same secret, protocol and
    /// configuration can connect.
    ///
    /// A queue of AF_XDP becomes free a moment after its owner has ended: this waits up to 100 ms for
    /// one that is taken.
    ///
    /// # Errors
    /// [`EtherError`]; a missing `CAP_NET_RAW` is an [`OpenError::MissingCapability`] in it.
    pub fn open(self, secret: Secret) -> Result<Ether, EtherError> {
        let config = self.config;
        let seed = random().map_err(EtherError::kernel("asking for random bytes"))?;
        Ok(SoftwareNic::new(self.open_wire()?, secret, config, seed))
    }

    /// Opens the wire that carries the NIC's packets.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_wire(self) -> Result<EtherWire, EtherError> {
        if self.link.ether_type == EtherType::ALL {
            return Err(EtherError::AllProtocols);
        }
        let mut link = self.open_link()?;
        let neighbours = Neighbours::claim(link.index(), self.link.ether_type, self.port)?;
        link.keep_only(encap::PORT_OFFSET, neighbours.port())
            .map_err(EtherError::kernel("filtering frames by port"))?;
        let mtu = link.payload_max();
        if mtu < MTU_MIN {
            return Err(EtherError::MtuTooSmall { name: self.link.name, mtu });
        }
        EtherWire::new(link, neighbours)
    }

    fn open_link(&self) -> Result<Link, OpenError> {
        let begun = Instant::now();
        loop {
            match self.link.clone().open() {
                Err(error) if error.is_in_use() && begun.elapsed() < QUEUE_PATIENCE => {
                    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                    let _ = rustix::event::poll(&mut [], Some(&moment));
                }
                opened => return opened,
            }
        }
    }
}
