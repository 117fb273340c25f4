//! The memory of a relay: buffers of a few sizes, and one bound for all of them.
//!
//! Every direction of every connection may always have a buffer of [`FLOOR_BYTES`]. Larger ones come out of a common
//! budget, half of which is for stored messages (*stores*). So no connection waits for another's slow receiver unless
//! it has a message to store, and memory is bounded by budget + connections · 2 · [`FLOOR_BYTES`]. Each side of a
//! connection that speaks TLS may have three times [`TLS_RECORD_BYTES`] in addition, while records are on their way.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest buffer that needs no permit.
pub(super) const FLOOR_BYTES: usize = 4 << 10;

/// Enough for the longest record of TLS on the wire (18 437 bytes), which needs no permit either.
pub(super) const TLS_RECORD_BYTES: usize = 20 << 10;

/// The sizes kept for reuse.
const KEPT_SIZES: [usize; 5] = [FLOOR_BYTES, 16 << 10, TLS_RECORD_BYTES, 64 << 10, 256 << 10];

/// The number of buffers of each size that are kept.
const KEPT_MAX: usize = 32;

/// The number of stores that are kept, and their maximum size.
const STORES_KEPT_MAX: usize = 8;
const STORE_KEPT_BYTES_MAX: usize = 4 << 20;

/// The number of bytes per permit.
const UNIT_BYTES: usize = 1 << 10;

/// A buffer, fully initialised. Dropping it returns it to its pool.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<BufferPool>,
    is_store: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if self.is_store {
            let mut kept = self.pool.stores.lock().unwrap_or_else(PoisonError::into_inner);
            if bytes.len() <= STORE_KEPT_BYTES_MAX && kept.len() < STORES_KEPT_MAX {
                kept.push(bytes);
            }
        } else if let Some(class) = KEPT_SIZES.iter().position(|size| *size == bytes.len()) {
            let mut kept = self.pool.kept[class].lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < KEPT_MAX {
                kept.push(bytes);
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("size_bytes", &self.len()).finish_non_exhaustive()
    }
}

/// The buffers of a relay.
#[derive(Clone, Debug)]
pub(super) struct Buffers {
    pool: Arc<BufferPool>,
}

struct BufferPool {
    kept: [Mutex<Vec<Vec<u8>>>; KEPT_SIZES.len()],
    stores: Mutex<Vec<Vec<u8>>>,
    budget: Arc<Semaphore>,
    store_budget: Arc<Semaphore>,
    budget_bytes: usize,
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.budget.available_permits() * UNIT_BYTES;
        f.debug_struct("BufferPool").field("free_bytes", &free).finish_non_exhaustive()
    }
}

impl Buffers {
    pub(super) fn new(budget_bytes: usize) -> Self {
        let permits = (budget_bytes / 2 / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        let [budget, store_budget] = [(); 2].map(|()| Arc::new(Semaphore::new(permits)));
        let (kept, stores) = Default::default();
        Self { pool: Arc::new(BufferPool { kept, stores, budget, store_budget, budget_bytes }) }
    }

    /// Returns the share of the budget of each of so many.
    pub(super) fn share_bytes(&self, number: u64) -> usize {
        self.pool.budget_bytes / usize::try_from(number.max(1)).unwrap_or(usize::MAX)
    }

    /// Returns a buffer of `size_bytes`, if the budget allows; one of up to [`FLOOR_BYTES`] is always available.
    pub(super) fn take(&self, size_bytes: usize) -> Option<Buffer> {
        let permit = if size_bytes <= FLOOR_BYTES {
            None
        } else {
            Some(Arc::clone(&self.pool.budget).try_acquire_many_owned(units(size_bytes)).ok()?)
        };
        Some(self.buffer(size_bytes, permit))
    }

    /// Returns a buffer of at least `size_bytes` without a permit, for what must be whole to be of any use.
    #[cfg(feature = "tls")]
    pub(super) fn take_beyond_budget(&self, size_bytes: usize) -> Buffer {
        let sizes = [FLOOR_BYTES, TLS_RECORD_BYTES];
        let size_bytes = sizes.into_iter().find(|size| size_bytes <= *size).unwrap_or(size_bytes);
        self.buffer(size_bytes, None)
    }

    fn buffer(&self, size_bytes: usize, permit: Option<OwnedSemaphorePermit>) -> Buffer {
        let class = KEPT_SIZES.iter().position(|size| *size == size_bytes);
        let kept = class.and_then(|class| {
            self.pool.kept[class].lock().unwrap_or_else(PoisonError::into_inner).pop()
        });
        let bytes = kept.unwrap_or_else(|| vec![0; size_bytes]);
        Buffer { bytes, pool: Arc::clone(&self.pool), is_store: false, _permit: permit }
    }

    /// Returns a store of at least `size_bytes`, if the budget allows.
    pub(super) fn take_store(&self, size_bytes: usize) -> Option<Buffer> {
        let size_bytes = store_bytes(size_bytes);
        let budget = Arc::clone(&self.pool.store_budget);
        let permit = budget.try_acquire_many_owned(units(size_bytes)).ok()?;
        Some(self.store(size_bytes, permit))
    }

    /// Waits for a store of at least `size_bytes`, which the budget must hold: first come, first served.
    ///
    /// The caller must hold no other store.
    pub(super) fn wait_store(
        &self,
        size_bytes: usize,
    ) -> impl Future<Output = Buffer> + Send + 'static {
        let this = self.clone();
        async move {
            let size_bytes = store_bytes(size_bytes);
            let budget = Arc::clone(&this.pool.store_budget);
            let permit = budget.acquire_many_owned(units(size_bytes)).await;
            this.store(size_bytes, permit.expect("invariant: the budget is never closed"))
        }
    }

    fn store(&self, size_bytes: usize, permit: OwnedSemaphorePermit) -> Buffer {
        let mut kept = self.pool.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|store| store.len() == size_bytes);
        let found = found.map(|index| kept.swap_remove(index));
        drop(kept);
        let bytes = found.unwrap_or_else(|| vec![0; size_bytes]);
        Buffer { bytes, pool: Arc::clone(&self.pool), is_store: true, _permit: Some(permit) }
    }
}

/// The budget that a relay needs to store one message of `size_bytes`.
pub(super) const fn budget_for(size_bytes: usize) -> usize {
    store_bytes(size_bytes).saturating_mul(2)
}

/// Stores come in few sizes, so that they can be reused for the next message.
const fn store_bytes(size_bytes: usize) -> usize {
    const STEP: usize = 64 << 10;
    size_bytes.div_ceil(STEP).saturating_mul(STEP)
}

fn units(size_bytes: usize) -> u32 {
    u32::try_from(size_bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the budget bounds what is larger than the floor, and nothing else. Method: take all of it, then both
    /// kinds.
    #[test]
    fn the_budget_bounds_what_is_above_the_floor() {
        let buffers = Buffers::new(160 << 10);
        let large = buffers.take(64 << 10).expect("within the budget");
        assert!(buffers.take(32 << 10).is_none());
        let floors: Vec<_> = (0..100).map(|_| buffers.take(FLOOR_BYTES)).collect();
        assert!(floors.iter().all(Option::is_some));
        let store = buffers.take_store(1).expect("stores have a budget of their own");
        assert!(buffers.take_store(1).is_none());
        drop((large, store));
        assert_eq!(buffers.take(80 << 10).expect("the budget is free again").len(), 80 << 10);
        assert!(buffers.take_store(64 << 10).is_some());
    }
}
