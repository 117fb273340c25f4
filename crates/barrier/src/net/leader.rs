//! The leader's part of a measurement: the probes that it sends, and what it times.
//!
//! Partners take turns one after the other; the rest of the group sleeps in a barrier meanwhile, and uses no
//! processor time. First come some multicasts, for which all members poll; then each partner's turn goes like this:
//!
//! 1. ask the partner to poll, until it answers;
//! 2. rounds of a round trip, a one-way probe (o_s), and a probe whose answer is left waiting for a while (o_r);
//! 3. bursts of one-way probes (g), each with a last probe whose answer says how many have arrived;
//! 4. ask the partner to sleep, and make round trips with pauses between.
//!
//! All this is bounded: probes that are not answered in time count as lost, a partner that leaves many in a row
//! unanswered is given up, and each part ends after its share of some seconds, or somewhat later if it has too few
//! readings.

use std::time::Duration;

use vigie_detect::Instant;

use super::probe::{PartnerMode, ProbeBody, ProbeReply};
use crate::{
    group::Rank,
    logp::{Readings, Spread},
    schedule::Target,
};

/// The maximum number of partners: some near, some far.
const PARTNERS_MAX: u32 = 4;
/// Readings per series, over all partners.
const ROUNDS: u32 = 128;
const BURSTS: u32 = 32;
const ASLEEP: u32 = 48;
const MULTICASTS: u32 = 64;
/// The number of times that an unresponsive member is told how to wait while multicasts are timed.
const MODE_RETRIES_MAX: u32 = 3;
/// After this many multicasts, members are told to poll again: they soon stop if they are not asked anything.
const MODE_REFRESH: u32 = 16;
/// Uncounted probes before the first reading, per partner.
const WARM_UP: u32 = 16;
/// One-way probes per burst: fewer than any buffer on the way holds.
const BURST: u16 = 16;
/// With fewer readings, there is no result.
const READINGS_MIN: usize = 8;
/// The time that an answer may take: at first, and at least later on.
const REPLY_TIMEOUT: Duration = Duration::from_millis(25);
const REPLY_TIMEOUT_MIN: Duration = Duration::from_millis(2);
/// Probes in a row without an answer, and time without one, after which a partner is given up: more than a process
/// needs that other processes keep from its processor.
const LOST_MAX: u32 = 20;
const SILENCE_MAX: Duration = Duration::from_millis(400);
/// The time for a partner to fall asleep, and for a multicast to be processed.
const SETTLE: Duration = Duration::from_micros(300);
/// The minimum time for an answer to have arrived.
const ARRIVAL_MIN: Duration = Duration::from_micros(50);
/// The usual time of a measurement, if that is enough for the fewest readings, and the maximum.
const BUDGET: Duration = Duration::from_secs(3);
const BUDGET_MAX: Duration = Duration::from_secs(12);

/// Carries probes, and provides the time.
pub(super) trait ProbeChannel {
    fn now(&self) -> Instant;

    /// Returns the number of the next probe, which no probe of this member has had before in any measurement, so that
    /// a late answer cannot be mistaken for the answer to it.
    fn next_number(&mut self) -> u32;

