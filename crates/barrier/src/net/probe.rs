//! Probes: packets that measure a transport, and how a member handles them.
//!
//! ```text
//! magic "vQ", version u8, kind u8, group u64, number u32, sender u16, word u16, length u16, 0 u16; payload; tag u64 if there is a key
//! ```
//! Numbers are little-endian. A probe is as long as a message of a barrier without a reduction, and has the same tag.
//! Every member answers probes that want an answer, whatever it is doing, as it answers questions.

use std::collections::VecDeque;

use crate::{
    group::Rank,
    packet::{GroupId, Key, PacketHeader},
};

const MAGIC: [u8; 2] = *b"vQ";
const VERSION: u8 = 1;

const PING: u8 = 1;
const PONG: u8 = 2;
const ONE_WAY: u8 = 3;
pub(super) const COSTS: u8 = 4;
const COSTS_REQUEST: u8 = 5;

/// The maximum number of answers kept for the leader, which takes them at once.
const REPLIES_MAX: usize = 64;

/// The behaviour of a member between two probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartnerMode {
    /// It waits as before.
    Any,
    /// It polls.
    PollGuard,
    /// It sleeps.
    Asleep,
}

impl PartnerMode {
    const fn word(self) -> u16 {
        match self {
            Self::Any => 0,
            Self::PollGuard => 1,
            Self::Asleep => 2,
        }
    }

    const fn of(word: u16) -> Option<Self> {
        match word {
            0 => Some(Self::Any),
            1 => Some(Self::PollGuard),
            2 => Some(Self::Asleep),
            _ => None,
        }
    }
}

/// The contents of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeBody<'a> {
    /// Answer at once, and from now on wait in this mode.
    Ping(PartnerMode),
    /// The answer, with the number of one-way probes that had arrived since the one before.
    Pong { one_way: u16 },
    /// Counted, not answered.
    OneWay,
    /// The leader's results; empty if the measurement failed.
    Costs(&'a [u8]),
    /// The sender misses the leader's results.
    CostsRequest,
}

/// A probe that was read, or is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe<'a> {
    pub(super) group: GroupId,
    /// For a ping and its pong, their number; for costs and requests for them, the number of the measurement.
    pub(super) number: u32,
    pub(super) sender: Rank,
    pub(super) body: ProbeBody<'a>,
}

/// Returns whether bytes may be a probe, before any other check.
#[inline]
pub(super) fn is_probe(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

impl<'a> Probe<'a> {
    pub(super) fn encode(&self, key: Option<&Key>) -> Vec<u8> {
        let (kind, word, payload) = match self.body {
            ProbeBody::Ping(mode) => (PING, mode.word(), &[][..]),
            ProbeBody::Pong { one_way } => (PONG, one_way, &[][..]),
            ProbeBody::OneWay => (ONE_WAY, 0, &[][..]),
            ProbeBody::Costs(bytes) => (COSTS, 0, bytes),
            ProbeBody::CostsRequest => (COSTS_REQUEST, 0, &[][..]),
        };
        let Self { group, number, sender, .. } = *self;
        PacketHeader { kind, group, number, sender, word }.encode((MAGIC, VERSION), payload, key)
    }

    /// Reads a probe; with a key, its tag must be right.
    pub(super) fn parse(bytes: &'a [u8], key: Option<&Key>) -> Option<Self> {
        let (header, payload) = PacketHeader::parse(bytes, (MAGIC, VERSION), key).ok()?;
        let PacketHeader { kind, group, number, sender, word } = header;
        let body = match (kind, word, payload) {
            (PING, word, []) => ProbeBody::Ping(PartnerMode::of(word)?),
            (PONG, one_way, []) => ProbeBody::Pong { one_way },
            (ONE_WAY, 0, []) => ProbeBody::OneWay,
            (COSTS, 0, bytes) => ProbeBody::Costs(bytes),
            (COSTS_REQUEST, 0, []) => ProbeBody::CostsRequest,
            _ => return None,
        };
        Some(Self { group, number, sender, body })
    }
}

/// An answer that the leader has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeReply {
    pub(super) from: Rank,
    pub(super) number: u32,
    /// One-way probes that had arrived there since its last answer.
    pub(super) one_way: u16,
}

