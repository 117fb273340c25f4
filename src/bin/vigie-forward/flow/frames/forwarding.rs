//! The processing of packets in a flow: the stages of the host's pipeline, and of the program.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use vigie::forward::{
    packet::{Port, TCP, UDP},
    pipeline::Stage,
    stages::{
        Action, Checksum, Filter, FilterRule, Nat as NatStage, NatRule, Rewrite, RouteStage, Ttl,
    },
    tables::{Fib, NatEndpoint, NatTable, Prefix},
};

use super::{
    fullness::Fullness,
    own_address::AddressWatch,
    probe::Rival,
    program::{FlowInterface, FlowTaker},
    public_side::{AddressReach, PublicSide},
    questions::Questions,
    stages::{AnsweredAddress, Guard, Router, SegmentLimit, Translator},
    translations::Translations,
    untranslated::{Onset, UntranslatedCount, UntranslatedCounter, UntranslatedWatch},
};
use crate::{
    access_log,
    config::{FlowKind, Inside, LogChoice, Nat, TransportProtocol},
    flow::FlowError,
    journal::log,
};

/// The kind of processing, with its tables.
pub(super) enum Forwarding {
    Wire,
    Route,
    Translate {
        table: NatTable,
        nat: Box<Nat>,
        outside: Port,
        inside: Vec<Prefix>,
        public: PublicSide,
        untranslated: UntranslatedCount,
        rival: Rival,
    },
}

impl Forwarding {
    /// Returns what a running flow has of its translations, if it has some.
    pub(super) fn into_translations(self) -> Option<(Translations, AddressWatch)> {
        let Self::Translate { table, nat, public, inside, untranslated, rival, .. } = self else {
            return None;
        };
        let (log, publish, outside) = (nat.log, nat.publish, nat.outside.clone());
        let translations = Translations {
            table,
            log,
            publish,
            fullness: Fullness::default(),
            untranslated,
            watch: UntranslatedWatch::default(),
            inside,
            rival,
            rival_onset: Onset::default(),
            public: (public.address, outside),
        };
        Some((translations, AddressWatch::new(public, nat.outside)))
    }
}

/// The longest time-outs of what is short-lived, whatever `idle` says: the table's defaults.
const ICMP_IDLE_MAX: Duration = Duration::from_secs(60);
const TCP_TRANSITORY_MAX: Duration = Duration::from_secs(240);

/// The ports for sources that have one below 1024, which some servers ask for: those of the kernel's own translation.
const LOW_PORTS: (u16, u16) = (600, 1023);

/// Derives the processing from a flow's configuration.
pub(super) fn forwarding_of(
    (name, kind): (&str, &FlowKind),
    flow_interfaces: &[FlowInterface],
    public: Option<PublicSide>,
) -> Result<Forwarding, FlowError> {
    Ok(match (kind, public) {
        (FlowKind::L2(_) | FlowKind::Relay(_), _) => Forwarding::Wire,
        (FlowKind::L3(_), _) => Forwarding::Route,
        (FlowKind::Nat(nat), public) => {
            let none = || FlowError::InvalidSetting("translations need an address".to_owned());
            let public = public.ok_or_else(none)?;
            let idle = nat.idle.0;
            let mut table = NatTable::builder();
            if !public.is_own {
                // Programs of this host may take one at any time (`bindresvport`).
                table = table.low_ports(LOW_PORTS.0, LOW_PORTS.1);
            }
            if nat.log != LogChoice::Off {
                let (flow, has_remote) = (Arc::from(name), nat.log == LogChoice::Each);
                table = table.observe(move |event| {
                    if let Some(kind) = access_log::translation(event, has_remote) {
                        access_log::offer(&flow, kind);
                    }
                });
            }
            if let Some(blocks) = nat.port_blocks() {
                table = table.port_blocks(blocks);
            }
            let table = table
                .ports(public.ports.first, public.ports.last)
                .udp_timeout(idle)
                .icmp_timeout(idle.min(ICMP_IDLE_MAX))
                .tcp_transitory_timeout(idle.min(TCP_TRANSITORY_MAX))
                .host_percent(nat.host_share)
                .build();
            // The last port is the outside, as `FlowKind::interfaces` has it.
            let outside = u16::try_from(flow_interfaces.len().saturating_sub(1));
            let outside =
                outside.map_err(|_| FlowError::InvalidSetting("too many interfaces".to_owned()))?;
            let outside = Port(outside);
            let mut inside: Vec<Prefix> = nat.from.iter().map(|one| one.0).collect();
            if inside.is_empty() {
                let flow_interfaces = flow_interfaces.iter().take(usize::from(outside.0));
                inside = flow_interfaces
                    .flat_map(|flow_interface| flow_interface.networks.iter().copied())
                    .collect();
            }
            if inside.is_empty() {
                return Err(FlowError::of_key(
                    "inside",
                    format!(
                        "no network is reached by {}: give it an address, or name the inside networks with `from`",
                        nat.inside.join(", ")
                    ),
                ));
            }
            Forwarding::Translate {
                table,
                nat: Box::new(nat.clone()),
                outside,
                inside,
                public,
                untranslated: UntranslatedCount::default(),
                rival: Rival::default(),
            }
        }
    })
}

