//! The parameters of a transport, computed from measurements.
//!
//! The method is that of [logp-bench]: one member, the leader, sends probes to another, which answers at once.
//!
//! | parameter | computed from |
//! | --- | --- |
//! | o_s | the duration of the call that sends one probe |
//! | o_r | the duration of the poll that finds an answer which has been there for a while |
//! | L | half of the round trip, less o_s and o_r |
//! | o_r of a sleeping member | o_r plus its wake-up: the difference between round trips to a sleeping and to a polling member |
//! | g | a burst to one member, from its start to the answer, less a round trip; divided by the length of the burst |
//! | a, b | a multicast to all ports, and a message as the multicast to one |
//!
//! *Deviation:* Culler et al. compute o_r as the duration of a loop of a send, a pause and a receive, less o_s and
//! the pause; here the receive alone is timed, so that other activity in the pause does not count. Each parameter is
//! the median of many readings, since other programs run on the machine.
//!
//! If a sending system call also does the receiver's work, as on one host, that is part of o_s, and L may be zero.

use std::time::Duration;

use super::{LogP, Multicast};

/// The spread of a parameter's readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spread {
    /// Half of the readings are below this.
    pub median: Duration,
    /// Nine in ten are below this.
    pub p90: Duration,
    /// The number of readings.
    pub samples: u32,
}

impl Spread {
    /// Summarizes readings; `None` if there are none.
    #[must_use]
    pub fn of(readings: &[Duration]) -> Option<Self> {
        let mut sorted = readings.to_vec();
        sorted.sort_unstable();
        Some(Self {
            median: percentile(&sorted, 50)?,
            p90: percentile(&sorted, 90)?,
            samples: u32::try_from(sorted.len()).unwrap_or(u32::MAX),
        })
    }

    /// Subtracts a known cost from each reading.
    fn less(self, known: Duration) -> Self {
        let Self { median, p90, samples } = self;
        Self { median: median.saturating_sub(known), p90: p90.saturating_sub(known), samples }
    }

    /// Divides each reading.
    fn divided(self, by: u32) -> Self {
        Self { median: self.median / by, p90: self.p90 / by, ..self }
    }
}

/// Returns the value below which `percent` of the readings are, nearest rank.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied()
}

/// Raw readings from a transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readings {
    /// The time of two readings of the clock, which is included in each of the others.
    pub clock: Duration,
    /// Calls that send one probe.
    pub send: Vec<Duration>,
    /// Polls that find one answer which is already there.
    pub receive: Vec<Duration>,
    /// Round trips to a polling member.
    pub round_trip: Vec<Duration>,
    /// Round trips to a sleeping member.
    pub round_trip_asleep: Vec<Duration>,
    /// Bursts with that number of probes, of which the last is answered, until the answer.
    pub bursts: Vec<(u32, Duration)>,
    /// Calls that send to all others.
    pub multicast: Vec<Duration>,
    /// The number of ports that a multicast leaves by: one per other member.
    pub ports: u32,
}

/// The measured parameters of a transport, the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeasuredCosts {
    /// o_s.
    pub send: Spread,
    /// L.
    pub latency: Spread,
    /// o_r of a polling member.
    pub receive: Spread,
    /// o_r of a member that sleeps until something arrives.
    pub receive_asleep: Spread,
    /// g, as one sender sees it: at least o_s.
    pub gap: Spread,
    /// The cost of sending to all others.
    pub multicast: Spread,
    /// Round trips to a polling member.
    pub round_trip: Spread,
    /// The number of ports that a multicast left by.
    pub ports: u32,
    /// Probes that were not answered.
    pub lost: u32,
}

/// The percentage by which a gap must exceed o_s to count as the network's: less may be noise.
const VISIBLE_PERCENT: u32 = 20;

