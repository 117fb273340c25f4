//! Datagrams between numbered ports: the MCD library of [eth-barrier, §2], over a [`Link`] or over UDP.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use vigie_via::datagram::{Device, UdpConfig};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = vigie_detect::Server::spawn_thread()?;
//! let config = UdpConfig::new(Ipv4Addr::LOCALHOST.into()).base_port(23_000);
//! let device = Device::over_udp(host.server(), config)?;
//! let (left, right) = (device.acquire_port(1)?, device.acquire_port(2)?);
//! right.post(vec![0; 100])?;
//! left.send(device.node(), 2, b"hello".to_vec()).await?;
//! let received = right.recv().await?;
//! assert_eq!((received.payload(), received.from_port), (&b"hello"[..], 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees [eth-barrier, §2.2–2.3]
//! - Each interface has 256 ports, each owned by one process. The kernel arbitrates, and frees a port when
//!   its process ends, however it ends.
//! - A send does not wait, and completes when its buffer may be used again. A datagram goes to one node or to
//!   a group.
//! - A datagram is put into the buffer that was posted first at its port. Without a buffer, or without an
//!   owner of the port, it is dropped and counted.
//! - Delivery is unreliable: datagrams may be lost silently, but those that arrive are whole. A datagram
//!   longer than the MTU is an error at the sender.
//!
//! # Deviations
//! - [eth-barrier, §2.1] is a driver and a kernel module; this is a library: a datagram waits in the kernel
//!   (512 frames of a link, a socket's buffer over UDP) until the device is polled or waited on.
//! - Over a link, each process that has opened the interface also sees the datagrams for the others' ports, and
//!   counts them in [`DatagramCounters::no_port`]. A datagram does not reach ports of the interface that sends it.
//! - Over UDP, the peer's kernel reports a port without an owner, and the sender counts that in
//!   [`DatagramCounters::unreachable`]. A datagram also reaches ports of its own address, and one for a group reaches
//!   all members on the host but the sending port.
//!
//! # Hosting
//! One [`Device`] is one detector: inside a vigie runtime the scheduler polls it or sleeps on it; elsewhere a
//! host thread does, and the futures work in any runtime.

mod batch;
mod counters;
mod engine;
mod error;
mod header;
mod over_link;
mod over_simulated;
mod over_udp;
mod polled;
mod ports;
mod received;
#[cfg(test)]
mod tests;
mod udp_config;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use vigie_detect::Server;

pub use self::{
    counters::{DatagramCounters, PortCounters},
    error::{DatagramError, NodeAddress, PostError, SendFailed},
    header::{HEADER_BYTES, Header, HeaderError},
    polled::PolledDevice,
    received::Received,
    udp_config::UdpConfig,
};
use self::{
    engine::{DatagramEngine, DatagramOutput, DatagramRequest, DatagramTransport},
    over_link::OverLink,
    ports::DatagramRoute,
};
use crate::{
    link::Link,
    spinning::{SpinningHost, SpinningWait},
};

/// An interface with 256 ports. Clones share it.
#[derive(Clone, Debug)]
pub struct Device {
    host: SpinningHost<DatagramEngine>,
}

impl Device {
    /// Opens a device over a link. The link's protocol is that of the datagrams.
    ///
    /// # Errors
    /// As [`Server::register`].
    pub fn over_link(server: &Server, link: Link) -> Result<Self, DatagramError> {
        Self::new(server, DatagramTransport::Link(Box::new(OverLink::new(link))))
    }

    /// Opens a device over UDP; inside a simulation, over its network, which has no multicast.
    ///
    /// # Errors
    /// [`DatagramError::InvalidSetting`]; as [`Server::register`].
    pub fn over_udp(server: &Server, config: UdpConfig) -> Result<Self, DatagramError> {
        Self::new(server, DatagramTransport::udp(config)?)
    }

    fn new(server: &Server, transport: DatagramTransport) -> Result<Self, DatagramError> {
        Ok(Self { host: SpinningHost::new(server, "datagram", DatagramEngine::new(transport))? })
    }

    /// Acquires a port until the returned [`Port`] is dropped.
    ///
    /// # Errors
    /// [`DatagramError::PortTaken`], by this process or another.
    pub fn acquire_port(&self, number: u8) -> Result<Port, DatagramError> {
        self.host.with(|engine| engine.acquire(number))?;
        Ok(Port { host: self.host.clone(), number })
    }

