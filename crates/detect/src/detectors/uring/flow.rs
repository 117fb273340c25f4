//! The life of one request in the io_uring detector.
//!
//! ```text
//!        submit (1)           flush (2)             final completion (3)
//!   ────────────────▶ queued ───────────▶ in flight ────────────────────▶ over
//!                      ▲  ▲                │ │  │ │
//!                      │  └─ again (3) ────┘ │  │ └─ over (3), but events are held ──▶ ending
//!   a buffer is back ──┤                     │  │
//!                   starved ◀── ENOBUFS (3) ─┘  └─ again (3), but events are held ──▶ paused
//!                                                                  (4) none is held: queued
//!        cancel (5): queued, starved, paused, ending ──▶ over
//!                    in flight ──▶ cancelling ── final completion (3) ──▶ over
//! ```
//!
//! (1) [`Flow::new`], (2) [`Flow::take_off`], (3) [`Flow::land`], (4) [`Flow::caught_up`],
//! (5) [`Flow::cancel`].

use std::{collections::VecDeque, io, mem};

use super::{
    kernel::ProvidedBuffer,
    operation::{Action, Completion, Move, OperationKind},
};
use crate::detector::{Key, Mode};

/// One request, from its submission to its end.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: Key,
    mode: Mode,
    stage: OperationState,
    /// Events for which the waiter had no room, oldest first.
    pub(super) held: VecDeque<ProvidedBuffer>,
    /// A cancellation is in progress that only pauses the kernel.
    is_pausing: bool,
}

#[derive(Debug)]
enum OperationState {
    Queued(Action),
    InFlight,
    Cancelling,
    Starved(Action),
    Paused(Action),
    Ending(Ending),
    /// While an action is moved from one stage to the next.
    Moving,
}

/// The end of a request, as its waiter is told of it.
#[derive(Debug)]
#[must_use = "the waiter is told of the end"]
pub(super) enum Ending {
    /// A stream or a cancelled request is over: nothing to report.
    Silent,
    /// With a last event.
    Event(Completion),
    /// With an error.
    Failed(io::Error),
}

/// The consequence of a final completion.
#[derive(Debug)]
#[must_use = "a request that is not followed up hangs"]
pub(super) enum Landing {
    /// Queue the request again.
    Again,
    /// Queue it again once a buffer has been returned.
    Starved,
    /// Wait until the waiter has taken the held events.
    Held,
    /// Forget the request and report its end to the waiter.
    Over(Ending),
}

/// The consequence of a cancellation for the detector.
#[derive(Debug)]
#[must_use = "a request that the kernel works on must be cancelled there"]
pub(super) enum Cancelled {
    /// Nothing: the kernel does not have the request. Contains what it owned.
    Idle(Option<Action>),
    /// Cancel it in the kernel.
    InFlight,
}

impl Flow {
    pub(super) const fn new(key: Key, mode: Mode, action: Action) -> Self {
        Self {
            key,
            mode,
            stage: OperationState::Queued(action),
            held: VecDeque::new(),
            is_pausing: false,
        }
    }

