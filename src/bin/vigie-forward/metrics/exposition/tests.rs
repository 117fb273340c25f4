use vigie::forward::relay::{RelayStats, UdpRelayStats};

use super::*;
use crate::stats::{FORMAT_VERSION, ReloadReport, RoutesReport};

/// Checks a text as `promtool check metrics` does: each family is declared once, with a kind and a help, before its samples, which
/// are together; names and labels are possible ones; a counter ends in `_total`, and nothing else does; no sample occurs twice.
/// Returns the samples.
#[track_caller]
fn checked(text: &str) -> BTreeMap<String, f64> {
    let is_name = |name: &str| {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        name.chars().all(is_letter) && !name.starts_with(|first: char| first.is_ascii_digit())
    };
    let (mut helps, mut kinds) = (BTreeSet::new(), BTreeMap::new());
    let (mut samples, mut current) = (BTreeMap::new(), "");
    assert!(text.ends_with('\n'), "{text}");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(helps.insert(name) && help.ends_with('.'), "{line}");
            assert!(!help.starts_with("The counter `"), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert!(helps.contains(name) && ["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(kinds.insert(name, kind).is_none(), "{line}");
            current = name;
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            assert_eq!(name, current, "{line}");
            assert!(is_name(name), "{line}");
            let mut rest = labels.strip_suffix('}').expect("an end");
            let mut named = BTreeSet::new();
            while !rest.is_empty() {
                let (label, value) = rest.split_once("=\"").expect("a label");
                assert!(is_name(label) && named.insert(label), "{line}");
                let mut end = 0;
                while !value[end..].starts_with('"') {
                    end += if value[end..].starts_with('\\') { 2 } else { 1 };
                }
                rest = &value[end + 1..];
                rest = rest.strip_prefix(',').unwrap_or(rest);
            }
            let value = value.parse().expect("a number");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    assert_eq!(helps.len(), kinds.len());
    samples
}

fn report(flows: Vec<FlowReport>) -> InstanceReport {
    InstanceReport {
        vigie_forward: FORMAT_VERSION,
        pid: 1,
        uptime_ms: 61_999,
        state: "running".to_owned(),
        rights: Vec::new(),
        flows,
        routes: Some(RoutesReport { routes: 3, neighbours: 2, asked_again: 1, unreadable: 0 }),
        reload: ReloadReport { has_succeeded: false, problems: Vec::new(), failed_flows: 2 },
        down: vec!["down".to_owned()],
        log_lines_written: Some(31),
        log_lines_lost: Some(32),
        journal: Vec::new(),
    }
}

fn flow(name: &str, counters: &[(&str, u64)]) -> FlowReport {
    let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    FlowReport { name: name.to_owned(), kind: "l3".to_owned(), counters, ..FlowReport::default() }
}

/// A relay with targets, in whose description are difficult letters.
fn relay() -> FlowReport {
    let mut relay = flow("web", &[("accepted", 5), ("active", 2), ("bytes_up", 7)]);
    "unix:/a\"b\\c\nd -> x".clone_into(&mut relay.between);
    let target = |target: &str, state: &str| TargetReport {
        target: target.to_owned(),
        state: state.to_owned(),
        weight: 3,
        active: 1,
        connections: 9,
        failures: 4,
        checks_failed: 6,
        host: None,
        route: None,
    };
    relay.targets = vec![target("tcp://192.0.2.1:80", "available"), target("unix:/x", "down")];
    relay
        .targets
        .push(TargetReport { host: Some("web.test".to_owned()), ..target("unix:/x", "avoided") });
    relay
        .targets
        .push(TargetReport { route: Some("api.test".to_owned()), ..target("unix:/x", "down") });
    relay
}

/// A router with counters of all kinds, and hops.
fn router() -> FlowReport {
    let mut router = flow(
        "router",
        &[
            ("dropped: no route", 11),
            ("dropped: TTL expired", 12),
            ("host: received_packets", 13),
            ("nic: received_packets", 14),
            ("received_packets", 27),
            ("ICMP errors sent", 15),
            ("translations", 16),
            ("translations: percent full", 17),
            ("translations: refused", 18),
            ("untranslated", 21),
            ("rule: publish tcp:80=10.0.0.2:8080", 20),
        ],
    );
    let hop = HopReport {
        interface: "eth1".to_owned(),
        gateway: Some([10, 0, 0, 1].into()),
        host_packets: 41,
        host_bytes: 42,
        nic_packets: 43,
        nic_bytes: 44,
    };
    router.hops = vec![HopReport { gateway: None, ..hop.clone() }, hop];
    router
}

/// Goal: every counter of `stats` is a sample of a valid text, with its labels; what goes down is a gauge. Method: a report with
/// counters of all kinds, targets and difficult letters.
#[test]
fn every_counter_is_a_sample() {
    let text = text(&report(vec![relay(), router(), flow("dns", &[("dropped", 19)])]));
    let samples = checked(&text);
    for (sample, value) in [
        ("vigie_forward_accepted_total{flow=\"web\"}", 5.0),
        ("vigie_forward_active{flow=\"web\"}", 2.0),
        ("vigie_forward_dropped_total{flow=\"router\",reason=\"TTL expired\"}", 12.0),
        ("vigie_forward_dropped_total{flow=\"dns\",reason=\"no room to send\"}", 19.0),
        ("vigie_forward_side_received_packets_total{flow=\"router\",side=\"nic\"}", 14.0),
        ("vigie_forward_received_packets_total{flow=\"router\"}", 27.0),
        ("vigie_forward_icmp_errors_sent_total{flow=\"router\"}", 15.0),
        ("vigie_forward_translations{flow=\"router\"}", 16.0),
        ("vigie_forward_translations_percent_full{flow=\"router\"}", 17.0),
        ("vigie_forward_translations_refused_total{flow=\"router\"}", 18.0),
        ("vigie_forward_untranslated_total{flow=\"router\"}", 21.0),
        (
            "vigie_forward_target_available{flow=\"web\",target=\"tcp://192.0.2.1:80\",host=\"\",route=\"\"}",
            1.0,
        ),
        (
            "vigie_forward_target_available{flow=\"web\",target=\"unix:/x\",host=\"\",route=\"\"}",
            0.0,
        ),
        (
            "vigie_forward_target_failures_total{flow=\"web\",target=\"unix:/x\",host=\"web.test\",route=\"\"}",
            4.0,
        ),
        (
            "vigie_forward_hop_packets_total{flow=\"router\",interface=\"eth1\",gateway=\"10.0.0.1\",side=\"host\"}",
            41.0,
        ),
        (
            "vigie_forward_hop_bytes_total{flow=\"router\",interface=\"eth1\",gateway=\"\",side=\"nic\"}",
            44.0,
        ),
        ("vigie_forward_uptime_seconds", 61.0),
        ("vigie_forward_routes", 3.0),
        (
            "vigie_forward_rule_hits_total{flow=\"router\",action=\"publish\",match=\"tcp:80=10.0.0.2:8080\"}",
            20.0,
        ),
        ("vigie_forward_log_lines_written_total", 31.0),
        ("vigie_forward_log_lines_lost_total", 32.0),
    ] {
        assert_eq!(samples.get(sample), Some(&value), "{sample} in\n{text}");
    }
    assert!(text.contains("between=\"unix:/a\\\"b\\\\c\\nd -> x\""), "{text}");
}

/// Goal: after reloads, the flow that runs is counted, and not those of the same name that drain; both states are shown, once each.
/// Method: one that runs, and two that drain and are alike.
#[test]
fn a_flow_that_drains_is_not_counted_twice() {
    let mut draining = flow("web", &[("accepted", 5)]);
    "draining".clone_into(&mut draining.state);
    let samples =
        checked(&text(&report(vec![flow("web", &[("accepted", 1)]), draining.clone(), draining])));
    assert_eq!(samples["vigie_forward_accepted_total{flow=\"web\"}"], 1.0);
    let infos = samples.keys().filter(|name| name.starts_with("vigie_forward_flow_info{")).count();
    assert_eq!(infos, 2);
}

/// Goal: handshakes of TLS are one family with side and result, without the sum of some of them. Method: a report with a counter of each kind.
#[test]
fn handshakes_are_one_family() {
    let tls = [
        ("tls_clients_ok", 21),
        ("tls_clients_no_route", 22),
        ("tls_clients_failed", 22),
        ("tls_upstreams_expired", 23),
        ("tls_passed_through", 24),
    ];
    let samples = checked(&text(&report(vec![flow("tls", &tls)])));
    for (sample, value) in [
        ("vigie_forward_tls_handshakes_total{flow=\"tls\",side=\"client\",result=\"ok\"}", 21.0),
        (
            "vigie_forward_tls_handshakes_total{flow=\"tls\",side=\"client\",result=\"no_route\"}",
            22.0,
        ),
        (
            "vigie_forward_tls_handshakes_total{flow=\"tls\",side=\"upstream\",result=\"expired\"}",
            23.0,
        ),
        ("vigie_forward_tls_passed_through_total{flow=\"tls\"}", 24.0),
    ] {
        assert_eq!(samples.get(sample), Some(&value), "{sample}");
    }
    assert!(samples.keys().all(|sample| !sample.contains("clients_failed")), "{samples:?}");
}

/// Goal: each counter of relays has a help of its own. Method: all counters of both kinds.
#[test]
fn counters_of_relays_are_explained() {
    let streams: Vec<_> = RelayStats::default().named().collect();
    let datagrams: Vec<_> = UdpRelayStats::default().named().collect();
    let samples = checked(&text(&report(vec![flow("tcp", &streams), flow("udp", &datagrams)])));
    let labels = ["{flow=\"tcp\"}", "{flow=\"udp\"}"];
    let count = samples.keys().filter(|name| labels.iter().any(|end| name.ends_with(end))).count();
    assert!(count > streams.len() / 2 + datagrams.len(), "{samples:?}");
}
