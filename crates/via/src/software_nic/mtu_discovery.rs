//! Path-MTU discovery by probing.
//!
//! ```text
//!   Known ----1----> Asks <----2---- Asked      1 set_most, fall     2 expire: retry, or a shorter length
//!     ^               |  \--3-->       |        3 next: a probe departs
//!     |               5                4        4 on_answer: it has arrived
//!     +---------------+----------------+        5 expire: not even the shortest length arrives
//! ```
//! The length that the wire reports is where the search begins, and its upper bound: routers may be
//! silent, and switches have limits of their own. Until a search succeeds, packets have the length that
//! every path takes.
//!
//! # Source
//! [rfc8899, §5]: probes without data, a table of lengths, three tries for each, fallback when nothing
//! arrives any more. *Deviation:* the search begins with the longest, which nearly always succeeds.

use super::{
    congestion::{MILLISECOND, Nanos},
    packet::PACKET_BYTES_MIN,
};

/// The lengths probed if the longest packets do not arrive: what Ethernet with jumbo frames, FDDI,
/// Ethernet, PPPoE and common tunnels take, minus the headers of IPv6 and UDP.
const LENGTHS: [usize; 5] = [8952, 4304, 1452, 1444, 1352];

/// The number of times that each length is tried [rfc8899, §5.1.2].
const TRIES: u32 = 3;

/// The time until a failed length is tried again. RFC 8899, §5.1.1 has 600 s.
const AGAIN_AFTER: Nanos = 60_000 * MILLISECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MtuState {
    /// No search until some time, if ever.
    Known { again_at: Option<Nanos> },
    /// A probe is to be sent.
    Asks { bytes: usize, tries: u32 },
    /// A probe is in flight.
    Asked { bytes: usize, tries: u32, until: Nanos },
}

/// A packet that a search has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MtuPacket {
    /// A probe of this many bytes.
    Probe(usize),
    /// The answer to a probe of the peer of this length.
    Answer(u16),
}

#[derive(Debug)]
pub(super) struct MtuDiscovery {
    /// The longest packet length known to arrive.
    known: usize,
    /// The longest that the wire reports.
    most: usize,
    state: MtuState,
    answer: Option<u16>,
}

impl MtuDiscovery {
    pub(super) const fn new() -> Self {
        let state = MtuState::Known { again_at: None };
        Self { known: PACKET_BYTES_MIN, most: PACKET_BYTES_MIN, state, answer: None }
    }

    /// Returns how long packets may be.
    pub(super) const fn known(&self) -> usize {
        self.known
    }

    /// Returns the length of the peer's packets, as far as it can be known here.
    pub(super) const fn expected(&self) -> usize {
        match self.state {
            MtuState::Known { .. } => self.known,
            MtuState::Asks { .. } | MtuState::Asked { .. } => self.most,
        }
    }

    /// The wire reports that it takes packets of `most` bytes.
    pub(super) fn set_most(&mut self, most: usize) {
        let before = std::mem::replace(&mut self.most, most);
        self.known = self.known.min(most);
        let is_longer = match self.state {
            MtuState::Known { .. } => most > before,
            MtuState::Asks { bytes, .. } | MtuState::Asked { bytes, .. } => {
                most > before || bytes > most
            }
        };
        if is_longer {
            self.begin();
        }
    }

    /// No packet has arrived for long: perhaps packets are too long now.
    pub(super) fn fall(&mut self) {
        self.known = PACKET_BYTES_MIN;
        self.begin();
    }

    fn begin(&mut self) {
        self.state = if self.most > self.known {
            MtuState::Asks { bytes: self.most, tries: 0 }
        } else {
            MtuState::Known { again_at: None }
        };
    }

    /// Returns when to act.
    pub(super) const fn deadline(&self) -> Option<Nanos> {
        match self.state {
            MtuState::Known { again_at } => again_at,
            MtuState::Asks { .. } => None,
            MtuState::Asked { until, .. } => Some(until),
        }
    }

    /// Does what is due. Returns whether a probe was lost.
    pub(super) fn expire(&mut self, now: Nanos) -> bool {
        match self.state {
            MtuState::Asked { bytes, tries, until } if until <= now => {
                self.state = if tries < TRIES {
                    MtuState::Asks { bytes, tries }
                } else {
                    self.shorter(bytes, now)
                };
                true
            }
            MtuState::Known { again_at: Some(at) } if at <= now => {
                self.begin();
                false
            }
            _ => false,
        }
    }

    /// Returns the next state after probes of `bytes` failed.
    fn shorter(&self, bytes: usize, now: Nanos) -> MtuState {
        let shorter = |length: &usize| *length < bytes && *length > self.known;
        match LENGTHS.into_iter().find(shorter) {
            Some(bytes) => MtuState::Asks { bytes, tries: 0 },
            None => MtuState::Known { again_at: Some(now.saturating_add(AGAIN_AFTER)) },
        }
    }

