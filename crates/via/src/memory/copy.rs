//! Copies between the memories of two processors.
//!
//! Before this processor can write a cache line that another one has read or written lately, the other must give
//! it up, which takes longer than everything else. Stores request their lines one after another as they leave
//! the store buffer; a request for ownership that is made ahead of them waits for nothing.
//!
//! One side of each copy is memory that others may write meanwhile, even in this process: it is accessed by
//! atomic words.

#![expect(unsafe_code, reason = "copies through raw pointers, and a hint to the processor")]

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
use std::sync::OnceLock;

use super::CACHE_LINE;
use crate::sync::{Ordering, SharedWord};

/// Shorter copies are over before a prefetched line arrives, in bytes.
const AHEAD_MIN_BYTES: usize = 2 * AHEAD_BYTES;

/// The same of copies by moves of whole lines, which are over sooner.
const WIDE_AHEAD_MIN_BYTES: usize = 4 * AHEAD_BYTES;

/// The distance ahead of the copy at which lines are prefetched, in bytes. Measured: 512 to 1024 work, 2048 is too far.
const AHEAD_BYTES: usize = 1024;

/// The shortest copy that one string instruction does, in bytes. Measured: it takes longer up to 2048, and as long at 4096.
const STRING_MIN_BYTES: usize = 4096;

/// The shortest copy by moves of whole lines, in bytes. A line alone is not worth the instruction that ends them.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
const WIDE_MIN_BYTES: usize = 2 * CACHE_LINE;

