//! The runtime that a thread runs for.
//!
//! Schedulers make their threads run for a runtime, and know nothing of what refers to one:
//! [`Handle`](crate::Handle) knows all of them. So it is kept here without its type.

use std::{any::Any, cell::RefCell, mem, rc::Rc};

use crate::{
    sync::thread_local,
    task_cell::poll::{self, SetAside},
};

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// What refers to a runtime.
pub(crate) trait Enter: Clone + Send + Sync + 'static {
    /// Makes it the runtime of this thread, and its server the current one, until the guard drops.
    fn enter(self) -> Entered;
}

/// Calls `f` with what refers to the runtime that this thread runs for, if there is one.
pub(crate) fn with_current<H: Enter, T>(f: impl FnOnce(Option<&H>) -> T) -> T {
    // Outside the borrow: `f` may drop a future that it cannot spawn any more, and with it another
    // runtime, which is entered for its shutdown. There is none while the thread's variables go.
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    f(current.as_deref().and_then(<dyn Any>::downcast_ref))
}

/// Makes the runtime of `handle`, whose server was entered, that of this thread until the guard drops.
pub(crate) fn enter<H: Enter>(handle: H, server: vigie_detect::Entered) -> Entered {
    let previous = CURRENT.with(|current| current.borrow_mut().replace(Rc::new(handle)));
    // A task may run another runtime inside its poll.
    Entered { previous, poll: poll::set_aside(), _server: server }
}

#[derive(Debug)]
#[must_use = "the runtime is current only until this is dropped"]
pub(crate) struct Entered {
    previous: Option<Rc<dyn Any>>,
    poll: SetAside,
    _server: vigie_detect::Entered,
}

impl Drop for Entered {
    fn drop(&mut self) {
        poll::resume(self.poll);
        let previous = self.previous.take();
        // The handle may be the runtime's last: dropped outside the borrow.
        let left = CURRENT.try_with(|current| mem::replace(&mut *current.borrow_mut(), previous));
        drop(left);
    }
}