    /// Sends a probe, or loses it.
    fn send(&mut self, to: Target, number: u32, body: ProbeBody<'_>);

    /// Handles what has arrived.
    fn poll(&mut self);

    /// Returns the next answer received.
    fn reply(&mut self) -> Option<ProbeReply>;

    /// Returns whether members are known to be dead: the results are then of no use.
    fn has_failed(&self) -> bool;

    /// Lets other tasks run for a moment.
    async fn pause(&mut self);
}

/// Returns the members that answer in a group of `size`: spread over all ranks.
pub(super) fn partners(size: u32) -> impl Iterator<Item = Rank> {
    let others = size.saturating_sub(1);
    let count = others.min(PARTNERS_MAX);
    (0..count).map(move |place| Rank(1 + place * others / count))
}

/// Measures a group of `size`. Returns the readings, and the number of lost probes; `None` if too few were answered.
pub(super) async fn lead<L: ProbeChannel>(
    channel: &mut L,
    size: u32,
) -> Result<(Readings, u32), u32> {
    let begun = channel.now();
    let mut leader = Leader {
        channel,
        end_max: begun + BUDGET_MAX,
        median_round_trip: REPLY_TIMEOUT,
        lost: 0,
        lost_in_a_row: 0,
        heard_at: begun,
        readings: Readings { ports: size.saturating_sub(1), ..Readings::default() },
    };
    leader.measure_clock();
    let count = u32::try_from(partners(size).count()).unwrap_or(1).max(1);
    leader.multicasts(size, begun + BUDGET / 4).await;
    for (partner, turn) in partners(size).zip(1..) {
        let end = begun + BUDGET * turn / count;
        // A partner that no longer answers is named by the barrier that follows.
        let _ = leader.measure_partner(partner, (count, end)).await;
    }
    let Leader { readings, lost, .. } = leader;
    let Readings { send, receive, round_trip, round_trip_asleep, bursts, multicast, .. } =
        &readings;
    let least = [send, receive, round_trip, round_trip_asleep, multicast]
        .map(Vec::len)
        .into_iter()
        .chain([bursts.len()])
        .min();
    if least.is_some_and(|least| least >= READINGS_MIN) { Ok((readings, lost)) } else { Err(lost) }
}

/// The partner does not answer, or the group has failed.
struct GivenUp;

struct Leader<'a, L> {
    channel: &'a mut L,
    end_max: Instant,
    /// The median round trip so far.
    median_round_trip: Duration,
    lost: u32,
    lost_in_a_row: u32,
    heard_at: Instant,
    readings: Readings,
}

