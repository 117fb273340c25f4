//! A report as Prometheus' text format 0.0.4.
//!
//! Names: `vigie_forward_`, what is counted, and `_total` for counters. A counter of `stats` that has a reason or a side in its name
//! gets it as a label: `dropped: no route` is `vigie_forward_dropped_total{reason="no route"}`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::help;
use crate::stats::{CertificateReport, FlowReport, HopReport, InstanceReport, TargetReport};

/// Counters of `stats` that go down, too.
const GAUGES: [&str; 4] =
    ["active", "translations", "translations: ports in use", "translations: percent full"];

/// Writes a report.
pub(super) fn text(report: &InstanceReport) -> String {
    let mut families = Families::default();
    let seconds = report.uptime_ms / 1000;
    families.gauge("uptime_seconds", "Seconds since the process started.", &[], seconds);
    let is_draining = u64::from(report.is_draining());
    let help = "1 while the process drains and accepts no new connections, otherwise 0.";
    families.gauge("draining", help, &[], is_draining);
    let reload = &report.reload;
    let help =
        "1 if all flows of the file began at the last reload, or there was none, otherwise 0.";
    families.gauge("last_reload_successful", help, &[], u64::from(reload.has_succeeded));
    let help =
        "Flows that could not begin, or not read their new certificates, at the last reload.";
    families.gauge("reload_failed_flows", help, &[], reload.failed_flows);
    let down = u64::try_from(report.down.len()).unwrap_or(u64::MAX);
    families.gauge("flows_down", "Flows that are configured and do not forward now.", &[], down);
    if let Some(routes) = &report.routes {
        let messages = "Messages of the kernel about routes that could not be parsed.";
        let known = "Routes in the kernel's tables that flows follow, now.";
        families.gauge("routes", known, &[], routes.routes);
        let near = "Neighbours (ARP, NDP) that the kernel knows now.";
        families.gauge("neighbours", near, &[], routes.neighbours);
        let again =
            "Times that the kernel was asked for all routes again, as changes may be silent.";
        families.counter("route_dumps", again, &[], routes.asked_again);
        families.counter("route_messages_unreadable", messages, &[], routes.unreadable);
    }
    if let (Some(written), Some(lost)) = (report.log_lines_written, report.log_lines_lost) {
        let help = "Lines written to the log of connections and translations.";
        families.counter("log_lines_written", help, &[], written);
        let help = "Lines of the log of connections and translations that could not be written.";
        families.counter("log_lines_lost", help, &[], lost);
    }
    // After a reload, a flow that drains may have the name of one that runs, which comes first: its counters begin anew.
    let (mut seen, mut described) = (BTreeSet::new(), BTreeSet::new());
    for flow in &report.flows {
        // Several that drain may differ in nothing that is said of them.
        let FlowReport { name, between, path, side, state, .. } = flow;
        if described.insert((name, between, path, side, state)) {
            families.info(flow);
        }
        if seen.insert(&flow.name) {
            families.flow(flow);
        }
    }
    families.write()
}

/// The samples of one name.
struct Family {
    kind: &'static str,
    help: String,
    /// Labels as text, and values.
    samples: Vec<(String, u64)>,
}

#[derive(Default)]
struct Families(BTreeMap<String, Family>);

