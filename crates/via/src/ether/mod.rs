//! The provider over raw Ethernet frames: VIs between the hosts of one network, past the kernel's network stack.
//!
//! An [`Ether`] is a [software NIC](crate::software_nic) over a [`Link`]. It reaches whatever is on the same network:
//! nothing is routed. Frames travel by the link's rings, and one call makes the kernel send all that were filled in; to
//! look for arrivals takes no call.
//!
//! # Ports
//! NICs of one interface and protocol are told apart by a port of 16 bits, which stands in each frame. The kernel
//! arbitrates the ports by the addresses of abstract Unix sockets, which belong to the network namespace as the
//! interface does and vanish with their process, and it drops the frames for other ports before they arrive. With
//! AF_XDP an interface has one NIC: its queue has one owner.
//!
//! A frame to the interface's own address would depart and never come back. NICs that share an interface reach each
//! other through those same Unix sockets.
//!
//! # Long packets
//! Packets are as long as the interface's frames. If its MTU shrinks, those that were made before depart in pieces, and
//! are put together at the other end. The interface needs an MTU of at least [`MTU_MIN`].
//!
//! # What becomes of the interface
//! | event | effect |
//! | --- | --- |
//! | down, and up again | what departs meanwhile is lost, and sent again later; who is not heard of for [`dead_after`](Config::dead_after) is dead |
//! | its MTU changes | packets become shorter at once; longer ones are used when a peer was silent, or by new connections; one beyond that at opening is not used |
//! | it is removed | as down, but for good: connections end with [`TransportFailed`](crate::vi::Reason::TransportFailed), and [`EtherWire::is_removed`] tells |
//! | it gets another address | peers do not know it: as removed, until the NIC is opened anew |
//!
//! # Trust
//! Whoever can send frames can forge addresses and ports; what that is good for is said in [`software_nic`](crate::software_nic#trust). Any
//! process of the host can take a port by its Unix socket, and send to those of others, but has to know the secret too.
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

mod error;
mod front;
mod neighbours;
mod pieces;
mod wire;

use std::time::Duration;

use vigie_detect::Instant;

use crate::{
    link::{BackEnd, EtherType, Link, OpenError},
    software_nic::{Config, Secret, SoftwareNic},
    udp::random,
};

use self::neighbours::Neighbours;
pub use self::{
    error::EtherError,
    front::EtherPath,
    wire::{EtherCounters, EtherWire},
};

/// The least MTU of an interface, in bytes: a packet that all paths must take, and what stands before it.
pub const MTU_MIN: usize = 1200 + front::FRONT_BYTES;

/// How long a queue of AF_XDP may take to become free after its last owner has closed it.
const QUEUE_PATIENCE: Duration = Duration::from_millis(100);

/// A NIC over raw Ethernet frames.
pub type Ether = SoftwareNic<EtherWire>;

impl Ether {
    /// Begins with the settings of a NIC on an interface.
    pub fn builder(interface: impl Into<String>) -> EtherBuilder {
        EtherBuilder {
            interface: interface.into(),
            ether_type: EtherType::EXPERIMENTAL_2,
            back_end: BackEnd::Automatic,
            port: 0,
            queue: 0,
            receive_frames: 1024,
            send_frames: 256,
            busy_poll: Duration::ZERO,
            config: Config::default(),
        }
    }
}

/// The settings of an [`Ether`].
#[derive(Clone, Debug)]
#[must_use = "no NIC is opened without `open`"]
pub struct EtherBuilder {
    interface: String,
    ether_type: EtherType,
    back_end: BackEnd,
    port: u16,
    queue: u32,
    receive_frames: u32,
    send_frames: u32,
    busy_poll: Duration,
    config: Config,
}

impl EtherBuilder {
    /// Sets the protocol of the frames, the same for all peers, and one that nobody else uses on this network.
    /// Default: [`EtherType::EXPERIMENTAL_2`], since [datagrams](crate::datagram) have the other one.
    pub const fn ether_type(mut self, ether_type: EtherType) -> Self {
        self.ether_type = ether_type;
        self
    }

    /// Sets what carries the frames; peers need not have the same. Default: [`BackEnd::Automatic`], which is
    /// AF_PACKET.
    pub const fn back_end(mut self, back_end: BackEnd) -> Self {
        self.back_end = back_end;
        self
    }

    /// Sets the port of the NIC. Default 0: any that is free.
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets which receive queue of the interface is taken, for [`BackEnd::Xdp`]. Default: 0.
    pub const fn queue(mut self, queue: u32) -> Self {
        self.queue = queue;
        self
    }

    /// Sets how many frames the kernel keeps until they are taken: 1 to 65 536, 1024 by default. Each connection may
    /// have [`window_bytes`](Config::window_bytes) on the way here; what does not fit is lost, and sent again.
    pub const fn receive_frames(mut self, frames: u32) -> Self {
        self.receive_frames = frames;
        self
    }

    /// Sets how many frames may wait to be sent: 1 to 65 536, 256 by default.
    pub const fn send_frames(mut self, frames: u32) -> Self {
        self.send_frames = frames;
        self
    }

    /// Sets for how long the kernel polls the network card before it sleeps, as
    /// [`LinkBuilder::busy_poll`](crate::link::LinkBuilder::busy_poll). Default: not at all.
    pub const fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// Sets what the NIC may do, and when it gives up. Default: [`Config::default`].
    pub const fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Opens the NIC, in the network namespace of the calling thread. Only NICs with the same secret, protocol and
    /// configuration can connect.
    ///
    /// A queue of AF_XDP becomes free a moment after its owner has ended: this waits up to 100 ms for one that is taken.
    ///
    /// # Errors
    /// [`EtherError`]; a missing `CAP_NET_RAW` is an [`OpenError::MissingCapability`] in it.
    pub fn open(self, secret: Secret) -> Result<Ether, EtherError> {
        let config = self.config;
        let seed = random().map_err(EtherError::kernel("asking for random bytes"))?;
        Ok(SoftwareNic::new(self.open_wire()?, secret, config, seed))
    }

    /// Opens what carries the NIC's packets.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_wire(self) -> Result<EtherWire, EtherError> {
        if self.ether_type == EtherType::ALL {
            return Err(EtherError::AllProtocols);
        }
        let mut link = self.open_link()?;
        let neighbours = Neighbours::claim(link.index(), self.ether_type, self.port)?;
        link.keep_only(front::PORT_OFFSET, neighbours.port())
            .map_err(EtherError::kernel("filtering frames by port"))?;
        let mtu = link.payload_max();
        if mtu < MTU_MIN {
            return Err(EtherError::MtuTooSmall { name: self.interface, mtu });
        }
        EtherWire::new(link, neighbours)
    }

    fn open_link(&self) -> Result<Link, OpenError> {
        let begun = Instant::now();
        loop {
            let opened = Link::builder(self.interface.clone())
                .ether_type(self.ether_type)
                .back_end(self.back_end)
                .queue(self.queue)
                .receive_frames(self.receive_frames)
                .send_frames(self.send_frames)
                .busy_poll(self.busy_poll)
                .open();
            match opened {
                Err(error) if error.is_of_another_owner() && begun.elapsed() < QUEUE_PATIENCE => {
                    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                    let _ = rustix::event::poll(&mut [], Some(&moment));
                }
                opened => return opened,
            }
        }
    }
}