/// A member's part in measurements.
#[derive(Debug, Default)]
pub(super) struct Probes {
    received_replies: VecDeque<ProbeReply>,
    /// The members to answer, and how.
    replies: Vec<(Rank, u32, PendingReply)>,
    one_way: u16,
    /// The leader wants this member to poll.
    pub(super) is_poll_wanted: bool,
    /// The number of pings received.
    pub(super) pings: u64,
    /// The number of this member's last probe that wanted an answer.
    pub(super) number: u32,
    /// The measurement that this member is in, or was in last.
    pub(super) measurement: Option<u32>,
    /// Its results, at the leader or as sent by it.
    pub(super) costs: Option<Vec<u8>>,
    /// Probes that were of another group, forged, or useless.
    pub(super) dropped: u64,
}

#[derive(Clone, Copy, Debug)]
enum PendingReply {
    Pong { one_way: u16 },
    Costs,
}

impl Probes {
    /// Handles a packet that may be a probe; `place` is this member's group, key, rank and the group's size.
    pub(super) fn take(
        &mut self,
        packet: &[u8],
        (group, key): (GroupId, Option<&Key>),
        (own, size): (Rank, u32),
    ) {
        let probe = Probe::parse(packet, key)
            .filter(|probe| probe.group == group && probe.sender != own && probe.sender.0 < size);
        if !probe.is_some_and(|probe| self.handle(&probe)) {
            self.dropped += 1;
        }
    }

    /// Returns whether the probe was useful.
    fn handle(&mut self, probe: &Probe<'_>) -> bool {
        let (from, number) = (probe.sender, probe.number);
        match probe.body {
            ProbeBody::Ping(mode) => {
                self.pings += 1;
                match mode {
                    PartnerMode::Any => {}
                    PartnerMode::PollGuard => self.is_poll_wanted = true,
                    PartnerMode::Asleep => self.is_poll_wanted = false,
                }
                let one_way = std::mem::take(&mut self.one_way);
                self.replies.push((from, number, PendingReply::Pong { one_way }));
            }
            ProbeBody::Pong { one_way } => {
                if self.received_replies.len() == REPLIES_MAX {
                    self.received_replies.pop_front();
                }
                self.received_replies.push_back(ProbeReply { from, number, one_way });
            }
            ProbeBody::OneWay => self.one_way = self.one_way.saturating_add(1),
            ProbeBody::Costs(bytes) => {
                // Only the leader's results for this member's present measurement, and only once.
                let is_wanted =
                    self.measurement == Some(number) && from == Rank(0) && self.costs.is_none();
                if !is_wanted {
                    return false;
                }
                self.costs = Some(bytes.to_vec());
            }
            ProbeBody::CostsRequest => {
                if self.measurement != Some(number) || self.costs.is_none() {
                    return false;
                }
                self.replies.push((from, number, PendingReply::Costs));
            }
        }
        true
    }

    /// Begins a measurement.
    pub(super) fn begin(&mut self, number: u32) {
        self.measurement = Some(number);
        self.costs = None;
        self.is_poll_wanted = false;
        self.received_replies.clear();
    }

    #[inline]
    pub(super) const fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Calls `send` with each packet to be sent now.
    pub(super) fn reply(
        &mut self,
        (group, key): (GroupId, Option<&Key>),
        own: Rank,
        mut send: impl FnMut(Rank, &[u8]),
    ) {
        for (to, number, reply) in std::mem::take(&mut self.replies) {
            let body = match reply {
                PendingReply::Pong { one_way } => ProbeBody::Pong { one_way },
                PendingReply::Costs => ProbeBody::Costs(self.costs.as_deref().unwrap_or_default()),
            };
            send(to, &Probe { group, number, sender: own, body }.encode(key));
        }
    }

