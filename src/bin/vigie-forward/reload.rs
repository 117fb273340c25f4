//! SIGHUP: the file is read again, and what has changed in it changes, without I/O.

use std::{fmt, path::PathBuf};

use crate::config::{EndpointUri, FlowConfig, FlowKind, Process, has_port_zero, overlaps};

/// The steps from one configuration to another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadPlan {
    /// Flows to end, by name.
    pub(crate) ends: Vec<String>,
    /// Flows to begin.
    pub(crate) begins: Vec<NewFlow>,
    /// The number of flows that go on.
    pub(crate) kept: usize,
}

/// A flow to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewFlow {
    pub(crate) flow: FlowConfig,
    /// The name of a flow that ends, whose listener it takes over.
    pub(crate) takes_from: Option<String>,
    /// The names of flows that end, and have what it needs until then.
    pub(crate) waits_for: Vec<String>,
}

/// Compares configurations.
pub(crate) fn plan(old: &[FlowConfig], new: &[FlowConfig]) -> ReloadPlan {
    let mut ending: Vec<_> = old.iter().filter(|flow| !new.contains(flow)).collect();
    let ends: Vec<_> = ending.iter().map(|flow| flow.name.clone()).collect();
    let begins = new.iter().filter(|flow| !old.contains(flow)).map(|flow| {
        let at = ending.iter().position(|one| has_listener(one, flow));
        let takes_from = at.map(|at| ending.remove(at).name.clone());
        let holders = old.iter().filter(|one| ends.contains(&one.name) && excludes(one, flow));
        let waits_for = holders.map(|one| one.name.clone()).collect();
        NewFlow { flow: flow.clone(), takes_from, waits_for }
    });
    let begins = begins.collect();
    ReloadPlan { kept: old.len() - ends.len(), ends, begins }
}

/// Says of each setting that changes only with the next start what it is now, and what it will be.
pub(crate) fn fixed_changes(old: &Process, new: &Process) -> Vec<String> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let of = |process: &Process| {
        [
            ("stats_socket", path(&process.stats_socket)),
            ("takeover", path(&process.takeover)),
            ("metrics", process.metrics.as_ref().map(ToString::to_string)),
            ("log_file", Some(process.log_file.to_string())),
            ("drop_all_rights", Some(process.drop_all_rights.to_string())),
        ]
    };
    let shown =
        |value: Option<String>| value.map_or_else(|| "unset".to_owned(), |one| format!("`{one}`"));
    let both = of(old).into_iter().zip(of(new)).filter(|(old, new)| old != new);
    both.map(|((key, old), (_, new))| format!("{key} from {} to {}", shown(old), shown(new)))
        .collect()
}

/// Returns whether a flow cannot be set up while the other one runs: of an interface, a file of translations and a port, only one of them
/// can have it.
pub(crate) fn excludes(one: &FlowConfig, other: &FlowConfig) -> bool {
    let interfaces = other.kind.interfaces();
    let state = |of: &FlowConfig| match &of.kind {
        FlowKind::Nat(nat) => nat.state.clone(),
        _ => None,
    };
    let listens = one.kind.listen().zip(other.kind.listen());
    one.kind.interfaces().iter().any(|name| interfaces.contains(name))
        || state(one).is_some_and(|file| Some(file) == state(other))
        || listens.is_some_and(|(one, other)| shares_port(one, other))
}

/// Returns whether a listener may have the port of another one. Port 0 is whichever the kernel has chosen.
fn shares_port(one: &EndpointUri, other: &EndpointUri) -> bool {
    match (one, other) {
        (EndpointUri::Tcp(_), EndpointUri::Tcp(_)) | (EndpointUri::Udp(_), EndpointUri::Udp(_))
            if has_port_zero(one) =>
        {
            !has_port_zero(other)
        }
        _ => one == other || overlaps(one, other),
    }
}

/// Returns whether a flow listens where the other one does. Port 0 is whichever the kernel has chosen for a flow of this name.
fn has_listener(one: &FlowConfig, other: &FlowConfig) -> bool {
    let (Some(own), Some(listen)) = (one.kind.listen(), other.kind.listen()) else { return false };
    own == listen && (one.name == other.name || !has_port_zero(listen))
}

/// What a reload has changed. It is shown as a count, and by the names of the flows.
#[derive(Debug, Default)]
pub(crate) struct ReloadSummary {
    pub(crate) kept: usize,
    /// Flows that ended, by name.
    pub(crate) ended: Vec<String>,
    /// Flows that began, by name; those that have changed ended, too.
    pub(crate) begun: Vec<String>,
    /// Flows that could not begin, and those that go on whose certificates cannot be read.
    pub(crate) failed: usize,
}

/// The number of names in each list of a summary.
const NAMES_MAX: usize = 8;

