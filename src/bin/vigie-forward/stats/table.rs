//! A report as text.

use std::fmt::Write;

use super::report::{FlowReport, HopReport, InstanceReport, TargetReport};

/// Shows a report, with rates if there was one before.
pub(crate) fn render(report: &InstanceReport, before: Option<&InstanceReport>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_report(&mut text, report, before);
    text
}

fn write_report(
    text: &mut String,
    report: &InstanceReport,
    before: Option<&InstanceReport>,
) -> Result<(), std::fmt::Error> {
    let InstanceReport { pid, state, uptime_ms, .. } = report;
    let rights =
        if report.rights.is_empty() { "none".to_owned() } else { report.rights.join(", ") };
    let seconds = uptime_ms / 1000;
    writeln!(text, "process {pid}, {state}, up {seconds} s, rights kept: {rights}")?;
    if let Some(routes) = &report.routes {
        let super::RoutesReport { routes, neighbours, asked_again, unreadable } = routes;
        write!(text, "routes {routes}, neighbours {neighbours}, asked again {asked_again}")?;
        let unread =
            |count| if count > 0 { format!(", unreadable {count}") } else { String::new() };
        writeln!(text, "{}", unread(*unreadable))?;
    }

    if let (Some(written), Some(lost)) = (report.log_lines_written, report.log_lines_lost) {
        writeln!(text, "log lines written {written}, lost {lost}")?;
    }

    for problem in &report.reload.problems {
        writeln!(text, "the last reload failed: {problem}")?;
    }
    if !report.down.is_empty() {
        writeln!(text, "not forwarding: {}", report.down.join(", "))?;
    }
    let without = report.without_target();
    if !without.is_empty() {
        writeln!(text, "no target is available: {}", without.join(", "))?;
    }

    let header =
        ["flow", "kind", "path", "state", "moves", "units", "bytes", "dropped"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    rows.extend(report.flows.iter().map(row));
    if let Some(before) = before {
        let millis = uptime_ms.saturating_sub(before.uptime_ms).max(1);
        rows[0].extend(["units/s", "MB/s"].map(str::to_owned));
        for (row, flow) in rows.iter_mut().skip(1).zip(&report.flows) {
            let old = before.flows.iter().find(|old| old.name == flow.name);
            let per_s = |new: u64, old: u64| {
                u128::from(new.saturating_sub(old)) * 1000 / u128::from(millis)
            };
            row.push(per_s(flow.units, old.map_or(0, |old| old.units)).to_string());
            let bytes = per_s(flow.bytes, old.map_or(0, |old| old.bytes));
            row.push(format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10));
        }
    }

    write_aligned(text, &rows, TEXT_COLUMNS)?;
    for flow in &report.flows {
        if before.is_none() {
            write_details(text, flow)?;
        }
    }

    Ok(())
}

fn row(flow: &FlowReport) -> Vec<String> {
    vec![
        flow.name.clone(),
        flow.kind.clone(),
        flow.path.clone(),
        flow.state.clone(),
        flow.migrations.to_string(),
        flow.units.to_string(),
        flow.bytes.to_string(),
        flow.dropped.to_string(),
    ]
}

fn write_details(text: &mut String, flow: &FlowReport) -> Result<(), std::fmt::Error> {
    writeln!(text, "\n{} ({}, {}): {}", flow.name, flow.kind, flow.side, flow.between)?;
    let because = if flow.sentence.is_empty() { &flow.because } else { &flow.sentence };
    if !because.is_empty() {
        writeln!(text, "  {because}")?;
    }
    for (name, value) in flow.counters.iter().filter(|(_, value)| **value > 0) {
        writeln!(text, "  {name} {value}")?;
    }
    write_targets(text, &flow.targets)?;
    write_hops(text, &flow.hops)
}

