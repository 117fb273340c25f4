//! Options of a command as its plan.

use crate::error::BenchError;
use crate::report::Plan;

/// Options of a command, which are a plan or make one.
pub(super) trait Options {
    /// Returns the plan.
    fn planned(self) -> Result<Box<dyn Plan>, BenchError>;
}

impl<P: Plan + 'static> Options for P {
    fn planned(self) -> Result<Box<dyn Plan>, BenchError> {
        Ok(Box::new(self))
    }
}
