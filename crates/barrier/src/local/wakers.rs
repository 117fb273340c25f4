//! The wakers of a team's members.

use std::{mem, task::Waker};

use crate::sync::{Mutex, lock};

/// The wakers of several members, by index. They stay from barrier to barrier: a task's waker rarely changes.
///
/// They are called without the lock held, since a waker may drop its task and with it a member, which wakes all
/// others: the calling thread takes the list out meanwhile. Changes in between are recorded. A thread that wants to
/// wake meanwhile leaves that to the first one, which starts again.
#[derive(Debug)]
pub(super) struct Wakers(Mutex<WakerList>);

#[derive(Debug)]
struct WakerList {
    /// Empty while it is taken out.
    list: Vec<Option<Waker>>,
    is_taken: bool,
    /// All must be woken again, from the beginning.
    wake_again: bool,
    changed: Vec<(usize, Option<Waker>)>,
}

impl Wakers {
    pub(super) fn new(count: usize) -> Self {
        let list = vec![None; count];
        Self(Mutex::new(WakerList {
            list,
            is_taken: false,
            wake_again: false,
            changed: Vec::new(),
        }))
    }

    /// Sets the waker of a member.
    pub(super) fn set(&self, index: usize, waker: Option<Waker>) {
        let mut replaced = waker;
        {
            let mut state = lock(&self.0);
            if state.is_taken {
                state.changed.push((index, replaced.take()));
            } else if let Some(own) = state.list.get_mut(index) {
                mem::swap(own, &mut replaced);
            }
        }
        // Outside the lock: it may be the last reference to a task.
        drop(replaced);
    }

    /// Wakes all except the one at `except`.
    pub(super) fn wake(&self, except: Option<usize>) {
        let list = {
            let mut state = lock(&self.0);
            if mem::replace(&mut state.is_taken, true) {
                state.wake_again = true;
                return;
            }
            mem::take(&mut state.list)
        };
        let mut taken = Taken { wakers: self, list, replaced: Vec::new() };
        taken.wake(except);
        while taken.must_wake_again() {
            // The one at `except` is awake and will poll anyway: this rarely costs one extra wake-up.
            taken.wake(None);
        }
    }
}

/// The list while it is outside the lock. Put back even if a waker panics.
struct Taken<'a> {
    wakers: &'a Wakers,
    list: Vec<Option<Waker>>,
    /// To be dropped at the end.
    replaced: Vec<Option<Waker>>,
}

impl Taken<'_> {
    #[inline]
    fn wake(&self, except: Option<usize>) {
        for (index, waker) in self.list.iter().enumerate() {
            if let Some(waker) = waker
                && Some(index) != except
            {
                waker.wake_by_ref();
            }
        }
    }

    /// Applies the recorded changes. Returns whether all must be woken again; if not, the list is back.
    fn must_wake_again(&mut self) -> bool {
        let mut state = lock(&self.wakers.0);
        self.apply_changes(&mut state);
        if mem::take(&mut state.wake_again) {
            return true;
        }
        state.list = mem::take(&mut self.list);
        state.is_taken = false;
        false
    }

    fn apply_changes(&mut self, state: &mut WakerList) {
        for (index, waker) in state.changed.drain(..) {
            if let Some(own) = self.list.get_mut(index) {
                self.replaced.push(mem::replace(own, waker));
            }
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.list.is_empty() {
            return;
        }
        // A waker has panicked. The ones after it were not woken: those members check again when they are next woken.
        let mut state = lock(&self.wakers.0);
        self.apply_changes(&mut state);
        state.wake_again = false;
        state.is_taken = false;
        state.list = mem::take(&mut self.list);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::Wake,
    };

    use super::*;

    /// Wakes all when it is woken, a few times; then changes its own place.
    struct Nested {
        wakers: Arc<Wakers>,
        count: AtomicU32,
        other: Arc<Count>,
    }

    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Wake for Nested {
        fn wake(self: Arc<Self>) {
            if self.count.fetch_add(1, Ordering::Relaxed) < 3 {
                self.wakers.wake(Some(1));
            } else {
                self.wakers.set(0, Some(Waker::from(Arc::clone(&self.other))));
            }
        }
    }

    /// Goal: a waker may wake, and change, those among which it is: nothing locks up, each wish to wake is
    /// followed by a call of every waker, and the change holds. Method: such a waker, and one that counts.
    #[test]
    fn wakers_may_wake() {
        let wakers = Arc::new(Wakers::new(3));
        let [other, last] = [0, 0].map(|_| Arc::new(Count(AtomicU32::new(0))));
        let count = AtomicU32::new(0);
        let nested =
            Arc::new(Nested { wakers: Arc::clone(&wakers), count, other: Arc::clone(&other) });
        wakers.set(0, Some(Waker::from(Arc::clone(&nested))));
        wakers.set(2, Some(Waker::from(Arc::clone(&last))));
        wakers.wake(Some(2));
        // Three more rounds, of which none leaves any member out.
        assert_eq!(nested.count.load(Ordering::Relaxed), 4);
        assert_eq!(last.0.load(Ordering::Relaxed), 3);
        assert_eq!(other.0.load(Ordering::Relaxed), 0);
        wakers.wake(None);
        assert_eq!(nested.count.load(Ordering::Relaxed), 4, "it has changed its place");
        assert_eq!((last.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (4, 1));
        wakers.set(2, None);
        assert_eq!(Arc::strong_count(&last), 1);
        wakers.wake(None);
    }

    /// Goal: after a waker has panicked, the others are still there. Method: one that does.
    #[test]
    fn a_panic_costs_no_wakers() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("planted");
            }
        }
        let wakers = Wakers::new(2);
        let count = Arc::new(Count(AtomicU32::new(0)));
        wakers.set(0, Some(Waker::from(Arc::new(Panics))));
        wakers.set(1, Some(Waker::from(Arc::clone(&count))));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wakers.wake(None)));
        assert!(caught.is_err());
        wakers.wake(Some(0));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
