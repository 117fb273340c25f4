//! Datagrams between numbered ports: the MCD library of [eth-barrier, §2], over a [`Link`] or over UDP.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use vigie_via::datagram::{Device, UdpSettings};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = vigie_detect::Server::spawn_thread()?;
//! let settings = UdpSettings::new(Ipv4Addr::LOCALHOST.into()).base_port(23_000);
//! let device = Device::over_udp(host.server(), settings)?;
//! let (left, right) = (device.acquire(1)?, device.acquire(2)?);
//! right.post(vec![0; 100])?;
//! left.send(device.node(), 2, b"hello".to_vec()).await?;
//! let received = right.receive().await?;
//! assert_eq!((received.payload(), received.from_port), (&b"hello"[..], 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised [eth-barrier, §2.2–2.3]
//! - Each interface has 256 ports, each of which one process owns: the kernel arbitrates, and gives it free
//!   when the process ends, however it ends.
//! - A send does not wait, and completes when its buffer may be used again. A datagram goes to one node or
//!   to a group.
//! - A datagram is put into the buffer that was posted first at its port. Without a buffer, or without the
//!   port, it is dropped and counted.
//! - Nothing is reliable: datagrams are lost without a word, but whole if they arrive. What is longer than
//!   the MTU is an error at the sender.
//!
//! # Deviations
//! - [eth-barrier, §2.1] is a driver and a kernel module; this is a library: a datagram waits in the kernel
//!   (512 frames of a link, a socket's buffer over UDP) until somebody waits at the device or looks.
//! - Over a link, each process that has opened the interface sees the datagrams for ports of the others, and
//!   counts them in [`Counters::no_port`]. A datagram does not reach ports of the interface that sends it.
//! - Over UDP, the peer's kernel says that nobody has a port, and [`Counters::unreachable`] counts that at the
//!   sender. A datagram reaches ports of the same address, and one for a group all members on the host but
//!   the sending port.
//!
//! # Who serves it
//! One [`Device`] is one detector: inside a vigie runtime the scheduler polls it or sleeps on it; elsewhere a
//! host thread, and the futures work in any runtime.

mod batch;
mod engine;
mod error;
mod header;
mod over_link;
mod over_udp;
#[cfg(test)]
mod tests;
mod unhosted;

use std::{
    future::Future,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};

use vigie_detect::Server;

use self::{
    engine::{Carrier, DatagramEngine, Found, Want},
    over_link::OverLink,
    over_udp::OverUdp,
};
pub use self::{
    error::{DatagramError, Node, PostError, SendFailed},
    header::{HEADER_BYTES, Header, HeaderError},
    unhosted::Unhosted,
};
use crate::{
    link::Link,
    spin::{SpinHost, SpinWait},
};

/// What went through a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams that were given to the kernel.
    pub sent: u64,
    /// Dropped: for a port that this device has not acquired.
    pub no_port: u64,
    /// Dropped: no datagram, cut off, or not from where it says.
    pub malformed: u64,
    /// Dropped by the kernel: nobody had taken those before it. Over a link.
    pub overrun: u64,
    /// Sent, and the peer's kernel says that nobody has the port. Over UDP.
    pub unreachable: u64,
}

/// What arrived at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Datagrams in buffers.
    pub received: u64,
    /// Dropped: no buffer was posted.
    pub no_buffer: u64,
    /// Dropped: the buffer that was posted first was too small. It stays posted.
    pub too_small: u64,
}

/// A datagram in the buffer that was posted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The buffer, as long as it was posted: post it again.
    pub buffer: Vec<u8>,
    /// How many of its bytes are the datagram.
    pub length: usize,
    /// Who says to have sent it.
    pub from: Node,
    /// The sender's port.
    pub from_port: u8,
    /// It was sent to a group.
    pub is_multicast: bool,
}

impl Received {
    /// Returns the datagram.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or_default()
    }
}

/// Where datagrams over UDP come and go.
#[derive(Clone, Copy, Debug)]
#[must_use = "settings do nothing by themselves"]
pub struct UdpSettings {
    address: IpAddr,
    base_port: u16,
    mtu: u32,
}

impl UdpSettings {
    /// Begins with an address of this host; only there anything listens.
    pub const fn new(address: IpAddr) -> Self {
        Self { address, base_port: 22_016, mtu: 1500 }
    }

    /// Sets which UDP port is port 0: 1 to 65 280, 22 016 by default. All nodes take the same.
    pub const fn base_port(mut self, port: u16) -> Self {
        self.base_port = port;
        self
    }

    /// Sets the MTU of the network in bytes, with the headers of IP: 576 to 65 535, 1500 by default.
    pub const fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }
}

/// An interface with 256 ports. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Device {
    host: SpinHost<DatagramEngine>,
}

