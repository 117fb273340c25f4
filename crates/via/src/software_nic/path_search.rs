//! How long the packets may be that a path takes: found out by sending some.
//!
//! ```text
//!   Known ----1----> Asks <----2---- Asked      1 set_most, fall     2 expire: again, or something shorter
//!     ^               |  \--3-->       |        3 next: a probe departs
//!     |               5                4        4 heard: it has arrived
//!     +---------------+----------------+        5 expire: not even the shortest one arrives
//! ```
//! What the wire says is where the search begins, and its upper bound: routers may be silent, and switches take
//! what they take. Packets as long as nothing was asked about are as long as all paths take.
//!
//! # Source
//! [rfc8899, §5]: probes that carry nothing, a table of lengths, three tries for each, falling back when nothing
//! arrives any more. *Deviation:* the search begins with the longest, which is right nearly always.

use super::{
    congestion::{MILLISECOND, Nanos},
    packet::PACKET_BYTES_MIN,
};

/// What is tried when the longest packets do not arrive: what Ethernet with jumbo frames, FDDI, Ethernet, PPPoE
/// and common tunnels take, less the headers of IPv6 and UDP.
const LENGTHS: [usize; 5] = [8952, 4304, 1452, 1444, 1352];

/// So often a length is tried [rfc8899, §5.1.2].
const TRIES: u32 = 3;

/// After so long a length that did not arrive is tried again. RFC 8899, §5.1.1 has 600 s.
const AGAIN_AFTER: Nanos = 60_000 * MILLISECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is to be found out, before some time at least.
    Known { again_at: Option<Nanos> },
    /// A probe is to be sent.
    Asks { bytes: usize, tries: u32 },
    /// A probe is on its way.
    Asked { bytes: usize, tries: u32, until: Nanos },
}

/// What a search wants to have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departing {
    /// A probe of so many bytes.
    Probe(usize),
    /// A probe of the peer has arrived that was so long.
    Answer(u16),
}

#[derive(Debug)]
pub(super) struct PathSearch {
    /// The longest packet that is known to arrive.
    known: usize,
    /// The longest that the wire believes in.
    most: usize,
    state: State,
    answer: Option<u16>,
}

impl PathSearch {
    pub(super) const fn new() -> Self {
        let state = State::Known { again_at: None };
        Self { known: PACKET_BYTES_MIN, most: PACKET_BYTES_MIN, state, answer: None }
    }

    /// How long packets may be.
    pub(super) const fn known(&self) -> usize {
        self.known
    }

    /// How long the peer's packets are, as far as that can be known here.
    pub(super) const fn expected(&self) -> usize {
        match self.state {
            State::Known { .. } => self.known,
            State::Asks { .. } | State::Asked { .. } => self.most,
        }
    }

    /// The wire believes in packets of `most` bytes.
    pub(super) fn set_most(&mut self, most: usize) {
        let before = std::mem::replace(&mut self.most, most);
        self.known = self.known.min(most);
        let is_longer = match self.state {
            State::Known { .. } => most > before,
            State::Asks { bytes, .. } | State::Asked { bytes, .. } => most > before || bytes > most,
        };
        if is_longer {
            self.begin();
        }
    }

    /// Nothing has arrived for long: perhaps the packets are too long now.
    pub(super) fn fall(&mut self) {
        self.known = PACKET_BYTES_MIN;
        self.begin();
    }

    fn begin(&mut self) {
        self.state = if self.most > self.known {
            State::Asks { bytes: self.most, tries: 0 }
        } else {
            State::Known { again_at: None }
        };
    }

    /// When something is to be done.
    pub(super) const fn deadline(&self) -> Option<Nanos> {
        match self.state {
            State::Known { again_at } => again_at,
            State::Asks { .. } => None,
            State::Asked { until, .. } => Some(until),
        }
    }

    /// Does what is due. Whether a probe did not arrive in time.
    pub(super) fn expire(&mut self, now: Nanos) -> bool {
        match self.state {
            State::Asked { bytes, tries, until } if until <= now => {
                self.state = if tries < TRIES {
                    State::Asks { bytes, tries }
                } else {
                    self.shorter(bytes, now)
                };
                true
            }
            State::Known { again_at: Some(at) } if at <= now => {
                self.begin();
                false
            }
            _ => false,
        }
    }

