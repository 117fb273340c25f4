//! Probes: packets by which a transport is measured, and what a member does with them.
//!
//! ```text
//! magic "vQ", version u8, kind u8, group u64, number u32, sender u16, word u16, length u16, 0 u16; payload; tag u64 if there is a key
//! ```
//! Numbers are little-endian. A probe is as long as a message of a barrier without a reduction, and has the same tag. Every
//! member answers those that want an answer, whatever it does meanwhile, as it answers questions.

use std::collections::VecDeque;

use crate::{
    group::Rank,
    packet::{GroupId, HEADER_BYTES, Key, PAYLOAD_BYTES_MAX, TAG_BYTES, is_same},
};

const MAGIC: [u8; 2] = *b"vQ";
const VERSION: u8 = 1;

const PING: u8 = 1;
const PONG: u8 = 2;
const SILENT: u8 = 3;
pub(super) const COSTS: u8 = 4;
const WANT: u8 = 5;

/// Answers that are kept for the leader, who takes them at once.
const ANSWERS_MAX: usize = 64;

/// What a member does between two probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attention {
    /// It waits as it did.
    Any,
    /// It looks by itself.
    Looking,
    /// It sleeps.
    Asleep,
}

impl Attention {
    const fn word(self) -> u16 {
        match self {
            Self::Any => 0,
            Self::Looking => 1,
            Self::Asleep => 2,
        }
    }

    const fn of(word: u16) -> Option<Self> {
        match word {
            0 => Some(Self::Any),
            1 => Some(Self::Looking),
            2 => Some(Self::Asleep),
            _ => None,
        }
    }
}

/// What a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say<'a> {
    /// Answer at once, and wait so from now on.
    Ping(Attention),
    /// The answer, with how many silent probes had come since the one before.
    Pong { silent: u16 },
    /// Nothing: it is counted.
    Silent,
    /// What the leader has found, or nothing if that has failed.
    Costs(&'a [u8]),
    /// The sender misses what the leader has found.
    Want,
}

/// A probe that was read, or is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe<'a> {
    pub(super) group: GroupId,
    /// Of a ping and its pong; of costs and of wanting them, the number of the measurement.
    pub(super) number: u32,
    pub(super) sender: Rank,
    pub(super) say: Say<'a>,
}

