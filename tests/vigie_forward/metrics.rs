//! Metrics and health over HTTP.

use std::{
    io::{ErrorKind::ConnectionReset, Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
};

use rustix::process::Signal;

use crate::{
    connect, echo_server, exchange,
    instance::{Folder, Instance, run},
};

/// Asks for a path. Returns the head of the answer, and its body.
pub(crate) fn get(mut stream: impl Read + Write, request: &str) -> (String, String) {
    let head = format!("{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// Makes sure that each metric says what it counts, and not only its name.
#[track_caller]
pub(crate) fn assert_explained(text: &str) {
    let helps: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
    assert_eq!(helps.len(), text.matches("# TYPE ").count(), "{text}");
    for help in helps {
        let (name, help) = help.split_once(' ').expect("a help");
        let is_new = |word: &&str| word.len() > 2 && !name.contains(&word.to_lowercase());
        let words = help.split(|letter: char| !letter.is_alphanumeric());
        assert!(
            words.filter(is_new).count() > 1 && !help.contains("The counter `"),
            "{name}: {help}"
        );
    }
}

/// Goal: the counters of a relay and of its target are served, and its health changes when it drains. Method: a connection, before and
/// during a drain; what is not there or not asked by GET.
#[test]
fn metrics_and_health_are_served() {
    let (folder, to) = (Folder::new(), echo_server());
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to];
    let arguments = [&arguments[..], &["--metrics", "127.0.0.1:0", "--drain", "1h"]].concat();
    let mut relay = Instance::start(&folder, &arguments).ready();
    let line = relay.until("metrics at http://");
    assert!(line.contains("/metrics; ") && line.ends_with("/health/targets"), "{line}");
    let at = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let at: SocketAddr = at.and_then(|text| text.parse().ok()).expect("an address");
    let mut client = connect(relay.address("relay"));
    exchange(&mut client, b"ahoy");

    let (head, text) = get(connect(at), "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert_explained(&text);
    for sample in [
        "vigie_forward_accepted_total{flow=\"relay\"} 1",
        "vigie_forward_active{flow=\"relay\"} 1",
        &format!(
            "vigie_forward_target_connections_total{{flow=\"relay\",target=\"{to}\",host=\"\",route=\"\"}} 1"
        ),
        "vigie_forward_draining 0",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample} in\n{text}");
    }
    let (head, text) = get(connect(at), "GET /health");
    assert!(head.starts_with("HTTP/1.1 200") && text == "ready\n", "{head} {text}");
    let (head, text) = get(connect(at), "GET /health/targets");
    assert!(head.starts_with("HTTP/1.1 200") && text == "ready\n", "{head} {text}");
    assert!(get(connect(at), "GET /").0.starts_with("HTTP/1.1 404"));
    assert!(get(connect(at), "POST /health").0.starts_with("HTTP/1.1 405"));

    relay.signal(Signal::TERM);
    relay.until("SIGTERM: drains");
    let (head, text) = get(connect(at), "GET /health");
    assert!(head.starts_with("HTTP/1.1 503") && text == "draining\n", "{head} {text}");
    assert!(get(connect(at), "GET /metrics").1.contains("vigie_forward_draining 1\n"));
    drop(client);
    assert_eq!(relay.wait().code(), 0);
}

/// Goal: clients that send nothing, or do not end, occupy no more than the listener's places, and each only for a time, so that a later client is
/// served; a request without end is refused, and a connection has one request. Method: more clients than there are places, some silent, some with half a
/// request; one that asks after them is answered, and by then a silent one has been cut off. A head of 64 KiB; two requests at once.
#[test]
fn clients_of_metrics_have_bounds() {
    let (folder, to) = (Folder::new(), echo_server());
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to];
    let arguments = [&arguments[..], &["--metrics", "127.0.0.1:0"]].concat();
    let mut relay = Instance::start(&folder, &arguments).ready();
    let line = relay.until("metrics at http://");
    let at = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let at: SocketAddr = at.and_then(|text| text.parse().ok()).expect("an address");

    let mut slow: Vec<_> = (0..20).map(|_| connect(at)).collect();
    for half in &mut slow[..8] {
        half.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").expect("it is connected");
    }
    assert_eq!(get(connect(at), "GET /health").1, "ready\n");
    // All places were taken, so one has become free.
    let mut rest = Vec::new();
    let ended = slow[0].read_to_end(&mut rest);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ConnectionReset));
    drop(slow);

    let mut long = connect(at);
    let head = format!("GET /health HTTP/1.1\r\nHost: here\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    // It may be cut off before all is written.
    let _ = long.write_all(head.as_bytes());
    let mut answer = String::new();
    let _ = long.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");

    let mut twice = connect(at);
    let request = "GET /health HTTP/1.1\r\nHost: here\r\n\r\n".repeat(2);
    twice.write_all(request.as_bytes()).expect("it is connected");
    let mut answers = Vec::new();
    // What is not read resets the connection.
    let _ = twice.read_to_end(&mut answers);
    assert_eq!(String::from_utf8_lossy(&answers).matches("HTTP/1.1 200").count(), 1);
    assert_eq!(relay.end().code(), 0);
}

/// Goal: metrics may be served at a path, which is this user's alone and removed at the end; a path that is taken is refused. Method: a
/// path, and a second instance.
#[test]
fn metrics_are_served_at_a_path() {
    let (folder, to) = (Folder::new(), echo_server());
    let path = folder.path("metrics");
    let metrics = format!("unix:{}", path.display());
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--metrics", &metrics];
    let relay = Instance::start(&folder, &arguments).ready();
    let stream = UnixStream::connect(&path).expect("it listens");
    assert_eq!(get(stream, "GET /health").1, "ready\n");
    let (code, _, errors) = run(&folder, &arguments);
    assert!(code == 1 && errors.contains("another process listens there"), "{code} {errors}");
    assert_eq!(relay.end().code(), 0);
    assert!(!path.exists());
}
