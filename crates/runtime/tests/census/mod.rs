//! Counts what was made and what was dropped.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How many witnesses were born and how many have died.
#[derive(Clone, Debug, Default)]
pub(crate) struct Census {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    born: AtomicUsize,
    died: AtomicUsize,
}

impl Census {
    /// Makes something whose drop is counted.
    pub(crate) fn witness(&self) -> Witness {
        self.counts.born.fetch_add(1, Ordering::SeqCst);
        Witness { counts: Arc::clone(&self.counts) }
    }

    /// Returns how many witnesses were made.
    pub(crate) fn born(&self) -> usize {
        self.counts.born.load(Ordering::SeqCst)
    }

    /// Returns how many witnesses were dropped.
    pub(crate) fn died(&self) -> usize {
        self.counts.died.load(Ordering::SeqCst)
    }

    /// Returns whether each witness was dropped, once.
    pub(crate) fn is_settled(&self) -> bool {
        self.born() == self.died()
    }

    /// # Panics
    /// Panics unless each witness was dropped, once.
    #[track_caller]
    pub(crate) fn assert_settled(&self, what: impl fmt::Display) {
        assert_eq!(self.died(), self.born(), "{what}: dropped, and made");
    }
}

/// Is counted when it is dropped.
#[derive(Debug)]
pub(crate) struct Witness {
    counts: Arc<Counts>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.counts.died.fetch_add(1, Ordering::SeqCst);
    }
}
