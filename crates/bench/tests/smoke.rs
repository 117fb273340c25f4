//! The command as a user runs it: every system serves, results are complete, bad input is refused.
//!
//! Nothing here asserts how long anything takes.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::fs;

use crate::kit::folder::Folder;
#[cfg(feature = "hyper")]
use std::io::{self, Write};
use std::process::{Command, Output};

use serde_json::Value;
use vigie_bench::messages::own_carriers;
use vigie_bench::system::System;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vigie-bench"));
    command.args(arguments).output().expect("the command starts")
}

/// Runs a measurement and returns the JSON object that it wrote.
fn measure(name: &str, arguments: &[&str]) -> Value {
    let folder = Folder::new();
    let path = folder.path(format!("{name}.json"));
    let path_text = path.to_str().expect("the target directory is UTF-8");
    let output = bench(&[arguments, &["--json", path_text]].concat());
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {shown}");
    let text = fs::read_to_string(&path).expect("the file was written");
    serde_json::from_str(&text).expect("the file is JSON")
}

fn all_systems() -> String {
    let compiled = System::all().filter(|system| system.is_compiled());
    compiled.map(System::name).collect::<Vec<_>>().join(",")
}

#[test]
fn every_system_reacts() {
    // Goal: each system echoes beside compute tasks, and the result file holds all samples.
    // Method: a few messages on each, in one run.
    let systems = all_systems();
    let arguments = ["reaction", "--only", &systems, "--compute", "0,1", "--yield-every", "100us"];
    let report =
        measure("reaction", &[&arguments[..], &["--samples", "4", "--rounds", "2"]].concat());
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 2 * systems.split(',').count());
    for row in rows {
        assert_eq!(row["figures"]["samples"], 4, "{row}");
        assert_eq!(row["samples_ns"]["reaction"].as_array().map(Vec::len), Some(4), "{row}");
        assert!(row["figures"]["p50_us"].is_number() && row["parameters"]["compute"].is_number());
    }
    assert!(report["machine"]["cpu"].is_string() && report["command"].is_string());
    assert!(report["client_priority"].is_string());
}

#[test]
fn every_system_completes_its_task() {
    // Goal: the task beside waiting tasks ends on each system, and is compared with the first column.
    // Method: a short task beside one and three waiting tasks.
    let systems = all_systems();
    let arguments = ["pending", "--only", &systems, "--waiting", "1,3", "--steps", "200"];
    let report = measure("pending", &[&arguments[..], &["--rounds", "1"]].concat());
    let rows = report["rows"].as_array().expect("rows are a list");
    for row in rows {
        assert!(row["figures"]["completion_ms"].is_number(), "{row}");
        assert!(row["figures"]["completion_ratio"].is_number(), "{row}");
        assert_eq!(row["samples_ns"]["completion"].as_array().map(Vec::len), Some(1), "{row}");
    }
}

/// Rows of a measurement with these systems.
fn rows(name: &str, systems: &str, arguments: &[&str]) -> Vec<Value> {
    let report = measure(name, &[&[name, "--only", systems][..], arguments].concat());
    report["rows"].as_array().expect("rows are a list").clone()
}

#[test]
fn a_load_runs_and_is_judged() {
    // Goal: a named load runs on threads, vigie and tokio, and each but the first is judged. Method: a
    // small load for a moment; nothing is said of who holds.
    let arguments = ["loads", "--case", "flood-1", "--seconds", "0.1", "--peers", "vigie,tokio"];
    let report = measure("loads", &arguments);
    let rows = report["rows"].as_array().expect("rows are a list");
    let systems: Vec<_> = rows.iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
    assert_eq!(systems, ["threads", "vigie", "tokio", "threads"]);
    for row in rows {
        let figures = &row["figures"];
        assert!(figures["holds"].is_boolean() && figures["missed"].is_array(), "{row}");
        let counts = ["event_samples", "new_samples", "closed_per_s", "compute_cores"];
        assert!(counts.iter().all(|key| figures[*key].as_f64() > Some(0.0)), "{row}");
    }
}

