//! The user's own code.

use std::fmt;

use vigie_detect::Instant;

use super::{stage::Stage, verdict::Verdict};
use crate::{model::StageModel, packet::Packet};

/// A closure as a stage. It runs only on the host.
///
/// ```
/// use vigie_forward::StageModel;
/// use vigie_forward::pipeline::{DropReason, Verdict};
/// use vigie_forward::stages::StageFn;
///
/// let no_giants = StageFn::new(StageModel::new("no giants"), |packet, _now| {
///     if packet.len() > 9014 { Verdict::Drop(DropReason::User) } else { Verdict::Pass }
/// });
/// # let _ = no_giants;
/// ```
pub struct StageFn<F> {
    model: StageModel,
    work: F,
}

impl<F: FnMut(&mut Packet, Instant) -> Verdict + Send> StageFn<F> {
    /// Creates a stage that calls `work` with each packet and the time. `model` says what it sees and whether it
    /// writes; it is marked as running only on the host.
    pub fn new(model: StageModel, work: F) -> Self {
        Self { model: model.not_on_nic("it runs user code"), work }
    }
}

impl<F: FnMut(&mut Packet, Instant) -> Verdict + Send> Stage for StageFn<F> {
    fn model(&self) -> StageModel {
        self.model.clone()
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        (self.work)(packet, now)
    }
}

impl<F> fmt::Debug for StageFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageFn").field("model", &self.model).finish_non_exhaustive()
    }
}
