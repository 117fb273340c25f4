//! The functions in which a task computes right now: the stack of the thread that polls it.
//!
//! ```text
//!   asking thread                                   thread that polls the task
//!   1 queues a signal for it          ───────────▶  handler (ask.rs): one datagram with its task,
//!   2 waits, 50 ms at most            ◀───────────  its registers, and the memory above its stack pointer
//!   3 unwinds the copy (unwind.rs), and names the functions
//! ```
//! The handler neither locks nor allocates. The asking thread does the long work. Without the feature `stacks`, no
//! thread is asked, and no signal has a handler.

#[cfg(feature = "stacks")]
mod ask;
#[cfg(feature = "stacks")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "no_unwind.rs")]
mod unwind;

use std::{error::Error, fmt};

use crate::task_cell::Id;

/// The functions inside of which a thread was when it was asked, innermost first, down to the task's own future.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stack {
    /// The functions; those that the compiler has inlined are there as well, where the program has debug information.
    pub frames: Vec<Frame>,
    /// True if they go down to the task's future. `false` where the stack is deeper than 128 KiB or 256 calls, or runs through
    /// code without tables for unwinding: then the outer functions are missing.
    pub is_complete: bool,
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, frame) in self.frames.iter().enumerate() {
            write!(f, "{}in {frame}", if index == 0 { "" } else { "\n" })?;
        }
        if self.is_complete { Ok(()) } else { f.write_str("\nin … (the rest is not known)") }
    }
}

/// A function on a [`Stack`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The address of the instruction that comes next there.
    pub address: u64,
    /// The function, if the program has symbols.
    pub function: Option<String>,
    /// The file, if the program has debug information.
    pub file: Option<String>,
    /// The line in that file, from 1.
    pub line: Option<u32>,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => f.write_str(function)?,
            None => write!(f, "{:#x}", self.address)?,
        }
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            (None, _) => Ok(()),
        }
    }
}

/// The reason why the stack of a task that was in a poll is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoStack {
    /// The poll ended before its thread was asked.
    Ended,
    /// The task is polled by the thread that asks.
    Own,
    /// The thread did not answer within 50 ms: it waits for a processor or in the kernel where signals do not reach it, or it
    /// blocks them.
    Silent,
    /// The program handles every real-time signal itself.
    NoSignal,
    /// The kernel refused a signal or a socket, with this error number.
    Refused(i32),
    /// Stacks cannot be unwound on this processor: x86-64 and 64-bit Arm are supported.
    Unsupported,
}

impl fmt::Display for NoStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the poll has ended"),
            Self::Own => f.write_str("its thread is the one that asks"),
            Self::Silent => f.write_str("its thread did not answer within 50 ms"),
            Self::NoSignal => f.write_str("the program handles every real-time signal itself"),
            Self::Refused(errno) => {
                write!(f, "the kernel refused: {}", std::io::Error::from_raw_os_error(*errno))
            }
            Self::Unsupported => f.write_str("stacks cannot be unwound on this processor"),
        }
    }
}

impl Error for NoStack {}

/// Returns where the task `id` is that the thread `thread` polls; `None` without the feature `stacks`.
#[cfg(feature = "stacks")]
pub(crate) fn of_task(thread: u32, id: Id) -> Option<Result<Stack, NoStack>> {
    if !unwind::IS_SUPPORTED {
        return Some(Err(NoStack::Unsupported));
    }
    if thread == crate::kernel_help::thread_number() {
        return Some(Err(NoStack::Own));
    }
    Some(ask::ask(thread, id).map(|sample| unwind::unwind(&sample)))
}

/// Returns `None`: the feature `stacks` is off.
#[cfg(not(feature = "stacks"))]
pub(crate) fn of_task(_thread: u32, _id: Id) -> Option<Result<Stack, NoStack>> {
    None
}
