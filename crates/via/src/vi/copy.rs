//! Copies between memory of two processors.
//!
//! A line that another processor has read or written lately is not this one's to write: it must be given up
//! first, which takes longer than all the rest. Stores ask for their lines one after another as they leave the
//! store buffer; a request to own a line that is made ahead of them does not wait for anything.

#![expect(unsafe_code, reason = "copies through raw pointers, and a hint to the processor")]

use super::CACHE_LINE;

/// Shorter copies are over before a line that was asked for comes, in bytes.
const AHEAD_MIN_BYTES: usize = 2 * AHEAD_BYTES;

/// So far ahead of the copy lines are asked for, in bytes. Measured: 512 to 1024 do, 2048 is too far.
const AHEAD_BYTES: usize = 1024;

/// Asks for a cache line, to be written soon. Any address will do.
#[inline]
pub(super) fn claim(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that has no effect on memory, and does not fault at any address. Processors that do not
    // know it take it for no operation.
    unsafe {
        std::arch::asm!(
            "prefetchw [{place}]",
            place = in(reg) place,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Copies bytes; of long copies the lines to be written are asked for ahead.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    if cfg!(target_arch = "x86_64") && length >= AHEAD_MIN_BYTES {
        // SAFETY: the caller's duties are the same.
        unsafe { copy_ahead(from, to, length) }
    } else {
        // SAFETY: the caller's duties are the same.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) }
    }
}

/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
unsafe fn copy_ahead(from: *const u8, to: *mut u8, length: usize) {
    // Up to the first line that is written as a whole.
    let head = to.align_offset(CACHE_LINE).min(length);
    // SAFETY: `head` is at most `length`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let mut done = head;
    while length - done >= CACHE_LINE {
        // It may be behind the end: the next copy often goes there.
        claim(to.wrapping_add(done + AHEAD_BYTES));
        let (from, to) = (from.wrapping_add(done), to.wrapping_add(done));
        // SAFETY: a whole line is left.
        unsafe { std::ptr::copy_nonoverlapping(from, to, CACHE_LINE) };
        done += CACHE_LINE;
    }
    let (from, to) = (from.wrapping_add(done), to.wrapping_add(done));
    // SAFETY: what is left.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length - done) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every byte is copied and none beside. Method: lengths around a line and around the shortest copy
    /// that asks ahead, at all offsets within a line at either side.
    #[test]
    fn all_bytes_and_no_others_are_copied() {
        let source: Vec<u8> =
            (0..AHEAD_MIN_BYTES * 2).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect();
        let near = |length: usize| length - 65..=length + 65;
        for length in (0..130).chain(near(AHEAD_MIN_BYTES)).chain(near(AHEAD_MIN_BYTES + 1000)) {
            for (skip, gap) in [(0, 0), (1, 0), (0, 1), (16, 48), (63, 1), (7, 63)] {
                let mut target = vec![255; AHEAD_MIN_BYTES * 2];
                assert!(skip + length <= source.len() && gap + length <= target.len());
                let (from, to) =
                    (source.as_ptr().wrapping_add(skip), target.as_mut_ptr().wrapping_add(gap));
                // SAFETY: both are inside, as was just checked, and are two vectors.
                unsafe { copy(from, to, length) };
                assert_eq!(target[gap..gap + length], source[skip..skip + length]);
                let others = target[..gap].iter().chain(&target[gap + length..]);
                assert!(others.into_iter().all(|byte| *byte == 255), "{length} {skip} {gap}");
            }
        }
    }
}