    /// Gives the action to the kernel, unless the request is no longer queued.
    pub(super) fn take_off(&mut self) -> Option<Action> {
        match mem::replace(&mut self.stage, OperationState::Moving) {
            OperationState::Queued(action) => {
                self.stage = OperationState::InFlight;
                Some(action)
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Returns whether the waiter still wants events: it has not left.
    pub(super) const fn is_wanted(&self) -> bool {
        !matches!(self.stage, OperationState::Cancelling)
    }

    /// Returns whether a cancellation must be sent to the kernel.
    pub(super) const fn wants_cancellation(&self) -> bool {
        match self.stage {
            OperationState::Cancelling => true,
            OperationState::InFlight => self.is_pausing,
            _ => false,
        }
    }

    /// Asks for a pause, since the waiter has no room. Returns whether to cancel the kernel's part.
    pub(super) const fn pause(&mut self) -> bool {
        let begins = matches!(self.stage, OperationState::InFlight) && !self.is_pausing;
        self.is_pausing |= begins;
        begins
    }

    /// Handles the final completion of one entry.
    pub(super) fn land(&mut self, action: Action, result: io::Result<usize>) -> Landing {
        self.is_pausing = false;
        let is_cancelled = matches!(self.stage, OperationState::Cancelling);
        let verdict = match action.kind {
            OperationKind::Receive { .. } if is_cancelled => ReceiveVerdict::Over(Ending::Silent),
            OperationKind::Receive { .. } => self.judge_receive(result),
            OperationKind::Move(ref moved) => judge_move(moved, result, is_cancelled),
        };
        let ending = match verdict {
            ReceiveVerdict::Again if self.held.is_empty() => {
                self.stage = OperationState::Queued(action);
                return Landing::Again;
            }
            ReceiveVerdict::Again => {
                self.stage = OperationState::Paused(action);
                return Landing::Held;
            }
            ReceiveVerdict::Starved => {
                self.stage = OperationState::Starved(action);
                return Landing::Starved;
            }
            ReceiveVerdict::Back(error) => match action.kind {
                OperationKind::Move(moved) => Ending::Event(moved.into_completion(error)),
                OperationKind::Receive { .. } => error.map_or(Ending::Silent, Ending::Failed),
            },
            ReceiveVerdict::Over(ending) => ending,
        };
        if self.held.is_empty() {
            return Landing::Over(ending);
        }
        self.stage = OperationState::Ending(ending);
        Landing::Held
    }

    fn judge_receive(&self, result: io::Result<usize>) -> ReceiveVerdict {
        match result {
            Ok(0) if self.mode == Mode::Once => {
                ReceiveVerdict::Over(Ending::Event(Completion::End))
            }
            Ok(0) => ReceiveVerdict::Over(Ending::Silent),
            // The one event has already been reported.
            Ok(_) if self.mode == Mode::Once => ReceiveVerdict::Over(Ending::Silent),
            Ok(_) => ReceiveVerdict::Again,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOBUFS) => ReceiveVerdict::Starved,
                _ => judge_error(error).map_or(ReceiveVerdict::Again, ReceiveVerdict::fail),
            },
        }
    }

    /// A buffer has been returned: returns whether the request must be queued again.
    pub(super) fn fed(&mut self) -> bool {
        match mem::replace(&mut self.stage, OperationState::Moving) {
            OperationState::Starved(action) => {
                self.stage = OperationState::Queued(action);
                true
            }
            other => {
                self.stage = other;
                false
            }
        }
    }

    /// The waiter has taken all held events.
    pub(super) fn caught_up(&mut self) -> Option<Landing> {
        match mem::replace(&mut self.stage, OperationState::Moving) {
            OperationState::Paused(action) => {
                self.stage = OperationState::Queued(action);
                Some(Landing::Again)
            }
            OperationState::Ending(ending) => Some(Landing::Over(ending)),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// The waiter leaves.
    pub(super) fn cancel(&mut self) -> Cancelled {
        match mem::replace(&mut self.stage, OperationState::Cancelling) {
            OperationState::Queued(action)
            | OperationState::Starved(action)
            | OperationState::Paused(action) => Cancelled::Idle(Some(action)),
            OperationState::Ending(_) | OperationState::Moving => Cancelled::Idle(None),
            OperationState::InFlight | OperationState::Cancelling => Cancelled::InFlight,
        }
    }
}

/// The consequence of one entry's result for its request, apart from held events.
enum ReceiveVerdict {
    Again,
    Starved,
    /// Return the action's buffer.
    Back(Option<io::Error>),
    Over(Ending),
}

impl ReceiveVerdict {
    const fn fail(error: io::Error) -> Self {
        Self::Over(Ending::Failed(error))
    }
}

fn judge_move(moved: &Move, result: io::Result<usize>, is_cancelled: bool) -> ReceiveVerdict {
    match result {
        Err(error) if is_cancelled => ReceiveVerdict::Back(Some(error)),
        Err(error) => match judge_error(error) {
            Some(error) => ReceiveVerdict::Back(Some(error)),
            None => ReceiveVerdict::Again,
        },
        Ok(_) if !moved.is_unfinished() => ReceiveVerdict::Back(None),
        Ok(0) => ReceiveVerdict::Back(Some(io::ErrorKind::WriteZero.into())),
        Ok(_) if is_cancelled => {
            ReceiveVerdict::Back(Some(io::Error::from_raw_os_error(libc::ECANCELED)))
        }
        Ok(_) => ReceiveVerdict::Again,
    }
}

/// Returns the error for the waiter, or `None` if the request must be started again.
fn judge_error(error: io::Error) -> Option<io::Error> {
    match error.raw_os_error() {
        // The kernel cancels what a thread has submitted when that thread exits; and so do we, to
        // pause. Nothing was moved in either case. The number of restarts is unbounded: an idle
        // request may outlive any number of threads.
        Some(libc::ECANCELED | libc::EINTR) => None,
        _ => Some(error),
    }
}
