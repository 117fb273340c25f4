//! The role of a child.

use std::env;
use std::io::{self, BufRead};
use std::process;
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::thread;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::message::Message;
use crate::error::Failure;
use crate::host::Usage;
use crate::inside;

/// The environment variable that holds a child's role.
pub(super) const VARIABLE: &str = "VIGIE_BENCH_CHILD";

/// The role of a child: its plan, which is sent to it as JSON.
pub(crate) trait Role: Serialize + DeserializeOwned {
    /// The name shown to people.
    const NAME: &'static str;

    /// The unique key of the role.
    const KEY: &'static str = Self::NAME;
}

/// The question for what the process has used.
pub(super) const ASKS_USAGE: u8 = b'?';

/// The question for what its runtime has counted.
pub(super) const ASKS_COUNTS: u8 = b'#';

/// Not a question: the child in [`wait_for_go`] may go on.
pub(super) const GO: u8 = b'!';

/// Whether the parent has said [`GO`].
static MAY_GO: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Plays the role for which this process was started, and ends the process; returns at once if it was
/// started without a role. `play` gets the key of the role, and its plan.
///
/// # Panics
/// Panics if the environment variable holds something that this crate did not write.
pub(crate) fn play_if_child(play: impl FnOnce(&str, Value) -> Result<(), Failure>) {
    let Some(role) = env::var_os(VARIABLE) else { return };
    let role = role.into_string().expect("VIGIE_BENCH_CHILD is written by vigie-bench, as UTF-8");
    let (key, plan): (String, Value) =
        serde_json::from_str(&role).expect("VIGIE_BENCH_CHILD is written by vigie-bench, as JSON");
    end_with_parent();
    let last = match play(&key, plan) {
        Ok(()) => Message::Finished,
        Err(failure) => Message::Failed { failure },
    };
    last.print();
    process::exit(0);
}

/// Reads the plan of a role.
///
/// # Panics
/// As [`play_if_child`].
pub(crate) fn read<R: Role>(plan: Value) -> R {
    serde_json::from_value(plan).expect("VIGIE_BENCH_CHILD is written by vigie-bench, as JSON")
}

/// Ends this process when its standard input ends, and answers what is asked there. The thread that does so is asleep when this
/// returns, so that its start is not part of what is measured.
fn end_with_parent() {
    let (ready, is_ready) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let _ = ready.send(());
        drop(ready);
        // An error is an end too.
        while let Ok([question, ..]) = stdin.fill_buf() {
            match *question {
                GO => {
                    *MAY_GO.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
                    MAY_GO.1.notify_all();
                }
                ASKS_COUNTS => Message::Counts(inside::counts_here()).print(),
                _ => Message::Usage(Usage::of_this_process()).print(),
            }
            stdin.consume(1);
        }
        process::exit(0);
    });
    let _ = is_ready.recv();
}

/// Waits in a child until its parent calls [`Child::go`](super::Child::go).
pub(crate) fn wait_for_go() {
    let may_go = MAY_GO.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(MAY_GO.1.wait_while(may_go, |may_go| !*may_go));
}