/// Says which settings of translations lead nowhere, by what this host knows: published ports, `from`, and the public address. Routes may still come.
pub(super) fn warn_unreached(
    kind: &FlowKind,
    flow_interfaces: &[FlowInterface],
    public: Option<PublicSide>,
) {
    let FlowKind::Nat(nat) = kind else { return };
    let inside = &flow_interfaces[..flow_interfaces.len().saturating_sub(1)];
    let networks = || inside.iter().flat_map(|one| &one.networks);
    let by = nat.inside.join(", ");
    for one in &nat.publish {
        let host = one.to.ip();
        if !networks().any(|network| network.contains(host)) {
            log(format!(
                "port {} is published to {host}, but no network that {by} reaches has this address, so nothing arrives there: \
                 correct `publish`, or add a route (`ip route add {host} dev {}`)",
                one.port, nat.inside[0]
            ));
        }
    }
    for Inside(from) in &nat.from {
        let overlaps = |one: &Prefix| one.contains(from.address()) || from.contains(one.address());
        if !networks().any(overlaps) {
            let known: Vec<_> = networks().map(Prefix::to_string).collect();
            log(format!(
                "`from` has {from}, but {by} reaches no address of it, only {}: correct `from`, or add a route; what is not in `from` \
                 leaves untranslated",
                if known.is_empty() { "unknown ones".to_owned() } else { known.join(", ") }
            ));
        }
    }
    let outside = &nat.outside;
    if let Some(PublicSide { address, reach, .. }) = public {
        match reach {
            AddressReach::Outside => {}
            AddressReach::Inside => log(format!(
                "{address} is in the network of an inside interface ({by}), and hosts of the outside network probably cannot answer to it: \
                 take one of `{outside}` (`address`)"
            )),
            AddressReach::Elsewhere => log(format!(
                "{address} is in no network of `{outside}`, so that answers only arrive if routers there send them here: take a free one of \
                 its network (`address`), or add a route on those"
            )),
        }
    }
}

/// Builds the stage that translates.
fn nat_stage(
    table: &NatTable,
    nat: &Nat,
    address: Ipv4Addr,
    (outside, inside): (Port, &[Prefix]),
) -> NatStage {
    let mut stage = NatStage::new(table.clone());
    for one in &nat.publish {
        let protocol = match one.transport {
            TransportProtocol::Tcp => TCP,
            TransportProtocol::Udp => UDP,
        };
        let external = NatEndpoint::new(address.into(), one.port);
        let internal = NatEndpoint::new(one.to.ip(), one.to.port());
        stage = stage.rule(NatRule::Destination { protocol, external, internal });
    }
    for ingress in 0..outside.0 {
        for from in inside {
            let (ingress, external) = (Port(ingress), address.into());
            stage = stage.rule(NatRule::Source { ingress, from: *from, external });
        }
    }
    stage
}

/// Builds the stages of the host's pipeline.
pub(super) fn host_stages(
    forwarding: &Forwarding,
    fib: &Fib,
    questions: &Arc<Questions>,
    taker: &FlowTaker,
) -> Vec<Box<dyn Stage>> {
    match forwarding {
        Forwarding::Wire => wire(),
        Forwarding::Route => {
            let mut behind = checks();
            behind.push(Box::new(Ttl::new()));
            behind.push(Box::new(Router::new(fib.clone(), Arc::clone(questions), None)));
            vec![Box::new(Guard::new(fib, None, behind))]
        }
        Forwarding::Translate { table, nat, outside, inside, public, untranslated, rival } => {
            let mut behind = checks();
            let translator = nat_stage(table, nat, public.address, (*outside, inside));
            behind.push(Box::new(Translator::new(translator, taker.clone())));
            if nat.clamp_mss {
                // A program passes every SYN up to these stages.
                behind.push(Box::new(SegmentLimit::new(fib, *outside)));
            }
            behind.push(Box::new(Ttl::new()));
            let (count, outside) = (untranslated.clone(), *outside);
            let untranslated = UntranslatedCounter { count, public: public.address, outside };
            let router = Router::new(fib.clone(), Arc::clone(questions), Some(untranslated));
            behind.push(Box::new(router));
            let answers_for = (!public.is_own).then(|| AnsweredAddress {
                address: public.address,
                port: outside,
                rival: rival.clone(),
            });
            vec![Box::new(Guard::new(fib, answers_for, behind))]
        }
    }
}

/// Destinations on the link, which are never routed.
const NOT_ROUTED: [&str; 4] = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"];

/// Returns the checks of every router: the checksum of the header, and the addresses.
fn checks() -> Vec<Box<dyn Stage>> {
    vec![Box::new(Checksum::verify_header()), Box::new(Filter::martians())]
}

/// Builds the stages of the program: the host's, except those that the kernel replaces there.
pub(super) fn program_stages(
    forwarding: &Forwarding,
    fib: &Fib,
) -> Result<Vec<Box<dyn Stage>>, FlowError> {
    let mut filter = Filter::with_default(Action::Accept);
    for prefix in NOT_ROUTED {
        filter = filter.rule(FilterRule::new(Action::Drop).destination(parsed(prefix)?));
    }
    let mut stages: Vec<Box<dyn Stage>> = vec![Box::new(filter)];
    stages.extend(checks());
    match forwarding {
        Forwarding::Wire => return Ok(wire()),
        Forwarding::Route => {}
        Forwarding::Translate { table, nat, outside, inside, public, .. } => {
            stages.push(Box::new(nat_stage(table, nat, public.address, (*outside, inside))));
        }
    }
    stages.push(Box::new(Ttl::new()));
    stages.push(Box::new(RouteStage::new(fib.clone())));
    Ok(stages)
}

fn parsed(prefix: &str) -> Result<Prefix, FlowError> {
    prefix.parse().map_err(|error| FlowError::InvalidSetting(format!("{prefix}: {error}")))
}

/// Frames from one port leave by the other.
fn wire() -> Vec<Box<dyn Stage>> {
    let way = |from, to| Box::new(Rewrite::new().ingress(Port(from)).send(Port(to)));
    vec![way(0, 1), way(1, 0)]
}