/// Prefetches a cache line for writing. Any address is allowed.
#[inline]
pub(super) fn prefetch_line_to_write(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that has no effect on memory, and does not fault at any address. Processors that do not
    // know it execute it as a no-op.
    unsafe {
        std::arch::asm!(
            "prefetchw [{place}]",
            place = in(reg) place,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// A word. Shared memory is accessed by words only, since Rust's memory model does not define concurrent accesses of
/// different sizes to the same bytes.
const WORD: usize = size_of::<u64>();

/// Copies bytes out of memory that others may write at the same time: some copied bytes may be older than others.
///
/// # Safety
/// `length` bytes at `from` are readable, and so are the aligned words that they are part of; `length` bytes at `to`
/// are writable and belong to the caller alone. All concurrent accesses to the bytes at `from` use the functions of
/// this module or atomic words, or come from outside the process.
#[inline]
pub(super) unsafe fn copy_out(from: *const u8, to: *mut u8, length: usize) {
    if is_prefetched_ahead(length) {
        // SAFETY: the caller's duties are the same.
        return unsafe { copy_out_ahead(from, to, length) };
    }
    // SAFETY: the caller's duties are the same.
    unsafe { copy_words_out(from, to, length) }
}

/// Copies bytes into memory that others may read or write at the same time: they may see some of them earlier than others.
///
/// # Safety
/// `length` bytes at `from` are readable and not written concurrently; `length` bytes at `to` are writable, and the
/// aligned words that they are part of are inside the same memory. All concurrent accesses to those are as for
/// [`copy_out`].
#[inline]
pub(super) unsafe fn copy_in(from: *const u8, to: *mut u8, length: usize) {
    if is_prefetched_ahead(length) {
        // SAFETY: the caller's duties are the same.
        return unsafe { copy_in_ahead(from, to, length) };
    }
    // SAFETY: the caller's duties are the same.
    unsafe { copy_words_in(from, to, length) }
}

/// Returns whether a copy of that many bytes is one string instruction. It claims lines by itself, faster than requests ahead of it could, which
/// only delay the reader of the last copy.
#[inline]
pub(crate) fn is_string_copy(length: usize) -> bool {
    length >= STRING_MIN_BYTES && has_fast_string_copy()
}

/// Returns whether `rep movsb` takes less time here than a loop that claims lines ahead. Measured: half of it on Zen 5, no less on Sapphire
/// Rapids. Hence AMD's processors that say that it is fast.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline(never)]
fn has_fast_string_copy() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let id = std::arch::x86_64::__cpuid_count;
        let vendor = id(0, 0);
        let is_amd = [vendor.ebx, vendor.edx, vendor.ecx]
            == [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes);
        // Fast short `rep movsb`: leaf 7, EDX, bit 4.
        is_amd && vendor.eax >= 7 && id(7, 0).edx & 1 << 4 != 0
    })
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
const fn has_fast_string_copy() -> bool {
    false
}

/// Returns whether a line can be copied by one load and one store.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline]
fn has_wide_moves() -> bool {
    std::is_x86_feature_detected!("avx512f")
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
const fn has_wide_moves() -> bool {
    false
}

/// Returns whether a copy of that many bytes prefetches the lines to be written.
#[inline]
fn is_prefetched_ahead(length: usize) -> bool {
    length >= WIDE_AHEAD_MIN_BYTES || length >= AHEAD_MIN_BYTES && !has_wide_moves()
}

/// Copies bytes by one instruction, in or out. As in [`copy_lines`], the compiler sees no access that could race with others.
///
/// # Safety
/// As [`copy_out`], or as [`copy_in`].
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: readable and writable, as the caller ensures; the direction flag is clear outside of such blocks.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    {
        let _ = (from, to, length);
        unreachable!("invariant: this processor has no such instruction");
    }
}

/// Returns the word at an aligned place of memory that others may write.
///
/// # Safety
/// As for [`copy_out`].
#[inline]
unsafe fn word(place: *const u8) -> u64 {
    // SAFETY: aligned and readable; it is only loaded, so it may be mapped for reading only.
    unsafe { &*place.cast::<SharedWord>() }.load(Ordering::Relaxed)
}

/// As [`copy_lines`], by one load and one store for each.
///
/// # Safety
/// As [`copy_lines`]; the processor [`has_wide_moves`].
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline]
unsafe fn copy_lines_wide(from: *const u8, to: *mut u8, length: usize) -> usize {
    let mut done = 0;
    while length - done >= 4 * CACHE_LINE {
        // SAFETY: four lines are left on both sides; the compiler sees no access that could race with others.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 zmm0, [{from}]",
                "vmovdqu64 zmm1, [{from} + 64]",
                "vmovdqu64 zmm2, [{from} + 128]",
                "vmovdqu64 zmm3, [{from} + 192]",
                "vmovdqu64 [{to}], zmm0",
                "vmovdqu64 [{to} + 64], zmm1",
                "vmovdqu64 [{to} + 128], zmm2",
                "vmovdqu64 [{to} + 192], zmm3",
                from = in(reg) from.wrapping_add(done),
                to = in(reg) to.wrapping_add(done),
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack, preserves_flags)
            );
        }
        done += 4 * CACHE_LINE;
    }
    while length - done >= CACHE_LINE {
        // SAFETY: a whole line is left on both sides; as above.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 zmm0, [{from}]",
                "vmovdqu64 [{to}], zmm0",
                from = in(reg) from.wrapping_add(done),
                to = in(reg) to.wrapping_add(done),
                out("xmm0") _,
                options(nostack, preserves_flags)
            );
        }
        done += CACHE_LINE;
    }
    // SAFETY: clears the upper parts of these sixteen registers, in which nothing is left then. Without it, moves of 16 bytes would be slow.
    unsafe {
        std::arch::asm!(
            "vzeroupper",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, nomem, preserves_flags)
        );
    }
    done
}

