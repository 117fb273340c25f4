//! The leader's part of a measurement: which probes it sends, and what it times.
//!
//! Partners have their turn one after the other; the rest of the group sleeps in a barrier meanwhile, and takes no
//! processor away. After some multicasts, for which all look by themselves, a turn goes so:
//!
//! 1. ask the partner to look by itself, until it answers;
//! 2. rounds of a round trip, a silent probe (o_s), and a probe whose answer is left alone for a while (o_r);
//! 3. bursts of silent probes (g), each with one at the end that is answered and tells how many have come;
//! 4. ask the partner to sleep, and round trips with pauses between.
//!
//! All this is bounded: probes that are not answered in time are lost, a partner that does not answer many in a row is given
//! up, and each part ends after its share of some seconds, or somewhat later where there is too little yet.

use std::time::Duration;

use vigie_detect::Instant;

use super::probe::{Answer, Attention, Say};
use crate::{
    group::Rank,
    logp::{Readings, Spread},
    schedule::Target,
};

/// Members that answer, at most: some near, some far.
const PARTNERS_MAX: u32 = 4;
/// Readings of each series, over all partners.
const ROUNDS: u32 = 128;
const BURSTS: u32 = 32;
const ASLEEP: u32 = 48;
const MULTICASTS: u32 = 64;
/// How often a member is told how to wait while multicasts are timed, if it does not answer.
const TOLD_MAX: u32 = 3;
/// So many multicasts are timed before members are told again to look: they stop soon where nobody asks them anything.
const TOLD_EVERY: u32 = 16;
/// Probes before the first that counts, for each partner.
const WARM_UP: u32 = 16;
/// Silent probes of a burst: less than any buffer on the way holds.
const BURST: u16 = 16;
/// Fewer readings tell nothing.
const READINGS_MIN: usize = 8;
/// How long an answer may take: at first, and at least later on.
const PATIENCE: Duration = Duration::from_millis(25);
const PATIENCE_MIN: Duration = Duration::from_millis(2);
/// Probes in a row without an answer, and time without one, after which the partner is given up: more than a process that
/// others keep from its processor needs.
const LOST_MAX: u32 = 20;
const SILENCE_MAX: Duration = Duration::from_millis(400);
/// What a partner needs to fall asleep, and a multicast to be worked off.
const SETTLE: Duration = Duration::from_micros(300);
/// What an answer needs at least to be there, and not on its way.
const ARRIVAL_MIN: Duration = Duration::from_micros(50);
/// How long a measurement takes, if that is enough for the fewest readings, and at most.
const BUDGET: Duration = Duration::from_secs(3);
const BUDGET_MAX: Duration = Duration::from_secs(12);

/// What carries probes, and tells the time.
pub(super) trait Line {
    fn now(&self) -> Instant;

    /// Returns the number of the next probe: one that no probe of this member had before, in whatever measurement, so
    /// that no answer that is late can be taken for its answer.
    fn next_number(&mut self) -> u32;