fn write_hops(text: &mut String, hops: &[HopReport]) -> Result<(), std::fmt::Error> {
    if hops.is_empty() {
        return Ok(());
    }
    let header =
        ["  hop", "interface", "host: packets", "host: bytes", "nic: packets", "nic: bytes"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for one in hops {
        let gateway = one.gateway.map_or_else(|| "on link".to_owned(), |to| to.to_string());
        let numbers = [one.host_packets, one.host_bytes, one.nic_packets, one.nic_bytes];
        let texts = [format!("  {gateway}"), one.interface.clone()];
        rows.push(texts.into_iter().chain(numbers.map(|number| number.to_string())).collect());
    }
    write_aligned(text, &rows, 2)
}

fn write_targets(text: &mut String, targets: &[TargetReport]) -> Result<(), std::fmt::Error> {
    if targets.is_empty() {
        return Ok(());
    }
    let header =
        ["  target", "state", "weight", "active", "connections", "failures", "checks failed"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for one in targets {
        let TargetReport { target, host, route, weight, state, .. } = one;
        let TargetReport { active, connections, failures, checks_failed, .. } = one;
        let numbers = [u64::from(*weight), *active, *connections, *failures, *checks_failed];
        let host = host.as_ref().map_or_else(String::new, |host| format!(" ({host})"));
        let route = route.as_ref().map_or_else(String::new, |route| format!(" for {route}"));
        let texts = [format!("  {target}{host}{route}"), state.clone()];
        rows.push(texts.into_iter().chain(numbers.map(|number| number.to_string())).collect());
    }
    write_aligned(text, &rows, 2)
}

/// Columns of a flow that are texts; numbers follow.
const TEXT_COLUMNS: usize = 4;

/// Writes rows in columns: `texts` of them to the left, then numbers to the right.
fn write_aligned(
    text: &mut String,
    rows: &[Vec<String>],
    texts: usize,
) -> Result<(), std::fmt::Error> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column < texts {
                write!(line, "{cell:<width$}  ")?;
            } else {
                write!(line, "{cell:>width$}  ")?;
            }
        }
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ReloadReport;

    fn report() -> InstanceReport {
        let flow = FlowReport {
            name: "web".to_owned(),
            kind: "relay".to_owned(),
            state: "draining".to_owned(),
            between: "a -> b".to_owned(),
            path: "splice".to_owned(),
            sentence: "`web` is one sentence.".to_owned(),
            because: "not shown".to_owned(),
            side: "host".to_owned(),
            units: 10,
            bytes: 5_000_000,
            counters: [("accepted".to_owned(), 10), ("cut".to_owned(), 0)].into(),
            targets: vec![TargetReport {
                target: "tcp://192.0.2.1:80".to_owned(),
                weight: 3,
                state: "avoided".to_owned(),
                connections: 10,
                failures: 2,
                ..TargetReport::default()
            }],
            hops: [Some([10, 0, 0, 1].into()), None]
                .map(|gateway| HopReport {
                    interface: "eth0".to_owned(),
                    gateway,
                    host_packets: 2,
                    host_bytes: 120,
                    nic_packets: 30,
                    nic_bytes: 1800,
                })
                .into(),
            ..FlowReport::default()
        };
        InstanceReport {
            vigie_forward: 1,
            pid: 7,
            uptime_ms: 1000,
            state: "running".to_owned(),
            rights: Vec::new(),
            flows: vec![flow],
            routes: None,
            reload: ReloadReport {
                has_succeeded: false,
                problems: vec!["flow `x`: no port".to_owned()],
                failed_flows: 1,
            },
            down: vec!["x".to_owned()],
            log_lines_written: None,
            log_lines_lost: None,
            journal: Vec::new(),
        }
    }

    /// Goal: a report is readable text, with rates against an earlier one. Method: two reports by hand.
    #[test]
    fn reports_are_shown() {
        let before = report();
        let expected = "\
process 7, running, up 1 s, rights kept: none
the last reload failed: flow `x`: no port
not forwarding: x
flow  kind   path    state     moves  units    bytes  dropped
web   relay  splice  draining      0     10  5000000        0

web (relay, host): a -> b
  `web` is one sentence.
  accepted 10
  target              state    weight  active  connections  failures  checks failed
  tcp://192.0.2.1:80  avoided       3       0           10         2              0
  hop       interface  host: packets  host: bytes  nic: packets  nic: bytes
  10.0.0.1  eth0                   2          120            30        1800
  on link   eth0                   2          120            30        1800
";
        assert_eq!(render(&before, None), expected);
        let mut report = before.clone();
        report.uptime_ms = 3000;
        report.flows[0].units = 30;
        report.flows[0].bytes = 8_000_000;
        let text = render(&report, Some(&before));
        assert!(
            text.ends_with(
                "web   relay  splice  draining      0     30  8000000        0       10   1.5\n"
            ),
            "{text}"
        );
    }
}
