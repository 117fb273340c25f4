//! Values that one side changes and others follow: readers by snapshots, kernel maps by changes.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The number of changes kept for followers.
const CHANGES_MAX: usize = 8192;

/// The latest changes of a table.
pub(super) struct ChangeLog<C> {
    changes: VecDeque<C>,
    /// The number of the next change.
    next: u64,
}

/// The result of reading a [`ChangeLog`].
pub(super) enum LogRead<C> {
    Nothing,
    One(C),
    /// The next change is no longer kept.
    All,
}

impl<C> ChangeLog<C> {
    pub(super) const fn new() -> Self {
        Self { changes: VecDeque::new(), next: 0 }
    }

    /// Appends a change. Returns the number of changes so far.
    pub(super) fn push(&mut self, change: C) -> u64 {
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
        self.next += 1;
        self.next
    }
}

impl<C: Clone> ChangeLog<C> {
    /// Takes the change with the number `next`, or says that the whole table must be taken; and advances the number.
    pub(super) fn take(&self, next: &mut Option<u64>) -> LogRead<C> {
        if *next == Some(self.next) {
            return LogRead::Nothing;
        }
        let first = self.next - u64::try_from(self.changes.len()).unwrap_or(0);
        let kept = next.and_then(|next| next.checked_sub(first));
        let change = kept.and_then(|at| self.changes.get(usize::try_from(at).ok()?)).cloned();
        *next = match (&change, *next) {
            (Some(_), Some(next)) => Some(next + 1),
            _ => Some(self.next),
        };
        change.map_or(LogRead::All, LogRead::One)
    }
}

struct TableState<T, C> {
    value: Arc<T>,
    log: ChangeLog<C>,
}

struct TableInner<T, C> {
    /// The number of changes so far. Written under the lock; read without it to check for news. `Relaxed` suffices: the
    /// changes themselves are read under the lock.
    version: AtomicU64,
    state: Mutex<TableState<T, C>>,
}

/// A table, and its latest changes. Clones share it.
pub(super) struct VersionedTable<T, C> {
    inner: Arc<TableInner<T, C>>,
}

impl<T, C> Clone for VersionedTable<T, C> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Default, C> Default for VersionedTable<T, C> {
    fn default() -> Self {
        let state = TableState { value: Arc::new(T::default()), log: ChangeLog::new() };
        Self {
            inner: Arc::new(TableInner { version: AtomicU64::new(0), state: Mutex::new(state) }),
        }
    }
}

impl<T, C> VersionedTable<T, C> {
    /// A panic cannot leave anything behind the lock half done: no foreign code is called.
    fn lock(&self) -> MutexGuard<'_, TableState<T, C>> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn version(&self) -> u64 {
        self.inner.version.load(Ordering::Relaxed)
    }

    pub(super) fn snapshot(&self) -> Arc<T> {
        Arc::clone(&self.lock().value)
    }
}

impl<T: Clone, C: Clone> VersionedTable<T, C> {
    /// Changes the value by a function that also returns the changes, if there were any. Readers see all of them at once.
    pub(super) fn change<R, I: IntoIterator<Item = C>>(
        &self,
        change: impl FnOnce(&mut T) -> (R, I),
    ) -> R {
        let mut state = self.lock();
        // Readers keep the value that they have: a shared one is copied first.
        let (result, said) = change(Arc::make_mut(&mut state.value));
        for change in said {
            state.log.push(change);
        }
        self.inner.version.store(state.log.next, Ordering::Relaxed);
        result
    }

    pub(super) fn reader(&self) -> TableReader<T, C> {
        let state = self.lock();
        TableReader {
            table: self.clone(),
            value: Arc::clone(&state.value),
            version: state.log.next,
        }
    }

    pub(super) fn follow(&self) -> Feed<T, C> {
        Feed { table: self.clone(), next: None }
    }
}

/// A reader that caches the latest value.
pub(super) struct TableReader<T, C> {
    table: VersionedTable<T, C>,
    value: Arc<T>,
    version: u64,
}

impl<T, C> TableReader<T, C> {
    /// Returns the latest value.
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

/// An update of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "updates that are not applied are lost"]
#[expect(clippy::exhaustive_enums, reason = "all, or what has changed")]
pub enum Update<T, C> {
    /// The whole table: at first, or because more has changed than is kept. Discard the earlier copy.
    Snapshot(T),
    /// One change.
    Change(C),
}

/// Follows the changes of a table, in order, to keep a copy elsewhere in step.
///
/// A slow follower costs no memory: beyond the last 8192 changes it gets the whole table again.
pub struct Feed<T, C> {
    table: VersionedTable<T, C>,
    next: Option<u64>,
}

impl<T, C: Clone> Feed<T, C> {
    /// Returns whether there is an update to take.
    ///
    /// # Cost
    /// A load: cheap enough for every iteration of a loop.
    #[must_use]
    pub fn has_updates(&self) -> bool {
        self.next.is_none_or(|next| next != self.table.version())
    }

    /// Takes the next update, if there is one.
    pub fn take(&mut self) -> Option<Update<Arc<T>, C>> {
        if !self.has_updates() {
            return None;
        }
        let state = self.table.lock();
        match state.log.take(&mut self.next) {
            LogRead::Nothing => None,
            LogRead::One(change) => Some(Update::Change(change)),
            LogRead::All => Some(Update::Snapshot(Arc::clone(&state.value))),
        }
    }
}

impl<T, C> fmt::Debug for Feed<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<T, C> fmt::Debug for VersionedTable<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionedTable").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl<T, C> fmt::Debug for TableReader<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableReader").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_gives_everything_once_and_then_changes() {
        // Goal: a follower equals the table after each poll; one that is too slow starts anew. Method: a followed list
        // of numbers.
        let table = VersionedTable::<Vec<u32>, u32>::default();
        let push = |number| table.change(|row| (row.push(number), [number]));
        push(1);
        let mut feed = table.follow();
        let mut reader = table.reader();
        assert_eq!(feed.take(), Some(Update::Snapshot(Arc::new(vec![1]))));
        assert_eq!((feed.has_updates(), feed.take()), (false, None));
        push(2);
        push(3);
        assert_eq!(reader.get(), &[1, 2, 3]);
        assert_eq!(feed.take(), Some(Update::Change(2)));
        assert_eq!(feed.take(), Some(Update::Change(3)));
        assert_eq!(feed.take(), None);
        for number in 0..=u32::try_from(CHANGES_MAX).unwrap() {
            push(number);
        }
        assert!(matches!(feed.take(), Some(Update::Snapshot(_))));
        assert_eq!(feed.take(), None);
        table.change(|_| ((), []));
        assert!(!feed.has_updates(), "nothing has changed");
    }
}
