//! The carrier of a software NIC's packets, and its addresses.

use std::{fmt, io, os::fd::BorrowedFd};

use vigie_detect::{ArmOutcome, Instant};

use super::gather::Gather;

/// The source and destination of packets: an address of a [`Wire`].
pub trait Path: Copy + Ord + fmt::Debug + Send + 'static {
    /// Returns the bytes that identify it, at most 64.
    fn to_bytes(&self) -> Vec<u8>;

    /// Returns the path that these bytes identify, if any.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// A carrier of packets: it may lose, repeat, reorder and change them.
///
/// # Implementing
/// Nothing blocks. One received piece may hold several packets that were sent together, followed by zero
/// bytes, as in short Ethernet frames.
pub trait Wire: Send + 'static {
    /// Its addresses.
    type Path: Path;

    /// The name of the resulting provider, for messages and metrics. Addresses begin with it.
    const NAME: &'static str;

    /// Returns the time, on the clock of [`Provider::progress`](crate::vi::Provider::progress).
    fn now(&self) -> Instant;

    /// Returns the path at which others reach this end.
    fn path(&self) -> Self::Path;

    /// Sends packets of `packet_bytes` bytes each; the last may be shorter.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: nothing was sent, try again later. Any other error: the packets
    /// are lost.
    fn send(&mut self, to: Self::Path, packets: &[u8], packet_bytes: usize) -> io::Result<()>;

    /// Sends packets like [`send`](Self::send), but long pieces may be in registered memory. Others may
    /// write that memory at any time: no reference into it may be made. The default implementation
    /// copies the pieces together; a wire that can avoid the copy overrides it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn send_gathered(
        &mut self,
        to: Self::Path,
        packets: &Gather,
        packet_bytes: usize,
    ) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(packets.len());
        packets.copy_onto(&mut bytes)?;
        self.send(to, &bytes, packet_bytes)
    }

    /// Sends everything that [`send`](Self::send) has only queued.
    ///
    /// # Errors
    /// Any failure; the queued packets are then lost.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Receives an arrival: its length in bytes and where it came from. `None` if nothing has arrived.
    ///
    /// # Errors
    /// Any failure; the NIC tries again later.
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, Self::Path)>>;

    /// Returns how many packets may be sent per call.
    fn packets_max(&self) -> usize;

    /// Returns the longest packet that a path takes, in bytes, as far as is known now. It may be too
    /// long: packets longer than 1200 bytes are probed before they are used.
    fn packet_bytes(&mut self, to: Self::Path) -> usize;

    /// Returns a descriptor that is readable while an arrival waits.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Prepares for the caller to sleep on the descriptor, after nothing was received. Returns [`ArmOutcome::Ready`] if
    /// something has arrived that the descriptor may not report: do not sleep then.
    ///
    /// # Errors
    /// Any failure that keeps the caller from sleeping.
    fn arm(&mut self) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }
}
