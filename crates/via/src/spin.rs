//! How long a wait looks again and again by itself before it hands over to the scheduler.

use std::sync::atomic::{AtomicU32, Ordering};

/// Looks in a row of one wait: many times what an answer from another core takes, and less than a sleep and
/// a wake-up.
const LOOKS: u32 = 100;

/// Waits in a row that found nothing in all their looks, after which most of them look only once.
const LOSSES_MAX: u32 = 3;

/// One wait of so many still tries, when most of them do not.
const TRY_EVERY: u32 = 16;

/// Decides, by what came of it lately, whether a wait looks for a while. A wait that loses has spent what
/// handing over costs anyway, so that at worst the cost doubles; a wait that does not try costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Waits in a row that have lost. `Relaxed`: a hint.
    losses: AtomicU32,
}

impl Spin {
    /// Calls `look` until it finds something, or for long enough.
    #[inline]
    pub(crate) fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        self.until_idle(|| Look::from(look()))
    }

    /// As [`until`](Self::until), and goes on for as long as something moves.
    #[inline]
    pub(crate) fn until_idle<T>(&self, mut look: impl FnMut() -> Look<T>) -> Option<T> {
        let mut moves = match look() {
            Look::Found(found) => return Some(found),
            Look::Moved => true,
            Look::Nothing => false,
        };
        let losses = self.losses.load(Ordering::Relaxed);
        if losses >= LOSSES_MAX && !moves {
            self.losses.store(losses.wrapping_add(1).max(LOSSES_MAX), Ordering::Relaxed);
            if !losses.is_multiple_of(TRY_EVERY) {
                return None;
            }
        }
        let mut looks = 0;
        while looks < LOOKS {
            if !moves {
                std::hint::spin_loop();
            }
            looks += 1;
            moves = match look() {
                Look::Found(found) => {
                    if losses != 0 {
                        self.losses.store(0, Ordering::Relaxed);
                    }
                    return Some(found);
                }
                Look::Moved => {
                    looks = 0;
                    true
                }
                Look::Nothing => false,
            };
        }
        self.losses.store(losses.saturating_add(1), Ordering::Relaxed);
        None
    }
}

/// What a look has seen.
pub(crate) enum Look<T> {
    Found(T),
    /// Not yet, but something came nearer.
    Moved,
    Nothing,
}

impl<T> From<Option<T>> for Look<T> {
    #[inline]
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Nothing, Self::Found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is there costs one look, what comes soon is found, waits that lose stop trying, and one
    /// that wins makes them try again. Method: count the looks.
    #[test]
    fn looking_must_pay() {
        let spin = Spin::default();
        let looks_until = |found_at: u32| {
            let mut looks = 0;
            let found = spin.until(|| {
                looks += 1;
                (looks == found_at).then_some(())
            });
            (found.is_some(), looks)
        };
        assert_eq!(looks_until(1), (true, 1));
        assert_eq!(looks_until(10), (true, 10));
        for _ in 0..LOSSES_MAX {
            assert_eq!(looks_until(u32::MAX), (false, LOOKS + 1));
        }
        let tries = (0..TRY_EVERY * 4).filter(|_| looks_until(u32::MAX).1 > 1).count();
        assert_eq!(tries, 4, "one of {TRY_EVERY}");
        let wins = (0..TRY_EVERY).filter(|_| looks_until(10).0).count();
        assert!(wins > 0, "it tries again");
        assert_eq!(looks_until(10), (true, 10));
    }
}