impl Readings {
    /// Computes the parameters. `None` if a series is empty.
    #[must_use]
    pub fn fit(&self, lost: u32) -> Option<MeasuredCosts> {
        let send = Spread::of(&self.send)?.less(self.clock);
        let receive = Spread::of(&self.receive)?.less(self.clock);
        let round_trip = Spread::of(&self.round_trip)?.less(self.clock);
        let asleep = Spread::of(&self.round_trip_asleep)?.less(self.clock);
        let multicast = Spread::of(&self.multicast)?.less(self.clock);
        let latency = round_trip.divided(2).less(send.median + receive.median);
        // The leader always polls, so one of the two ways is unchanged.
        let wake_up = asleep.less(round_trip.median);
        let receive_asleep = Spread {
            median: receive.median + wake_up.median,
            p90: receive.median + wake_up.p90,
            samples: asleep.samples,
        };
        let gaps: Vec<Duration> = self
            .bursts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, time)| time.saturating_sub(round_trip.median + self.clock) / *count)
            .collect();
        let gap = Spread::of(&gaps)?;
        let ports = self.ports;
        Some(MeasuredCosts {
            send,
            latency,
            receive,
            receive_asleep,
            gap,
            multicast,
            round_trip,
            ports,
            lost,
        })
    }
}

impl MeasuredCosts {
    /// Returns the parameters for members that poll while they wait.
    ///
    /// The gap is that of the network alone: one that is no longer than o_s is the sender's, and does not separate
    /// messages of different senders.
    #[must_use]
    pub fn costs(&self) -> LogP {
        let visible = self.send.median + self.send.median * VISIBLE_PERCENT / 100;
        let gap = self.gap.median;
        let gap = if gap > visible { gap } else { Duration::ZERO };
        LogP::new(self.send.median, self.latency.median, self.receive.median)
            .with_gap(gap)
            .with_multicast(self.multicast_costs())
            // Polling for a message that is not there costs at most what finding one costs, and about the same.
            .with_poll(self.receive.median)
    }

    /// Returns the parameters for members that sleep while they wait.
    #[must_use]
    pub fn costs_asleep(&self) -> LogP {
        LogP { receive: self.receive_asleep.median, poll: Duration::ZERO, ..self.costs() }
    }

    /// The line through a multicast to one port, which is a message, and one to all.
    fn multicast_costs(&self) -> Multicast {
        let (one, all) = (self.send.median, self.multicast.median);
        let Some(further) = self.ports.checked_sub(1).filter(|further| *further > 0) else {
            return Multicast::new(all, Duration::ZERO);
        };
        // No part is negative.
        let per_port = (all.saturating_sub(one) / further).min(all / self.ports);
        Multicast::new(all.saturating_sub(per_port * self.ports), per_port)
    }

    /// The inverse of [`parameters`](Self::parameters).
    #[cfg(not(loom))]
    pub(crate) const fn of_parameters(spreads: [Spread; 7], ports: u32, lost: u32) -> Self {
        let [send, latency, receive, receive_asleep, gap, multicast, round_trip] = spreads;
        Self { send, latency, receive, receive_asleep, gap, multicast, round_trip, ports, lost }
    }

