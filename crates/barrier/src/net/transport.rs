//! Transports, which carry packets between members.

use std::{io, os::fd::BorrowedFd, task::Waker};

use vigie_detect::ArmOutcome;

use crate::{
    group::Rank,
    schedule::{Network, Target},
};

/// Carries packets between the members of a group, addressed by rank. It need not be reliable: packets may be lost,
/// duplicated and reordered, but those that arrive are intact. Nor need it keep strangers out.
///
/// # Contract
/// 1. Nothing blocks. Packets that cannot be sent immediately are dropped, or sent later by the transport.
/// 2. After [`arm`](Self::arm) has returned [`ArmOutcome::Armed`], any arrival makes one of the [descriptors](Self::descriptors)
///    readable or wakes the waker.
/// 3. A packet for everyone goes to all others, with or without multicast.
pub trait Transport: Send + 'static {
    /// Sends a packet to one member or to all others.
    ///
    /// # Errors
    /// The packet, or some of its copies, is lost; that is counted, and the others ask for it.
    fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()>;

    /// Passes the packets that have arrived to `take`, as far as one poll finds them.
    ///
    /// # Errors
    /// Nothing will arrive any more.
    fn recv_each(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()>;

    /// Prepares for sleep.
    ///
    /// # Errors
    /// Nothing will arrive any more.
    fn arm(&mut self, waker: &Waker) -> io::Result<ArmOutcome>;

    /// Calls `each` with the descriptors to sleep on, which never change; none if only the waker is used.
    fn descriptors(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        let _ = each;
    }

    /// Returns another member whose end was seen. By default only silence tells that a member is gone.
    fn next_dead(&mut self) -> Option<Rank> {
        None
    }

    /// The group shrinks to these members, ascending: their indices are their ranks from now on.
    fn shrink(&mut self, survivors: &[Rank]);
}