#[test]
fn a_seed_stands_for_a_mix() {
    // Goal: the words of a mix are those of its seed, wherever a run begins, and no name is made up.
    // Method: two runs that overlap, without measuring; a name that nobody has.
    let words = |seed: &str, count: &str| {
        let output = bench(&["loads", "--dry-run", "--seed", seed, "--count", count]);
        let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
        text.lines().filter(|line| line.starts_with("seed ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (three, one) = (words("40", "3"), words("42", "1"));
    assert_eq!((three.len(), &three[2..]), (3, &one[..]));
    assert!(!bench(&["loads", "--case", "none"]).status.success());
}

#[test]
fn slowdown_has_a_curve_for_each_system() {
    // Goal: the oracle and the systems have a row for each load and one for the load that holds.
    // Method: one distribution at two loads, for a moment.
    let arguments = ["slowdown", "--service", "exponential-25", "--loads", "0.1,0.2"];
    let more = ["--budget", "100ms", "--connections", "8", "--peers", "vigie,threads"];
    let report = measure("slowdown", &[&arguments[..], &more].concat());
    let rows = report["rows"].as_array().expect("rows are a list");
    let is_simulated = |system: &str| ["oracle", "sharing"].contains(&system);
    for system in ["oracle", "sharing", "vigie", "threads"] {
        let of = |case: &str| -> Vec<_> {
            rows.iter().filter(|row| row["system"] == system && row["case"] == case).collect()
        };
        let curve = of("slowdown");
        assert_eq!((curve.len(), of("slowdown-holds").len()), (2, 1), "{system}");
        for row in curve {
            assert_eq!(
                row["figures"]["client_late_p50_us"].is_number(),
                !is_simulated(system),
                "{row}"
            );
            // No answer takes less than what is computed for it, but for the clock's own error.
            assert!(row["figures"]["slowdown_p99.9"].as_f64() > Some(0.9), "{row}");
        }
    }
}

#[test]
fn reaction_reports_the_work_of_its_hogs() {
    // Goal: compute tasks that have not yielded yet are seen working. Method: steps longer than the run.
    let arguments = ["--compute", "1", "--yield-every", "60s", "--samples", "2", "--spread", "1ms"];
    for row in rows("reaction", "threads", &arguments) {
        assert!(row["figures"]["work_per_s"].as_f64().expect("a number") > 0.0, "{row}");
    }
}

#[test]
fn periodic_tasks_rest() {
    // Goal: each kind of system echoes beside the task. Method: short steps.
    let arguments = ["--rest", "1ms", "--step", "2ms", "--samples", "4", "--rounds", "1"];
    for row in rows("periodic", "vigie,tokio,threads,busy-poll", &arguments) {
        assert_eq!(row["figures"]["samples"], 4, "{row}");
    }
}

#[test]
fn a_service_answers_old_and_new_connections() {
    // Goal: both kinds of samples, threads and work are there; a system without this load fails in its
    // row alone. Method: requests that compute shortly.
    let arguments = ["--clients", "2", "--step", "2ms", "--samples", "40", "--rounds", "1"];
    for row in rows("service", "vigie,tokio,threads,busy-poll", &arguments) {
        if row["system"] == "busy-poll" {
            assert!(row["failure"].as_str().expect("a reason").contains("cannot run"), "{row}");
            continue;
        }
        let figures = &row["figures"];
        assert_eq!((&figures["samples"], &figures["new_samples"]), (&40.into(), &40.into()));
        assert!(figures["threads_max"].as_f64().expect("a number") >= 1.0, "{row}");
        assert!(figures["work_per_s"].as_f64().expect("a number") > 0.0, "{row}");
    }
}

#[test]
fn files_are_read_and_appended() {
    // Goal: every load on files is measured on both runtimes, and what is read is what is there. Method: short runs.
    let report =
        measure("files", &["files", "--only", "vigie,tokio", "--budget", "100ms", "--rounds", "1"]);
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 8);
    for row in rows {
        let is_positive = |key: &str| row["figures"][key].as_f64() > Some(0.0);
        assert!(["per_s", "cpu_us", "p50_us"].into_iter().all(is_positive), "{row}");
    }
}

#[cfg(feature = "hyper")]
#[test]
fn an_http_service_answers() {
    // Goal: requests of `wrk`, also while clients keep the service busy, and pings beside six computations a second for each core,
    // are answered on both runtimes;
    // without `wrk` its rows say how to get it. Method: short runs, and computations that are short, too.
    let arguments = ["http", "--only", "vigie,tokio", "--budget", "100ms", "--rounds", "1"];
    let report =
        measure("http", &[&arguments[..], &["--connections", "2", "--step", "1ms"]].concat());
    let cores = report["machine"]["cores"].as_u64().expect("a number");
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 6);
    for row in rows {
        let is_positive = |key: &str| row["figures"][key].as_f64() > Some(0.0);
        match row["failure"].as_str() {
            Some(reason) => {
                let is_under_wrk = row["case"] != "http overload";
                assert!(is_under_wrk && reason.contains("apt-get install"), "{row}");
                // Also shown when the output of tests that pass is not.
                let said = format!("SKIPPED: {} under wrk: {reason}\n", row["system"]);
                io::stderr().write_all(said.as_bytes()).expect("standard error");
            }
            None if row["case"] != "http overload" => {
                assert!(["per_s", "cpu_us", "wrk_p99_us"].into_iter().all(is_positive), "{row}");
            }
            None => {
                assert_eq!(row["case"], "http overload", "{row}");
                assert!(is_positive("samples") && row["figures"]["computed_per_s"].is_number());
                assert_eq!(row["parameters"]["computations_per_s"], 6 * cores, "{row}");
            }
        }
    }
}

#[test]
fn a_crowd_is_answered() {
    // Goal: each connection sends each of its messages, and all are answered. Method: ten connections.
    let amount = ["--budget", "200ms", "--rounds", "1", "--period", "20ms", "--yield-every", "1ms"];
    let arguments = [&["--connections", "10"], &amount[..]].concat();
    for row in rows("crowd", "vigie,tokio,threads,busy-poll", &arguments) {
        assert_eq!(row["figures"]["samples"], 100, "{row}");
        assert_eq!(row["figures"]["unanswered_max"], 0.0, "{row}");
    }
}

#[test]
fn fairness_compares_with_others() {
    // Goal: a share of work and of time for each number of others. Method: a short run.
    let arguments = ["--outside", "0,1", "--budget", "300ms", "--rounds", "1"];
    let rows =
        rows("fairness", "threads,tokio", &[&arguments[..], &["--yield-every", "1ms"]].concat());
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let share = |key: &str| row["figures"][key].as_f64().expect("a number");
        assert!(share("work_of_fair") > 0.0 && share("cpu_of_fair") > 0.0, "{row}");
        if row["parameters"]["outside"] == 0 {
            // Without others everything is ours, and that is fair.
            assert_eq!(row["figures"]["work_of_fair"], 1.0, "{row}");
        }
    }
}