impl Device {
    /// Opens a device over a link, whose protocol is then that of its datagrams.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn over_link(server: &Server, link: Link) -> Result<Self, DatagramError> {
        Self::new(server, Carrier::Link(Box::new(OverLink::new(link))))
    }

    /// Opens a device over UDP.
    ///
    /// # Errors
    /// [`DatagramError::Setting`]; as [`Server::register`].
    pub fn over_udp(server: &Server, settings: UdpSettings) -> Result<Self, DatagramError> {
        Self::new(server, Carrier::Udp(OverUdp::new(settings)?))
    }

    fn new(server: &Server, carrier: Carrier) -> Result<Self, DatagramError> {
        Ok(Self { host: SpinHost::new(server, "datagram", DatagramEngine::new(carrier))? })
    }

    /// Acquires a port until it is dropped.
    ///
    /// # Errors
    /// [`DatagramError::PortTaken`], by this process or another.
    pub fn acquire(&self, number: u8) -> Result<Port, DatagramError> {
        self.host.with(|engine| engine.acquire(number))?;
        Ok(Port { host: self.host.clone(), number })
    }

    /// Receives what is sent to a group, at all ports.
    ///
    /// # Errors
    /// [`DatagramError::WrongNode`] for what is no group of the device's kind; the kernel's.
    pub fn join(&self, group: Node) -> Result<(), DatagramError> {
        self.host.with(|engine| engine.join(group))
    }

    /// Returns this interface's node, to which others send.
    #[must_use]
    pub fn node(&self) -> Node {
        self.host.with(|engine| engine.node())
    }

    /// Returns the longest datagram in bytes.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.host.with(|engine| engine.payload_max())
    }

    /// Returns what went through.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counters(&self) -> Result<Counters, DatagramError> {
        self.host.with(DatagramEngine::counters)
    }
}

/// A port that this process owns.
#[derive(Debug)]
#[must_use = "a port that is dropped is free for others"]
pub struct Port {
    host: SpinHost<DatagramEngine>,
    number: u8,
}

impl Port {
    /// Returns its number.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Gives a buffer for one datagram that is not longer.
    ///
    /// # Errors
    /// [`PostError`] beyond 1024 buffers, those with datagrams that nobody took among them.
    pub fn post(&self, buffer: Vec<u8>) -> Result<(), PostError> {
        self.host.with(|engine| engine.post(self.number, buffer))
    }

    /// Waits for the next datagram. Post buffers first: without one there is nothing to wait for.
    ///
    /// # Cancel safety
    /// Cancel safe: a datagram that came in for a wait that was dropped goes to the next one.
    ///
    /// # Errors
    /// [`DatagramError::Removed`]. While the interface is down it waits.
    pub async fn receive(&self) -> Result<Received, DatagramError> {
        match self.host.wait(Want::Received(self.number)).await? {
            Found::Received(received) => Ok(received),
            Found::Failed(error) => Err(error),
            found @ Found::Sent(_) => unreachable!("invariant: {found:?} is no datagram"),
        }
    }

    /// Takes the next datagram if one is there.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn try_receive(&self) -> Result<Option<Received>, DatagramError> {
        self.host.with(|engine| engine.receive(self.number))
    }

    /// Sends a datagram to a port of a node or of a group, without waiting. What is returned completes when
    /// the buffer may be used again, and gives it back; the datagram goes out whether or not that is waited
    /// for.
    pub fn send(&self, to: Node, to_port: u8, payload: Vec<u8>) -> Sending<'_> {
        let started = self.host.with(|engine| engine.start_send(self.number, to, to_port, payload));
        let host = &self.host;
        match started {
            Ok(sent) => Sending { host, state: SendingState::Done(Some(sent)) },
            Err(ticket) => {
                let wait = host.wait(Want::Sent(ticket));
                Sending { host, state: SendingState::Waits(ticket, wait) }
            }
        }
    }

    /// Sends a datagram if that can be done at once.
    ///
    /// # Errors
    /// [`DatagramError::Full`], [`DatagramError::TooLong`], [`DatagramError::Down`],
    /// [`DatagramError::Removed`].
    pub fn try_send(&self, to: Node, to_port: u8, payload: &[u8]) -> Result<(), DatagramError> {
        self.host.with(|engine| engine.try_send(self.number, to, to_port, payload))
    }

    /// Returns what arrived.
    #[must_use]
    pub fn counters(&self) -> PortCounters {
        self.host.with(|engine| engine.port_counters(self.number))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.host.with(|engine| engine.release(self.number));
    }
}

/// A send under way: completes with its buffer.
///
/// # Cancel safety
/// The datagram goes out all the same; its buffer is dropped.
#[must_use = "the datagram goes out all the same, and its buffer is lost"]
pub struct Sending<'a> {
    host: &'a SpinHost<DatagramEngine>,
    state: SendingState<'a>,
}

enum SendingState<'a> {
    Done(Option<Result<Vec<u8>, SendFailed>>),
    Waits(u64, SpinWait<'a, DatagramEngine>),
}

impl std::fmt::Debug for Sending<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_done = matches!(self.state, SendingState::Done(_));
        f.debug_struct("Sending").field("is_done", &is_done).finish_non_exhaustive()
    }
}

impl Future for Sending<'_> {
    type Output = Result<Vec<u8>, SendFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let failed = |error| Err(SendFailed { error, payload: Vec::new() });
        let sent = match &mut self.state {
            SendingState::Done(sent) => {
                return sent.take().map_or(Poll::Pending, Poll::Ready);
            }
            SendingState::Waits(_, wait) => match std::task::ready!(Pin::new(wait).poll(cx)) {
                Ok(Found::Sent(sent)) => sent,
                Ok(Found::Failed(error)) => failed(error),
                Ok(found @ Found::Received(_)) => {
                    unreachable!("invariant: {found:?} is no completion")
                }
                Err(error) => failed(error.into()),
            },
        };
        self.state = SendingState::Done(None);
        Poll::Ready(sent)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let SendingState::Waits(ticket, _) = self.state {
            self.host.with(|engine| engine.forget(ticket));
        }
    }
}
