//! `vigie-bench barrier` as a user runs it: every kind of member, what is found beside, the simulation, bad input.
//!
//! Nothing here asserts how long anything takes.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::kit::folder::Folder;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "240", env!("CARGO_BIN_EXE_vigie-bench"), "barrier"]);
    command.args(arguments).output().expect("the command starts")
}

/// Runs the command and returns the rows that it wrote, and what it printed.
fn rows(name: &str, arguments: &[&str]) -> (Vec<Value>, String) {
    let folder = Folder::new();
    let path = folder.path(format!("barrier-{name}.json"));
    let path_text = path.to_str().expect("the target directory is UTF-8");
    let output = bench(&[arguments, &["--json", path_text]].concat());
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {shown}");
    let text = fs::read_to_string(&path).expect("the file was written");
    let report: Value = serde_json::from_str(&text).expect("the file is JSON");
    let rows = report["rows"].as_array().expect("rows are a list").clone();
    (rows, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Shortest runs.
const SHORT: [&str; 6] = ["--rounds", "1", "--budget", "20ms", "--members", "3"];

fn is_measured(row: &Value) -> bool {
    let figures = &row["figures"];
    let is_positive = |key: &str| figures[key].as_f64().is_some_and(|us| us > 0.0);
    is_positive("p50_us") && is_positive("count") && is_positive("max_us")
}

#[test]
fn members_of_one_process_and_of_several_meet() {
    // Goal: every system that needs neither privilege nor a peer has its figures. Method: short runs with peers of this
    // program alone, with a dummy loop and skewed arrival.
    let kinds = ["--over", "tasks,threads,shm", "--peers", "std,tokio,pthread"];
    let pace = ["--dummy", "10us", "--skew", "5us"];
    let (rows, shown) = rows("local", &[&kinds[..], &SHORT, &pace].concat());
    assert_eq!(rows.len(), 10, "{shown}");
    for row in &rows {
        assert!(row["failure"].is_null() && is_measured(row), "{row}");
        assert_eq!(row["parameters"]["skew_us"], 5.0, "{row}");
    }
    assert!(shown.contains("std::sync::Barrier"), "{shown}");
}

#[test]
fn messages_carry_members() {
    // Goal: messages of via over the providers that need no privilege have figures, and beside them the costs that the
    // members have found, with what was expected by them. Method: short runs over both.
    let kinds = ["--over", "via", "--provider", "shm,udp", "--peers", "std", "--dummy", "0"];
    let (rows, shown) = rows("via", &[&kinds[..], &SHORT].concat());
    assert_eq!(rows.len(), 6, "{shown}");
    for row in &rows {
        assert!(row["failure"].is_null() && is_measured(row), "{row}");
        let figures = &row["figures"];
        for key in ["send_us", "receive_us", "receive_asleep_us", "expected_us"] {
            assert!(figures[key].as_f64().is_some_and(|us| us > 0.0), "{key}: {row}");
        }
        assert!(figures["observed_by_expected"].is_number() && figures["algorithm"].is_string());
    }
    assert!(shown.contains("expected") && shown.contains("o_r asleep"), "{shown}");
}

#[test]
fn networks_are_measured_or_say_why_not() {
    // Goal: members in network namespaces have figures, or their rows say what is missing, and the run succeeds; both
    // ways of receiving have their cells. Method: one algorithm over each, whatever this machine allows.
    let kinds = ["--over", "udp,ether,via", "--provider", "ether", "--algorithm", "concurrent"];
    let (found, shown) = rows("net", &[&kinds[..], &SHORT, &["--peers", "std"]].concat());
    assert_eq!(found.len(), 9, "{shown}");
    let cells = ["--receivers", "--rounds", "1", "--budget", "20ms", "--members", "4"];
    let (cells, shown) = rows("cells", &cells);
    assert_eq!(cells.len(), 8, "{shown}");
    for row in found.iter().chain(&cells) {
        match row["failure"].as_str() {
            Some(reason) => {
                assert!(reason.contains("run as root"), "{row}");
                eprintln!("SKIPPED: {}: {reason}", row["system"]);
            }
            None => assert!(is_measured(row), "{row}"),
        }
    }
}

#[test]
fn the_cluster_is_simulated() {
    // Goal: the simulation gives the same figures each time, without time of this machine. Method: two runs of two
    // algorithms and few members.
    let arguments = ["--simulate", "--members", "2,4", "--algorithm", "shuffle-exchange,ternary"];
    let (one, shown) = rows("simulated", &arguments);
    let (other, _) = rows("simulated-again", &arguments);
    assert!(!one.is_empty() && one == other, "{shown}");
}

#[test]
fn bad_input_is_refused_with_advice() {
    // Goal: each mistake ends with status 2 and says what to write instead. Method: a table.
    for (arguments, advice) in [
        (&["--over", "fibres"][..], "tasks, threads, shm, udp, ether, via"),
        (&["--over", "via", "--provider", "verbs"], "shm, udp, ether"),
        (&["--members", "0"], "0 is not in 1..=1024"),
        (&["--algorithm", "quick"], "quick"),
        (&["--peers", "tokyo"], "tokio"),
        (&["--simulate", "--receivers"], "cannot be used with"),
        (&["--dummy", "10"], "us"),
    ] {
        let output = bench(arguments);
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {shown}");
        assert!(shown.contains(advice), "{arguments:?}: {shown}");
    }
}
