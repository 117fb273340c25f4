//! Two small things on which tasks wait for each other, for the benches of `wake` and of timers.
//!
//! They belong to no runtime, so that every runtime pays the same for them: what differs is what it
//! does with the waker.

use std::future;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// A turn that two tasks pass to each other.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<TurnState>,
}

#[derive(Debug, Default)]
struct TurnState {
    /// Whose turn it is.
    of_second: bool,
    /// The waker of the task that waits for its turn.
    waiting: Option<Waker>,
}

/// One of the two tasks of [`Turns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a turn is passed between two")]
pub enum Player {
    /// The task that has the first turn.
    First,
    /// The other one.
    Second,
}

impl Turns {
    /// Creates turns of which the first belongs to [`Player::First`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for the turn of `player`, then passes it on and wakes the other.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped future has not passed the turn.
    pub async fn take(&self, player: Player) {
        let woken = future::poll_fn(|context| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.of_second == (player == Player::Second) {
                state.of_second = !state.of_second;
                return Poll::Ready(state.waiting.take());
            }
            match &mut state.waiting {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        });
        if let Some(other) = woken.await {
            other.wake();
        }
    }
}

/// Waits until a number of tasks are done.
#[derive(Debug)]
pub struct Countdown {
    state: Mutex<(u64, Option<Waker>)>,
}

impl Countdown {
    /// Creates a countdown of `count` tasks.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self { state: Mutex::new((count, None)) }
    }

    /// Counts one task as done.
    ///
    /// # Panics
    /// Panics if more tasks are done than were to be waited for.
    pub fn done(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = state.0.checked_sub(1).expect("no more tasks are done than were counted");
        let waiting = if state.0 == 0 { state.1.take() } else { None };
        drop(state);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Waits until all tasks are done. Only one task may wait.
    ///
    /// # Cancel safety
    /// Cancel safe: what is counted stays counted.
    pub async fn wait(&self) {
        future::poll_fn(|context| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 == 0 {
                return Poll::Ready(());
            }
            state.1 = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn turns_alternate() {
        // Goal: no task has two turns in a row. Method: poll by hand, without a runtime.
        let turns = Turns::new();
        let context = &mut Context::from_waker(Waker::noop());
        let mut second = pin!(turns.take(Player::Second));
        assert!(second.as_mut().poll(context).is_pending());
        assert!(pin!(turns.take(Player::First)).poll(context).is_ready());
        assert!(pin!(turns.take(Player::First)).poll(context).is_pending());
        assert!(second.poll(context).is_ready());
        assert!(pin!(turns.take(Player::First)).poll(context).is_ready());
    }

    #[test]
    fn a_countdown_ends_with_its_last_task() {
        // Goal: not before, and at once afterwards. Method: poll by hand.
        let countdown = Countdown::new(2);
        let context = &mut Context::from_waker(Waker::noop());
        countdown.done();
        assert!(pin!(countdown.wait()).poll(context).is_pending());
        countdown.done();
        assert!(pin!(countdown.wait()).poll(context).is_ready());
    }
}
