//! What carries packets between members.

use std::{io, os::fd::BorrowedFd, task::Waker};

use crate::{
    group::Rank,
    schedule::{Network, Target},
};

/// Carries packets between the members of a group, who are addressed by rank. It need not be reliable: packets may be
/// lost, doubled and reordered, but those that arrive are whole. It need not keep strangers out either.
///
/// # Contract
/// 1. Nothing waits. What cannot leave at once is lost, or leaves later by itself.
/// 2. After [`arm`](Self::arm) has returned false, whatever arrives makes one of the [descriptors](Self::descriptors)
///    readable or wakes the waker.
/// 3. A packet for everyone goes to all others, whether or not there is multicast.
pub trait Transport: Send + 'static {
    /// Sends a packet to one member or to all others.
    ///
    /// # Errors
    /// The packet, or a part of those for everyone, is lost; that is counted, and the others ask for it.
    fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()>;

    /// Takes in what has arrived, as far as a look finds it.
    ///
    /// # Errors
    /// Nothing will come any more.
    fn receive(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()>;

    /// Prepares for sleep. Returns whether something may be there already.
    ///
    /// # Errors
    /// Nothing will come any more.
    fn arm(&mut self, waker: &Waker) -> io::Result<bool>;

    /// Returns what to sleep on, the same for life; nothing if the waker alone tells.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns one more member whose end was seen.
    fn next_dead(&mut self) -> Option<Rank>;

    /// The group is left with these, ascending: their places are their ranks from now on.
    fn shrink(&mut self, survivors: &[Rank]);
}
