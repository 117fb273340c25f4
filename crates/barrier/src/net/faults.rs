//! A transport that deliberately loses, duplicates and delays packets.

use std::{collections::VecDeque, io, os::fd::BorrowedFd, task::Waker};

use vigie_detect::ArmOutcome;

use super::transport::Transport;
use crate::{
    group::Rank,
    schedule::{Network, Target},
};

/// The rates at which arriving packets are lost, duplicated and delayed, per thousand; all randomness comes from one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// The seed, which is combined with the rank.
    pub seed: u64,
    /// Lost, per thousand.
    pub lost: u16,
    /// Delivered twice, per thousand.
    pub duplicated: u16,
    /// Held back until up to 16 more have arrived, per thousand.
    pub delayed: u16,
}

impl Faults {
    /// Loses that many of a thousand packets.
    #[must_use]
    pub const fn losing(seed: u64, lost: u16) -> Self {
        Self { seed, lost, duplicated: 0, delayed: 0 }
    }

    /// Duplicates, and delays, that many of a thousand packets.
    #[must_use]
    pub const fn with_duplicates_and_delays(self, duplicated: u16, delayed: u16) -> Self {
        Self { duplicated, delayed, ..self }
    }
}

/// The maximum number of packets held back at once.
const DELAYED_MAX: usize = 16;

pub(super) struct FaultyTransport {
    inner: Box<dyn Transport>,
    random: fastrand::Rng,
    faults: Faults,
    delayed_packets: VecDeque<Vec<u8>>,
}

impl FaultyTransport {
    pub(super) fn new(inner: Box<dyn Transport>, faults: Faults, own: Rank) -> Self {
        // Each member has its own sequence.
        let seed = faults.seed ^ (u64::from(own.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let random = fastrand::Rng::with_seed(seed);
        Self { inner, random, faults, delayed_packets: VecDeque::new() }
    }
}

fn happens(random: &mut fastrand::Rng, of_thousand: u16) -> bool {
    random.u16(..1000) < of_thousand
}

impl Transport for FaultyTransport {
    fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()> {
        self.inner.send(to, network, packet)
    }

    fn recv_each(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Self { inner, random, faults, delayed_packets } = self;
        inner.recv_each(waker, &mut |packet| {
            if happens(random, faults.lost) {
                return;
            }
            if happens(random, faults.delayed) && delayed_packets.len() < DELAYED_MAX {
                delayed_packets.push_back(packet.to_vec());
                return;
            }
            take(packet);
            if happens(random, faults.duplicated) {
                take(packet);
            }
            if !delayed_packets.is_empty()
                && happens(random, 250)
                && let Some(late) = delayed_packets.pop_front()
            {
                take(&late);
            }
        })
    }

    fn arm(&mut self, waker: &Waker) -> io::Result<ArmOutcome> {
        self.inner.arm(waker)
    }

    fn descriptors(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.inner.descriptors(each);
    }

    fn next_dead(&mut self) -> Option<Rank> {
        self.inner.next_dead()
    }

    fn shrink(&mut self, survivors: &[Rank]) {
        self.inner.shrink(survivors);
    }
}
