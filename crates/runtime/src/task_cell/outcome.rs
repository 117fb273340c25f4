//! The outcome of a task.

use std::any::Any;

use super::id::Id;
use crate::panics::contained;

/// The outcome of a task's future: its value, or the payload of its panic. `None` once it is taken. Dropping
/// it never panics: `async-task` drops outcomes that are not taken, and aborts the process if that panics.
pub(crate) struct Outcome<T> {
    /// The task, which is the current one while its result is dropped.
    id: Id,
    result: Option<Result<T, Box<dyn Any + Send>>>,
}

impl<T> Outcome<T> {
    pub(super) const fn new(id: Id, result: Result<T, Box<dyn Any + Send>>) -> Self {
        Self { id, result: Some(result) }
    }

    pub(crate) fn into_result(mut self) -> Result<T, Box<dyn Any + Send>> {
        self.result.take().expect("invariant: taken once")
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        if self.result.is_some() {
            let _entered = self.id.enter();
            contained("the result of a task", || self.result = None);
        }
    }
}
