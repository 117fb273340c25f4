//! Tests that end, whatever happens.

use std::{
    panic::resume_unwind,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// Runs `body` on a thread of its own, and fails if it takes longer than `bound`. `what` is named in each failure.
pub(crate) fn bounded(what: &str, bound: Duration, body: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        body();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(bound) {
        Err(RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        // Done, or it has panicked.
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                eprintln!("in {what}");
                resume_unwind(panic);
            }
        }
    }
}