#[test]
fn a_container_is_measured_or_says_why_not() {
    // Goal: with a control group there are figures, without one there is the reason, and either way the
    // run succeeds. Method: a short run, whatever this machine allows.
    let arguments = ["--compute", "0", "--samples", "4", "--rounds", "1"];
    for row in rows("container", "vigie,threads", &arguments) {
        match row["failure"].as_str() {
            Some(reason) => {
                assert!(reason.contains("no control group"), "{row}");
                eprintln!("SKIPPED: {reason}");
            }
            None => {
                assert_eq!(row["figures"]["samples"], 4, "{row}");
                // What the runtime says of itself, and of its group; kernel threads say nothing.
                for key in ["own_p99_us", "own_us_max", "own_throttled_per_s"] {
                    assert_eq!(row["figures"][key].is_number(), row["system"] == "vigie", "{row}");
                }
            }
        }
    }
}

#[test]
fn echo_counts_processor_time() {
    // Goal: echoes and processor time for each kind of system. Method: a few messages.
    let arguments = ["--samples", "50", "--rounds", "2"];
    for row in rows("echo", "vigie,tokio,threads,busy-poll", &arguments) {
        assert_eq!(row["figures"]["samples"], 50, "{row}");
        assert!(row["figures"]["cpu_per_message_us"].as_f64().expect("a number") > 0.0, "{row}");
    }
}