/// Copies as many whole lines as there are, and returns their bytes. In Rust's memory model a line is several words,
/// each read or written as an atomic; the processor can copy it by four loads and stores, or by one of each.
///
/// # Safety
/// As [`copy_out`], or as [`copy_in`].
#[inline]
unsafe fn copy_lines(from: *const u8, to: *mut u8, length: usize) -> usize {
    let mut done = 0;
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    if length >= WIDE_MIN_BYTES && has_wide_moves() {
        // SAFETY: the caller's duties are the same, and the processor has the instructions.
        done = unsafe { copy_lines_wide(from, to, length) };
    }
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    while length - done >= CACHE_LINE {
        // SAFETY: a whole line is left on both sides; the compiler sees no access that could race with others.
        unsafe {
            std::arch::asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                from = in(reg) from.wrapping_add(done),
                to = in(reg) to.wrapping_add(done),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
        done += CACHE_LINE;
    }
    let _ = (from, to, length, &mut done);
    done
}

/// # Safety
/// As [`copy_out`].
#[inline]
unsafe fn copy_words_out(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's duties are the same.
    let mut done = unsafe { copy_lines(from, to, length) };
    let skipped = from.addr() % WORD;
    if skipped > 0 && done < length {
        // SAFETY: the word that the first byte is part of.
        let first = unsafe { word(from.wrapping_add(done).wrapping_sub(skipped)) }.to_ne_bytes();
        let count = (length - done).min(WORD - skipped);
        // SAFETY: these bytes of the word are asked for.
        unsafe {
            std::ptr::copy_nonoverlapping(first[skipped..].as_ptr(), to.wrapping_add(done), count);
        }
        done += count;
    }
    while length - done >= WORD {
        // SAFETY: aligned, and a whole word is left.
        let whole = unsafe { word(from.wrapping_add(done)) };
        // SAFETY: room for a word is left; it need not be aligned.
        unsafe { to.wrapping_add(done).cast::<u64>().write_unaligned(whole) };
        done += WORD;
    }
    if done < length {
        // SAFETY: the word that the last bytes are part of.
        let last = unsafe { word(from.wrapping_add(done)) }.to_ne_bytes();
        // SAFETY: these bytes of the word are asked for.
        unsafe {
            std::ptr::copy_nonoverlapping(last.as_ptr(), to.wrapping_add(done), length - done);
        }
    }
}

/// # Safety
/// As [`copy_in`].
#[inline]
unsafe fn copy_words_in(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's duties are the same.
    let mut done = unsafe { copy_lines(from, to, length) };
    let head = (to.addr().wrapping_neg() % WORD).min(length - done);
    // SAFETY: before the next aligned word, or less than one.
    unsafe { copy_part_in(from.wrapping_add(done), to.wrapping_add(done), head) };
    done += head;
    while length - done >= WORD {
        // SAFETY: a whole word is left; it need not be aligned.
        let whole = unsafe { from.wrapping_add(done).cast::<u64>().read_unaligned() };
        // SAFETY: aligned and writable.
        let place = unsafe { &*to.wrapping_add(done).cast::<SharedWord>() };
        place.store(whole, Ordering::Relaxed);
        done += WORD;
    }
    // SAFETY: less than a word is left.
    unsafe { copy_part_in(from.wrapping_add(done), to.wrapping_add(done), length - done) };
}

/// Copies less than a word, into one word. In Rust's memory model each byte is an exchange of its word that keeps
/// the other bytes; the processor can do it with a plain store.
///
/// # Safety
/// As [`copy_in`].
#[inline]
unsafe fn copy_part_in(from: *const u8, to: *mut u8, length: usize) {
    for at in 0..length {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: inside what the caller passes.
        let byte = unsafe { from.read() };
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
        // SAFETY: writable; the compiler sees no access that could race with others.
        unsafe {
            std::arch::asm!(
                "mov byte ptr [{to}], {byte}",
                to = in(reg) to,
                byte = in(reg_byte) byte,
                options(nostack, preserves_flags)
            );
        }
        #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
        {
            let skipped = to.addr() % WORD;
            // SAFETY: the word that the byte is part of is inside the memory.
            let place = unsafe { &*to.wrapping_sub(skipped).cast::<SharedWord>() };
            let with_byte = |word: u64| {
                let mut bytes = word.to_ne_bytes();
                bytes[skipped] = byte;
                Some(u64::from_ne_bytes(bytes))
            };
            let _ = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_byte);
        }
    }
}

/// # Safety
/// As [`copy_out`].
unsafe fn copy_out_ahead(from: *const u8, to: *mut u8, length: usize) {
    if is_string_copy(length) {
        // SAFETY: the caller's duties are the same.
        return unsafe { copy_string(from, to, length) };
    }
    each_line(to, length, |done, length| {
        // SAFETY: the lines are parts of what the caller passes.
        unsafe { copy_words_out(from.wrapping_add(done), to.wrapping_add(done), length) };
    });
}

/// # Safety
/// As [`copy_in`].
unsafe fn copy_in_ahead(from: *const u8, to: *mut u8, length: usize) {
    if is_string_copy(length) {
        // SAFETY: the caller's duties are the same.
        return unsafe { copy_string(from, to, length) };
    }
    each_line(to, length, |done, length| {
        // SAFETY: the lines are parts of what the caller passes.
        unsafe { copy_words_in(from.wrapping_add(done), to.wrapping_add(done), length) };
    });
}

