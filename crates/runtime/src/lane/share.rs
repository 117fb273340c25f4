//! Each lane's share of a thread: the reaction lane goes first, and owes the compute lane a part.

use std::time::Duration;

use super::Lane;

/// The part of a thread's time that waiting computation gets beside reactions, in percent: in proportion to
/// the number of tasks in each lane, within these bounds.
const PERCENT_MIN: u64 = 5;
const PERCENT_MAX: u64 = 25;

/// Reactions run for this many times the limit before a waiting computation has another turn, however long
/// its last one was: five slices.
const ALONE: i64 = 20;

/// A thread owes this many times the limit at most, a slice: a worker without others pays that in one piece, in which events wait.
const OWED_MAX: i64 = 4;

/// The cap for a poll and for a limit: 17 minutes.
const NANOS_MAX: i64 = 1 << 40;

/// Records what the reaction lane owes the compute lane.
#[derive(Debug)]
pub(crate) struct Share {
    /// Above this debt, in nanoseconds, the compute lane goes first.
    limit_ns: i64,
    owed_ns: i64,
}

impl Share {
    /// Creates an account that lets the reaction lane run for about `slice` before a waiting computation has
    /// its turn.
    pub(crate) fn new(slice: Duration) -> Self {
        let limit = slice.as_nanos() / 4;
        Self { limit_ns: i64::try_from(limit).unwrap_or(i64::MAX).min(NANOS_MAX), owed_ns: 0 }
    }

    /// Records a poll of `nanos` in `lane`, with the numbers of tasks that waited in each.
    pub(crate) fn record(&mut self, lane: Lane, nanos: u64, reacting: usize, computing: usize) {
        let nanos = i64::try_from(nanos).unwrap_or(i64::MAX).min(NANOS_MAX);
        match lane {
            Lane::Reaction if computing > 0 => {
                let (reacting, computing) = (reacting as u64 + 1, computing as u64);
                let percent =
                    (100 * computing / (reacting + computing)).clamp(PERCENT_MIN, PERCENT_MAX);
                let percent = i64::try_from(percent).unwrap_or(0);
                let part = |nanos: i64| nanos * percent / (100 - percent);
                // Computation's advance is limited: it gets its share of each window, not of a minute.
                let least = self.limit_ns - part(ALONE * self.limit_ns);
                self.owed_ns = self.owed_ns.max(least) + part(nanos);
            }
            // No computation waits, so nothing is owed.
            Lane::Reaction => self.owed_ns = self.owed_ns.min(0),
            Lane::Compute => self.owed_ns -= nanos,
        }
        self.owed_ns = self.owed_ns.clamp(-ALONE * self.limit_ns, OWED_MAX * self.limit_ns);
    }

    /// Returns the lane to take a task from first.
    pub(crate) const fn first(&self) -> Lane {
        if self.owed_ns <= self.limit_ns { Lane::Reaction } else { Lane::Compute }
    }
}

// The models of `tests/loom.rs` compile this file too, but not the tests below.
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Goal: beside reactions without end, computation gets its part of the time whatever its polls take.
    /// Method: both lanes full, polls of known length, time by lane.
    #[test]
    fn computation_has_its_share() {
        for (reaction_ns, compute_ns) in [(10_000, 100), (500, 2_000_000), (3_000, 100_000)] {
            for (reacting, computing, least, most) in
                [(8, 2, 15, 22), (2, 30, 22, 27), (100, 1, 4, 7)]
            {
                let mut share = Share::new(Duration::from_millis(1));
                let mut time = [0u64; 2];
                while time[0] + time[1] < 2_000_000_000 {
                    let lane = share.first();
                    let nanos = if lane == Lane::Reaction { reaction_ns } else { compute_ns };
                    share.record(lane, nanos, reacting, computing);
                    time[lane as usize] += nanos;
                }
                let percent = 100 * time[1] / (time[0] + time[1]);
                // A long turn comes after 5 ms, whatever the part.
                let most = most.max(1 + 100 * compute_ns / (compute_ns + 5_000_000));
                assert!(
                    (least..=most).contains(&percent),
                    "{percent} % with {reaction_ns}, {compute_ns} ns, {reacting}, {computing}"
                );
            }
        }
    }

    /// Goal: computation has its share of each window: after a turn of any length, reactions run alone for five slices at most, and
    /// for as long where the turn was long. Method: turns around what that bounds, and the reactions until the next one.
    #[test]
    fn long_turns_are_not_paid_back_for_ever() {
        for (reacting, computing) in [(0, 5), (8, 2), (100, 1)] {
            for (turn_ns, least) in [(20_000_000, 4_900), (3_600_000_000_000, 4_900), (0, 0)] {
                let mut share = Share::new(Duration::from_millis(1));
                share.record(Lane::Compute, turn_ns, reacting, computing);
                let mut polls = 0;
                while share.first() == Lane::Reaction {
                    share.record(Lane::Reaction, 1_000, reacting, computing);
                    polls += 1;
                }
                assert!((least..=5_100).contains(&polls), "{polls} us after {turn_ns} ns");
            }
        }
    }

    /// Goal: what a long reaction owes is paid in less than a slice, and what several short ones owe in full. Method: one of 8 ms and one of an
    /// hour, and computations until reactions go first again.
    #[test]
    fn a_long_reaction_is_paid_in_a_slice() {
        for reaction_ns in [8_000_000, 3_600_000_000_000] {
            let mut share = Share::new(Duration::from_millis(1));
            share.record(Lane::Reaction, reaction_ns, 0, 5);
            let mut polls = 0;
            while share.first() == Lane::Compute {
                share.record(Lane::Compute, 10_000, 0, 5);
                polls += 1;
            }
            assert_eq!(polls, 75, "{reaction_ns} ns");
        }
    }

    /// Goal: time for which no computation waited is not owed. Method: an hour of reactions alone.
    #[test]
    fn nothing_is_owed_to_nobody() {
        let mut share = Share::new(Duration::from_millis(1));
        share.record(Lane::Reaction, 3_600_000_000_000, 5, 0);
        assert_eq!(share.first(), Lane::Reaction);
    }

    /// Goal: the part is that of the tasks that compute among all, the one that was polled included, between
    /// its bounds. Method: what is owed after one reaction, by hand.
    #[test]
    fn the_part_follows_the_tasks() {
        for (reacting, computing, percent) in [(9, 2, 16), (0, 1, 25), (6, 2, 22), (1_000, 1, 5)] {
            let mut share = Share::new(Duration::from_secs(60));
            share.record(Lane::Reaction, 1_000_000, reacting, computing);
            assert_eq!(share.owed_ns, 1_000_000 * percent / (100 - percent));
        }
    }
}