#[test]
fn limits_and_sockets_carry_messages() {
    // Goal: every system that needs nothing but this program measures all that it has, between two
    // processes and around rings, and the result file and the plots hold it. Method: short runs of all.
    let folder = Folder::new();
    let plot = folder.path("pingpong.svg");
    let own = own_carriers().iter().map(|own| own.name).collect::<Vec<_>>().join(",");
    let arguments = ["pingpong", "--only", &own, "--sizes", "1,8,70000", "--ranks", "3,5"];
    let plot_text = plot.to_str().expect("the target directory is UTF-8");
    let rest = ["--budget", "6ms", "--rounds", "2", "--plot", plot_text];
    let report = measure("pingpong", &[&arguments[..], &rest].concat());
    let rows = report["rows"].as_array().expect("rows are a list");
    let cases = ["latency", "window", "requests", "unexpected", "any", "waiting", "quiet", "ring"];
    for case in cases {
        assert!(rows.iter().any(|row| row["case"] == case), "{case}");
    }
    for row in rows {
        assert!(row["failure"].is_null(), "{row}");
        let is_quiet = row["case"] == "quiet";
        assert_eq!(row["figures"]["message_us"].as_f64().is_none_or(|us| us <= 0.0), is_quiet);
        assert!(row["figures"]["cpu_cores_follower"].is_number(), "{row}");
        assert!(row["figures"]["samples"].as_u64().is_some_and(|samples| samples >= 2), "{row}");
    }
    let drawn = fs::read_to_string(&plot).expect("the plot was written");
    assert!(drawn.contains(">copy-ring<"), "{drawn}");
    assert!(fs::read_to_string(folder.path("pingpong.rings.svg")).is_ok());
}

#[test]
fn datagrams_are_measured_or_say_why_not() {
    // Goal: every system has both figures, or says what it lacks, and those without privilege have them.
    // Method: short runs of all.
    let arguments = ["datagrams", "--sizes", "1,1464", "--budget", "5ms", "--rounds", "2"];
    let report = measure("datagrams", &arguments);
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 7 * 2 * 2);
    for row in rows {
        match row["failure"].as_str() {
            Some(reason) => {
                let system = row["system"].as_str().expect("a name");
                let is_over_veth =
                    ["datagram-link", "datagram-xdp", "datagram-udp-veth", "udp-veth"];
                assert!(is_over_veth.contains(&system), "{row}");
                assert!(
                    reason.contains("run as root") || reason.contains("run it as root"),
                    "{row}"
                );
                eprintln!("SKIPPED: {system}: {reason}");
            }
            None => {
                assert!(row["figures"]["message_us"].as_f64().is_some_and(|us| us > 0.0), "{row}");
            }
        }
    }
}

#[test]
fn a_peer_is_measured_or_says_how_to_get_it() {
    // Goal: what is not on this machine is skipped with the reason and the remedy, and the run succeeds;
    // what is there gives figures. Method: the peers that need no long build, whatever is installed.
    const CASES: &str = "latency,window,requests,unexpected,backlog,any";
    let arguments = ["pingpong", "--only", "openmpi,mpich,ucx", "--cases", CASES];
    let rest = ["--sizes", "8", "--budget", "5ms", "--rounds", "1"];
    let report = measure("peers", &[&arguments[..], &rest].concat());
    for row in report["rows"].as_array().expect("rows are a list") {
        match row["failure"].as_str() {
            // A launcher may refuse its ranks here, or take too long beside others: that is its row's.
            Some(reason) if !reason.contains("skipped") => eprintln!("{}: {reason}", row["system"]),
            Some(reason) => assert!(reason.contains("apt install"), "{row}"),
            None => assert!(row["figures"]["message_us"].is_number(), "{row}"),
        }
    }
}