    pub(super) fn next_reply(&mut self) -> Option<ProbeReply> {
        self.received_replies.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const GROUP: GroupId = GroupId(0x0123_4567_89ab_cdef);

    fn probe(number: u32, sender: u32, body: ProbeBody<'_>) -> Probe<'_> {
        Probe { group: GROUP, number, sender: Rank(sender), body }
    }

    proptest! {
        /// Goal: every written probe can be read, and anything else is not a probe. Method: probes of all kinds with and
        /// without a key; each cut short, and each with one bit turned.
        #[test]
        fn probes_are_read_as_written(
            number: u32,
            sender in 0_u32..1000,
            one_way: u16,
            payload in vec(any::<u8>(), 0..200),
            has_key: bool,
            (turned, cut) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let key = has_key.then(|| Key::new([7; 16]));
            let key = key.as_ref();
            let all = [
                ProbeBody::Ping(PartnerMode::Any),
                ProbeBody::Ping(PartnerMode::PollGuard),
                ProbeBody::Ping(PartnerMode::Asleep),
                ProbeBody::Pong { one_way },
                ProbeBody::OneWay,
                ProbeBody::Costs(&payload),
                ProbeBody::CostsRequest,
            ];
            for body in all {
                let probe = probe(number, sender, body);
                let mut bytes = probe.encode(key);
                prop_assert!(is_probe(&bytes));
                prop_assert_eq!(Probe::parse(&bytes, key), Some(probe));
                let shorter = &bytes[..cut.index(bytes.len())];
                prop_assert_eq!(Probe::parse(shorter, key), None);
                let other = Key::new([8; 16]);
                prop_assert_eq!(Probe::parse(&bytes, Some(&other)), None);
                let place = turned.index(bytes.len() * 8);
                bytes[place / 8] ^= 1 << (place % 8);
                let read = Probe::parse(&bytes, key);
                prop_assert!(read.is_none_or(|read| !has_key && read != probe));
            }
        }

        /// Goal: no bytes do harm. Method: noise behind a right beginning.
        #[test]
        fn noise_is_dropped(noise in vec(any::<u8>(), 0..80)) {
            let bytes = [&MAGIC[..], &[VERSION], &noise].concat();
            let mut probes = Probes::default();
            probes.take(&bytes, (GROUP, Some(&Key::new([1; 16]))), (Rank(1), 4));
            prop_assert_eq!(probes.dropped, 1);
            prop_assert!(!probes.has_replies());
        }
    }

    /// Goal: a member answers its group alone, counts one-way probes, and takes costs from the leader alone, once, and of
    /// the present measurement. Method: probes of others beside right ones.
    #[test]
    fn a_member_answers_its_group() {
        let mut probes = Probes::default();
        let take = |probes: &mut Probes, probe: Probe<'_>| {
            probes.take(&probe.encode(None), (GROUP, None), (Rank(1), 4));
            let mut sent = Vec::new();
            probes.reply((GROUP, None), Rank(1), |to, packet| sent.push((to, packet.to_vec())));
            sent
        };
        let one_way = probe(0, 0, ProbeBody::OneWay);
        assert!(take(&mut probes, one_way).is_empty());
        assert!(take(&mut probes, one_way).is_empty());
        let sent = take(&mut probes, probe(9, 0, ProbeBody::Ping(PartnerMode::PollGuard)));
        let [(Rank(0), packet)] = &sent[..] else { panic!("{sent:?}") };
        let wanted = probe(9, 1, ProbeBody::Pong { one_way: 2 });
        assert_eq!(Probe::parse(packet, None), Some(wanted));
        assert!(probes.is_poll_wanted);
        let strange = Probe { group: GroupId(5), ..probe(9, 0, ProbeBody::Ping(PartnerMode::Any)) };
        for wrong in [strange, probe(9, 1, ProbeBody::OneWay), probe(9, 4, ProbeBody::OneWay)] {
            assert!(take(&mut probes, wrong).is_empty());
        }
        assert_eq!(probes.dropped, 3);
        probes.begin(6);
        for wrong in [probe(5, 0, ProbeBody::Costs(&[1])), probe(6, 2, ProbeBody::Costs(&[1]))] {
            take(&mut probes, wrong);
            assert_eq!(probes.costs, None);
        }
        assert!(
            take(&mut probes, probe(6, 2, ProbeBody::CostsRequest)).is_empty(),
            "nothing is known yet"
        );
        take(&mut probes, probe(6, 0, ProbeBody::Costs(&[3])));
        take(&mut probes, probe(6, 0, ProbeBody::Costs(&[4])));
        assert_eq!(probes.costs.as_deref(), Some(&[3][..]));
        let sent = take(&mut probes, probe(6, 2, ProbeBody::CostsRequest));
        let [(Rank(2), packet)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(Probe::parse(packet, None), Some(probe(6, 1, ProbeBody::Costs(&[3]))));
    }
}
