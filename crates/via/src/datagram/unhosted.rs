//! A device without a detector of its own: for detectors that send and receive datagrams.

use std::{io, os::fd::BorrowedFd};

use super::{
    Counters, PortCounters, Received, UdpSettings,
    engine::{Carrier, DatagramEngine},
    error::{DatagramError, Node, PostError},
    over_link::OverLink,
    over_udp::OverUdp,
};
use crate::link::Link;

/// An interface with 256 ports, like a [`Device`](super::Device), at which its owner looks and sleeps by itself.
///
/// Nothing here waits. Datagrams that came in and whose port is not looked at stay in the kernel.
#[derive(Debug)]
pub struct Unhosted {
    engine: DatagramEngine,
}

impl Unhosted {
    /// Opens a device over a link, whose protocol is then that of its datagrams.
    #[must_use]
    pub fn over_link(link: Link) -> Self {
        Self { engine: DatagramEngine::new(Carrier::Link(Box::new(OverLink::new(link)))) }
    }

    /// Opens a device over UDP.
    ///
    /// # Errors
    /// [`DatagramError::Setting`].
    pub fn over_udp(settings: UdpSettings) -> Result<Self, DatagramError> {
        Ok(Self { engine: DatagramEngine::new(Carrier::Udp(OverUdp::new(settings)?)) })
    }

    /// Acquires a port until the device is dropped.
    ///
    /// # Errors
    /// [`DatagramError::PortTaken`], by this process or another.
    pub fn acquire(&mut self, number: u8) -> Result<(), DatagramError> {
        self.engine.acquire(number)
    }

    /// Receives what is sent to a group, at all ports.
    ///
    /// # Errors
    /// As [`Device::join`](super::Device::join).
    pub fn join(&mut self, group: Node) -> Result<(), DatagramError> {
        self.engine.join(group)
    }

    /// Keeps what this device sends to groups from coming back to its own host, where nobody else is a member: it spares
    /// the kernel a copy, and looks a datagram that is thrown away. For the ports that are acquired already.
    ///
    /// # Errors
    /// The kernel's.
    pub fn quiet_loop(&mut self) -> Result<(), DatagramError> {
        self.engine.quiet_loop()
    }

    /// Returns this interface's node, to which others send.
    #[must_use]
    pub fn node(&self) -> Node {
        self.engine.node()
    }

    /// Returns the longest datagram in bytes.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.engine.payload_max()
    }

    /// Returns what went through.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counters(&mut self) -> Result<Counters, DatagramError> {
        self.engine.counters()
    }

    /// Returns what arrived at a port.
    #[must_use]
    pub fn port_counters(&self, number: u8) -> PortCounters {
        self.engine.port_counters(number)
    }

    /// Gives a buffer for one datagram at a port.
    ///
    /// # Errors
    /// As [`Port::post`](super::Port::post); and if nobody has acquired the port.
    pub fn post(&mut self, number: u8, buffer: Vec<u8>) -> Result<(), PostError> {
        self.engine.post(number, buffer)
    }

    /// Takes in what has come to a port, calls `take` with each datagram, and posts its buffer again. Returns how many
    /// there were, which is no more than buffers were posted.
    ///
    /// # Cost
    /// Over UDP a system call for eight datagrams, and one for each socket of the port, its own and one per group, apart
    /// from those that have had nothing for long: at these every eighth call looks.
    ///
    /// # Errors
    /// [`DatagramError::Removed`]. While the interface is down there is nothing.
    #[inline]
    pub fn receive_each(
        &mut self,
        number: u8,
        mut take: impl FnMut(&Received),
    ) -> Result<usize, DatagramError> {
        let mut count = 0;
        let mut next = self.engine.receive(number)?;
        while let Some(received) = next {
            take(&received);
            count += 1;
            self.engine.post_again(number, received.buffer);
            next = self.engine.arrived(number);
        }
        Ok(count)
    }

    /// Sends a datagram if that can be done at once.
    ///
    /// # Errors
    /// As [`Port::try_send`](super::Port::try_send).
    #[inline]
    pub fn try_send(
        &mut self,
        from_port: u8,
        to: Node,
        to_port: u8,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        self.engine.try_send(from_port, to, to_port, payload)
    }

    /// Prepares for sleep: from now on a datagram that comes makes the [descriptor](Self::descriptor) readable. Returns
    /// whether one may be there already.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.engine.prepare()
    }

    /// Returns the descriptor to sleep on, the same for life. Its edges alone count: it may stay readable.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.engine.descriptor()
    }
}