    /// Returns whether something is to be sent.
    pub(super) const fn has_packet(&self) -> bool {
        self.answer.is_some() || matches!(self.state, MtuState::Asks { .. })
    }

    /// Returns what to send; the answer to a probe is awaited until `until`.
    pub(super) fn next(&mut self, until: Nanos) -> Option<MtuPacket> {
        if let Some(bytes) = self.answer.take() {
            return Some(MtuPacket::Answer(bytes));
        }
        let MtuState::Asks { bytes, tries } = self.state else { return None };
        self.state = MtuState::Asked { bytes, tries: tries + 1, until };
        Some(MtuPacket::Probe(bytes))
    }

    /// A probe of the peer has arrived.
    pub(super) const fn asked(&mut self, bytes: u16) {
        self.answer = Some(bytes);
    }

    /// The peer answers a probe.
    pub(super) fn on_answer(&mut self, bytes: u16, now: Nanos) {
        let bytes = usize::from(bytes);
        let (MtuState::Asks { bytes: asked, .. } | MtuState::Asked { bytes: asked, .. }) =
            self.state
        else {
            return;
        };
        if bytes != asked {
            return;
        }
        self.known = bytes;
        let again_at = (bytes < self.most).then(|| now.saturating_add(AGAIN_AFTER));
        self.state = MtuState::Known { again_at };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search over a path that takes `longest` bytes. Returns how many probes it sent.
    fn run(mtu_discovery: &mut MtuDiscovery, longest: usize, now: &mut Nanos) -> u32 {
        let mut count = 0;
        while let Some(departing) = mtu_discovery.next(*now + MILLISECOND) {
            let MtuPacket::Probe(bytes) = departing else { panic!("not a probe") };
            count += 1;
            if bytes <= longest {
                mtu_discovery.on_answer(u16::try_from(bytes).expect("short"), *now);
            } else {
                *now = mtu_discovery.deadline().expect("it waits");
                assert!(mtu_discovery.expire(*now));
            }
        }
        count
    }

    /// Goal: the longest length that arrives is found, and nothing longer is used. Method: paths of all
    /// lengths, below and above what the wire reports.
    #[test]
    fn what_arrives_is_found() {
        for (longest, found, count) in [
            (20_000, 16_384, 1),
            (16_384, 16_384, 1),
            (9000, 8952, 4),
            (1472, 1452, 10),
            (1400, 1352, 16),
            (1200, 1200, 18),
        ] {
            let (mut mtu_discovery, mut now) = (MtuDiscovery::new(), 0);
            assert_eq!(mtu_discovery.known(), 1200);
            mtu_discovery.set_most(16_384);
            assert_eq!(run(&mut mtu_discovery, longest, &mut now), count, "{longest}");
            assert_eq!((mtu_discovery.known(), mtu_discovery.expected()), (found, found));
            mtu_discovery.set_most(16_384);
            assert!(!mtu_discovery.has_packet(), "nothing new was said");
            if found < 16_384 {
                now = mtu_discovery.deadline().expect("tried again one day");
                assert!(!mtu_discovery.expire(now));
                assert_eq!(run(&mut mtu_discovery, 20_000, &mut now), 1);
            }
            assert_eq!(mtu_discovery.known(), if found < 16_384 { 16_384 } else { found });
        }
    }

    /// Goal: a shorter path is followed at once, a longer one is probed first. Method: reports of the
    /// wire before and during a search; silence.
    #[test]
    fn changes_are_followed() {
        let (mut mtu_discovery, mut now) = (MtuDiscovery::new(), 0);
        mtu_discovery.set_most(9000);
        assert_eq!(mtu_discovery.next(1), Some(MtuPacket::Probe(9000)));
        mtu_discovery.set_most(1472);
        mtu_discovery.on_answer(9000, now);
        assert_eq!(mtu_discovery.known(), 1200, "it is no longer asked about");
        assert_eq!(run(&mut mtu_discovery, 9000, &mut now), 1);
        assert_eq!(mtu_discovery.known(), 1472);
        mtu_discovery.set_most(1300);
        assert_eq!((mtu_discovery.known(), mtu_discovery.has_packet()), (1300, false));
        mtu_discovery.set_most(9000);
        assert_eq!(mtu_discovery.known(), 1300, "not before it has arrived");
        assert_eq!(run(&mut mtu_discovery, 9000, &mut now), 1);
        mtu_discovery.fall();
        assert_eq!(mtu_discovery.known(), 1200);
        assert_eq!(run(&mut mtu_discovery, 5000, &mut now), 7);
        assert_eq!(mtu_discovery.known(), 4304);
        mtu_discovery.asked(77);
        assert_eq!(mtu_discovery.next(now), Some(MtuPacket::Answer(77)));
        assert!(!mtu_discovery.has_packet());
    }
}
