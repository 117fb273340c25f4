//! A bound for tests that would otherwise hang.

use std::{panic, sync::mpsc, thread, time::Duration};

/// Nothing takes a tenth of this on an idle machine; the rest is for loaded ones.
pub(super) const HANG: Duration = Duration::from_secs(120);

/// Runs `body` on a thread of its own.
///
/// # Panics
/// Panics with what `body` panics with, or if it hangs.
pub(crate) fn against_hang<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("guarded".to_owned())
        .spawn(move || {
            let result = body();
            // The guard waits for as long as this thread lives.
            let _ = done.send(());
            result
        })
        .expect("a thread");
    match is_done.recv_timeout(HANG) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Ok(result) => result,
            Err(payload) => panic::resume_unwind(payload),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: not done within {HANG:?}"),
    }
}