/// Whether bytes may be a probe, before anything else is looked at.
#[inline]
pub(super) fn may_be_probe(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

impl<'a> Probe<'a> {
    pub(super) fn encode(&self, key: Option<&Key>) -> Vec<u8> {
        let (kind, word, payload) = match self.say {
            Say::Ping(attention) => (PING, attention.word(), &[][..]),
            Say::Pong { silent } => (PONG, silent, &[][..]),
            Say::Silent => (SILENT, 0, &[][..]),
            Say::Costs(bytes) => (COSTS, 0, bytes),
            Say::Want => (WANT, 0, &[][..]),
        };
        let sender = u16::try_from(self.sender.0).unwrap_or(u16::MAX);
        let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let mut packet = Vec::with_capacity(HEADER_BYTES + payload.len() + TAG_BYTES);
        packet.extend(MAGIC);
        packet.extend([VERSION, kind]);
        packet.extend(self.group.0.to_le_bytes());
        packet.extend(self.number.to_le_bytes());
        packet.extend([sender, word, length, 0].map(u16::to_le_bytes).as_flattened());
        packet.extend(payload);
        if let Some(key) = key {
            packet.extend(key.tag(&packet));
        }
        packet
    }

    /// Reads a probe whose tag is right, if there is a key.
    pub(super) fn parse(bytes: &'a [u8], key: Option<&Key>) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let (kind, word, length) = (header[3], half(18), usize::from(half(20)));
        let tag_bytes = if key.is_some() { TAG_BYTES } else { 0 };
        let is_whole = header[..2] == MAGIC
            && header[2] == VERSION
            && half(22) == 0
            && length <= PAYLOAD_BYTES_MAX
            && rest.len() == length + tag_bytes;
        if !is_whole {
            return None;
        }
        let (payload, tag) = rest.split_at(length);
        if key.is_some_and(|key| !is_same(&key.tag(&bytes[..HEADER_BYTES + length]), tag)) {
            return None;
        }
        let say = match (kind, word, payload) {
            (PING, word, []) => Say::Ping(Attention::of(word)?),
            (PONG, silent, []) => Say::Pong { silent },
            (SILENT, 0, []) => Say::Silent,
            (COSTS, 0, bytes) => Say::Costs(bytes),
            (WANT, 0, []) => Say::Want,
            _ => return None,
        };
        let [_, _, _, _, a, b, c, d, e, f, g, h, i, j, k, l, ..] = *header;
        Some(Self {
            group: GroupId(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            number: u32::from_le_bytes([i, j, k, l]),
            sender: Rank(half(16).into()),
            say,
        })
    }
}

/// An answer that the leader has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) from: Rank,
    pub(super) number: u32,
    /// Silent probes that had come there since its answer before.
    pub(super) silent: u16,
}

/// A member's part in measurements.
#[derive(Debug, Default)]
pub(super) struct Probes {
    answers: VecDeque<Answer>,
    /// Who waits for what.
    replies: Vec<(Rank, u32, Reply)>,
    silent: u16,
    /// The leader wants this member to look by itself.
    pub(super) is_attended: bool,
    /// Pings that came.
    pub(super) pings: u64,
    /// The number of this member's last probe that wanted an answer.
    pub(super) number: u32,
    /// Which measurement this member is in, or was in last.
    pub(super) measurement: Option<u32>,
    /// What came of it, at the leader or said by it.
    pub(super) costs: Option<Vec<u8>>,
    /// Probes that were of another group, forged, or of no use.
    pub(super) dropped: u64,
}

#[derive(Clone, Copy, Debug)]
enum Reply {
    Pong { silent: u16 },
    Costs,
}

impl Probes {
    /// Takes a packet that may be a probe; `place` is this member's group, key, rank and the group's size.
    pub(super) fn take(
        &mut self,
        packet: &[u8],
        (group, key): (GroupId, Option<&Key>),
        (own, size): (Rank, u32),
    ) {
        let probe = Probe::parse(packet, key)
            .filter(|probe| probe.group == group && probe.sender != own && probe.sender.0 < size);
        if !probe.is_some_and(|probe| self.hear(&probe)) {
            self.dropped += 1;
        }
    }

    /// Returns whether it was of any use.
    fn hear(&mut self, probe: &Probe<'_>) -> bool {
        let (from, number) = (probe.sender, probe.number);
        match probe.say {
            Say::Ping(attention) => {
                self.pings += 1;
                match attention {
                    Attention::Any => {}
                    Attention::Looking => self.is_attended = true,
                    Attention::Asleep => self.is_attended = false,
                }
                let silent = std::mem::take(&mut self.silent);
                self.replies.push((from, number, Reply::Pong { silent }));
            }
            Say::Pong { silent } => {
                if self.answers.len() == ANSWERS_MAX {
                    self.answers.pop_front();
                }
                self.answers.push_back(Answer { from, number, silent });
            }
            Say::Silent => self.silent = self.silent.saturating_add(1),
            Say::Costs(bytes) => {
                // Only what the leader says of the measurement in which this member is, and once.
                let is_wanted =
                    self.measurement == Some(number) && from == Rank(0) && self.costs.is_none();
                if !is_wanted {
                    return false;
                }
                self.costs = Some(bytes.to_vec());
            }
            Say::Want => {
                if self.measurement != Some(number) || self.costs.is_none() {
                    return false;
                }
                self.replies.push((from, number, Reply::Costs));
            }
        }
        true
    }

    /// Begins a measurement.
    pub(super) fn begin(&mut self, number: u32) {
        self.measurement = Some(number);
        self.costs = None;
        self.is_attended = false;
        self.answers.clear();
    }

    #[inline]
    pub(super) const fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Calls `send` with each packet that is to be sent now.
    pub(super) fn reply(
        &mut self,
        (group, key): (GroupId, Option<&Key>),
        own: Rank,
        mut send: impl FnMut(Rank, &[u8]),
    ) {
        for (to, number, reply) in std::mem::take(&mut self.replies) {
            let say = match reply {
                Reply::Pong { silent } => Say::Pong { silent },
                Reply::Costs => Say::Costs(self.costs.as_deref().unwrap_or_default()),
            };
            send(to, &Probe { group, number, sender: own, say }.encode(key));
        }
    }

    pub(super) fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const GROUP: GroupId = GroupId(0x0123_4567_89ab_cdef);

    fn probe(number: u32, sender: u32, say: Say<'_>) -> Probe<'_> {
        Probe { group: GROUP, number, sender: Rank(sender), say }
    }

    proptest! {
        /// Goal: what is written is read again, and anything else is no probe. Method: probes of all kinds with and
        /// without a key; each cut short, and each with one bit turned.
        #[test]
        fn probes_are_read_as_written(
            number: u32,
            sender in 0_u32..1000,
            silent: u16,
            payload in vec(any::<u8>(), 0..200),
            has_key: bool,
            (turned, cut) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let key = has_key.then(|| Key::new([7; 16]));
            let key = key.as_ref();
            let all = [
                Say::Ping(Attention::Any),
                Say::Ping(Attention::Looking),
                Say::Ping(Attention::Asleep),
                Say::Pong { silent },
                Say::Silent,
                Say::Costs(&payload),
                Say::Want,
            ];
            for say in all {
                let probe = probe(number, sender, say);
                let mut bytes = probe.encode(key);
                prop_assert!(may_be_probe(&bytes));
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

    /// Goal: a member answers its group alone, counts silent probes, and takes costs from the leader alone, once, and of
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
        let silent = probe(0, 0, Say::Silent);
        assert!(take(&mut probes, silent).is_empty());
        assert!(take(&mut probes, silent).is_empty());
        let sent = take(&mut probes, probe(9, 0, Say::Ping(Attention::Looking)));
        let [(Rank(0), packet)] = &sent[..] else { panic!("{sent:?}") };
        let wanted = probe(9, 1, Say::Pong { silent: 2 });
        assert_eq!(Probe::parse(packet, None), Some(wanted));
        assert!(probes.is_attended);
        let strange = Probe { group: GroupId(5), ..probe(9, 0, Say::Ping(Attention::Any)) };
        for wrong in [strange, probe(9, 1, Say::Silent), probe(9, 4, Say::Silent)] {
            assert!(take(&mut probes, wrong).is_empty());
        }
        assert_eq!(probes.dropped, 3);
        probes.begin(6);
        for wrong in [probe(5, 0, Say::Costs(&[1])), probe(6, 2, Say::Costs(&[1]))] {
            take(&mut probes, wrong);
            assert_eq!(probes.costs, None);
        }
        assert!(take(&mut probes, probe(6, 2, Say::Want)).is_empty(), "nothing is known yet");
        take(&mut probes, probe(6, 0, Say::Costs(&[3])));
        take(&mut probes, probe(6, 0, Say::Costs(&[4])));
        assert_eq!(probes.costs.as_deref(), Some(&[3][..]));
        let sent = take(&mut probes, probe(6, 2, Say::Want));
        let [(Rank(2), packet)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(Probe::parse(packet, None), Some(probe(6, 1, Say::Costs(&[3]))));
    }
}