    /// What is done after `bytes` were tried in vain.
    fn shorter(&self, bytes: usize, now: Nanos) -> State {
        let shorter = |length: &usize| *length < bytes && *length > self.known;
        match LENGTHS.into_iter().find(shorter) {
            Some(bytes) => State::Asks { bytes, tries: 0 },
            None => State::Known { again_at: Some(now.saturating_add(AGAIN_AFTER)) },
        }
    }

    /// Whether something is to be sent.
    pub(super) const fn has_packet(&self) -> bool {
        self.answer.is_some() || matches!(self.state, State::Asks { .. })
    }

    /// Takes what is to be sent; a probe is waited for until then.
    pub(super) fn next(&mut self, until: Nanos) -> Option<Departing> {
        if let Some(bytes) = self.answer.take() {
            return Some(Departing::Answer(bytes));
        }
        let State::Asks { bytes, tries } = self.state else { return None };
        self.state = State::Asked { bytes, tries: tries + 1, until };
        Some(Departing::Probe(bytes))
    }

    /// A probe of the peer has arrived.
    pub(super) const fn asked(&mut self, bytes: u16) {
        self.answer = Some(bytes);
    }

    /// A probe has arrived at the peer.
    pub(super) fn heard(&mut self, bytes: u16, now: Nanos) {
        let bytes = usize::from(bytes);
        let (State::Asks { bytes: asked, .. } | State::Asked { bytes: asked, .. }) = self.state
        else {
            return;
        };
        if bytes != asked {
            return;
        }
        self.known = bytes;
        let again_at = (bytes < self.most).then(|| now.saturating_add(AGAIN_AFTER));
        self.state = State::Known { again_at };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a search run over a path that takes `longest` bytes. How many probes it sends.
    fn run(search: &mut PathSearch, longest: usize, now: &mut Nanos) -> u32 {
        let mut count = 0;
        while let Some(departing) = search.next(*now + MILLISECOND) {
            let Departing::Probe(bytes) = departing else { panic!("nobody asked") };
            count += 1;
            if bytes <= longest {
                search.heard(u16::try_from(bytes).expect("short"), *now);
            } else {
                *now = search.deadline().expect("it waits");
                assert!(search.expire(*now));
            }
        }
        count
    }

    /// Goal: what arrives is found, and nothing longer is used. Method: paths of all lengths, below and above what
    /// the wire says.
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
            let (mut search, mut now) = (PathSearch::new(), 0);
            assert_eq!(search.known(), 1200);
            search.set_most(16_384);
            assert_eq!(run(&mut search, longest, &mut now), count, "{longest}");
            assert_eq!((search.known(), search.expected()), (found, found));
            search.set_most(16_384);
            assert!(!search.has_packet(), "nothing new was said");
            if found < 16_384 {
                now = search.deadline().expect("tried again one day");
                assert!(!search.expire(now));
                assert_eq!(run(&mut search, 20_000, &mut now), 1);
            }
            assert_eq!(search.known(), if found < 16_384 { 16_384 } else { found });
        }
    }

    /// Goal: a path that becomes shorter is followed at once, a longer one is asked about. Method: what the wire
    /// says, before and during a search; silence.
    #[test]
    fn changes_are_followed() {
        let (mut search, mut now) = (PathSearch::new(), 0);
        search.set_most(9000);
        assert_eq!(search.next(1), Some(Departing::Probe(9000)));
        search.set_most(1472);
        search.heard(9000, now);
        assert_eq!(search.known(), 1200, "it is no longer asked about");
        assert_eq!(run(&mut search, 9000, &mut now), 1);
        assert_eq!(search.known(), 1472);
        search.set_most(1300);
        assert_eq!((search.known(), search.has_packet()), (1300, false));
        search.set_most(9000);
        assert_eq!(search.known(), 1300, "not before it has arrived");
        assert_eq!(run(&mut search, 9000, &mut now), 1);
        search.fall();
        assert_eq!(search.known(), 1200);
        assert_eq!(run(&mut search, 5000, &mut now), 7);
        assert_eq!(search.known(), 4304);
        search.asked(77);
        assert_eq!(search.next(now), Some(Departing::Answer(77)));
        assert!(!search.has_packet());
    }
}
