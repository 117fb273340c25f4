//! A transport that loses, doubles and delays packets on purpose.

use std::{collections::VecDeque, io, os::fd::BorrowedFd, task::Waker};

use super::transport::Transport;
use crate::{
    group::Rank,
    schedule::{Network, Target},
};

/// How often packets are lost, doubled and delayed, of a thousand that arrive; all chance comes from one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// What chance is made of, together with the rank.
    pub seed: u64,
    /// Lost, of a thousand.
    pub lost: u16,
    /// Taken twice, of a thousand.
    pub doubled: u16,
    /// Kept back until up to 16 more have arrived, of a thousand.
    pub delayed: u16,
}

impl Faults {
    /// Loses so many of a thousand packets.
    #[must_use]
    pub const fn losing(seed: u64, lost: u16) -> Self {
        Self { seed, lost, doubled: 0, delayed: 0 }
    }

    /// Doubles, and delays, so many of a thousand packets.
    #[must_use]
    pub const fn disturbing(self, doubled: u16, delayed: u16) -> Self {
        Self { doubled, delayed, ..self }
    }
}

/// Packets that are kept back at a time.
const KEPT_MAX: usize = 16;

pub(super) struct Faulty {
    inner: Box<dyn Transport>,
    chance: Chance,
    faults: Faults,
    kept: VecDeque<Vec<u8>>,
}

impl Faulty {
    pub(super) fn new(inner: Box<dyn Transport>, faults: Faults, own: Rank) -> Self {
        let chance =
            Chance(faults.seed ^ (u64::from(own.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { inner, chance, faults, kept: VecDeque::new() }
    }
}

/// SplitMix64, by Sebastiano Vigna: the whole of it.
struct Chance(u64);

impl Chance {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn is(&mut self, of_thousand: u16) -> bool {
        self.next() % 1000 < u64::from(of_thousand)
    }
}

impl Transport for Faulty {
    fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()> {
        self.inner.send(to, network, packet)
    }

    fn receive(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Self { inner, chance, faults, kept } = self;
        inner.receive(waker, &mut |packet| {
            if chance.is(faults.lost) {
                return;
            }
            if chance.is(faults.delayed) && kept.len() < KEPT_MAX {
                kept.push_back(packet.to_vec());
                return;
            }
            take(packet);
            if chance.is(faults.doubled) {
                take(packet);
            }
            if !kept.is_empty()
                && chance.is(250)
                && let Some(late) = kept.pop_front()
            {
                take(&late);
            }
        })
    }

    fn arm(&mut self, waker: &Waker) -> io::Result<bool> {
        self.inner.arm(waker)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.descriptors()
    }

    fn next_dead(&mut self) -> Option<Rank> {
        self.inner.next_dead()
    }

    fn shrink(&mut self, survivors: &[Rank]) {
        self.inner.shrink(survivors);
    }
}