impl Families {
    fn add(
        &mut self,
        (name, kind): (String, &'static str),
        help: &str,
        labels: &[(&str, &str)],
        value: u64,
    ) {
        let family = self.0.entry(name).or_insert_with(|| Family {
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
        family.samples.push((labels_of(labels), value));
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.add((name_of(name), "gauge"), help, labels, value);
    }

    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.add((name_of(name) + "_total", "counter"), help, labels, value);
    }

    fn info(&mut self, flow: &FlowReport) {
        let FlowReport { name, kind, between, path, side, state, .. } = flow;
        let labels = [
            ("flow", name.as_str()),
            ("kind", kind),
            ("between", between),
            ("path", path),
            ("side", side),
            ("state", state),
        ];
        self.gauge(
            "flow_info",
            "Always 1; the labels describe the flow, as `stats` does.",
            &labels,
            1,
        );
    }

    fn flow(&mut self, flow: &FlowReport) {
        let of_flow = [("flow", flow.name.as_str())];
        let counters = [
            ("flow_units", "Packets sent, datagrams relayed, or connections accepted.", flow.units),
            ("flow_bytes", "Bytes forwarded, in both directions.", flow.bytes),
            (
                "flow_dropped",
                "Packets, datagrams or connections dropped, refused or cut, for any reason.",
                flow.dropped,
            ),
            (
                "flow_migrations",
                "Moves of the flow between host and network interface.",
                flow.migrations,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help, &of_flow, value);
        }
        for (name, value) in &flow.counters {
            let help = help_of(name);
            match name.split_once(": ") {
                _ if GAUGES.contains(&name.as_str()) => self.gauge(name, &help, &of_flow, *value),
                Some(("dropped", reason)) => {
                    let labels = [of_flow[0], ("reason", reason)];
                    self.counter(
                        "dropped",
                        "Packets or datagrams dropped, by reason.",
                        &labels,
                        *value,
                    );
                }
                // Of datagrams: beside the reasons of packets, it has one, too.
                None if name == "dropped" => {
                    let labels = [of_flow[0], ("reason", "no room to send")];
                    self.counter(name, "Packets or datagrams dropped, by reason.", &labels, *value);
                }
                Some(("rule", rule)) => {
                    let (action, what) = rule.split_once(' ').unwrap_or((rule, ""));
                    let labels = [of_flow[0], ("action", action), ("match", what)];
                    let help = "Connections, sessions or translations that the rule decided.";
                    self.counter("rule_hits", help, &labels, *value);
                }
                // The sum of others.
                None if name == "tls_clients_failed" => {}
                None if name.starts_with("tls_") => self.handshakes(&of_flow[0], name, *value),
                Some((side @ ("host" | "nic"), what)) => {
                    let labels = [of_flow[0], ("side", side)];
                    let help = help_of(what);
                    self.counter(&format!("side_{what}"), &help, &labels, *value);
                }
                _ => self.counter(name, &help, &of_flow, *value),
            }
        }
        for CertificateReport { file, not_after, .. } in &flow.certificates {
            let labels = [of_flow[0], ("file", file)];
            let help = "When the flow's own certificate expires, in seconds since 1970.";
            self.gauge("certificate_expiry_timestamp_seconds", help, &labels, *not_after);
        }
        for target in &flow.targets {
            self.target(&flow.name, target);
        }
        for hop in &flow.hops {
            self.hop(&flow.name, hop);
        }
    }

    /// A hop of routes with several, of host and interface.
    fn hop(&mut self, flow: &str, of: &HopReport) {
        let gateway = of.gateway.map_or_else(String::new, |gateway| gateway.to_string());
        for (side, packets, bytes) in
            [("host", of.host_packets, of.host_bytes), ("nic", of.nic_packets, of.nic_bytes)]
        {
            let of_hop = [("flow", flow), ("interface", &of.interface), ("gateway", &gateway)];
            let labels = [of_hop[0], of_hop[1], of_hop[2], ("side", side)];
            let help = "Packets sent to a hop of routes that have several.";
            self.counter("hop_packets", help, &labels, packets);
            self.counter(
                "hop_bytes",
                "Bytes of packets sent to a hop of routes that have several.",
                &labels,
                bytes,
            );
        }
    }

    /// Handshakes, by side and result.
    fn handshakes(&mut self, of_flow: &(&str, &str), name: &str, value: u64) {
        let side = [("client", "tls_clients_"), ("upstream", "tls_upstreams_")];
        let found = side.iter().find_map(|(side, start)| Some((side, name.strip_prefix(start)?)));
        let Some((side, result)) = found else {
            return self.counter(name, &help_of(name), &[*of_flow], value);
        };
        let labels = [*of_flow, ("side", side), ("result", result)];
        self.counter(
            "tls_handshakes",
            "TLS handshakes with clients or targets that have ended, by result.",
            &labels,
            value,
        );
    }

    fn target(&mut self, flow: &str, of: &TargetReport) {
        let host = of.host.as_deref().unwrap_or_default();
        let route = of.route.as_deref().unwrap_or_default();
        let labels =
            [("flow", flow), ("target", of.target.as_str()), ("host", host), ("route", route)];
        let is_used = u64::from(of.is_available());
        self.gauge(
            "target_available",
            "1 if connections use the target in its turn, 0 while they avoid it.",
            &labels,
            is_used,
        );
        self.gauge(
            "target_weight",
            "Share of connections, relative to the other targets of the flow.",
            &labels,
            of.weight.into(),
        );
        self.gauge(
            "target_active",
            "Connections, or sessions of datagrams, that are open to the target now.",
            &labels,
            of.active,
        );
        for (name, help, value) in [
            (
                "target_connections",
                "Connections made to the target, or sessions of datagrams.",
                of.connections,
            ),
            (
                "target_failures",
                "Failed attempts to reach the target, or reports that a datagram did not.",
                of.failures,
            ),
            ("target_checks_failed", "Health checks of the target that failed.", of.checks_failed),
        ] {
            self.counter(name, help, &labels, value);
        }
    }

    fn write(self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", escaped(&help));
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        text
    }
}

/// Returns what a counter of `stats` counts.
fn help_of(name: &str) -> String {
    help::of(name)
        .map_or_else(|| format!("The counter `{name}` of `vigie-forward stats`."), str::to_owned)
}

/// Returns a name of letters, digits and underscores.
fn name_of(what: &str) -> String {
    let mut name = "vigie_forward".to_owned();
    for word in what.split(|letter: char| !letter.is_ascii_alphanumeric()) {
        if !word.is_empty() {
            name.push('_');
            name.push_str(&word.to_ascii_lowercase());
        }
    }
    name
}

fn labels_of(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let quoted = |(name, value): &(&str, &str)| {
        format!("{name}=\"{}\"", escaped(value).replace('"', "\\\""))
    };
    format!("{{{}}}", labels.iter().map(quoted).collect::<Vec<_>>().join(","))
}

/// Escapes what would end a line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