impl<L: ProbeChannel> Leader<'_, L> {
    fn measure_clock(&mut self) {
        let mut readings: Vec<Duration> = (0..32)
            .map(|_| {
                let begun = self.channel.now();
                self.channel.now() - begun
            })
            .collect();
        readings.sort_unstable();
        self.readings.clock = readings[readings.len() / 2];
    }

    async fn measure_partner(
        &mut self,
        partner: Rank,
        (count, end): (u32, Instant),
    ) -> Result<(), GivenUp> {
        // More time for the readings that matter most; each part has some.
        let begun = self.channel.now();
        let [round_end, burst_end] = [5, 7].map(|tenths| begun + (end - begun) * tenths / 10);
        (self.lost_in_a_row, self.heard_at) = (0, begun);

        self.set_mode(partner, PartnerMode::PollGuard).await?;
        for _ in 0..WARM_UP {
            self.ping(partner, PartnerMode::PollGuard).await?;
        }

        for _ in 0..ROUNDS.div_ceil(count) {
            let Readings { round_trip, receive, .. } = &self.readings;
            if self.is_over(round_end, round_trip.len().min(receive.len())) {
                break;
            }
            if let Some((time, _)) = self.ping(partner, PartnerMode::PollGuard).await? {
                self.readings.round_trip.push(time);
                self.median_round_trip =
                    Spread::of(&self.readings.round_trip).unwrap_or_default().median;
            }
            let begun = self.channel.now();
            self.channel.send(Target::Member(partner), 0, ProbeBody::OneWay);
            let sent = self.channel.now() - begun;
            self.readings.send.push(sent);
            self.receive(partner).await?;
        }

        for _ in 0..BURSTS.div_ceil(count) {
            if self.is_over(burst_end, self.readings.bursts.len()) {
                break;
            }
            self.burst(partner).await?;
        }

        self.set_mode(partner, PartnerMode::Asleep).await?;
        for _ in 0..ASLEEP.div_ceil(count) {
            if self.is_over(end, self.readings.round_trip_asleep.len()) {
                break;
            }
            self.pause_for(SETTLE).await;
            if let Some((time, _)) = self.ping(partner, PartnerMode::Asleep).await? {
                self.readings.round_trip_asleep.push(time);
            }
        }
        Ok(())
    }

    /// Returns whether a part has used its time and has enough readings.
    fn is_over(&self, end: Instant, readings: usize) -> bool {
        let now = self.channel.now();
        now >= end && (readings >= READINGS_MIN || now >= self.end_max)
    }

    /// Tells the partner how to wait, until it has confirmed.
    async fn set_mode(&mut self, partner: Rank, mode: PartnerMode) -> Result<(), GivenUp> {
        while self.ping(partner, mode).await?.is_none() {}
        Ok(())
    }

    /// Returns the time that an answer may take: many times the median so far.
    fn reply_timeout(&self) -> Duration {
        (self.median_round_trip * 16).clamp(REPLY_TIMEOUT_MIN, REPLY_TIMEOUT)
    }

    /// Sends a probe and waits for its answer. Returns how long that took, and how many one-way probes had arrived
    /// before; `None` if the probe or its answer was lost.
    async fn ping(
        &mut self,
        partner: Rank,
        mode: PartnerMode,
    ) -> Result<Option<(Duration, u16)>, GivenUp> {
        if self.channel.has_failed() {
            return Err(GivenUp);
        }
        let begun = self.channel.now();
        let number = self.channel.next_number();
        self.channel.send(Target::Member(partner), number, ProbeBody::Ping(mode));
        let found = self.wait_reply(partner, number, begun).await?;
        Ok(found.map(|(at, one_way)| (at - begun, one_way)))
    }

    /// Polls until the answer is there; returns when that was.
    async fn wait_reply(
        &mut self,
        partner: Rank,
        number: u32,
        begun: Instant,
    ) -> Result<Option<(Instant, u16)>, GivenUp> {
        let until = begun + self.reply_timeout();
        loop {
            self.channel.poll();
            let now = self.channel.now();
            while let Some(reply) = self.channel.reply() {
                // Answers to probes that were given up may come late.
                if reply.number == number && reply.from == partner {
                    (self.lost_in_a_row, self.heard_at) = (0, now);
                    return Ok(Some((now, reply.one_way)));
                }
            }
            if now >= until {
                self.lost += 1;
                self.lost_in_a_row += 1;
                let is_over = self.lost_in_a_row >= LOST_MAX && now - self.heard_at >= SILENCE_MAX;
                return if is_over { Err(GivenUp) } else { Ok(None) };
            }
            self.channel.pause().await;
        }
    }

    /// Times a poll that finds an answer.
    async fn receive(&mut self, partner: Rank) -> Result<(), GivenUp> {
        let begun = self.channel.now();
        let number = self.channel.next_number();
        self.channel.send(Target::Member(partner), number, ProbeBody::Ping(PartnerMode::PollGuard));
        self.pause_for((self.median_round_trip * 4).clamp(ARRIVAL_MIN, REPLY_TIMEOUT_MIN)).await;
        let before = self.channel.now();
        self.channel.poll();
        let after = self.channel.now();
        let (mut count, mut is_right) = (0, false);
        while let Some(reply) = self.channel.reply() {
            count += 1;
            is_right |= reply.number == number && reply.from == partner;
        }
        if !is_right {
            self.wait_reply(partner, number, begun).await?;
        } else if count == 1 {
            (self.lost_in_a_row, self.heard_at) = (0, after);
            self.readings.receive.push(after - before);
        }
        Ok(())
    }

    async fn burst(&mut self, partner: Rank) -> Result<(), GivenUp> {
        // One-way probes before this do not count.
        self.ping(partner, PartnerMode::PollGuard).await?;
        let begun = self.channel.now();
        for _ in 0..BURST {
            self.channel.send(Target::Member(partner), 0, ProbeBody::OneWay);
        }
        let number = self.channel.next_number();
        self.channel.send(Target::Member(partner), number, ProbeBody::Ping(PartnerMode::PollGuard));
        if let Some((at, one_way)) = self.wait_reply(partner, number, begun).await?
            // If more are lost, buffers were too small for the burst.
            && one_way >= BURST / 2
        {
            self.readings.bursts.push((BURST.into(), at - begun));
        }
        Ok(())
    }

    /// Multicasts to members that all poll, as they mostly do in a barrier: a sender pays for waking sleepers, some 4
    /// µs each on the same host, and a member that one multicast has woken may be asleep again when the next one
    /// comes.
    async fn multicasts(&mut self, size: u32, end: Instant) {
        (self.lost_in_a_row, self.heard_at) = (0, self.channel.now());
        for count in 0..MULTICASTS {
            if count % MODE_REFRESH == 0 {
                self.set_all_modes(size, PartnerMode::PollGuard, end).await;
            }
            let begun = self.channel.now();
            if begun >= end || self.channel.has_failed() {
                break;
            }
            self.channel.send(Target::Everyone, 0, ProbeBody::OneWay);
            let sent = self.channel.now() - begun;
            self.readings.multicast.push(sent);
            self.pause_for(SETTLE).await;
        }
        self.set_all_modes(size, PartnerMode::Asleep, end).await;
    }

    /// Tells all members how to wait, as far as they answer in time.
    async fn set_all_modes(&mut self, size: u32, mode: PartnerMode, end: Instant) {
        for rank in (1..size).map(Rank) {
            for _ in 0..MODE_RETRIES_MAX {
                if self.channel.now() >= end {
                    return;
                }
                match self.ping(rank, mode).await {
                    Ok(None) => {}
                    Ok(Some(_)) => break,
                    Err(GivenUp) => return,
                }
            }
        }
    }

    /// Sends nothing for a while.
    async fn pause_for(&mut self, time: Duration) {
        let until = self.channel.now() + time;
        while self.channel.now() < until {
            self.channel.pause().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        collections::{BTreeMap, VecDeque},
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::logp::{LogP, Multicast};

    const fn nanos(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }

    /// A transport in virtual time: each part of it takes what its parameters say.
    struct Virtual {
        now: Cell<Instant>,
        logp: LogP,
        wake_up: Duration,
        ports: u32,
        chance: fastrand::Rng,
        lost_of_hundred: u32,
        /// One step in fifty takes up to this many times longer.
        noise: u32,
        dead: Vec<Rank>,
        /// The time from which the wire to the partner, and the partner, are free.
        wire_free: Instant,
        partner_free: Instant,
        is_poll_wanted: BTreeMap<Rank, bool>,
        one_way: u16,
        arriving: VecDeque<(Instant, ProbeReply)>,
        arrived: VecDeque<ProbeReply>,
        fails_at: Instant,
        number: u32,
        /// The numbers of all probes that want an answer.
        asked: Vec<u32>,
    }

    impl Virtual {
        fn new(logp: LogP, seed: u64) -> Self {
            let zero = Instant::from_nanos(0);
            Self {
                now: Cell::new(zero),
                logp,
                wake_up: nanos(9_000),
                ports: 7,
                chance: fastrand::Rng::with_seed(seed),
                lost_of_hundred: 0,
                noise: 1,
                dead: Vec::new(),
                wire_free: zero,
                partner_free: zero,
                is_poll_wanted: BTreeMap::new(),
                one_way: 0,
                arriving: VecDeque::new(),
                arrived: VecDeque::new(),
                fails_at: Instant::MAX,
                number: u32::MAX - 100,
                asked: Vec::new(),
            }
        }

        fn noisy(&mut self, time: Duration) -> Duration {
            if self.chance.u32(..50) == 0 { time * self.chance.u32(1..=self.noise) } else { time }
        }

        fn spend(&mut self, time: Duration) {
            let time = self.noisy(time);
            self.now.set(self.now.get() + time);
        }

        fn idle(&self) {
            self.now.set(self.now.get() + nanos(250));
        }

        fn is_lost(&mut self) -> bool {
            self.chance.u32(..100) < self.lost_of_hundred
        }
    }

    impl ProbeChannel for Virtual {
        fn now(&self) -> Instant {
            self.now.set(self.now.get() + nanos(25));
            self.now.get()
        }

        fn next_number(&mut self) -> u32 {
            self.number = self.number.wrapping_add(1);
            self.number
        }

        fn send(&mut self, to: Target, number: u32, body: ProbeBody<'_>) {
            if matches!(body, ProbeBody::Ping(_)) {
                self.asked.push(number);
            }
            let Target::Member(partner) = to else {
                // The sender wakes the sleepers.
                let polling =
                    self.is_poll_wanted.values().filter(|is_poll_wanted| **is_poll_wanted).count();
                let polling = u32::try_from(polling).expect("few");
                self.spend(self.wake_up / 2 * (self.ports - polling));
                self.spend(self.logp.multicast.cost(self.ports));
                return;
            };
            self.spend(self.logp.send);
            let leaves = self.now.get().max(self.wire_free);
            self.wire_free = leaves + self.logp.gap;
            if self.is_lost() || self.dead.contains(&partner) {
                return;
            }
            let arrives = leaves + self.logp.latency;
            let is_asleep = !self.is_poll_wanted.get(&partner).copied().unwrap_or(false);
            let receiving = self.logp.receive + if is_asleep { self.wake_up } else { nanos(0) };
            self.partner_free = arrives.max(self.partner_free) + self.noisy(receiving);
            match body {
                ProbeBody::OneWay => self.one_way += 1,
                ProbeBody::Ping(mode) => {
                    self.is_poll_wanted.insert(partner, mode == PartnerMode::PollGuard);
                    self.partner_free += self.logp.send;
                    let one_way = std::mem::take(&mut self.one_way);
                    let reply = ProbeReply { from: partner, number, one_way };
                    if !self.is_lost() {
                        self.arriving.push_back((self.partner_free + self.logp.latency, reply));
                    }
                }
                other => panic!("{other:?} of a leader"),
            }
        }

        fn poll(&mut self) {
            let now = self.now.get();
            let mut found = false;
            while self.arriving.front().is_some_and(|(at, _)| *at <= now) {
                self.arrived.extend(self.arriving.pop_front().map(|(_, reply)| reply));
                self.spend(self.logp.receive);
                found = true;
            }
            if !found {
                self.idle();
            }
        }

        fn reply(&mut self) -> Option<ProbeReply> {
            self.arrived.pop_front()
        }

        fn has_failed(&self) -> bool {
            self.now.get() >= self.fails_at
        }

        async fn pause(&mut self) {
            self.idle();
        }
    }

    fn run(channel: &mut Virtual, size: u32) -> Result<(Readings, u32), u32> {
        let mut leading = pin!(lead(channel, size));
        match leading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => found,
            Poll::Pending => panic!("virtual time never waits"),
        }
    }

    fn assert_near(found: Duration, wanted: Duration, what: &str) {
        // Polls and pauses have their length, and noise its share.
        let tolerance = wanted / 20 + nanos(500);
        assert!(found.abs_diff(wanted) <= tolerance, "{what}: {found:?}, not {wanted:?}");
    }

    /// Goal: the leader finds the parameters of a transport, whatever is lost and disturbed, and does not take what
    /// it costs to wake sleepers for a part of a multicast. Method: transports in virtual time of known parameters: the
    /// paper's, sockets of one host, a slow wire; without faults, with noise, and with 30 % of all packets lost; a
    /// multicast that finds its receivers asleep costs its sender their wake-ups.
    #[test]
    fn known_parameters_are_found() {
        let sockets = LogP::new(nanos(6_000), nanos(9_000), nanos(1_000))
            .with_multicast(Multicast::new(nanos(5_100), nanos(900)));
        let paper = LogP::OF_THE_PAPER;
        let slow = paper.with_gap(nanos(12_000));
        for (seed, logp) in [sockets, paper, slow].into_iter().enumerate() {
            for (noise, lost_of_hundred) in [(1, 0), (50, 0), (20, 30)] {
                // The lossy ones take long: one is enough.
                if lost_of_hundred > 0 && seed > 0 {
                    continue;
                }
                let mut channel = Virtual::new(logp, seed as u64);
                (channel.noise, channel.lost_of_hundred) = (noise, lost_of_hundred);
                let (readings, lost) = run(&mut channel, 8).expect("enough readings");
                assert_eq!(lost > 0, lost_of_hundred > 0);
                let found = readings.fit(lost).expect("all series");
                let costs = found.costs();
                assert_near(costs.send, logp.send, "o_s");
                assert_near(costs.receive, logp.receive, "o_r");
                assert_near(costs.hop(), logp.hop(), "o_s + L + o_r");
                assert_near(costs.multicast.cost(7), logp.multicast.cost(7), "multicast");
                assert_near(costs.multicast.cost(1), logp.multicast.cost(1), "message");
                let asleep = found.costs_asleep().receive;
                assert_near(asleep, logp.receive + channel.wake_up, "o_r asleep");
                let interval = logp.send.max(logp.gap).max(logp.receive);
                // A loss from a burst leaves the receiver less to do.
                let least = if lost > 0 { interval * 6 / 10 } else { interval };
                assert!(found.gap.median + nanos(500) >= least, "g: {found:?}");
                assert!(found.gap.median <= interval + nanos(500), "g: {found:?}");
            }
        }
    }

    /// Goal: a partner that dies is given up, within the bound, and the others are measured; without any answer there
    /// is an error. Method: some of the partners dead, then all.
    #[test]
    fn dead_partners_are_given_up() {
        let all: Vec<Rank> = partners(8).collect();
        assert_eq!(all, [Rank(1), Rank(2), Rank(4), Rank(6)]);
        let mut channel = Virtual::new(LogP::OF_THE_PAPER, 5);
        channel.dead = vec![Rank(2), Rank(6)];
        let (readings, lost) = run(&mut channel, 8).expect("two answer");
        assert!(lost >= 2 * LOST_MAX);
        assert_near(readings.fit(lost).expect("all").costs().hop(), nanos(30_000), "X");
        let mut channel = Virtual::new(LogP::OF_THE_PAPER, 5);
        channel.dead = all;
        assert!(run(&mut channel, 8).is_err_and(|lost| lost >= 4 * LOST_MAX));
        assert!(channel.now() < Instant::from_nanos(0) + BUDGET_MAX);
    }

    /// Goal: a group that has failed is measured no more. Method: a failure amid the first turn.
    #[test]
    fn a_failure_ends_it() {
        let mut channel = Virtual::new(LogP::OF_THE_PAPER, 5);
        channel.fails_at = Instant::from_nanos(22_000_000);
        assert!(run(&mut channel, 8).is_err());
        assert!(channel.now() < channel.fails_at + nanos(2_000_000));
    }

    /// Goal: an answer to an abandoned measurement is not mistaken for an answer to the next one. Method: one is
    /// given up amid a turn and another one made over the same line; no number is used twice.
    #[test]
    fn no_number_is_used_twice() {
        let mut channel = Virtual::new(LogP::OF_THE_PAPER, 5);
        channel.fails_at = Instant::from_nanos(22_000_000);
        assert!(run(&mut channel, 8).is_err());
        channel.fails_at = Instant::MAX;
        assert!(run(&mut channel, 8).is_ok());
        let mut asked = channel.asked.clone();
        asked.sort_unstable();
        asked.dedup();
        assert!(asked.len() == channel.asked.len() && asked.len() > 500, "{}", asked.len());
    }

    /// Goal: partners are different members, and never the leader. Method: groups of all sizes.
    #[test]
    fn partners_are_spread() {
        for size in 1..=300 {
            let mut all: Vec<Rank> = partners(size).collect();
            assert_eq!(all.len(), usize::try_from(size - 1).expect("small").min(4));
            assert!(all.iter().all(|rank| rank.0 > 0 && rank.0 < size));
            all.dedup();
            assert_eq!(all.len(), usize::try_from(size - 1).expect("small").min(4));
        }
    }
}
