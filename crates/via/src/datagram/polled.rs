//! A device without a detector of its own, for detectors that send and receive datagrams.

use std::{io, os::fd::BorrowedFd};

use vigie_detect::ArmOutcome;

use super::{
    DatagramCounters, PortCounters, Received, UdpConfig,
    engine::{DatagramEngine, DatagramTransport},
    error::{DatagramError, NodeAddress, PostError},
    over_link::OverLink,
    ports::DatagramRoute,
};
use crate::link::Link;

/// An interface with 256 ports, like a [`Device`](super::Device), which its owner polls and sleeps on itself.
///
/// No call waits. Datagrams for a port that is not polled stay in the kernel.
#[derive(Debug)]
pub struct PolledDevice {
    engine: DatagramEngine,
}

impl PolledDevice {
    /// Opens a device over a link. The link's protocol is that of the datagrams.
    #[must_use]
    pub fn over_link(link: Link) -> Self {
        Self { engine: DatagramEngine::new(DatagramTransport::Link(Box::new(OverLink::new(link)))) }
    }

    /// Opens a device over UDP.
    ///
    /// # Errors
    /// [`DatagramError::InvalidSetting`].
    pub fn over_udp(config: UdpConfig) -> Result<Self, DatagramError> {
        Ok(Self { engine: DatagramEngine::new(DatagramTransport::udp(config)?) })
    }

    /// Acquires a port until the device is dropped.
    ///
    /// # Errors
    /// [`DatagramError::PortTaken`], by this process or another.
    pub fn acquire_port(&mut self, number: u8) -> Result<(), DatagramError> {
        self.engine.acquire(number)
    }

    /// Joins a group: all ports receive what is sent to it.
    ///
    /// # Errors
    /// As [`Device::join_group`](super::Device::join_group).
    pub fn join_group(&mut self, group: NodeAddress) -> Result<(), DatagramError> {
        self.engine.join(group)
    }

    /// Stops what this device sends to groups from coming back to its own host, where no other member may be: this
    /// saves the kernel a copy, and receivers a datagram to discard. It affects the ports acquired so far.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disable_loopback(&mut self) -> Result<(), DatagramError> {
        self.engine.disable_loopback()
    }

    /// Returns the node of this interface, which others send to.
    #[must_use]
    pub fn node(&self) -> NodeAddress {
        self.engine.node()
    }

    /// Returns the longest datagram in bytes.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.engine.payload_max()
    }

    /// Returns the traffic counters.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counters(&mut self) -> Result<DatagramCounters, DatagramError> {
        self.engine.counters()
    }

    /// Returns the counters of a port.
    #[must_use]
    pub fn port_counters(&self, number: u8) -> PortCounters {
        self.engine.port_counters(number)
    }

    /// Posts a buffer for one datagram at a port.
    ///
    /// # Errors
    /// As [`Port::post`](super::Port::post); it also fails if this device has not acquired the port.
    pub fn post(&mut self, number: u8, buffer: Vec<u8>) -> Result<(), PostError> {
        self.engine.post(number, buffer)
    }

    /// Takes in what has arrived at a port, calls `take` with each datagram, and posts its buffer again. Returns the
    /// number of datagrams, at most that of the posted buffers.
    ///
    /// # Cost
    /// Over UDP one system call for eight datagrams, and one for each socket of the port: its own and one per group.
    /// Sockets that have received nothing for long are polled only in every eighth call.
    ///
    /// # Errors
    /// [`DatagramError::Removed`]. While the interface is down, there are no datagrams.
    #[inline]
    pub fn recv_each(
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

    /// Sends a datagram if that is possible at once.
    ///
    /// # Errors
    /// As [`Port::try_send`](super::Port::try_send).
    #[inline]
    pub fn try_send(
        &mut self,
        from_port: u8,
        to: NodeAddress,
        to_port: u8,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        self.engine.try_send(DatagramRoute { from_port, to, to_port }, payload)
    }

    /// Prepares for sleep: from now on a datagram that arrives makes the [descriptor](Self::descriptor) readable.
    ///
    /// # Errors
    /// The kernel's.
    pub fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.engine.prepare().map(ArmOutcome::ready_if)
    }

    /// Returns the descriptor to sleep on, which never changes. Watch its edges: it may stay readable.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.engine.descriptor()
    }
}
