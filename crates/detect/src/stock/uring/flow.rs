//! The way of one request through the io_uring detector.
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
    operation::{Action, Completion, Kind, Move},
};
use crate::detector::{Key, Mode};

/// One request, from its submission to its end.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: Key,
    mode: Mode,
    stage: Stage,
    /// Events that the waiter had no room for, oldest first.
    pub(super) held: VecDeque<ProvidedBuffer>,
    /// A cancellation is under way that only stops the kernel for a while.
    is_pausing: bool,
}

#[derive(Debug)]
enum Stage {
    Queued(Action),
    InFlight,
    Cancelling,
    Starved(Action),
    Paused(Action),
    Ending(Ending),
    /// While an action is moved from one stage to the next.
    Moving,
}

/// How a request ends.
#[derive(Debug)]
#[must_use = "the waiter is told of the end"]
pub(super) enum Ending {
    /// A stream is over, or a cancelled request: nothing to report.
    Silent,
    /// With a last event.
    Event(Completion),
    /// With an error.
    Failed(io::Error),
}

/// What a final completion leads to.
#[derive(Debug)]
#[must_use = "a request that is not followed up hangs"]
pub(super) enum Landing {
    /// Queue the request again.
    Again,
    /// Queue it again once a buffer is back.
    Starved,
    /// Wait until the waiter has taken what is held.
    Held,
    /// Forget the request and tell its waiter.
    Over(Ending),
}

/// What the detector has to do for a cancellation.
#[derive(Debug)]
#[must_use = "a request that the kernel works on must be cancelled there"]
pub(super) enum Cancelled {
    /// Nothing: the kernel does not have the request. Here is what it owned.
    Idle(Option<Action>),
    /// Cancel it in the kernel.
    InFlight,
}

impl Flow {
    pub(super) const fn new(key: Key, mode: Mode, action: Action) -> Self {
        Self { key, mode, stage: Stage::Queued(action), held: VecDeque::new(), is_pausing: false }
    }

    /// Gives the action to the kernel, unless the request is not queued any more.
    pub(super) fn take_off(&mut self) -> Option<Action> {
        match mem::replace(&mut self.stage, Stage::Moving) {
            Stage::Queued(action) => {
                self.stage = Stage::InFlight;
                Some(action)
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Returns whether events are for the waiter: it has not left.
    pub(super) const fn is_wanted(&self) -> bool {
        !matches!(self.stage, Stage::Cancelling)
    }

    /// Returns whether a cancellation has to go to the kernel.
    pub(super) const fn wants_cancellation(&self) -> bool {
        match self.stage {
            Stage::Cancelling => true,
            Stage::InFlight => self.is_pausing,
            _ => false,
        }
    }

    /// Asks for a pause, since the waiter has no room. Returns whether to cancel the kernel's part.
    pub(super) const fn pause(&mut self) -> bool {
        let begins = matches!(self.stage, Stage::InFlight) && !self.is_pausing;
        self.is_pausing |= begins;
        begins
    }

    /// Follows the final completion of one entry.
    pub(super) fn land(&mut self, action: Action, result: io::Result<usize>) -> Landing {
        self.is_pausing = false;
        let is_cancelled = matches!(self.stage, Stage::Cancelling);
        let verdict = match action.kind {
            Kind::Receive { .. } if is_cancelled => Verdict::Over(Ending::Silent),
            Kind::Receive { .. } => self.judge_receive(result),
            Kind::Move(ref moved) => judge_move(moved, result, is_cancelled),
        };
        let ending = match verdict {
            Verdict::Again if self.held.is_empty() => {
                self.stage = Stage::Queued(action);
                return Landing::Again;
            }
            Verdict::Again => {
                self.stage = Stage::Paused(action);
                return Landing::Held;
            }
            Verdict::Starved => {
                self.stage = Stage::Starved(action);
                return Landing::Starved;
            }
            Verdict::Back(error) => match action.kind {
                Kind::Move(moved) => Ending::Event(moved.into_completion(error)),
                Kind::Receive { .. } => error.map_or(Ending::Silent, Ending::Failed),
            },
            Verdict::Over(ending) => ending,
        };
        if self.held.is_empty() {
            return Landing::Over(ending);
        }
        self.stage = Stage::Ending(ending);
        Landing::Held
    }

    fn judge_receive(&self, result: io::Result<usize>) -> Verdict {
        match result {
            Ok(0) if self.mode == Mode::Once => Verdict::Over(Ending::Event(Completion::End)),
            Ok(0) => Verdict::Over(Ending::Silent),
            // The one event has been reported already.
            Ok(_) if self.mode == Mode::Once => Verdict::Over(Ending::Silent),
            Ok(_) => Verdict::Again,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOBUFS) => Verdict::Starved,
                _ => judge_error(error).map_or(Verdict::Again, Verdict::fail),
            },
        }
    }

    /// A buffer is back: returns whether the request is to be queued again.
    pub(super) fn fed(&mut self) -> bool {
        match mem::replace(&mut self.stage, Stage::Moving) {
            Stage::Starved(action) => {
                self.stage = Stage::Queued(action);
                true
            }
            other => {
                self.stage = other;
                false
            }
        }
    }

    /// The waiter has taken all that was held.
    pub(super) fn caught_up(&mut self) -> Option<Landing> {
        match mem::replace(&mut self.stage, Stage::Moving) {
            Stage::Paused(action) => {
                self.stage = Stage::Queued(action);
                Some(Landing::Again)
            }
            Stage::Ending(ending) => Some(Landing::Over(ending)),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// The waiter leaves.
    pub(super) fn cancel(&mut self) -> Cancelled {
        match mem::replace(&mut self.stage, Stage::Cancelling) {
            Stage::Queued(action) | Stage::Starved(action) | Stage::Paused(action) => {
                Cancelled::Idle(Some(action))
            }
            Stage::Ending(_) | Stage::Moving => Cancelled::Idle(None),
            Stage::InFlight | Stage::Cancelling => Cancelled::InFlight,
        }
    }
}

/// What one entry's result means for its request, apart from what is held.
enum Verdict {
    Again,
    Starved,
    /// The action's buffer goes back.
    Back(Option<io::Error>),
    Over(Ending),
}

impl Verdict {
    const fn fail(error: io::Error) -> Self {
        Self::Over(Ending::Failed(error))
    }
}

fn judge_move(moved: &Move, result: io::Result<usize>, is_cancelled: bool) -> Verdict {
    match result {
        Err(error) if is_cancelled => Verdict::Back(Some(error)),
        Err(error) => match judge_error(error) {
            Some(error) => Verdict::Back(Some(error)),
            None => Verdict::Again,
        },
        Ok(_) if !moved.is_unfinished() => Verdict::Back(None),
        Ok(0) => Verdict::Back(Some(io::ErrorKind::WriteZero.into())),
        Ok(_) if is_cancelled => Verdict::Back(Some(io::Error::from_raw_os_error(libc::ECANCELED))),
        Ok(_) => Verdict::Again,
    }
}

/// Returns the error that the waiter gets, or `None` if the request is to be begun anew.
fn judge_error(error: io::Error) -> Option<io::Error> {
    match error.raw_os_error() {
        // The kernel cancels what a thread has submitted when that thread exits; and so do we, to
        // pause. Nothing was moved in either case. No count bounds how often: an idle request may
        // outlive any number of threads.
        Some(libc::ECANCELED | libc::EINTR) => None,
        _ => Some(error),
    }
}