    /// Sends a probe, or loses it.
    fn send(&mut self, to: Target, number: u32, say: Say<'_>);

    /// Takes in what has arrived.
    fn look(&mut self);

    /// Returns the next answer that was taken in.
    fn answer(&mut self) -> Option<Answer>;

    /// Whether members are known to be dead: nobody wants to know any more.
    fn has_failed(&self) -> bool;

    /// Lets others run for a moment.
    async fn pause(&mut self);
}

/// Which members answer in a group of so many: spread over all ranks.
pub(super) fn partners(size: u32) -> impl Iterator<Item = Rank> {
    let others = size.saturating_sub(1);
    let count = others.min(PARTNERS_MAX);
    (0..count).map(move |place| Rank(1 + place * others / count))
}

/// Measures a group of so many. Returns what was read, and how many probes were lost; nothing if too few were answered.
pub(super) async fn lead<L: Line>(line: &mut L, size: u32) -> Result<(Readings, u32), u32> {
    let begun = line.now();
    let mut leader = Leader {
        line,
        end_max: begun + BUDGET_MAX,
        typical: PATIENCE,
        lost: 0,
        lost_in_a_row: 0,
        heard_at: begun,
        readings: Readings { ports: size.saturating_sub(1), ..Readings::default() },
    };
    leader.time_the_clock();
    let count = u32::try_from(partners(size).count()).unwrap_or(1).max(1);
    leader.multicasts(size, begun + BUDGET / 4).await;
    for (partner, turn) in partners(size).zip(1..) {
        let end = begun + BUDGET * turn / count;
        // Who does not answer any more is named by the barrier that follows.
        let _ = leader.turn(partner, (count, end)).await;
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
    line: &'a mut L,
    end_max: Instant,
    /// The median round trip so far.
    typical: Duration,
    lost: u32,
    lost_in_a_row: u32,
    heard_at: Instant,
    readings: Readings,
}

impl<L: Line> Leader<'_, L> {
    fn time_the_clock(&mut self) {
        let mut readings: Vec<Duration> = (0..32)
            .map(|_| {
                let begun = self.line.now();
                self.line.now() - begun
            })
            .collect();
        readings.sort_unstable();
        self.readings.clock = readings[readings.len() / 2];
    }

    async fn turn(&mut self, partner: Rank, (count, end): (u32, Instant)) -> Result<(), GivenUp> {
        // Much of the time for what is read most; each part has some.
        let begun = self.line.now();
        let [round_end, burst_end] = [5, 7].map(|tenths| begun + (end - begun) * tenths / 10);
        (self.lost_in_a_row, self.heard_at) = (0, begun);
        self.insist(partner, Attention::Looking).await?;
        for _ in 0..WARM_UP {
            self.ping(partner, Attention::Looking).await?;
        }
        for _ in 0..ROUNDS.div_ceil(count) {
            let Readings { round_trip, receive, .. } = &self.readings;
            if self.is_over(round_end, round_trip.len().min(receive.len())) {
                break;
            }
            if let Some((time, _)) = self.ping(partner, Attention::Looking).await? {
                self.readings.round_trip.push(time);
                self.typical = Spread::of(&self.readings.round_trip).unwrap_or_default().median;
            }
            let begun = self.line.now();
            self.line.send(Target::Member(partner), 0, Say::Silent);
            let sent = self.line.now() - begun;
            self.readings.send.push(sent);
            self.receive(partner).await?;
        }
        for _ in 0..BURSTS.div_ceil(count) {
            if self.is_over(burst_end, self.readings.bursts.len()) {
                break;
            }
            self.burst(partner).await?;
        }
        self.insist(partner, Attention::Asleep).await?;
        for _ in 0..ASLEEP.div_ceil(count) {
            if self.is_over(end, self.readings.round_trip_asleep.len()) {
                break;
            }
            self.rest(SETTLE).await;
            if let Some((time, _)) = self.ping(partner, Attention::Asleep).await? {
                self.readings.round_trip_asleep.push(time);
            }
        }
        Ok(())
    }

    /// Whether a part has had its time, and there are as many readings as it takes.
    fn is_over(&self, end: Instant, readings: usize) -> bool {
        let now = self.line.now();
        now >= end && (readings >= READINGS_MIN || now >= self.end_max)
    }

    /// Tells the partner how to wait, until it has heard that.
    async fn insist(&mut self, partner: Rank, attention: Attention) -> Result<(), GivenUp> {
        while self.ping(partner, attention).await?.is_none() {}
        Ok(())
    }

    /// How long an answer may take: many times what it took so far.
    fn patience(&self) -> Duration {
        (self.typical * 16).clamp(PATIENCE_MIN, PATIENCE)
    }

    /// Sends a probe and waits for its answer. Returns how long that took, and the silent probes that had come before;
    /// nothing if one of both was lost.
    async fn ping(
        &mut self,
        partner: Rank,
        attention: Attention,
    ) -> Result<Option<(Duration, u16)>, GivenUp> {
        if self.line.has_failed() {
            return Err(GivenUp);
        }
        let begun = self.line.now();
        let number = self.line.next_number();
        self.line.send(Target::Member(partner), number, Say::Ping(attention));
        let found = self.answered(partner, number, begun).await?;
        Ok(found.map(|(at, silent)| (at - begun, silent)))
    }

    /// Looks until the answer is there; returns when that was.
    async fn answered(
        &mut self,
        partner: Rank,
        number: u32,
        begun: Instant,
    ) -> Result<Option<(Instant, u16)>, GivenUp> {
        let until = begun + self.patience();
        loop {
            self.line.look();
            let now = self.line.now();
            while let Some(answer) = self.line.answer() {
                // Those that were given up may come late.
                if answer.number == number && answer.from == partner {
                    (self.lost_in_a_row, self.heard_at) = (0, now);
                    return Ok(Some((now, answer.silent)));
                }
            }
            if now >= until {
                self.lost += 1;
                self.lost_in_a_row += 1;
                let is_over = self.lost_in_a_row >= LOST_MAX && now - self.heard_at >= SILENCE_MAX;
                return if is_over { Err(GivenUp) } else { Ok(None) };
            }
            self.line.pause().await;
        }
    }

    /// Times a look that finds an answer.
    async fn receive(&mut self, partner: Rank) -> Result<(), GivenUp> {
        let begun = self.line.now();
        let number = self.line.next_number();
        self.line.send(Target::Member(partner), number, Say::Ping(Attention::Looking));
        self.rest((self.typical * 4).clamp(ARRIVAL_MIN, PATIENCE_MIN)).await;
        let before = self.line.now();
        self.line.look();
        let after = self.line.now();
        let (mut count, mut is_right) = (0, false);
        while let Some(answer) = self.line.answer() {
            count += 1;
            is_right |= answer.number == number && answer.from == partner;
        }
        if !is_right {
            self.answered(partner, number, begun).await?;
        } else if count == 1 {
            (self.lost_in_a_row, self.heard_at) = (0, after);
            self.readings.receive.push(after - before);
        }
        Ok(())
    }

    async fn burst(&mut self, partner: Rank) -> Result<(), GivenUp> {
        // Those before do not count.
        self.ping(partner, Attention::Looking).await?;
        let begun = self.line.now();
        for _ in 0..BURST {
            self.line.send(Target::Member(partner), 0, Say::Silent);
        }
        let number = self.line.next_number();
        self.line.send(Target::Member(partner), number, Say::Ping(Attention::Looking));
        if let Some((at, silent)) = self.answered(partner, number, begun).await?
            // Where more is lost, buffers were too short for it.
            && silent >= BURST / 2
        {
            self.readings.bursts.push((BURST.into(), at - begun));
        }
        Ok(())
    }

    /// Multicasts to members that all look by themselves, as they mostly do in a barrier: a sender pays for the
    /// wake-ups of those who sleep, some 4 µs each where they share a host, and those whom one multicast has woken may
    /// sleep again when the next one comes.
    async fn multicasts(&mut self, size: u32, end: Instant) {
        (self.lost_in_a_row, self.heard_at) = (0, self.line.now());
        for count in 0..MULTICASTS {
            if count % TOLD_EVERY == 0 {
                self.tell_all(size, Attention::Looking, end).await;
            }
            let begun = self.line.now();
            if begun >= end || self.line.has_failed() {
                break;
            }
            self.line.send(Target::Everyone, 0, Say::Silent);
            let sent = self.line.now() - begun;
            self.readings.multicast.push(sent);
            self.rest(SETTLE).await;
        }
        self.tell_all(size, Attention::Asleep, end).await;
    }

    /// Tells all members how to wait, as far as they answer in time.
    async fn tell_all(&mut self, size: u32, attention: Attention, end: Instant) {
        for rank in (1..size).map(Rank) {
            for _ in 0..TOLD_MAX {
                if self.line.now() >= end {
                    return;
                }
                match self.ping(rank, attention).await {
                    Ok(None) => {}
                    Ok(Some(_)) => break,
                    Err(GivenUp) => return,
                }
            }
        }
    }

    /// Leaves everything alone for a while.
    async fn rest(&mut self, time: Duration) {
        let until = self.line.now() + time;
        while self.line.now() < until {
            self.line.pause().await;
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
        /// One step in fifty takes up to so many times as long.
        noise: u32,
        dead: Vec<Rank>,
        /// When the wire to the partner, and the partner, are free.
        wire_free: Instant,
        partner_free: Instant,
        is_attended: BTreeMap<Rank, bool>,
        silent: u16,
        arriving: VecDeque<(Instant, Answer)>,
        arrived: VecDeque<Answer>,
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
                is_attended: BTreeMap::new(),
                silent: 0,
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

    impl Line for Virtual {
        fn now(&self) -> Instant {
            self.now.set(self.now.get() + nanos(25));
            self.now.get()
        }

        fn next_number(&mut self) -> u32 {
            self.number = self.number.wrapping_add(1);
            self.number
        }

        fn send(&mut self, to: Target, number: u32, say: Say<'_>) {
            if matches!(say, Say::Ping(_)) {
                self.asked.push(number);
            }
            let Target::Member(partner) = to else {
                // The sender wakes those who sleep.
                let looking = self.is_attended.values().filter(|is_attended| **is_attended).count();
                let looking = u32::try_from(looking).expect("few");
                self.spend(self.wake_up / 2 * (self.ports - looking));
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
            let is_asleep = !self.is_attended.get(&partner).copied().unwrap_or(false);
            let receiving = self.logp.receive + if is_asleep { self.wake_up } else { nanos(0) };
            self.partner_free = arrives.max(self.partner_free) + self.noisy(receiving);
            match say {
                Say::Silent => self.silent += 1,
                Say::Ping(attention) => {
                    self.is_attended.insert(partner, attention == Attention::Looking);
                    self.partner_free = self.partner_free + self.logp.send;
                    let silent = std::mem::take(&mut self.silent);
                    let answer = Answer { from: partner, number, silent };
                    if !self.is_lost() {
                        self.arriving.push_back((self.partner_free + self.logp.latency, answer));
                    }
                }
                other => panic!("{other:?} of a leader"),
            }
        }

        fn look(&mut self) {
            let now = self.now.get();
            let mut found = false;
            while self.arriving.front().is_some_and(|(at, _)| *at <= now) {
                self.arrived.extend(self.arriving.pop_front().map(|(_, answer)| answer));
                self.spend(self.logp.receive);
                found = true;
            }
            if !found {
                self.idle();
            }
        }

        fn answer(&mut self) -> Option<Answer> {
            self.arrived.pop_front()
        }

        fn has_failed(&self) -> bool {
            self.now.get() >= self.fails_at
        }

        async fn pause(&mut self) {
            self.idle();
        }
    }

    fn run(line: &mut Virtual, size: u32) -> Result<(Readings, u32), u32> {
        let mut leading = pin!(lead(line, size));
        match leading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => found,
            Poll::Pending => panic!("virtual time never waits"),
        }
    }

    fn assert_near(found: Duration, wanted: Duration, what: &str) {
        // Looks and pauses have their length, and noise its share.
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
                let mut line = Virtual::new(logp, seed as u64);
                (line.noise, line.lost_of_hundred) = (noise, lost_of_hundred);
                let (readings, lost) = run(&mut line, 8).expect("enough readings");
                assert_eq!(lost > 0, lost_of_hundred > 0);
                let found = readings.fit(lost).expect("all series");
                let costs = found.costs();
                assert_near(costs.send, logp.send, "o_s");
                assert_near(costs.receive, logp.receive, "o_r");
                assert_near(costs.hop(), logp.hop(), "o_s + L + o_r");
                assert_near(costs.multicast.cost(7), logp.multicast.cost(7), "multicast");
                assert_near(costs.multicast.cost(1), logp.multicast.cost(1), "message");
                let asleep = found.costs_asleep().receive;
                assert_near(asleep, logp.receive + line.wake_up, "o_r asleep");
                let interval = logp.send.max(logp.gap).max(logp.receive);
                // What is lost of a burst leaves the receiver less to do.
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
        let mut line = Virtual::new(LogP::OF_THE_PAPER, 5);
        line.dead = vec![Rank(2), Rank(6)];
        let (readings, lost) = run(&mut line, 8).expect("two answer");
        assert!(lost >= 2 * LOST_MAX);
        assert_near(readings.fit(lost).expect("all").costs().hop(), nanos(30_000), "X");
        let mut line = Virtual::new(LogP::OF_THE_PAPER, 5);
        line.dead = all;
        assert!(run(&mut line, 8).is_err_and(|lost| lost >= 4 * LOST_MAX));
        assert!(line.now() < Instant::from_nanos(0) + BUDGET_MAX);
    }

    /// Goal: a group that has failed is measured no more. Method: a failure amid the first turn.
    #[test]
    fn a_failure_ends_it() {
        let mut line = Virtual::new(LogP::OF_THE_PAPER, 5);
        line.fails_at = Instant::from_nanos(22_000_000);
        assert!(run(&mut line, 8).is_err());
        assert!(line.now() < line.fails_at + nanos(2_000_000));
    }

    /// Goal: what answers a measurement that was given up is not taken for an answer of the next one. Method: one is
    /// given up amid a turn and another one made over the same line; no number is used twice.
    #[test]
    fn no_number_is_used_twice() {
        let mut line = Virtual::new(LogP::OF_THE_PAPER, 5);
        line.fails_at = Instant::from_nanos(22_000_000);
        assert!(run(&mut line, 8).is_err());
        line.fails_at = Instant::MAX;
        assert!(run(&mut line, 8).is_ok());
        let mut asked = line.asked.clone();
        asked.sort_unstable();
        asked.dedup();
        assert!(asked.len() == line.asked.len() && asked.len() > 500, "{}", asked.len());
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