    /// Returns each parameter with its usual sign, for tables.
    #[must_use]
    pub const fn parameters(&self) -> [(&'static str, Spread); 7] {
        [
            ("o_s", self.send),
            ("L", self.latency),
            ("o_r", self.receive),
            ("o_r asleep", self.receive_asleep),
            ("g", self.gap),
            ("multicast", self.multicast),
            ("round trip", self.round_trip),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Readings of a transport without noise.
    fn clean(logp: &LogP, wake_up: Duration, ports: u32, count: usize) -> Readings {
        let clock = Duration::from_nanos(50);
        let way = logp.hop();
        let interval = logp.send.max(logp.gap).max(logp.receive);
        Readings {
            clock,
            send: vec![logp.send + clock; count],
            receive: vec![logp.receive + clock; count],
            round_trip: vec![way * 2 + clock; count],
            round_trip_asleep: vec![way * 2 + wake_up + clock; count],
            bursts: vec![(16, way * 2 + clock + interval * 16); count],
            multicast: vec![logp.multicast.cost(ports) + clock; count],
            ports,
        }
    }

    fn is_near(found: Duration, wanted: Duration, tolerance: Duration) -> bool {
        found.abs_diff(wanted) <= tolerance
    }

    proptest! {
        /// Goal: the parameters come out as they went in, whatever disturbs a part of the readings. Method: parameters
        /// at random; up to four readings in ten take up to a hundred times as long; all jitter by up to 100 ns.
        #[test]
        fn parameters_are_recovered(
            (send, latency, receive) in (500_u64..20_000, 0_u64..100_000, 200_u64..20_000),
            (wake_up, gap, per_port, ports) in (0_u64..50_000, 0_u64..40_000, 0_u64..2_000, 1_u32..64),
            disturbed in vec((0_usize..50, 2_u32..100), 0..20),
            jitter in vec(0_u64..100, 50),
        ) {
            let nanos = Duration::from_nanos;
            // One port is a message.
            let multicast = Multicast::new(nanos(send.saturating_sub(per_port)), nanos(per_port));
            let logp = LogP::new(nanos(send), nanos(latency), nanos(receive))
                .with_gap(nanos(gap))
                .with_multicast(multicast);
            let mut readings = clean(&logp, nanos(wake_up), ports, 50);
            let disturb = |series: &mut Vec<Duration>| {
                for (reading, jitter) in series.iter_mut().zip(&jitter) {
                    *reading += nanos(*jitter);
                }
                for (place, times) in &disturbed {
                    series[*place] = series[*place].saturating_mul(*times);
                }
            };
            disturb(&mut readings.send);
            disturb(&mut readings.receive);
            disturb(&mut readings.round_trip);
            disturb(&mut readings.round_trip_asleep);
            disturb(&mut readings.multicast);
            for (place, times) in &disturbed {
                readings.bursts[*place].1 = readings.bursts[*place].1.saturating_mul(*times);
            }
            let found = readings.fit(0).expect("all series are there");
            let costs = found.costs();
            let tolerance = nanos(500);
            prop_assert!(is_near(costs.send, logp.send, tolerance), "{found:?}");
            prop_assert!(is_near(costs.receive, logp.receive, tolerance), "{found:?}");
            prop_assert!(is_near(costs.latency, logp.latency, tolerance), "{found:?}");
            let asleep = logp.receive + nanos(wake_up);
            prop_assert!(is_near(found.costs_asleep().receive, asleep, tolerance), "{found:?}");
            let interval = logp.send.max(logp.gap).max(logp.receive);
            prop_assert!(is_near(found.gap.median, interval, tolerance), "{found:?}");
            let cost = multicast.cost(ports);
            prop_assert!(is_near(costs.multicast.cost(ports), cost, tolerance), "{found:?}");
            if ports > 8 && per_port < send {
                prop_assert!(is_near(costs.multicast.per_port, nanos(per_port), nanos(200)), "{found:?}");
            }
        }
    }

    /// Goal: a gap caused by the sender does not count as the network's, and one caused by the wire does. Method: both.
    #[test]
    fn a_gap_is_the_networks() {
        let logp = LogP::new(micros(6), micros(2), micros(1));
        let found = clean(&logp, micros(5), 3, 9).fit(0).expect("all series are there");
        assert_eq!((found.gap.median, found.costs().gap), (micros(6), Duration::ZERO));
        let slow = LogP::new(micros(3), micros(17), micros(1)).with_gap(micros(7));
        let found = clean(&slow, micros(5), 3, 9).fit(0).expect("all series are there");
        assert_eq!(found.costs().gap, micros(7));
    }

    /// Goal: nothing is made up where a series is missing, and nothing is below zero. Method: each series empty;
    /// round trips that are shorter than their parts.
    #[test]
    fn what_is_missing_is_not_made_up() {
        let whole = clean(&LogP::OF_THE_PAPER, micros(5), 1, 3);
        assert!(whole.fit(0).is_some());
        for series in 0..6 {
            let mut less = whole.clone();
            match series {
                0 => less.send.clear(),
                1 => less.receive.clear(),
                2 => less.round_trip.clear(),
                3 => less.round_trip_asleep.clear(),
                4 => less.bursts = vec![(0, micros(1))],
                _ => less.multicast.clear(),
            }
            assert_eq!(less.fit(0), None, "{series}");
        }
        let mut short = whole;
        short.round_trip = vec![micros(1)];
        short.round_trip_asleep = vec![Duration::ZERO];
        let found = short.fit(3).expect("all series are there");
        assert_eq!((found.latency.median, found.lost), (Duration::ZERO, 3));
        assert_eq!(found.costs_asleep().receive, found.costs().receive);
    }

    /// Goal: percentiles are those of readings. Method: a hundred of them, and one.
    #[test]
    fn spreads_are_nearest_ranks() {
        let all: Vec<_> = (1..=100).rev().map(micros).collect();
        let spread = Spread::of(&all).expect("some");
        assert_eq!((spread.median, spread.p90, spread.samples), (micros(50), micros(90), 100));
        let one = Spread::of(&[micros(7)]).expect("one");
        assert_eq!((one.median, one.p90), (micros(7), micros(7)));
        assert_eq!(Spread::of(&[]), None);
    }
}