    /// Joins a group: all ports receive what is sent to it.
    ///
    /// # Errors
    /// [`DatagramError::WrongNode`] if `group` is not a group of the device's kind; the kernel's.
    pub fn join_group(&self, group: NodeAddress) -> Result<(), DatagramError> {
        self.host.with(|engine| engine.join(group))
    }

    /// Returns the node of this interface, which others send to.
    #[must_use]
    pub fn node(&self) -> NodeAddress {
        self.host.with(|engine| engine.node())
    }

    /// Returns the longest datagram in bytes.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.host.with(|engine| engine.payload_max())
    }

    /// Returns the traffic counters.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counters(&self) -> Result<DatagramCounters, DatagramError> {
        self.host.with(DatagramEngine::counters)
    }
}

/// A port that this process owns.
#[derive(Debug)]
#[must_use = "dropping the port frees it for others"]
pub struct Port {
    host: SpinningHost<DatagramEngine>,
    number: u8,
}

impl Port {
    /// Returns the port's number.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Posts a buffer for one datagram, which must not be longer.
    ///
    /// # Errors
    /// [`PostError`] beyond 1024 buffers, counting those with datagrams that were not taken yet.
    pub fn post(&self, buffer: Vec<u8>) -> Result<(), PostError> {
        self.host.with(|engine| engine.post(self.number, buffer))
    }

    /// Waits for the next datagram. Post buffers first: without one, none can be received.
    ///
    /// # Cancel safety
    /// Cancel safe: a datagram that arrived for a dropped wait goes to the next one.
    ///
    /// # Errors
    /// [`DatagramError::Removed`]. While the interface is down, the call keeps waiting.
    pub async fn recv(&self) -> Result<Received, DatagramError> {
        match self.host.wait(DatagramRequest::Received(self.number)).await? {
            DatagramOutput::Received(received) => Ok(received),
            DatagramOutput::Failed(error) => Err(error),
            found @ DatagramOutput::Sent(_) => unreachable!("invariant: got {found:?}"),
        }
    }

    /// Returns the next datagram if one is there.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Option<Received>, DatagramError> {
        self.host.with(|engine| engine.receive(self.number))
    }

    /// Sends a datagram to a port of a node or of a group, without waiting. The returned future completes
    /// when the buffer may be used again, and returns it; the datagram is sent whether or not you await the
    /// future.
    pub fn send(&self, to: NodeAddress, to_port: u8, payload: Vec<u8>) -> Sending<'_> {
        let route = DatagramRoute { from_port: self.number, to, to_port };
        let started = self.host.with(|engine| engine.start_send(route, payload));
        let host = &self.host;
        match started {
            Ok(sent) => Sending { host, state: SendingState::Done(Some(sent)) },
            Err(ticket) => {
                let wait = host.wait(DatagramRequest::Sent(ticket));
                Sending { host, state: SendingState::Waits(ticket, wait) }
            }
        }
    }

    /// Sends a datagram if that is possible at once.
    ///
    /// # Errors
    /// [`DatagramError::Full`], [`DatagramError::TooLong`], [`DatagramError::Down`],
    /// [`DatagramError::Removed`].
    pub fn try_send(
        &self,
        to: NodeAddress,
        to_port: u8,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        let route = DatagramRoute { from_port: self.number, to, to_port };
        self.host.with(|engine| engine.try_send(route, payload))
    }

    /// Returns the port's traffic counters.
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
/// The datagram is sent nevertheless; its buffer is dropped.
#[must_use = "the datagram is sent without awaiting this, but its buffer is lost"]
pub struct Sending<'a> {
    host: &'a SpinningHost<DatagramEngine>,
    state: SendingState<'a>,
}

#[expect(clippy::large_enum_variant, reason = "a box would allocate for each send that waits")]
enum SendingState<'a> {
    Done(Option<Result<Vec<u8>, SendFailed>>),
    Waits(u64, SpinningWait<'a, DatagramEngine>),
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
                Ok(DatagramOutput::Sent(sent)) => sent,
                Ok(DatagramOutput::Failed(error)) => failed(error),
                Ok(found @ DatagramOutput::Received(_)) => {
                    unreachable!("invariant: {found:?} is not a completion")
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