/// Copies line by line, and prefetches the lines to be written ahead.
#[inline]
fn each_line(to: *const u8, length: usize, mut copy: impl FnMut(usize, usize)) {
    // First up to the beginning of a whole line.
    let mut done = (to.addr().wrapping_neg() % CACHE_LINE).min(length);
    copy(0, done);
    while length - done >= CACHE_LINE {
        // It may be behind the end: the next copy often writes there.
        prefetch_line_to_write(to.wrapping_add(done + AHEAD_BYTES));
        copy(done, CACHE_LINE);
        done += CACHE_LINE;
    }
    copy(done, length - done);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    /// Goal: lines are copied alike whether or not the processor has moves of whole lines. Method: several lengths, unaligned; without such moves,
    /// only what [`copy_lines`] does then.
    #[test]
    fn lines_are_copied_by_any_moves() {
        let source: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
        for length in [0, 63, 64, 127, 128, 200, 640, 900] {
            let whole = length / CACHE_LINE * CACHE_LINE;
            for (is_wide, skip) in [(false, 0), (false, 9), (true, 0), (true, 9)] {
                let mut target = vec![255; 1000];
                let (from, to) = (source[skip..].as_ptr(), target[skip..].as_mut_ptr());
                #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
                if is_wide && has_wide_moves() {
                    // SAFETY: both have room, and nothing else reads or writes them.
                    let done = unsafe { copy_lines_wide(from, to, length) };
                    assert_eq!(
                        (done, &target[skip..skip + whole]),
                        (whole, &source[skip..skip + whole])
                    );
                    continue;
                }
                // In lines of which each is too short for wide moves.
                for at in (0..whole).step_by(CACHE_LINE) {
                    // SAFETY: as above.
                    let done = unsafe {
                        copy_lines(from.wrapping_add(at), to.wrapping_add(at), CACHE_LINE)
                    };
                    if done == 0 {
                        return;
                    }
                }
                assert_eq!(target[skip..skip + whole], source[skip..skip + whole], "{is_wide}");
                assert!(target[skip + whole..].iter().all(|byte| *byte == 255));
            }
        }
    }

    /// Goal: every byte is copied and none beside, in and out. Method: lengths around a word, a line and the shortest
    /// copies that prefetch and that are one instruction, at offsets within a line at either side.
    #[test]
    fn all_bytes_and_no_others_are_copied() {
        let near = |length: usize| length - 65..=length + 65;
        let lengths = (0..130).chain(near(AHEAD_MIN_BYTES)).chain(near(AHEAD_MIN_BYTES + 1000));
        let lengths = lengths.chain(near(STRING_MIN_BYTES));
        // Miri takes a second for each hundred thousand bytes.
        for length in lengths.step_by(if cfg!(miri) { 61 } else { 1 }) {
            let size = length + 2 * CACHE_LINE;
            let source: Vec<u8> =
                (0..size).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect();
            for (skip, gap) in [(0, 0), (1, 0), (0, 1), (16, 48), (63, 1), (7, 63), (5, 13)] {
                let shared = Memory::allocate(size).expect("memory");
                shared.write(0, &vec![255; size]).expect("inside");
                let place = u64::try_from(gap).expect("short");
                shared.write(place, &source[skip..skip + length]).expect("inside");
                let mut found = vec![0; size];
                shared.read(0, &mut found).expect("inside");
                assert_eq!(found[gap..gap + length], source[skip..skip + length]);
                let others = found[..gap].iter().chain(&found[gap + length..]);
                assert!(others.into_iter().all(|byte| *byte == 255), "{length} {skip} {gap}");

                let mut target = vec![0; size];
                shared.read(place, &mut target[skip..skip + length]).expect("inside");
                assert_eq!(target[skip..skip + length], source[skip..skip + length]);
                let others = target[..skip].iter().chain(&target[skip + length..]);
                assert!(others.into_iter().all(|byte| *byte == 0), "{length} {skip} {gap}");
            }
        }
    }
}
