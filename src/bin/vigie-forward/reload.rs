//! SIGHUP: the file is read again, and what has changed in it changes, without I/O.

use crate::config::FlowConfig;

/// The steps from one configuration to another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadPlan {
    /// Flows to end, by name.
    pub(crate) ends: Vec<String>,
    /// Flows to begin, after those have freed what they had.
    pub(crate) begins: Vec<FlowConfig>,
    /// The number of flows that go on.
    pub(crate) kept: usize,
}

/// Compares configurations. A flow is the same if its name and settings are, wherever it is in the file.
pub(crate) fn plan(old: &[FlowConfig], new: &[FlowConfig]) -> ReloadPlan {
    let is_in = |all: &[FlowConfig], flow: &FlowConfig| {
        all.iter().any(|other| other.name == flow.name && other.kind == flow.kind)
    };
    let ends: Vec<_> =
        old.iter().filter(|flow| !is_in(new, flow)).map(|flow| flow.name.clone()).collect();
    let begins = new.iter().filter(|flow| !is_in(old, flow)).cloned().collect();
    ReloadPlan { kept: old.len() - ends.len(), ends, begins }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FlowKind, Frames, L2, PathChoice, SegmentsChoice, Time, WaitMode};

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
        assert_eq!(found.begins, [new[1].clone(), new[2].clone()]);
        assert_eq!(found.kept, 1);
        assert_eq!(plan(&new, &new), ReloadPlan { kept: 3, ..ReloadPlan::default() });
    }
}
