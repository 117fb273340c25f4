//! The report of an instance.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

/// The version of the format. Fields may be added within a version; existing ones keep their meaning.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// An instance, at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceReport {
    /// [`FORMAT_VERSION`].
    pub(crate) vigie_forward: u32,
    pub(crate) pid: u32,
    pub(crate) uptime_ms: u64,
    /// `running` or `draining`.
    pub(crate) state: String,
    /// The rights (capabilities) that this process has kept.
    pub(crate) rights: Vec<String>,
    pub(crate) flows: Vec<FlowReport>,
    /// The state of the kernel's routes, if a flow needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) routes: Option<RoutesReport>,
    /// The last SIGHUP.
    #[serde(default)]
    pub(crate) reload: ReloadReport,
    /// The names of flows that should forward, and do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) down: Vec<String>,
    /// The lines of the log of connections and translations, if a flow has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log_lines_written: Option<u64>,
    /// Those that could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log_lines_lost: Option<u64>,
    /// The last lines of the log.
    pub(crate) journal: Vec<String>,
}

impl InstanceReport {
    /// Whether no new connections are accepted.
    pub(crate) fn is_draining(&self) -> bool {
        self.state == DRAINING
    }
}

impl InstanceReport {
    /// The flows, or their routes, for which no target is available.
    pub(crate) fn without_target(&self) -> Vec<String> {
        let running = self.flows.iter().filter(|flow| flow.state != DRAINING);
        let all =
            running.flat_map(|flow| flow.without_target.iter().map(move |route| (flow, route)));
        all.map(|(flow, route)| match route.as_str() {
            "" => flow.name.clone(),
            route => format!("{} for {route}", flow.name),
        })
        .collect()
    }
}

/// How the last reload went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReloadReport {
    /// True also if there was none.
    pub(crate) has_succeeded: bool,
    /// What was wrong.
    pub(crate) problems: Vec<String>,
    /// The number of flows that could not begin by the new file, or go on with earlier certificates.
    pub(crate) failed_flows: u64,
}

impl Default for ReloadReport {
    fn default() -> Self {
        Self { has_succeeded: true, problems: Vec::new(), failed_flows: 0 }
    }
}

/// The states of an instance, and of a flow.
pub(crate) const RUNNING: &str = "running";
pub(crate) const DRAINING: &str = "draining";

/// A flow, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlowReport {
    pub(crate) name: String,
    /// `running`, or `draining`: it accepts nothing new. Empty if the instance does not say.
    #[serde(default)]
    pub(crate) state: String,
    /// `relay`, `l2`, `l3` or `nat`.
    pub(crate) kind: String,
    /// Its ends, as text.
    pub(crate) between: String,
    /// The path: `splice`, `xdp-native`, `af-packet`.
    pub(crate) path: String,
    /// The reason why it is not a better one; may be empty.
    #[serde(default)]
    pub(crate) because: String,
    /// Why it is forwarded as it is, in one sentence, with the terms of the planner.
    #[serde(default)]
    pub(crate) sentence: String,
    /// `host` or `nic`.
    pub(crate) side: String,
    /// The number of times that it has moved between the sides.
    pub(crate) migrations: u64,
    /// Packets, or connections.
    pub(crate) units: u64,
    pub(crate) bytes: u64,
    /// Everything dropped, refused or cut, for any reason.
    pub(crate) dropped: u64,
    /// All counters by name.
    pub(crate) counters: BTreeMap<String, u64>,
    /// The targets of a relay, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) targets: Vec<TargetReport>,
    /// The TLS routes of a relay without an available target, since all are down, avoided or unknown, by the first name of each; the empty
    /// text stands for the relay's own targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) without_target: Vec<String>,
    /// The own certificates of a relay, by file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) certificates: Vec<CertificateReport>,
    /// The hops of routes with several, by interface and gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hops: Vec<HopReport>,
}

/// A certificate of this side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CertificateReport {
    pub(crate) file: String,
    /// From when to when it is valid, in seconds since 1970.
    pub(crate) not_before: u64,
    pub(crate) not_after: u64,
}

/// A hop of routes with several, at one time. The packets of single hops are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HopReport {
    pub(crate) interface: String,
    /// The router; none if the destination is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) host_packets: u64,
    pub(crate) host_bytes: u64,
    pub(crate) nic_packets: u64,
    pub(crate) nic_bytes: u64,
}

/// A target of a relay, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TargetReport {
    /// Its address.
    pub(crate) target: String,
    /// The name of which it is an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// The first name of the TLS route that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<String>,
    pub(crate) weight: u16,
    /// `available`, `on trial`, `avoided` or `down`.
    pub(crate) state: String,
    /// Open connections, or sessions of datagrams.
    pub(crate) active: u64,
    /// Connections or sessions so far.
    pub(crate) connections: u64,
    /// Failed attempts to reach it.
    pub(crate) failures: u64,
    /// Failed checks.
    #[serde(default)]
    pub(crate) checks_failed: u64,
}

impl TargetReport {
    /// Whether connections use it in its turn.
    pub(crate) fn is_available(&self) -> bool {
        matches!(self.state.as_str(), "available" | "on trial")
    }
}

/// The state of the kernel's routes: the sums over all tables that flows follow, and the neighbours, which no table has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoutesReport {
    pub(crate) routes: u64,
    pub(crate) neighbours: u64,
    /// The number of times that the kernel was queried again after the start, because of possible silent changes.
    pub(crate) asked_again: u64,
    /// Kernel messages that could not be parsed.
    pub(crate) unreadable: u64,
}

impl RoutesReport {
    /// Returns that of all tables; `None` if there are none.
    pub(crate) fn sum<'a>(tables: impl Iterator<Item = &'a Self>) -> Option<Self> {
        tables.cloned().reduce(|one, other| Self {
            routes: one.routes + other.routes,
            neighbours: one.neighbours.max(other.neighbours),
            asked_again: one.asked_again + other.asked_again,
            unreadable: one.unreadable + other.unreadable,
        })
    }
}
