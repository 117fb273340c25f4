//! The time slices that the kernel's scheduler gives to a thread.

#![expect(unsafe_code, reason = "scheduling attributes have no safe interface")]

use std::{io, time::Duration};

/// The kernel's `struct sched_attr`, in its first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SchedAttr {
    size: u32,
    sched_policy: u32,
    sched_flags: u64,
    sched_nice: i32,
    sched_priority: u32,
    sched_runtime: u64,
    sched_deadline: u64,
    sched_period: u64,
}

const SCHED_ATTR_BYTES: u32 = 48;
const _: () = assert!(size_of::<SchedAttr>() == 48, "the kernel knows this size");

const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// The shortest slice that the kernel grants.
const SLICE: Duration = Duration::from_micros(100);

/// Asks for short slices for the calling thread. Its policy and its nice value stay as they are. Does nothing
/// for a thread that is neither `SCHED_OTHER` nor `SCHED_BATCH`, or has a nice value below zero, or on a
/// kernel without slices.
pub(crate) fn shorten_slice() {
    set_slice(0, u64::try_from(SLICE.as_nanos()).unwrap_or(0));
}

/// Restores the kernel's default slice for the thread `thread`.
pub(crate) fn restore_slice(thread: u32) {
    set_slice(thread, 0);
}

fn set_slice(thread: u32, nanos: u64) {
    if let Err(error) = attributes(thread).and_then(|present| match with_slice(present, nanos) {
        Some(attributes) => set_attributes(thread, &attributes),
        None => Ok(()),
    }) {
        tracing::debug!(%error, "the kernel grants no slice of our own");
    }
}

/// Returns `present` with a slice of `nanos`, the kernel's default for zero; `None` if the thread must be
/// left alone.
fn with_slice(present: SchedAttr, nanos: u64) -> Option<SchedAttr> {
    let has_slices = [libc::SCHED_OTHER, libc::SCHED_BATCH]
        .iter()
        .any(|policy| present.sched_policy == policy.cast_unsigned());
    // The flag that resets the slice in forked children would reset their nice value as well.
    if !has_slices || present.sched_nice < 0 {
        return None;
    }
    Some(SchedAttr {
        size: SCHED_ATTR_BYTES,
        sched_policy: present.sched_policy,
        sched_flags: SCHED_FLAG_RESET_ON_FORK,
        sched_nice: present.sched_nice,
        sched_runtime: nanos,
        ..SchedAttr::default()
    })
}

fn attributes(thread: u32) -> io::Result<SchedAttr> {
    let mut attributes = SchedAttr::default();
    // SAFETY: `attributes` is valid for writes of the size that is given.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, SCHED_ATTR_BYTES, 0)
    };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

fn set_attributes(thread: u32, attributes: &SchedAttr) -> io::Result<()> {
    let attributes: *const SchedAttr = attributes;
    // SAFETY: `attributes` is valid for reads of its `size`, and the kernel does not keep it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a thread shortens its own slice, and any thread that knows its id can restore it. Method: what the kernel says
    /// of a thread of its own. A kernel before Linux 6.12 tells of no slice.
    #[test]
    fn a_slice_is_short_until_it_is_restored() {
        let thread = crate::sync::thread::spawn(|| {
            let usual = attributes(0).unwrap();
            shorten_slice();
            let short = attributes(0).unwrap();
            restore_slice(crate::kernel_help::thread_number());
            (usual, short, attributes(0).unwrap())
        });
        let (usual, short, restored) = thread.join().unwrap();
        let policy = |found: &SchedAttr| (found.sched_policy, found.sched_nice);
        assert_eq!((policy(&short), policy(&restored)), (policy(&usual), policy(&usual)));
        if usual.sched_nice < 0 || usual.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
            println!("SKIPPED: the thread is left alone");
            return;
        }
        assert_eq!(usual.sched_flags & SCHED_FLAG_RESET_ON_FORK, 0);
        assert_eq!(short.sched_flags & SCHED_FLAG_RESET_ON_FORK, SCHED_FLAG_RESET_ON_FORK);
        if usual.sched_runtime > 0 {
            assert_eq!(
                (short.sched_runtime, restored.sched_runtime),
                (100_000, usual.sched_runtime)
            );
        }
        assert_eq!(
            attributes(i32::MAX.cast_unsigned()).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    /// Goal: only threads that share the processor by slices are changed, and keep policy and nice value.
    /// Method: every policy of the kernel, with nice values on both sides of zero.
    #[test]
    fn policies_are_kept() {
        let present = |policy: i32, nice| SchedAttr {
            sched_policy: policy.cast_unsigned(),
            sched_nice: nice,
            ..SchedAttr::default()
        };
        for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH] {
            for nice in [0, 7] {
                let changed = with_slice(present(policy, nice), 100_000).unwrap();
                let kept = (changed.sched_policy.cast_signed(), changed.sched_nice);
                assert_eq!((kept, changed.sched_runtime), ((policy, nice), 100_000));
            }
            assert!(with_slice(present(policy, -1), 100_000).is_none());
        }
        let others = [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_IDLE, libc::SCHED_DEADLINE];
        for policy in others {
            assert!(with_slice(present(policy, 0), 100_000).is_none(), "policy {policy}");
        }
    }
}
