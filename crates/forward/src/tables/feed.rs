//! Values that one side changes and others follow: readers by snapshots, maps of the kernel by changes.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Changes that are kept for those who follow.
const CHANGES_MAX: usize = 8192;

/// The last changes of a table.
pub(super) struct Log<C> {
    changes: VecDeque<C>,
    /// The number of the change behind the last one.
    next: u64,
}

/// What a [`Log`] has for somebody.
pub(super) enum Taken<C> {
    Nothing,
    One(C),
    /// What comes next is not kept any more.
    All,
}

impl<C> Log<C> {
    pub(super) const fn new() -> Self {
        Self { changes: VecDeque::new(), next: 0 }
    }

    /// Adds a change. Returns how many there were.
    pub(super) fn push(&mut self, change: C) -> u64 {
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
        self.next += 1;
        self.next
    }
}

impl<C: Clone> Log<C> {
    /// Takes the change with the number `next`, or says that all is to be taken; and moves the number.
    pub(super) fn take(&self, next: &mut Option<u64>) -> Taken<C> {
        if *next == Some(self.next) {
            return Taken::Nothing;
        }
        let first = self.next - u64::try_from(self.changes.len()).unwrap_or(0);
        let kept = next.and_then(|next| next.checked_sub(first));
        let change = kept.and_then(|at| self.changes.get(usize::try_from(at).ok()?)).cloned();
        *next = match (&change, *next) {
            (Some(_), Some(next)) => Some(next + 1),
            _ => Some(self.next),
        };
        change.map_or(Taken::All, Taken::One)
    }
}

struct State<T, C> {
    value: Arc<T>,
    log: Log<C>,
}

struct Inner<T, C> {
    /// How many changes there were. Written under the lock; read by anybody who asks whether there is news.
    /// `Relaxed` suffices: what is new is then read under the lock.
    version: AtomicU64,
    state: Mutex<State<T, C>>,
}

/// A table, and its last changes. Clones are the same one.
pub(super) struct Table<T, C> {
    inner: Arc<Inner<T, C>>,
}

impl<T, C> Clone for Table<T, C> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Default, C> Default for Table<T, C> {
    fn default() -> Self {
        let state = State { value: Arc::new(T::default()), log: Log::new() };
        Self { inner: Arc::new(Inner { version: AtomicU64::new(0), state: Mutex::new(state) }) }
    }
}

impl<T, C> Table<T, C> {
    /// Nothing behind the lock is left half done by a panic: no foreign code is called.
    fn lock(&self) -> MutexGuard<'_, State<T, C>> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn version(&self) -> u64 {
        self.inner.version.load(Ordering::Relaxed)
    }

    pub(super) fn snapshot(&self) -> Arc<T> {
        Arc::clone(&self.lock().value)
    }
}

impl<T: Clone, C: Clone> Table<T, C> {
    /// Changes the value by a function that says what the change was, if it changed anything.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> (R, Option<C>)) -> R {
        let mut state = self.lock();
        // Readers keep the value that they have: one that is shared is copied first.
        let (result, said) = change(Arc::make_mut(&mut state.value));
        if let Some(said) = said {
            let version = state.log.push(said);
            self.inner.version.store(version, Ordering::Relaxed);
        }
        result
    }

    pub(super) fn reader(&self) -> Reader<T, C> {
        let state = self.lock();
        Reader { table: self.clone(), value: Arc::clone(&state.value), version: state.log.next }
    }

    pub(super) fn follow(&self) -> Feed<T, C> {
        Feed { table: self.clone(), next: None }
    }
}

/// A reader that keeps the newest value at hand.
pub(super) struct Reader<T, C> {
    table: Table<T, C>,
    value: Arc<T>,
    version: u64,
}

impl<T, C> Reader<T, C> {
    /// Returns the newest value.
    ///
    /// # Cost
    /// A load, unless it has changed.
    #[inline]
    pub(super) fn get(&mut self) -> &T {
        if self.table.version() != self.version {
            self.renew();
        }
        &self.value
    }

    #[cold]
    fn renew(&mut self) {
        let state = self.table.lock();
        let (value, version) = (Arc::clone(&state.value), state.log.next);
        drop(state);
        self.value = value;
        self.version = version;
    }
}

/// What has happened to a table since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what is not followed is lost"]
#[expect(clippy::exhaustive_enums, reason = "all, or what has changed")]
pub enum Update<T, C> {
    /// All that is in it: at the first look, or since more has changed than is kept. What was followed before
    /// is to be forgotten.
    All(T),
    /// One change.
    One(C),
}

/// Follows the changes of a table, in order, so that a copy elsewhere can be kept like it.
///
/// A follower that is slow costs no memory: beyond the last 8192 changes it is given everything anew.
pub struct Feed<T, C> {
    table: Table<T, C>,
    next: Option<u64>,
}

impl<T, C: Clone> Feed<T, C> {
    /// Returns whether there is something that was not taken.
    ///
    /// # Cost
    /// A load: it can be asked in every loop.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.next.is_none_or(|next| next != self.table.version())
    }

    /// Takes the next update, if there is one.
    pub fn take(&mut self) -> Option<Update<Arc<T>, C>> {
        if !self.has_news() {
            return None;
        }
        let state = self.table.lock();
        match state.log.take(&mut self.next) {
            Taken::Nothing => None,
            Taken::One(change) => Some(Update::One(change)),
            Taken::All => Some(Update::All(Arc::clone(&state.value))),
        }
    }
}

impl<T, C> fmt::Debug for Feed<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<T, C> fmt::Debug for Table<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl<T, C> fmt::Debug for Reader<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_gives_everything_once_and_then_changes() {
        // Goal: who follows is like the table after each look; one who is too slow begins anew. Method: a row
        // of numbers that is followed.
        let table = Table::<Vec<u32>, u32>::default();
        let push = |number| table.change(|row| (row.push(number), Some(number)));
        push(1);
        let mut feed = table.follow();
        let mut reader = table.reader();
        assert_eq!(feed.take(), Some(Update::All(Arc::new(vec![1]))));
        assert_eq!((feed.has_news(), feed.take()), (false, None));
        push(2);
        push(3);
        assert_eq!(reader.get(), &[1, 2, 3]);
        assert_eq!(feed.take(), Some(Update::One(2)));
        assert_eq!(feed.take(), Some(Update::One(3)));
        assert_eq!(feed.take(), None);
        for number in 0..=u32::try_from(CHANGES_MAX).unwrap() {
            push(number);
        }
        assert!(matches!(feed.take(), Some(Update::All(_))));
        assert_eq!(feed.take(), None);
        table.change(|_| ((), None));
        assert!(!feed.has_news(), "nothing has changed");
    }
}
