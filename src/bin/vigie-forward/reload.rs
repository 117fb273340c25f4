//! SIGHUP: the file is read again, and what has changed in it changes, without I/O.

use crate::config::{FlowConfig, has_port_zero};

/// The steps from one configuration to another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadPlan {
    /// Flows to end, by name.
    pub(crate) ends: Vec<String>,
    /// Flows to begin, after those have freed what they had.
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
}

/// Compares configurations. A flow is the same if its name and settings are, wherever it is in the file.
pub(crate) fn plan(old: &[FlowConfig], new: &[FlowConfig]) -> ReloadPlan {
    let is_in = |all: &[FlowConfig], flow: &FlowConfig| {
        all.iter().any(|other| other.name == flow.name && other.kind == flow.kind)
    };
    let mut ending: Vec<_> = old.iter().filter(|flow| !is_in(new, flow)).collect();
    let ends: Vec<_> = ending.iter().map(|flow| flow.name.clone()).collect();
    let begins = new.iter().filter(|flow| !is_in(old, flow)).map(|flow| {
        let at = ending.iter().position(|one| has_listener(one, flow));
        NewFlow { flow: flow.clone(), takes_from: at.map(|at| ending.remove(at).name.clone()) }
    });
    let begins = begins.collect();
    ReloadPlan { kept: old.len() - ends.len(), ends, begins }
}

/// Returns whether a flow listens where the other one does. Port 0 is whichever the kernel has chosen for a flow of this name.
fn has_listener(one: &FlowConfig, other: &FlowConfig) -> bool {
    let (Some(own), Some(listen)) = (one.kind.listen(), other.kind.listen()) else { return false };
    own == listen && (one.name == other.name || !has_port_zero(listen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FlowKind, Frames, L2, PathChoice, SegmentsChoice, Time, WaitMode, parse};

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
        let flow = |name: &str, line, other: &str| {
            let between = vec!["a".to_owned(), other.to_owned()];
            let kind = FlowKind::L2(L2 { between, frames: frames() });
            FlowConfig { name: name.to_owned(), line, kind }
        };
        let old = [flow("one", Some(1), "b"), flow("two", Some(2), "b"), flow("three", None, "b")];
        let new = [flow("three", Some(9), "b"), flow("two", Some(1), "c"), flow("four", None, "b")];
        let found = plan(&old, &new);
        assert_eq!(found.ends, ["one", "two"]);
        let begins = |flow: &FlowConfig| NewFlow { flow: flow.clone(), takes_from: None };
        assert_eq!(found.begins, [begins(&new[1]), begins(&new[2])]);
        assert_eq!(found.kept, 1);
        assert_eq!(plan(&new, &new), ReloadPlan { kept: 3, ..ReloadPlan::default() });
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
}
