//! The runtime that the thread belongs to.
//!
//! Schedulers enter a runtime on their threads without knowing the type that refers to it,
//! [`Handle`](crate::Handle), which itself knows all schedulers. So it is stored here type-erased.

use std::{any::Any, cell::RefCell, mem, rc::Rc};

use vigie_detect::Server;

use crate::{
    sync::{thread, thread_local},
    task_cell::poll::{self, SuspendedPoll},
    tokio_context::EnteredTokio,
};

thread_local! {
    static CURRENT: RefCell<Current> = const { RefCell::new(Current { handle: None, depth: 0 }) };
}

/// The runtime that the thread has entered.
struct Current {
    handle: Option<Rc<dyn Any>>,
    /// The number of guards.
    depth: usize,
}

/// A reference to a runtime.
pub(crate) trait Enter: Clone + Send + Sync + 'static {
    /// Makes it the runtime of this thread, and its server the current one, until the guard drops.
    fn enter(self) -> EnteredContext;
}

/// Returns the reference to this thread's runtime, if there is one.
pub(crate) fn current<H: Enter>() -> Option<Rc<H>> {
    // `None` while thread-locals are being destroyed.
    let current = CURRENT.try_with(|current| current.borrow().handle.clone()).ok().flatten();
    current.and_then(|current| current.downcast().ok())
}

/// Makes the runtime of `handle`, whose server was entered, this thread's runtime until the guard drops.
pub(crate) fn enter<H: Enter>(
    handle: H,
    server: vigie_detect::ServerGuard,
    tokio: Option<EnteredTokio>,
) -> EnteredContext {
    // Not at all while the thread's variables are being destroyed, a runtime among them.
    let entered = CURRENT.try_with(|current| {
        let mut current = current.borrow_mut();
        current.depth += 1;
        (current.handle.replace(Rc::new(handle)), current.depth)
    });
    let (previous, depth) = entered.unwrap_or_default();
    // A task may run another runtime inside its poll.
    EnteredContext { previous, depth, poll: poll::suspend_poll(), server, _tokio: tokio }
}

#[derive(Debug)]
#[must_use = "the runtime is current only until this is dropped"]
pub(crate) struct EnteredContext {
    previous: Option<Rc<dyn Any>>,
    /// The number of guards including this one.
    depth: usize,
    poll: SuspendedPoll,
    server: vigie_detect::ServerGuard,
    _tokio: Option<EnteredTokio>,
}

/// A runtime that was entered once, to be [made current](EnteredContext::switch) again and again.
pub(crate) struct EnteredOnce {
    handle: Option<Rc<dyn Any>>,
    server: Server,
}

impl EnteredOnce {
    /// Returns the runtime of `_entered`, which was entered last, and whose server is `server`.
    pub(crate) fn of(_entered: &EnteredContext, server: &Server) -> Self {
        let handle = CURRENT.with(|current| current.borrow().handle.clone());
        Self { handle, server: server.clone() }
    }
}

impl EnteredContext {
    /// Makes another runtime current in place of this one, until the guard is dropped. Returns the one that was current.
    pub(crate) fn switch(&mut self, mut to: EnteredOnce) -> EnteredOnce {
        let _ =
            CURRENT.try_with(|current| mem::swap(&mut current.borrow_mut().handle, &mut to.handle));
        self.server.switch(&mut to.server);
        to
    }
}

impl Drop for EnteredContext {
    fn drop(&mut self) {
        poll::resume(self.poll);
        let previous = self.previous.take();
        let left = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            let was_left = current.depth < self.depth;
            if was_left {
                // Together with an earlier guard, which has complained.
                return (previous, true);
            }
            let is_latest = mem::replace(&mut current.depth, self.depth - 1) == self.depth;
            (mem::replace(&mut current.handle, previous), is_latest)
        });
        // The handle may be the last one of the runtime: drop it outside the borrow.
        let is_latest = left.map_or(true, |(_handle, is_latest)| is_latest);
        assert!(
            is_latest || thread::panicking(),
            "guards of `enter` were dropped out of order: drop them in the reverse order of their creation, \
             since the thread would stay inside a runtime that it has left"
        );
    }
}
