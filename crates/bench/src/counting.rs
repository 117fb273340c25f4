//! An allocator that counts, for "the hot path allocates nothing".
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations of this process so far, if a [`CountingAllocator`] is installed. Every thread adds,
/// anyone reads; `Relaxed`, because the number orders nothing.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a counter before it.
///
/// # Cost
/// One relaxed atomic addition per allocation, for every system under test alike.
///
/// # Examples
/// ```
/// use vigie_bench::counting::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
/// # assert!(vigie_bench::counting::is_counting());
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a static of it is written by name")]
pub struct CountingAllocator;

// SAFETY: every method hands its arguments to `System` unchanged and returns what that returns, so
// the contract of `GlobalAlloc` holds because it holds for `System`; the counter does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are those of `System::dealloc`, which made `pointer`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of `System::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of `System::realloc`, which made `pointer`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Returns how many allocations this process has made, all threads together.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Tells whether a [`CountingAllocator`] is this program's global allocator, by trying it.
#[must_use]
pub fn is_counting() -> bool {
    let before = allocations();
    drop(hint::black_box(Box::new(0_u8)));
    allocations() > before
}
