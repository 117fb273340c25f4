//! A handle, and the helper thread that makes its blocking calls.

use std::{io, sync::Arc};

use loom::{
    sync::{Condvar, Mutex},
    thread,
};
use vigie_detect::{Blocker, loom_exports::HelperControl};

use crate::{PollerHandle, fails};

/// The operations of both sides: the real control, and its mutants.
trait Helps: Send + Sync + 'static {
    /// With a call that `interrupt` ends.
    fn new(
        call: impl Fn() + Send + Sync + 'static,
        interrupt: impl Fn() + Send + Sync + 'static,
    ) -> Self;
    fn want(&self);
    /// Returns whether the thread has ended.
    fn close(&self) -> bool;
    fn run(&self, notify: impl Fn());
}

impl Helps for HelperControl {
    fn new(
        call: impl Fn() + Send + Sync + 'static,
        interrupt: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let call = move |_| {
            call();
            Ok::<_, io::Error>(())
        };
        Self::new(Blocker::interruptible(call, interrupt))
    }
    fn want(&self) {
        self.want();
    }
    fn close(&self) -> bool {
        self.close()
    }
    fn run(&self, notify: impl Fn()) {
        self.run(notify);
    }
}

/// The step that a mutant omits.
const RINGS_BEFORE_THE_END: u8 = 0;
const CHECKS_ONCE: u8 = 1;
const CLOSES_SILENTLY: u8 = 2;
const INTERRUPTS_NOBODY: u8 = 3;
const NOTHING: u8 = 4;

struct Mutant<const FAULT: u8> {
    state: Mutex<State>,
    changed: Condvar,
    call: Box<dyn Fn() + Send + Sync>,
    interrupt: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    is_wanted: bool,
    is_calling: bool,
    is_closed: bool,
    has_ended: bool,
}

impl<const FAULT: u8> Helps for Mutant<FAULT> {
    fn new(
        call: impl Fn() + Send + Sync + 'static,
        interrupt: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            call: Box::new(call),
            interrupt: Box::new(interrupt),
        }
    }
    fn want(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        if !state.is_calling && !state.is_wanted {
            state.is_wanted = true;
            self.changed.notify_all();
        }
    }
    fn close(&self) -> bool {
        let mut state = self.state.lock().expect("not poisoned");
        state.is_closed = true;
        if FAULT != CLOSES_SILENTLY {
            self.changed.notify_all();
        }
        while !state.has_ended {
            if state.is_calling && FAULT != INTERRUPTS_NOBODY {
                drop(state);
                (self.interrupt)();
                state = self.state.lock().expect("not poisoned");
            }
            if !state.has_ended {
                state = self.changed.wait(state).expect("not poisoned");
            }
        }
        true
    }
    fn run(&self, notify: impl Fn()) {
        loop {
            let mut state = self.state.lock().expect("not poisoned");
            if FAULT == CHECKS_ONCE {
                let is_needed = state.is_wanted || state.is_closed;
                // A want in between finds no sleeping thread.
                drop(state);
                state = self.state.lock().expect("not poisoned");
                if !is_needed {
                    state = self.changed.wait(state).expect("not poisoned");
                }
            }
            while FAULT != CHECKS_ONCE && !state.is_wanted && !state.is_closed {
                state = self.changed.wait(state).expect("not poisoned");
            }
            state.is_wanted = false;
            state.is_calling = !state.is_closed;
            if state.is_closed {
                break;
            }
            drop(state);
            (self.call)();
            if FAULT == RINGS_BEFORE_THE_END {
                notify();
            }
            self.state.lock().expect("not poisoned").is_calling = false;
            if FAULT != RINGS_BEFORE_THE_END {
                notify();
            }
        }
        self.state.lock().expect("not poisoned").has_ended = true;
        self.changed.notify_all();
    }
}

/// A host that wants a call for each of `events`, and is notified after each; then it closes the handle.
/// A lost want is a deadlock, which loom reports.
fn announces<H: Helps>(events: usize) {
    let source = Arc::new(PollerHandle::new());
    let host = Arc::new(PollerHandle::new());
    let (called, interrupted) = (source.clone(), source.clone());
    let control = Arc::new(H::new(move || called.sleep(), move || interrupted.wake()));
    let thread = {
        let (control, host) = (control.clone(), host.clone());
        thread::spawn(move || control.run(|| host.wake()))
    };
    for _ in 0..events {
        control.want();
        source.wake();
        host.sleep();
    }
    assert!(control.close(), "the thread has not ended");
    thread.join().expect("no panic");
}

/// A host that closes the handle whatever its thread does at that moment: nothing, or a call without a
/// coming event.
fn closes<H: Helps>(is_wanted: bool) {
    let source = Arc::new(PollerHandle::new());
    let (called, interrupted) = (source.clone(), source);
    let control = Arc::new(H::new(move || called.sleep(), move || interrupted.wake()));
    let thread = {
        let control = control.clone();
        thread::spawn(move || control.run(|| ()))
    };
    if is_wanted {
        control.want();
    }
    assert!(control.close(), "the thread has not ended");
    thread.join().expect("no panic");
}

#[test]
fn no_wish_is_lost() {
    loom::model(|| announces::<HelperControl>(1));
    loom::model(|| announces::<HelperControl>(2));
}

#[test]
fn a_close_ends_the_thread() {
    loom::model(|| closes::<HelperControl>(false));
    loom::model(|| closes::<HelperControl>(true));
}

#[test]
fn mutant_ringing_before_the_end_is_found() {
    fails(|| announces::<Mutant<RINGS_BEFORE_THE_END>>(2));
}

#[test]
fn mutant_that_checks_once_is_found() {
    fails(|| announces::<Mutant<CHECKS_ONCE>>(1));
}

#[test]
fn mutant_closing_silently_is_found() {
    fails(|| closes::<Mutant<CLOSES_SILENTLY>>(false));
}

#[test]
fn mutant_that_interrupts_nobody_is_found() {
    fails(|| closes::<Mutant<INTERRUPTS_NOBODY>>(true));
}

/// Goal: failures of the mutants come from their fault alone. Method: the same without one.
#[test]
fn mutant_without_a_fault_passes() {
    loom::model(|| announces::<Mutant<NOTHING>>(2));
    loom::model(|| closes::<Mutant<NOTHING>>(false));
    loom::model(|| closes::<Mutant<NOTHING>>(true));
}
