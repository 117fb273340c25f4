//! The wakers of a team's members.

use std::{mem, task::Waker};

use crate::sync::{Mutex, lock};

/// The wakers of several members, by place. They stay from barrier to barrier: a task's waker seldom changes.
///
/// They are called with no lock held, since a waker may drop its task, and that a member, which wakes all others:
/// whoever calls them takes the list out meanwhile. What changes in between is noted, and whoever wants to
/// wake as well leaves that to the first one, which begins again.
#[derive(Debug)]
pub(super) struct Wakers(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Empty while it is taken out.
    list: Vec<Option<Waker>>,
    is_taken: bool,
    /// Somebody wants all to be woken from the beginning.
    again: bool,
    changed: Vec<(usize, Option<Waker>)>,
}

impl Wakers {
    pub(super) fn new(count: usize) -> Self {
        let list = vec![None; count];
        Self(Mutex::new(State { list, is_taken: false, again: false, changed: Vec::new() }))
    }

    /// Sets the waker of a member.
    pub(super) fn set(&self, place: usize, waker: Option<Waker>) {
        let mut replaced = waker;
        {
            let mut state = lock(&self.0);
            if state.is_taken {
                state.changed.push((place, replaced.take()));
            } else if let Some(own) = state.list.get_mut(place) {
                mem::swap(own, &mut replaced);
            }
        }
        // Outside the lock: it may be the last reference to a task.
        drop(replaced);
    }

    /// Wakes all, except for the one at `except`.
    pub(super) fn wake(&self, except: Option<usize>) {
        let list = {
            let mut state = lock(&self.0);
            if mem::replace(&mut state.is_taken, true) {
                state.again = true;
                return;
            }
            mem::take(&mut state.list)
        };
        let mut taken = Taken { wakers: self, list, replaced: Vec::new() };
        taken.wake(except);
        while taken.must_go_on() {
            // The one at `except` is awake, and would look by itself: it costs a wake-up too many, seldom.
            taken.wake(None);
        }
    }
}

/// The list outside of the lock. Put back also if a waker panics.
struct Taken<'a> {
    wakers: &'a Wakers,
    list: Vec<Option<Waker>>,
    /// To be dropped at the end.
    replaced: Vec<Option<Waker>>,
}

impl Taken<'_> {
    #[inline]
    fn wake(&self, except: Option<usize>) {
        for (place, waker) in self.list.iter().enumerate() {
            if let Some(waker) = waker
                && Some(place) != except
            {
                waker.wake_by_ref();
            }
        }
    }

    /// Brings in what has changed meanwhile. Returns whether all must be woken again; if not, the list is back.
    fn must_go_on(&mut self) -> bool {
        let mut state = lock(&self.wakers.0);
        self.put_changed(&mut state);
        if mem::take(&mut state.again) {
            return true;
        }
        state.list = mem::take(&mut self.list);
        state.is_taken = false;
        false
    }

    fn put_changed(&mut self, state: &mut State) {
        for (place, waker) in state.changed.drain(..) {
            if let Some(own) = self.list.get_mut(place) {
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
        // A waker has panicked. Those after it were not woken: whoever waits looks at what it waits for when it
        // is woken the next time.
        let mut state = lock(&self.wakers.0);
        self.put_changed(&mut state);
        state.again = false;
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
        // Three more rounds, of which none leaves anybody out.
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
