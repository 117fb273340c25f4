//! The runtime that the thread belongs to.
//!
//! Schedulers enter a runtime on their threads without knowing the type that refers to it,
//! [`Handle`](crate::Handle), which itself knows all schedulers. So it is stored here type-erased.

use std::{any::Any, cell::RefCell, mem, rc::Rc};

use crate::{
    sync::thread_local,
    task_cell::poll::{self, SuspendedPoll},
};

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// A reference to a runtime.
pub(crate) trait Enter: Clone + Send + Sync + 'static {
    /// Makes it the runtime of this thread, and its server the current one, until the guard drops.
    fn enter(self) -> EnteredContext;
}

/// Calls `f` with the reference to this thread's runtime, if there is one.
pub(crate) fn with_current<H: Enter, T>(f: impl FnOnce(Option<&H>) -> T) -> T {
    // Outside the borrow: `f` may drop a future that it can no longer spawn, and with it another runtime,
    // which is entered for its shutdown. `None` while thread-locals are being destroyed.
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    f(current.as_deref().and_then(<dyn Any>::downcast_ref))
}

/// Makes the runtime of `handle`, whose server was entered, this thread's runtime until the guard drops.
pub(crate) fn enter<H: Enter>(handle: H, server: vigie_detect::EnterGuard) -> EnteredContext {
    // Not at all while the thread's variables are being destroyed, a runtime among them.
    let previous = CURRENT.try_with(|current| current.borrow_mut().replace(Rc::new(handle)));
    let previous = previous.ok().flatten();
    // A task may run another runtime inside its poll.
    EnteredContext { previous, poll: poll::suspend_poll(), _server: server }
}

#[derive(Debug)]
#[must_use = "the runtime is current only until this is dropped"]
pub(crate) struct EnteredContext {
    previous: Option<Rc<dyn Any>>,
    poll: SuspendedPoll,
    _server: vigie_detect::EnterGuard,
}

impl Drop for EnteredContext {
    fn drop(&mut self) {
        poll::resume(self.poll);
        let previous = self.previous.take();
        // The handle may be the last one of the runtime: drop it outside the borrow.
        let left = CURRENT.try_with(|current| mem::replace(&mut *current.borrow_mut(), previous));
        drop(left);
    }
}
