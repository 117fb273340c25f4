//! The members that have left the group, and the barrier that cannot be passed because of them.

use crate::{
    error::{BarrierError, LostRanks},
    group::{Group, Rank},
    sync::{AtomicU64, Ordering},
};

/// Members of this process that are gone.
#[derive(Debug)]
pub(crate) struct Absences {
    /// The first barrier that cannot be passed: [`NOT`], or [`YES`] plus its number. `SeqCst`: it is one of the
    /// changes that `Central::begin_sleep` refers to.
    failed_from: AtomicU64,
    /// For each member, the first barrier that it has not entered, in the same form. Written by the member as it
    /// leaves, before `failed_from`, which publishes it.
    left: Box<[AtomicU64]>,
}

const NOT: u64 = 0;
const YES: u64 = 1 << 32;

/// Returns whether barrier `epoch` cannot be passed because those from `word` on cannot.
fn reaches(word: u64, epoch: u32) -> bool {
    const HALF: u32 = 1 << 31;
    // Members are at most one barrier apart: half of the number range is far enough.
    word != NOT && u32::try_from(word & (YES - 1)).is_ok_and(|from| epoch.wrapping_sub(from) < HALF)
}

impl Absences {
    pub(crate) fn new(group: Group) -> Self {
        let left = group.ranks().map(|_| AtomicU64::new(NOT)).collect();
        Self { failed_from: AtomicU64::new(NOT), left }
    }

    /// Records that `rank` leaves without entering barrier `epoch`. The caller wakes all waiting members.
    pub(crate) fn leave(&self, rank: Rank, epoch: u32) {
        let word = YES | u64::from(epoch);
        if let Some(left) = self.left.get(rank.index()) {
            left.store(word, Ordering::Release);
        }
        // The earliest counts: two members that leave may be one barrier apart.
        let earlier = |now: u64| (!reaches(now, epoch)).then_some(word);
        let _ = self.failed_from.fetch_update(Ordering::SeqCst, Ordering::SeqCst, earlier);
    }

    /// Returns whether barrier `epoch` cannot be passed.
    #[inline]
    pub(crate) fn fails(&self, epoch: u32) -> bool {
        let word = self.failed_from.load(Ordering::SeqCst);
        word != NOT && reaches(word, epoch)
    }

    /// Returns the error of a member that waits for barrier `epoch`, which cannot be passed.
    #[cold]
    pub(crate) fn error(&self, epoch: u32) -> BarrierError {
        let mut ranks = Vec::new();
        for (rank, left) in (0..).map(Rank).zip(&self.left) {
            if reaches(left.load(Ordering::Acquire), epoch) {
                ranks.push(rank);
            }
        }
        BarrierError::Lost { ranks: LostRanks::new(ranks), epoch }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: a barrier fails from the first one on that some member has not entered, also over the end of the
    /// numbers, and the error names exactly those missing from it. Method: two that leave, in both
    /// orders.
    #[test]
    fn the_earliest_absence_counts() {
        let group = Group::new(4).unwrap();
        for begin in [0, u32::MAX - 1, u32::MAX] {
            let next = begin.wrapping_add(1);
            for swapped in [false, true] {
                let absences = Absences::new(group);
                assert!(!absences.fails(begin));
                let mut leaving = [(Rank(3), next), (Rank(1), begin)];
                if swapped {
                    leaving.reverse();
                }
                for (rank, epoch) in leaving {
                    absences.leave(rank, epoch);
                }
                assert!(!absences.fails(begin.wrapping_sub(1)), "that one was passed");
                assert!(absences.fails(begin) && absences.fails(next));
                assert_eq!(absences.error(begin).lost(), [Rank(1)]);
                let error = absences.error(next);
                assert_eq!(error.lost(), [Rank(1), Rank(3)]);
                assert!(error.to_string().starts_with("ranks 1, 3 are gone"), "{error}");
            }
        }
    }
}