#[test]
fn one_seed_measures_the_same_cases() {
    // Goal: the order of cases and the parameters come from the command line and the seed alone.
    // Method: two runs, compared without their times.
    let arguments = ["reaction", "--only", "tokio", "--compute", "0", "--samples", "2"];
    let parameters = |name| {
        let report = measure(name, &arguments);
        let rows = report["rows"].as_array().expect("rows are a list");
        rows.iter().map(|row| row["parameters"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(parameters("seed-1"), parameters("seed-2"));
}

#[test]
fn bad_input_is_refused_with_advice() {
    // Goal: each mistake ends with status 2 and says what to write instead. Method: a table.
    for (arguments, advice) in [
        (&["reaction", "--peers", "tokyo"][..], "there are "),
        (&["reaction", "--yield-every", "10"], "100us"),
        (&["reaction", "--samples", "0"], "0 is not in 1.."),
        (&["pending", "--step", "0us"], "100us"),
        (&["pending", "--waiting", "1,0"], "0 is not in 1.."),
        (&["pingpong", "--peers", "mpitch"], "mpich, "),
        (&["pingpong", "--provider", "verbs"], "shm"),
        (&["pingpong", "--sizes", "0"], "0"),
        (&["datagrams", "--sizes", "1465"], "1464"),
        (&["datagrams", "--only", "tcp"], "datagram-link"),
        (&["goals", "latency"], "echo, pending, idle, costs"),
        (&["fairness", "--compute", "0"], "0 is not in 1.."),
        (&["service", "--step", "200"], "100us"),
        (&["soak", "--minutes=-1"], "between 0 and"),
        (
            &[
                "reaction",
                "--only",
                "tokio",
                "--compute",
                "0",
                "--samples",
                "1",
                "--json",
                "/no/such/file",
            ],
            "check the path",
        ),
    ] {
        let output = bench(arguments);
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {shown}");
        assert!(shown.contains(advice), "{arguments:?}: {shown}");
    }
}

#[test]
fn the_forwarding_model_is_shown_and_drawn() {
    // Goal: one command gives tables, rows and three plots, and without `--model` says what it lacks.
    // Method: both, and the files.
    let folder = Folder::new();
    let plot = folder.path("forward.svg");
    let plot_text = plot.to_str().expect("the target directory is UTF-8");
    let report = measure("forward", &["forward", "--model", "--plot", plot_text]);
    let rows = report["rows"].as_array().expect("rows are a list");
    let row = rows.iter().find(|row| row["case"] == "threshold" && row["system"] == "nic");
    assert_eq!(row.expect("δ* is a row")["figures"]["model_us"], 11.0);
    for extension in ["svg", "figure5.svg", "figure6.svg"] {
        let svg = fs::read_to_string(plot.with_extension(extension)).expect("it was drawn");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{extension}");
    }
    let refused = bench(&["forward"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--model"));
}

fn messages_pass_live(carrier: &str) {
    // Goal: figures 4 to 6 are measured whole over UDP and shared memory, links as fast as they are, also in a program that is
    // not optimized. Method: few messages a run; each cell has its ways, and each of them its time.
    let arguments = ["forward", "--over", carrier, "--rate", "0", "--messages", "5"];
    let report = measure(&format!("forward-{carrier}"), &arguments);
    let rows = report["rows"].as_array().expect("rows are a list");
    // The parameters; 8 sizes with four ways; 19 cells with three.
    assert_eq!(rows.len(), 1 + 8 * 4 + 19 * 3);
    for row in &rows[1..] {
        assert!(row["figures"]["us"].as_f64().expect("a number") > 0.0, "{row}");
    }
}

#[test]
fn messages_pass_live_over_udp() {
    messages_pass_live("udp");
}

#[test]
fn messages_pass_live_over_shared_memory() {
    messages_pass_live("shm");
}