impl fmt::Display for ReloadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, ended, begun, failed } = self;
        write!(
            f,
            "flows: {kept} unchanged, {} ended, {} new, {failed} failed",
            ended.len(),
            begun.len()
        )?;
        let of = |all: &[String], other: &[String], is_in: bool| -> Vec<String> {
            all.iter().filter(|name| other.contains(name) == is_in).cloned().collect()
        };
        let mut before = " (";
        for (what, names) in [
            ("new", of(begun, ended, false)),
            ("changed", of(begun, ended, true)),
            ("ended", of(ended, begun, false)),
        ] {
            if names.is_empty() {
                continue;
            }
            let shown = names[..names.len().min(NAMES_MAX)].join(", ");
            write!(f, "{before}{what}: {shown}")?;
            if names.len() > NAMES_MAX {
                write!(f, " and {} more", names.len() - NAMES_MAX)?;
            }
            before = "; ";
        }
        if before == "; " { f.write_str(")") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Frames, L2, Origin, PathChoice, SegmentsChoice, Time, WaitMode, parse};

    fn frames() -> Frames {
        Frames {
            path: PathChoice::Auto,
            waiting: WaitMode::Sleep,
            segments: SegmentsChoice::Cut,
            to_nic_above: None,
            to_host_below: None,
            hold: Time(std::time::Duration::from_secs(5)),
        }
    }

    /// Goal: flows that are the same go on, wherever they stand; others end, begin, or both. Method: lists by hand.
    #[test]
    fn what_is_the_same_goes_on() {
        let flow = |name: &str, other: &str| {
            let between = vec!["a".to_owned(), other.to_owned()];
            let kind = FlowKind::L2(L2 { between, frames: frames() });
            FlowConfig { name: name.to_owned(), origin: Origin::default(), kind }
        };
        let old = [flow("one", "b"), flow("two", "b"), flow("three", "b")];
        let new = [flow("three", "b"), flow("two", "c"), flow("four", "b")];
        let found = plan(&old, &new);
        assert_eq!(found.ends, ["one", "two"]);
        let begins = |flow: &FlowConfig, waits_for: &[&str]| NewFlow {
            flow: flow.clone(),
            takes_from: None,
            waits_for: waits_for.iter().map(|&name| name.to_owned()).collect(),
        };
        // Those that end have the interface `a`.
        let held = ["one", "two"];
        assert_eq!(found.begins, [begins(&new[1], &held), begins(&new[2], &held)]);
        assert_eq!(found.kept, 1);
        assert_eq!(plan(&new, &new), ReloadPlan { kept: 3, ..ReloadPlan::default() });
    }

    /// Goal: each setting that needs a restart is named with its values, and no other. Method: a file with some, and without.
    #[test]
    fn fixed_settings_are_named() {
        let of = |text: &str| parse("f", text).expect("a configuration").process;
        let relay = "[[relay]]\nlisten = 'tcp://[::1]:1'\nto = 'tcp://[::1]:9'\n";
        let old = of(&format!("[process]\nstats_socket = '/run/a'\ndrain = '1s'\n{relay}"));
        let new = of(&format!(
            "[process]\nmetrics = '127.0.0.1:9100'\nstats_socket = '/run/b'\ndrop_all_rights = true\n{relay}"
        ));
        let said = [
            "stats_socket from `/run/a` to `/run/b`",
            "metrics from unset to `tcp://127.0.0.1:9100`",
            "drop_all_rights from `false` to `true`",
        ];
        assert_eq!(fixed_changes(&old, &new), said);
        assert_eq!(fixed_changes(&old, &old), Vec::<String>::new());
    }

    /// Goal: who takes whose listener over: a flow with the same endpoint, whatever its name, once each; of port 0 only one with the
    /// same name. Method: two relays that change places and a third that is renamed; then relays at port 0.
    #[test]
    fn listeners_are_taken_over() {
        let read = |flows: &[(&str, &str)]| {
            let relay = |(name, listen): &(&str, &str)| {
                format!("[[relay]]\nname = '{name}'\nlisten = '{listen}'\nto = 'tcp://[::1]:9'\n")
            };
            let text: String = flows.iter().map(relay).collect();
            parse("f", &text).expect("a configuration").flows
        };
        let taken = |old: &[FlowConfig], new: &[FlowConfig]| {
            let begins = plan(old, new).begins;
            begins.into_iter().map(|one| one.takes_from).collect::<Vec<_>>()
        };
        let (one, two, three) = ("tcp://[::1]:1", "tcp://[::1]:2", "unix:/run/three");
        let old = read(&[("a", one), ("b", two), ("c", three)]);
        let new = read(&[("a", two), ("b", one), ("d", three), ("c", "tcp://[::1]:4")]);
        let from = |name: &str| Some(name.to_owned());
        assert_eq!(taken(&old, &new), [from("b"), from("a"), from("c"), None]);
        assert_eq!(plan(&old, &new).ends, ["a", "b", "c"]);
        let any = "tcp://[::1]:0";
        let mut changed = read(&[("b", any), ("a", any), ("c", any)]);
        let old = read(&[("a", any), ("b", any), ("gone", any)]);
        for flow in &mut changed {
            let FlowKind::Relay(relay) = &mut flow.kind else { panic!("a relay") };
            relay.proxy_send = true;
        }
        assert_eq!(taken(&old, &changed), [from("b"), from("a"), None]);
    }

    /// Goal: the summary names what has changed, within a bound. Method: lists by hand, and 30 flows.
    #[test]
    fn changes_are_named() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let (ended, begun) = (names(&["a", "b"]), names(&["b", "c"]));
        let summary = ReloadSummary { kept: 1, ended, begun, failed: 0 };
        let text = "flows: 1 unchanged, 2 ended, 2 new, 0 failed (new: c; changed: b; ended: a)";
        assert_eq!(summary.to_string(), text);
        let nothing = ReloadSummary { kept: 3, failed: 1, ..ReloadSummary::default() };
        assert_eq!(nothing.to_string(), "flows: 3 unchanged, 0 ended, 0 new, 1 failed");
        let ended = (0..30).map(|number| format!("f{number}")).collect();
        let summary = ReloadSummary { ended, ..ReloadSummary::default() }.to_string();
        assert!(
            summary.ends_with(" (ended: f0, f1, f2, f3, f4, f5, f6, f7 and 22 more)"),
            "{summary}"
        );
    }
}
