//! What a flow does to packets: the stages of the host's pipeline, and of the program.

use std::{net::IpAddr, sync::mpsc::SyncSender};

use vigie::forward::{
    packet::{Port, TCP, UDP},
    pipeline::Stage,
    stages::{Action, Filter, Nat as NatStage, NatRule, Rewrite, RouteStage, Rule, Ttl},
    tables::{Endpoint, Fib, NatTable, NatTimeouts, Prefix},
};

use super::{
    program::Door,
    stages::{Guard, Router},
};
use crate::{
    config::{Kind, Nat, Transport},
    flow::FlowError,
};

/// What is done to packets.
pub(super) enum Work {
    Wire,
    Route,
    Translate { table: NatTable, nat: Box<Nat>, outside: Port, inside: Vec<Prefix> },
}

/// Reads what a flow is to do.
pub(super) fn work_of(kind: &Kind, doors: &[Door]) -> Result<Work, FlowError> {
    Ok(match kind {
        Kind::L2(_) | Kind::Relay(_) => Work::Wire,
        Kind::L3(_) => Work::Route,
        Kind::Nat(nat) => {
            let mut timeouts = NatTimeouts::default();
            timeouts.udp = nat.idle.0;
            timeouts.icmp = nat.idle.0.min(timeouts.icmp);
            timeouts.tcp_transitory = nat.idle.0.min(timeouts.tcp_transitory);
            let table = NatTable::builder().ports(nat.ports.first, nat.ports.last);
            let table = table.timeouts(timeouts).build();
            // The last port is the outside, as `Kind::interfaces` has it.
            let outside = u16::try_from(doors.len().saturating_sub(1));
            let outside =
                outside.map_err(|_| FlowError::Setting("too many interfaces".to_owned()))?;
            let outside = Port(outside);
            let mut inside: Vec<Prefix> = nat.from.iter().map(|one| one.0).collect();
            if inside.is_empty() {
                let doors = doors.iter().take(usize::from(outside.0));
                inside = doors.flat_map(|door| door.networks.iter().copied()).collect();
            }
            if inside.is_empty() {
                return Err(FlowError::Setting(format!(
                    "no network is reached by {}: give it an address, or name by `from` whose addresses are translated",
                    nat.inside.join(", ")
                )));
            }
            Work::Translate { table, nat: Box::new(nat.clone()), outside, inside }
        }
    })
}

/// Makes the stage that translates.
fn nat_stage(table: &NatTable, nat: &Nat, outside: Port, inside: &[Prefix]) -> NatStage {
    let mut stage = NatStage::new(table.clone());
    for one in &nat.publish {
        let protocol = match one.transport {
            Transport::Tcp => TCP,
            Transport::Udp => UDP,
        };
        let external = Endpoint::new(nat.address.into(), one.port);
        let internal = Endpoint::new(one.to.ip(), one.to.port());
        stage = stage.rule(NatRule::Destination { protocol, external, internal });
    }
    for arrival in 0..outside.0 {
        for from in inside {
            let (arrival, external) = (Port(arrival), nat.address.into());
            stage = stage.rule(NatRule::Source { arrival, from: *from, external });
        }
    }
    stage
}

/// Makes the stages of the host's pipeline.
pub(super) fn host_stages(
    work: &Work,
    fib: &Fib,
    wanted: SyncSender<(Port, IpAddr)>,
) -> Vec<Box<dyn Stage>> {
    match work {
        Work::Wire => wire(),
        Work::Route => {
            let behind: Vec<Box<dyn Stage>> =
                vec![Box::new(Ttl::new()), Box::new(Router::new(fib.clone(), wanted))];
            vec![Box::new(Guard::new(fib, None, behind))]
        }
        Work::Translate { table, nat, outside, inside } => {
            let behind: Vec<Box<dyn Stage>> = vec![
                Box::new(nat_stage(table, nat, *outside, inside)),
                Box::new(Ttl::new()),
                Box::new(Router::new(fib.clone(), wanted)),
            ];
            vec![Box::new(Guard::new(fib, Some((nat.address, *outside)), behind))]
        }
    }
}

/// Packets to these are for a link, and not to be routed.
const NOT_ROUTED: [&str; 4] = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"];

/// Makes the stages of the program: the host's, without what the kernel does there.
pub(super) fn program_stages(work: &Work, fib: &Fib) -> Result<Vec<Box<dyn Stage>>, FlowError> {
    let mut filter = Filter::otherwise(Action::Accept);
    for prefix in NOT_ROUTED {
        filter = filter.rule(Rule::new(Action::Drop).destination(parsed(prefix)?));
    }
    let route = RouteStage::new(fib.clone());
    Ok(match work {
        Work::Wire => wire(),
        Work::Route => vec![Box::new(filter), Box::new(Ttl::new()), Box::new(route)],
        Work::Translate { table, nat, outside, inside } => vec![
            Box::new(filter),
            Box::new(nat_stage(table, nat, *outside, inside)),
            Box::new(Ttl::new()),
            Box::new(route),
        ],
    })
}

fn parsed(prefix: &str) -> Result<Prefix, FlowError> {
    prefix.parse().map_err(|error| FlowError::Setting(format!("{prefix}: {error}")))
}

/// What comes at one port leaves by the other.
fn wire() -> Vec<Box<dyn Stage>> {
    let way = |from, to| Box::new(Rewrite::new().arrival(Port(from)).send(Port(to)));
    vec![way(0, 1), way(1, 0)]
}
