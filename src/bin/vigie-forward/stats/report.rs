//! What an instance tells of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the format. Fields may be added to a version; what is there keeps its meaning.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// An instance, at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// [`FORMAT_VERSION`].
    pub(crate) vigie_forward: u32,
    pub(crate) pid: u32,
    pub(crate) uptime_ms: u64,
    /// `running` or `draining`.
    pub(crate) state: String,
    /// The rights that this process has kept.
    pub(crate) rights: Vec<String>,
    pub(crate) flows: Vec<FlowReport>,
    /// What is known of the kernel's routes, if a flow needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) routes: Option<RoutesReport>,
    /// What was said last.
    pub(crate) journal: Vec<String>,
}

/// A flow, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowReport {
    pub(crate) name: String,
    /// `running`, or `draining`: it takes nothing new. Empty if the instance does not say.
    #[serde(default)]
    pub(crate) state: String,
    /// `relay`, `l2`, `l3` or `nat`.
    pub(crate) kind: String,
    /// What it forwards between, as text.
    pub(crate) between: String,
    /// How: `splice`, `xdp-native`, `af-packet`.
    pub(crate) path: String,
    /// Why not better, or empty.
    #[serde(default)]
    pub(crate) because: String,
    /// `host` or `nic`.
    pub(crate) side: String,
    /// How often it has moved between them.
    pub(crate) migrations: u64,
    /// Packets, or connections.
    pub(crate) units: u64,
    pub(crate) bytes: u64,
    /// What was dropped, refused or cut, whatever the reason.
    pub(crate) dropped: u64,
    /// All counters by name.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// What is known of the kernel's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoutesReport {
    pub(crate) routes: u64,
    pub(crate) neighbours: u64,
    /// How often the kernel was asked for everything after the start, since it might have changed in silence.
    pub(crate) asked_again: u64,
    /// Messages of the kernel that could not be read.
    pub(crate) unreadable: u64,
}
