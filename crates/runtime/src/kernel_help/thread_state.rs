//! The kernel's view of a thread of this process.

use std::{
    fs::File,
    io::{Cursor, Read, Write},
};

/// Returns whether the thread with the kernel thread id `thread` sleeps in the kernel: for a file, a lock, a
/// time. `false` for one that only waits for a processor, and where /proc is not mounted.
///
/// # Cost
/// Three system calls, some 5 µs; no allocation.
pub(crate) fn is_asleep(thread: u32) -> bool {
    let mut text = [0; TEXT_MAX];
    let state = read(thread, "stat", &mut text).and_then(state_in);
    matches!(state, Some(b'S' | b'D'))
}

const TEXT_MAX: usize = 64;

/// Reads the beginning of a file of the thread: proc_pid_stat(5), proc_pid_wchan(5), schedstat.
fn read<'a>(thread: u32, file: &str, text: &'a mut [u8; TEXT_MAX]) -> Option<&'a [u8]> {
    let mut path = Cursor::new([0; 48]);
    write!(path, "/proc/self/task/{thread}/{file}").ok()?;
    let length = usize::try_from(path.position()).ok()?;
    let path = str::from_utf8(&path.get_ref()[..length]).ok()?;
    let length = File::open(path).ok()?.read(text).ok()?;
    Some(&text[..length])
}

/// Returns for how many nanoseconds the thread has waited for a processor, if the kernel tells.
pub(crate) fn waited_for_processor(thread: u32) -> Option<u64> {
    let mut text = [0; TEXT_MAX];
    let text = str::from_utf8(read(thread, "schedstat", &mut text)?).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The state follows the name, which is in parentheses and may itself contain some.
fn state_in(text: &[u8]) -> Option<u8> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    text.get(end + 2).copied()
}

/// Returns the name of the kernel function in which the thread sleeps, if the kernel tells.
pub(crate) fn sleeps_in(thread: u32) -> Option<String> {
    let mut text = [0; TEXT_MAX];
    let name = str::from_utf8(read(thread, "wchan", &mut text)?).ok()?;
    (name != "0" && !name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{
        kernel_help::thread_number,
        sync::{Arc, AtomicBool, Ordering, thread},
    };

    /// Goal: a thread that sleeps is told from one that computes. Method: one of each kind, asked until the
    /// answer is right.
    #[test]
    fn sleepers_are_told_from_others() {
        let (tell, told) = mpsc::channel();
        let (_keep, wait) = mpsc::channel::<()>();
        let is_over = Arc::new(AtomicBool::new(false));
        let telling = tell.clone();
        let sleeper = thread::spawn(move || {
            telling.send(thread_number()).expect("heard");
            let _ = wait.recv();
        });
        let asleep = told.recv().expect("told");
        let ends = Arc::clone(&is_over);
        let computer = thread::spawn(move || {
            tell.send(thread_number()).expect("heard");
            while !ends.load(Ordering::Relaxed) {}
        });
        let computing = told.recv().expect("told");
        while !is_asleep(asleep) {
            thread::yield_now();
        }
        while is_asleep(computing) {
            thread::yield_now();
        }
        // A kernel may keep it to itself where a thread sleeps.
        let place = sleeps_in(asleep);
        assert!(place.is_none_or(|place| place.contains("futex")));
        assert_eq!(sleeps_in(computing), None);
        assert_eq!(sleeps_in(u32::MAX), None);
        is_over.store(true, Ordering::Relaxed);
        drop(_keep);
        sleeper.join().expect("no panic");
        computer.join().expect("no panic");
        assert!(!is_asleep(u32::MAX), "no such thread");
    }

    /// Goal: names of threads do not confuse the reader. Method: lines with odd names.
    #[test]
    fn names_are_passed_over() {
        assert_eq!(state_in(b"12 (a) b) R 1 1"), Some(b'R'));
        assert_eq!(state_in(b"12 (x S) S 1 1"), Some(b'S'));
        assert_eq!(state_in(b"12 (cut"), None);
        assert_eq!(state_in(b""), None);
    }
}
