//! The planner's view of a stage of a pipeline.

use std::fmt;

use crate::cost::Cost;

/// The part of a message that a stage must see before it can pass the message on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "nothing, a part, or everything")]
pub enum Sees {
    /// Nothing: it treats every message alike.
    Nothing,
    /// The header, which is in the first packet.
    Header,
    /// Everything, to the last byte.
    Everything,
}

/// The effect of a stage on the output: whether it changes bytes, or drops messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "it does, or it does not")]
pub enum Writes {
    /// The output equals the input.
    No,
    /// It changes bytes or drops the message, depending on what it has seen.
    Yes,
}

/// A stage as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a planner takes it"]
pub struct StageModel {
    name: String,
    sees: Sees,
    writes: Writes,
    on_host: Cost,
    on_nic: Result<Cost, String>,
}

impl StageModel {
    /// Creates a stage that sees the header, writes, costs nothing, and can run on both processors.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sees: Sees::Header,
            writes: Writes::Yes,
            on_host: Cost::ZERO,
            on_nic: Ok(Cost::ZERO),
        }
    }

    vigie_detect::setters! {
        /// Sets the part of a message that it must see. Default: the header.
        sees: Sees,

        /// Sets whether it changes or drops messages. Default: it does.
        writes: Writes,

        /// Sets its share of T_algoH, as a function of the message's bytes. Default: zero.
        on_host: Cost,
    }

    /// Sets its share of T_algoN, as a function of the message's bytes. Default: zero.
    pub fn on_nic(mut self, cost: Cost) -> Self {
        self.on_nic = Ok(cost);
        self
    }

    /// Declares that it cannot run on the interface, and why.
    pub fn not_on_nic(mut self, because: impl Into<String>) -> Self {
        self.on_nic = Err(because.into());
        self
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the part of a message that it must see.
    #[must_use]
    pub const fn seen(&self) -> Sees {
        self.sees
    }

    /// Returns whether it changes or drops messages.
    #[must_use]
    pub const fn written(&self) -> Writes {
        self.writes
    }

    /// Returns its cost on the host.
    #[must_use]
    pub const fn host_cost(&self) -> Cost {
        self.on_host
    }

    /// Returns its cost on the interface.
    ///
    /// # Errors
    /// The reason why it cannot run there.
    pub fn nic_cost(&self) -> Result<Cost, &str> {
        self.on_nic.as_ref().copied().map_err(String::as_str)
    }

    /// Returns whether the start of a message may leave before this stage has seen its end: it only reads, or its
    /// output does not depend on the rest of the message.
    ///
    /// # Source
    /// [fast-forward, §5].
    #[must_use]
    pub const fn allows_cut_through(&self) -> bool {
        !matches!((self.sees, self.writes), (Sees::Everything, Writes::Yes))
    }
}

impl fmt::Display for StageModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}
