//! This machine: what it is, what it allows, and what is installed on it.

pub(crate) mod arena;
pub(crate) mod control_group;
pub(crate) mod limits;
pub mod machine;
pub(crate) mod missing;
pub(crate) mod namespaces;
pub(crate) mod program;
pub(crate) mod realtime;
pub(crate) mod strace;
pub(crate) mod usage;
