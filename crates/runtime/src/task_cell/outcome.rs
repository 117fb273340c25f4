//! The outcome of a task.

use std::any::Any;

use crate::panics::contained;

/// The outcome of a task's future: its value, or the payload of its panic. `None` once it is taken. Dropping
/// it never panics: `async-task` drops outcomes that are not taken, and aborts the process if that panics.
pub(crate) struct Outcome<T>(Option<Result<T, Box<dyn Any + Send>>>);

impl<T> Outcome<T> {
    pub(super) const fn new(result: Result<T, Box<dyn Any + Send>>) -> Self {
        Self(Some(result))
    }

    pub(crate) fn into_result(mut self) -> Result<T, Box<dyn Any + Send>> {
        self.0.take().expect("invariant: taken once")
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        contained("the result of a task", || self.0 = None);
    }
}
