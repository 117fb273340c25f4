//! A bound for tests that would otherwise hang.

use std::{fs, panic, sync::mpsc, thread, time::Duration};

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
        Err(mpsc::RecvTimeoutError::Timeout) => {
            panic!(
                "it hangs: not done within {HANG:?}; the threads of this process:\n{}",
                threads()
            )
        }
    }
}

/// Returns a line for each thread of this process, other tests' included: its name, where it sleeps in the kernel, and what `/proc` says
/// of its state and processor time. What computes and what sleeps tells where a test hangs.
fn threads() -> String {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return "not known".to_owned() };
    let describe = |path: std::path::PathBuf| {
        let read = |file| fs::read_to_string(path.join(file)).unwrap_or_default();
        let stat = read("stat");
        // After the name, which may have spaces: the state, and eleven and twelve fields later the ticks in user mode and in the kernel.
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or("?");
        let (state, user, kernel) = (field(1), field(12), field(13));
        format!(
            "  {:<16} {state} in {:<24} user {user}, kernel {kernel} ticks\n",
            read("comm").trim(),
            read("wchan")
        )
    };
    tasks.flatten().map(|task| describe(task.path())).collect()
}
