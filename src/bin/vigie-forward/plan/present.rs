//! The flows of a running instance, each explained in one sentence.

use vigie::forward::{Placement, Plan};

use crate::{cli::FlowSide, stats::FlowReport};

/// Explains where a flow is forwarded and why, as its instance does, and where the model would place it by what was measured now.
pub(super) fn explain(flow: &FlowReport, plan: Option<&Plan>) -> String {
    let FlowReport { name, between, path, sentence, .. } = flow;
    // An instance of an earlier version says nothing.
    let said = || format!("`{name}` ({between}) is forwarded by {path}.");
    let said = if sentence.is_empty() { said() } else { sentence.clone() };
    let Some(plan) = plan else { return said };

    let placement = plan.path().placement;
    let is_at_nic = flow.side == FlowSide::Nic.name();
    let agrees = (placement == Placement::Nic) == is_at_nic;
    let word = if agrees { "too" } else { "instead" };
    let by = match plan.margin() {
        Some(margin) => format!(", at {margin:.1} times the rate of the other place"),
        None => String::new(),
    };
    let said = said.trim_end_matches('.');
    format!("{said}; measured now, the model places it on the {placement}, {word}{by}.")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vigie::forward::{Bandwidth, Cost, Message, Node, StageModel};

    use super::*;

    /// A plan for a program that takes so many nanoseconds, beside a host that takes 1000.
    fn plan(program_ns: u64) -> Plan {
        let link = Bandwidth::new(1_000_000_000).expect("not 0");
        let nanos = |nanos| Cost::fixed(Duration::from_nanos(nanos));
        let stage = StageModel::new("l3").on_host(nanos(1000)).on_nic(nanos(program_ns));
        let node = Node::new(Cost::per_byte(link), nanos(500));
        node.plan(Message::whole(1500).expect("not empty"), &[stage]).expect("a plan")
    }

    fn flow(side: FlowSide, sentence: &str) -> FlowReport {
        FlowReport {
            name: "l3".to_owned(),
            kind: "l3".to_owned(),
            between: "ra, rb".to_owned(),
            path: "tcx".to_owned(),
            sentence: sentence.to_owned(),
            side: side.name().to_owned(),
            ..FlowReport::default()
        }
    }

    /// Goal: each flow is one sentence, its instance's, with the place by what was measured now. Method: flows at both places, with plans
    /// for both, a relay, and an instance that says nothing.
    #[test]
    fn flows_are_explained() {
        let (nic, host) = (FlowSide::Nic, FlowSide::Host);
        let said = "`l3` (ra, rb) is forwarded by tcx: it is 1.5 times as fast.";
        let cases = [
            (
                flow(nic, said),
                Some(plan(10)),
                &["1.5 times as fast; ", "interface, too", "times"][..],
            ),
            (flow(nic, ""), Some(plan(90_000)), &["by tcx; measured now", "host, instead"]),
            (flow(host, said), Some(plan(10)), &["interface, instead"]),
            (flow(host, said), Some(plan(90_000)), &["host, too"]),
            (flow(host, said), None, &["1.5 times as fast."]),
        ];
        for (flow, plan, words) in cases {
            let said = explain(&flow, plan.as_ref());
            for word in words {
                assert!(said.contains(word), "{said}");
            }
            assert!(said.starts_with("`l3` (ra, rb) ") && said.ends_with('.'), "{said}");
            assert_eq!(said.matches(". ").count(), 0, "{said}");
        }
    }
}
