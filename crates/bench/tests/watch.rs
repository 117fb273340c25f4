//! `vigie-bench watch` as a user runs it, against a runtime in this process.

use std::env;
use std::process::{self, Command, Output};

use vigie_runtime::{Runtime, metrics::FORMAT_VERSION};

fn watch(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vigie-bench"));
    command.arg("watch").args(arguments).output().expect("the command starts")
}

/// Goal: one view, as text and as JSON, shows the program that is watched. Method: a runtime with a
/// task that waits.
#[test]
fn a_program_is_shown() {
    let path = env::temp_dir().join(format!("vigie-watch-{}.sock", process::id()));
    let runtime = Runtime::builder().workers(2).metrics_socket(&path).build().expect("a runtime");
    let waiting = runtime.spawn(std::future::pending::<()>());
    let socket = path.to_str().expect("a temporary path is UTF-8");
    let shown = watch(&[socket, "--once"]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{shown:?}");
    let head = format!("vigie: pid {}, hybrid, 2 workers", process::id());
    assert!(text.starts_with(&head) && text.contains("1 tasks"), "{text}");
    assert!(text.contains("readiness") && text.contains("ready to run"), "{text}");
    assert!(!text.contains("waiting"), "no task is shown unasked: {text}");
    let shown = watch(&[socket, "--once", "--tasks", "5"]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("\ntasks, ") && text.contains("waiting"), "{text}");
    let json = watch(&[socket, "--once", "--json"]);
    let view: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!((&view["vigie_metrics"], &view["live_tasks"]), (&FORMAT_VERSION.into(), &1.into()));
    assert_eq!(view["event_delay"]["buckets"].as_array().map(Vec::len), Some(40));
    let mut dump = Command::new(env!("CARGO_BIN_EXE_vigie-bench"));
    let dump = dump.args(["dump", socket]).output().expect("the command starts");
    let text = String::from_utf8_lossy(&dump.stdout);
    assert!(dump.status.success() && text.contains(", 1 tasks\n"), "{dump:?}");
    assert!(text.contains("waiting") && text.contains("watch.rs:"), "{text}");
    drop((waiting, runtime));
    let gone = watch(&[socket, "--once"]);
    let error = String::from_utf8_lossy(&gone.stderr);
    assert_eq!(gone.status.code(), Some(2));
    assert!(error.contains("metrics_socket"), "{error}");
}
