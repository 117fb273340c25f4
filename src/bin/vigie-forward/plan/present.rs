//! The flows of a running instance, each explained in one sentence.

use vigie::forward::{Placement, Plan};

use crate::{cli::FlowSide, stats::FlowReport};

/// Explains where a flow is forwarded and why, and where the model would place it.
pub(super) fn explain(flow: &FlowReport, plan: Option<&Plan>) -> String {
    let FlowReport { name, between, path, because, .. } = flow;
    let Some(plan) = plan else {
        return format!(
            "`{name}` ({between}) relays by {path}: streams and datagrams end here at sockets, which no interface has."
        );
    };

    let count = |name: &str| flow.counters.get(name).copied().unwrap_or(0);
    let (by_program, by_host) = (count("nic: sent_packets"), count("host: sent_packets"));
    let share = by_program.saturating_mul(100).checked_div(by_program.saturating_add(by_host));
    let is_at_nic = flow.side == FlowSide::Nic.name();
    let does = match (is_at_nic, share) {
        (true, Some(percent)) => {
            format!("forwards by {path}, whose program has sent {percent} % of the packets")
        }
        (true, None) => format!("forwards by {path}, and nothing was sent yet"),
        (false, _) if because.is_empty() => format!("forwards on the host by {path}"),
        (false, _) => format!("forwards on the host by {path} ({because})"),
    };

    let placement = plan.path().placement;
    let agrees = (placement == Placement::Nic) == is_at_nic;
    let word = if agrees { "too" } else { "instead" };
    let by = match plan.margin() {
        Some(margin) => format!(", at {margin:.1} times the rate of the other place"),
        None => String::new(),
    };
    format!("`{name}` ({between}) {does}; the model places it on the {placement}, {word}{by}.")
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

    fn flow(side: FlowSide, because: &str, sent: [u64; 2]) -> FlowReport {
        let names = ["nic: sent_packets", "host: sent_packets"].map(str::to_owned);
        FlowReport {
            name: "l3".to_owned(),
            kind: "l3".to_owned(),
            between: "ra, rb".to_owned(),
            path: if side == FlowSide::Nic { "tcx" } else { "af-packet" }.to_owned(),
            because: because.to_owned(),
            side: side.name().to_owned(),
            counters: names.into_iter().zip(sent).collect(),
            ..FlowReport::default()
        }
    }

    /// Goal: each flow is one sentence, which names its place, the reason for it, and whether the model agrees. Method: flows at both
    /// places, with plans for both, and a relay.
    #[test]
    fn flows_are_explained() {
        let (nic, host) = (FlowSide::Nic, FlowSide::Host);
        let cases = [
            (
                flow(nic, "", [99, 1]),
                Some(plan(10)),
                &["tcx", "99 %", "interface, too", "times"][..],
            ),
            (flow(nic, "", [0, 0]), Some(plan(10)), &["nothing was sent yet"]),
            (flow(nic, "", [1, 0]), Some(plan(90_000)), &["100 %", "host, instead"]),
            (
                flow(host, "no right", [0, 7]),
                Some(plan(10)),
                &["host by af-packet (no right)", "interface, instead"],
            ),
            (flow(host, "", [0, 7]), Some(plan(90_000)), &["host by af-packet;", "host, too"]),
            (flow(host, "", [0, 0]), None, &["relays by af-packet", "sockets"]),
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
