//! `vigie-forward` with real processes: what it relays and forwards, what it refuses, how it ends.
//!
//! What needs a network namespace runs in one, made by `unshare`, and is skipped loudly where that is not allowed.

#[path = "vigie_forward/announcements.rs"]
mod announcements;
#[path = "vigie_forward/dns.rs"]
mod dns;
#[path = "vigie_forward/errors.rs"]
mod errors;
#[path = "vigie_forward/haproxy.rs"]
mod haproxy;
#[path = "vigie_forward/hops.rs"]
mod hops;
#[path = "vigie_forward/instance.rs"]
mod instance;
#[path = "vigie_forward/interfaces.rs"]
mod interfaces;
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "vigie_forward/logging.rs"]
mod logging;
#[path = "vigie_forward/metrics.rs"]
mod metrics;
#[path = "vigie_forward/names.rs"]
mod names;
#[path = "vigie_forward/network.rs"]
mod network;
#[path = "vigie_forward/own_address.rs"]
mod own_address;
#[path = "vigie_forward/paths.rs"]
mod paths;
#[path = "vigie_forward/programs.rs"]
mod programs;
#[path = "vigie_forward/reference.rs"]
mod reference;
#[path = "vigie_forward/reload.rs"]
mod reload;
#[path = "vigie_forward/restore.rs"]
mod restore;
#[path = "vigie_forward/service.rs"]
mod service;
#[path = "vigie_forward/stats_socket.rs"]
mod stats_socket;
#[path = "vigie_forward/takeover.rs"]
mod takeover;
#[path = "vigie_forward/tls.rs"]
mod tls;
#[path = "vigie_forward/translations.rs"]
mod translations;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    os::unix::net::UnixListener,
    process::Command,
    thread,
};

use rustix::process::Signal;

use crate::instance::{BOUND, Folder, Instance, PROGRAM, counter, report, run, run_command};

/// Sends back what comes, one connection after the other, until the process ends.
fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut back = stream.try_clone().expect("a descriptor");
                drop(std::io::copy(&mut stream, &mut back));
                drop(back.shutdown(Shutdown::Write));
            });
        }
    });
    format!("tcp://{address}")
}

fn connect(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, BOUND).expect("somebody listens");
    stream.set_read_timeout(Some(BOUND)).expect("a socket");
    stream
}

#[track_caller]
fn exchange(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(message).expect("it is taken");
    let mut back = vec![0; message.len()];
    stream.read_exact(&mut back).expect("it comes back");
    assert_eq!(back, message);
}

/// Goal: each way of moving bytes relays them both ways, half-closes, and counts them. Method: an echo behind a
/// relay in each mode, with more bytes than any buffer.
#[test]
fn streams_are_relayed() {
    let message: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    for mode in ["auto", "copy", "splice"] {
        let (folder, to) = (Folder::new(), echo_server());
        let socket = folder.path("stats");
        let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--mode", mode];
        let named = ["--stats-socket", socket.to_str().expect("text")];
        let mut relay = Instance::start(&folder, &[&arguments[..], &named].concat()).ready();
        let mut client = connect(relay.address("relay"));
        let mut writer = client.try_clone().expect("a descriptor");
        let sent = message.clone();
        let sending = thread::spawn(move || {
            writer.write_all(&sent).expect("it is taken");
            writer.shutdown(Shutdown::Write).expect("it is connected");
        });
        let mut back = Vec::new();
        client.read_to_end(&mut back).expect("it comes back, and ends");
        assert!(back == message, "{mode}: {} bytes came back", back.len());
        sending.join().expect("it does not panic");
        drop(client);
        assert_eq!(counter(&socket, "relay", "bytes_up"), 1 << 20, "{mode}");
        assert_eq!(counter(&socket, "relay", "bytes_down"), 1 << 20, "{mode}");
        assert_eq!(report(&socket)["rights"], serde_json::json!([]), "{mode}");
        let ended = relay.end();
        assert_eq!(ended.code(), 0, "{}", ended.said);
        assert_eq!(folder.files(), Vec::<String>::new(), "{mode}");
    }
}

/// Goal: many flows of a file run in one process, of every kind that needs no privilege. Method: TCP to Unix and UDP,
/// each used.
#[test]
fn a_file_of_flows() {
    let folder = Folder::new();
    let upstream = UnixListener::bind(folder.path("web")).expect("a path");
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
    datagrams.set_read_timeout(Some(BOUND)).expect("a socket");
    let to = datagrams.local_addr().expect("bound");
    let text = format!(
        "[process]\ndrain = '100ms'\nstats_socket = '{0}/stats'\n[[relay]]\nname = 'web'\nlisten = 'tcp://127.0.0.1:0'\n\
         to = 'unix:{0}/web'\n[[relay]]\nname = 'dns'\nlisten = 'udp://127.0.0.1:0'\nto = 'udp://{to}'\n",
        folder.0.display()
    );
    let file = folder.write("flows.toml", &text);
    let file = file.to_str().expect("text");
    let (code, output, _) = run(&folder, &["check", file]);
    assert_eq!(code, 0);
    assert!(output.contains("web: relays tcp://127.0.0.1:0 to unix:"), "{output}");

    let mut instance = Instance::start(&folder, &["run", "--config", file]).ready();
    let mut client = connect(instance.address("web"));
    client.write_all(b"ahoy").expect("it is taken");
    let (mut served, _) = upstream.accept().expect("a connection");
    let mut heard = [0; 4];
    served.read_exact(&mut heard).expect("it arrives");
    assert_eq!(&heard, b"ahoy");
    drop((client, served));

    let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
    client.set_read_timeout(Some(BOUND)).expect("a socket");
    client.send_to(b"who?", instance.address("dns")).expect("it is taken");
    let mut heard = [0; 16];
    let (count, from) = datagrams.recv_from(&mut heard).expect("it arrives");
    datagrams.send_to(&heard[..count], from).expect("it is taken");
    let count = client.recv(&mut heard).expect("it comes back");
    assert_eq!(&heard[..count], b"who?");

    let (code, table, _) =
        run(&folder, &["stats", "--socket", &format!("{}/stats", folder.0.display())]);
    assert_eq!(code, 0);
    assert!(table.contains("web ") && table.contains("dns "), "{table}");
    assert_eq!(instance.end().code(), 0);
}

/// Goal: what is wrong with a command line or a file ends with code 2, names the place, and starts nothing. Method:
/// one fault at a time.
#[test]
fn mistakes_are_named() {
    let folder = Folder::new();
    let l3 = "[[l3]]\ninterfaces = ['a', 'b']\n";
    let file = folder.write("bad.toml", &format!("{l3}speed = 'fast'\n"));
    let file = file.to_str().expect("text");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = format!("tcp://{}", taken.local_addr().expect("bound"));
    let to = "tcp://127.0.0.1:1";
    for (arguments, code, words) in [
        (&["relay", "--listen", "here", "--to", to][..], 2, &["tcp://"][..]),
        (&["relay", "--listen", to, "--to", to, "--mode", "fast"], 2, &["splice"]),
        (&["relay", "--listen", "udp://127.0.0.1:1", "--to", to], 2, &["do not fit"]),
        (&["relay", "--listen", &taken, "--to", to], 1, &["flow `relay`", "listen", "in use"]),
        (
            &["relay", "--listen", "tcp://127.0.0.1:0", "--to", to, "--metrics", &taken],
            1,
            &["metrics", "in use", "another process", "ss -tlpn"],
        ),
        (&["check", file], 2, &["bad.toml", "line 3", "unknown field `speed`", "`path`"]),
        (&["run", "--config", file], 2, &["bad.toml", "line 3", "nothing was started"]),
        (&["run", "--config", "/nowhere.toml"], 2, &["/nowhere.toml"]),
        (&["stats", "--socket", "/nowhere"], 1, &["/nowhere"]),
        (&["move", "x", "nic", "--socket", "/nowhere"], 1, &["/nowhere"]),
    ] {
        let (found, _, errors) = run(&folder, arguments);
        assert_eq!(found, code, "{arguments:?}\n{errors}");
        for word in words {
            assert!(errors.contains(word), "{arguments:?} does not say {word}:\n{errors}");
        }
    }
    assert_eq!(folder.files(), ["bad.toml"]);
}

/// Goal: `check` and `run` report all mistakes of a file at once, in its order, each with its line and a mark, files of TLS among them, and their number; a start
/// that fails because of an interface is reported at its key. Method: a file with four mistakes, and one whose interface does not exist.
#[test]
fn all_mistakes_of_a_file_are_reported() {
    let folder = Folder::new();
    let here = folder.0.display();
    let text = format!(
        "[[relay]]\nname = 'web'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://127.0.0.1:1'\nresolve = '1ms'\n\
         tls = {{ certificate = '{here}/none.pem', key = '{here}/none.key' }}\n\n\
         [[relay]]\nlisten = 'udp://127.0.0.1:0'\nto = 'udp://127.0.0.1:1'\nbalance = 'leastconn'\n"
    );
    let file = folder.write("bad.toml", &text);
    let file = file.to_str().expect("text");
    let mark = |line: usize, part: &str| {
        let all = text.lines().nth(line - 1).expect("a line");
        let at = all.find(part).expect("it is there");
        let margin = " ".repeat(line.to_string().len());
        format!(
            "\n{margin} |\n{line} | {all}\n{margin} | {}{}\n",
            " ".repeat(at),
            "^".repeat(part.len())
        )
    };
    let heads = [
        "vigie-forward: 4 errors:\n",
        "bad.toml, line 5, column 11: flow `web`: `resolve` must be at least 1s",
        "bad.toml, line 6, column 23: flow `web`: ",
        ": flow `web`: ",
        "bad.toml, line 11, column 11: flow `relay-2`: unknown variant `leastconn`: did you mean `least-connections`?",
    ];
    for arguments in [&["check", file][..], &["run", "--config", file]] {
        let (code, out, errors) = run(&folder, arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{errors}");
        let mut rest = errors.as_str();
        for head in heads {
            let at = rest.find(head).unwrap_or_else(|| panic!("{errors}\nlacks {head}"));
            rest = &rest[at + head.len()..];
        }
        for (line, part) in [
            (5, "'1ms'".to_owned()),
            (6, format!("'{here}/none.pem'")),
            (6, format!("'{here}/none.key'")),
            (11, "'leastconn'".to_owned()),
        ] {
            let mark = mark(line, &part);
            assert!(errors.contains(&mark), "{errors}\nlacks{mark}");
        }
        let is_started = arguments[0] == "check";
        assert_eq!(!errors.ends_with("\nnothing was started\n"), is_started, "{errors}");
    }

    let text = "[[l3]]\ninterfaces = ['lo0', 'nowhere']\npath = 'af-packet'\n[[l2]]\nbetween = ['lo1', 'lo2']\n";
    let file = folder.write("l3.toml", text);
    let (code, _, errors) = run(&folder, &["run", "--config", file.to_str().expect("text")]);
    if code == 3 {
        return kit::skip::skip("all_mistakes_of_a_file_are_reported", "CAP_NET_RAW");
    }
    for shown in [
        "l3.toml, line 2, column 15: flow `l3-1`: there is no interface `lo0`",
        "l3.toml, line 2, column 22: flow `l3-1`: there is no interface `nowhere`",
        "l3.toml, line 5, column 12: flow `l2-1`: there is no interface `lo1`",
        "l3.toml, line 5, column 19: flow `l2-1`: there is no interface `lo2`",
        "4 errors:\n",
    ] {
        assert!(code == 2 && errors.contains(shown), "{errors}\nlacks {shown}");
    }
    assert!(
        errors.contains("\n  |\n2 | interfaces = ['lo0', 'nowhere']\n  |               ^^^^^\n"),
        "{errors}"
    );
}

/// Goal: SIGTERM lets connections end and takes no new ones; what is left at the deadline is cut, with a code of its
/// own; a second signal ends at once. Method: one connection each, whose end the test decides.
#[test]
fn signals_drain() {
    let (folder, to) = (Folder::new(), echo_server());
    let start = |drain: &str| {
        let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--drain", drain];
        let mut relay = Instance::start(&folder, &arguments).ready();
        let mut client = connect(relay.address("relay"));
        exchange(&mut client, b"ahoy");
        (relay, client)
    };
    // It goes on as long as it is used, and nobody else comes in.
    let (mut relay, mut client) = start("1h");
    let address = relay.address("relay");
    let socket = folder.path(&format!("vigie-forward.{}.sock", relay.id()));
    assert_eq!(report(&socket)["flows"][0]["state"], "running");
    relay.signal(Signal::TERM);
    relay.until("SIGTERM: drains");
    exchange(&mut client, b"still here");
    assert_eq!(report(&socket)["flows"][0]["state"], "draining");
    assert_eq!(counter(&socket, "relay", "active"), 1);
    assert!(counter(&socket, "relay", "bytes_up") >= 14, "it counts while it drains");
    let socket = socket.to_str().expect("text");
    let (_, table, _) = run(&folder, &["stats", "--socket", socket]);
    assert!(table.contains("relay  adaptive  draining"), "{table}");
    let (code, _, errors) = run(&folder, &["move", "relay", "nic", "--socket", socket]);
    assert!(code == 1 && errors.contains("it is draining"), "{errors}");
    while TcpStream::connect_timeout(&address, BOUND).is_ok() {
        exchange(&mut client, b"until the listener is closed");
    }
    drop(client);
    let ended = relay.wait();
    assert_eq!(ended.code(), 0, "{}", ended.said);
    // It is cut.
    let (mut relay, mut client) = start("0s");
    relay.signal(Signal::INT);
    relay.until("SIGINT: drains");
    let ended = relay.wait();
    assert_eq!(ended.code(), 4, "{}", ended.said);
    assert!(ended.said.contains("1 connection cut at"), "{}", ended.said);
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    // It is not waited for.
    let (mut relay, _client) = start("1h");
    relay.signal(Signal::TERM);
    relay.until("SIGTERM: drains");
    relay.signal(Signal::INT);
    let ended = relay.wait();
    assert_eq!(ended.code(), 128 + 2, "{}", ended.said);
}

/// Goal: a target that is gone is said with its address and counted, and so is that it is back. Method: a listener
/// that is closed and opened again at the same port; some of the failures are not said one by one.
#[test]
fn dead_targets_are_said() {
    let folder = Folder::new();
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = target.local_addr().expect("bound");
    drop(target);
    let to = format!("tcp://{address}");
    let socket = folder.path("stats");
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--stats-socket"];
    let arguments = [&arguments[..], &[socket.to_str().expect("text")]].concat();
    let mut relay = Instance::start(&folder, &arguments).ready();
    let at = relay.address("relay");
    for _ in 0..5 {
        assert_eq!(connect(at).read(&mut [0]).expect("an end"), 0);
    }
    let line = relay.until("a target cannot be reached");
    assert!(line.contains(&format!("tcp://{address}")) && line.contains("refused"), "{line}");
    assert_eq!(counter(&socket, "relay", "connects_failed"), 5);

    let target = TcpListener::bind(address).expect("the port is free");
    let _client = connect(at);
    drop(target.accept().expect("it is reached"));
    let line = relay.until("a target can be reached again");
    assert!(line.contains("failures: 5"), "{line}");
    let said = relay.end().said;
    assert!(said.matches("cannot be reached").count() <= 3, "{said}");
}

/// Goal: connections are divided by the policy and the weights, and the report and the table show what each target got. Method: two
/// echoes that go round 3 to 1, eight connections of which one stays open, from a file.
#[test]
fn targets_share_connections() {
    let (folder, one, other) = (Folder::new(), echo_server(), echo_server());
    let socket = folder.path("stats");
    let text = format!(
        "[process]\nstats_socket = '{}'\n[[relay]]\nlisten = 'tcp://127.0.0.1:0'\nbalance = 'round-robin'\n\
         to = [{{ url = '{one}', weight = 3 }}, '{other}']\n",
        socket.display()
    );
    let file = folder.write("flows.toml", &text);
    let mut relay = Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]);
    relay.until("forwards; ");
    let address = relay.address("relay-1");
    let mut last = connect(address);
    for _ in 0..7 {
        exchange(&mut last, b"ahoy");
        last = connect(address);
    }
    exchange(&mut last, b"ahoy");
    while counter(&socket, "relay-1", "active") > 1 {
        thread::yield_now();
    }
    let shown = &report(&socket)["flows"][0]["targets"];
    let numbers = |name| [&shown[0][name], &shown[1][name]].map(|number| number.as_u64());
    assert_eq!(numbers("connections"), [Some(6), Some(2)], "{shown}");
    assert_eq!(numbers("weight"), [Some(3), Some(1)], "{shown}");
    assert_eq!(numbers("failures"), [Some(0), Some(0)], "{shown}");
    // a a b a a a b a: the last one is the heavier's.
    assert_eq!(numbers("active"), [Some(1), Some(0)], "{shown}");
    let (_, table, _) = run(&folder, &["stats", "--socket", socket.to_str().expect("text")]);
    assert!(table.contains("target ") && table.contains(" available "), "{table}");
    drop(last);
    assert_eq!(relay.end().code(), 0);
}

/// Goal: clients that are denied, or exceed their share, are reset and counted. Method: the options, and clients of this host.
#[test]
fn access_is_limited() {
    let (folder, to) = (Folder::new(), echo_server());
    let socket = folder.path("stats");
    let arguments = [
        &["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--per-source-max", "1"][..],
        &["--stats-socket", socket.to_str().expect("text")],
    ]
    .concat();
    let refused = |address| {
        // The reset may come before the connection is read.
        let heard = TcpStream::connect_timeout(&address, BOUND).and_then(|mut stream| {
            stream.set_read_timeout(Some(BOUND))?;
            stream.read(&mut [0])
        });
        let error = heard.expect_err("no end of a stream");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    };
    let mut relay = Instance::start(&folder, &arguments).ready();
    let address = relay.address("relay");
    let mut first = connect(address);
    exchange(&mut first, b"ahoy");
    refused(address);
    exchange(&mut first, b"still here");
    drop(first);
    while counter(&socket, "relay", "active") > 0 {
        thread::yield_now();
    }
    assert_eq!(counter(&socket, "relay", "over_source_max"), 1);
    assert_eq!(counter(&socket, "relay", "dropped"), 1);
    assert_eq!(relay.end().code(), 0);

    let arguments = [&arguments[..], &["--deny", "127.0.0.0/8", "--allow", "0.0.0.0/0"]].concat();
    let mut relay = Instance::start(&folder, &arguments).ready();
    refused(relay.address("relay"));
    while counter(&socket, "relay", "denied") == 0 {
        thread::yield_now();
    }
    assert_eq!(relay.end().code(), 0);
}

/// Goal: a target that takes connections to nowhere is down before a client meets it, and used again when it answers; both are said.
/// Method: a listener whose queue is full, before an echo; then the queue is emptied, and the listener answers.
#[test]
fn black_holes_are_found_by_checks() {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let (folder, echo) = (Folder::new(), echo_server());
    let socket_path = folder.path("stats");
    let full = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    bind(&full, &any).expect("a port");
    listen(&full, 0).expect("bound");
    let full = TcpListener::from(full);
    let hole = full.local_addr().expect("bound");
    let _queued = TcpStream::connect(hole).expect("the queue has room for one");
    let to = format!("tcp://{hole}");
    let socket = socket_path.to_str().expect("text");
    let arguments = [
        &["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--to", &echo][..],
        &["--check", "every=50ms,timeout=50ms,rise=2,fall=1", "--stats-socket", socket],
    ];
    let mut relay = Instance::start(&folder, &arguments.concat()).ready();
    let line = relay.until("a target is down");
    assert!(line.contains(&format!("tcp://{hole}")) && line.contains("timed out"), "{line}");
    let address = relay.address("relay");
    exchange(&mut connect(address), b"ahoy");
    assert_eq!(counter(&socket_path, "relay", "connects_failed"), 0);
    let shown = &report(&socket_path)["flows"][0]["targets"];
    assert_eq!(shown[0]["state"], "down", "{shown}");
    assert_eq!(shown[1]["connections"], 1, "{shown}");

    let (told, heard) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for mut stream in full.incoming().map_while(Result::ok) {
            if told.send(()).is_err() {
                return;
            }
            drop(stream.write_all(b"here"));
        }
    });
    relay.until("a target is up again");
    let mut answer = [0; 4];
    connect(address).read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"here");
    drop(heard);
    assert_eq!(relay.end().code(), 0);
}

/// Goal: what a killed instance leaves is removed by the next one, which says so. Method: kill -9, of one with a Unix
/// socket.
#[test]
fn what_was_left_is_cleaned_up() {
    let (folder, to) = (Folder::new(), echo_server());
    let listen = format!("unix:{}/door", folder.0.display());
    let arguments = ["relay", "--listen", &listen, "--to", &to];
    let killed = Instance::start(&folder, &arguments).ready();
    let left = format!("vigie-forward.{}.sock", killed.id());
    killed.signal(Signal::KILL);
    killed.wait();
    let mut files = folder.files();
    files.sort();
    assert_eq!(files, ["door", &left]);

    let mut next = Instance::start(&folder, &arguments).ready();
    next.until(&format!("{left}, left by a killed instance"));
    next.until("takes over");
    let (code, table, _) = run(&folder, &["stats"]);
    assert_eq!(code, 0, "the only instance is found");
    assert!(table.contains("relay"), "{table}");
    assert_eq!(next.end().code(), 0);
    assert_eq!(folder.files(), Vec::<String>::new());
}

/// Goal: no thread keeps a right that the flow does not need. Method: the kernel's word on each.
#[test]
fn rights_are_given_up() {
    let (folder, to) = (Folder::new(), echo_server());
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to];
    let mut relay = Instance::start(&folder, &arguments).ready();
    exchange(&mut connect(relay.address("relay")), b"so that all threads are there");
    let mut threads = 0;
    for thread in std::fs::read_dir(format!("/proc/{}/task", relay.id())).expect("it lives") {
        let path = thread.expect("readable").path().join("status");
        let Ok(status) = std::fs::read_to_string(path) else { continue };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let line = status.lines().find(|line| line.starts_with(set)).expect("a set");
            assert!(line.ends_with("\t0000000000000000"), "{line}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        threads += 1;
    }
    assert!(threads > 1);
    assert_eq!(relay.end().code(), 0);
}

/// Goal: without rights, frames are not forwarded, and the message names what is missing and what works instead.
/// Method: each kind, without a single right.
#[test]
fn missing_rights_are_named() {
    let folder = Folder::new();
    for arguments in [
        &["l2", "one", "two"][..],
        &["l3", "one", "two"],
        &["nat", "--inside", "one", "--outside", "two", "--address", "192.0.2.1"],
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]);
        command.args(["--no-new-privs", PROGRAM]).args(arguments).env("XDG_RUNTIME_DIR", &folder.0);
        if rustix::process::geteuid().is_root() {
            let (code, _, errors) = run_command(&mut command);
            assert_eq!(code, 3, "{arguments:?}\n{errors}");
            for word in ["CAP_BPF", "CAP_NET_ADMIN", "CAP_NET_RAW", "vigie-forward relay"] {
                assert!(errors.contains(word), "{arguments:?} does not say {word}:\n{errors}");
            }
        } else {
            let (code, _, errors) = run(&folder, arguments);
            assert_eq!(code, 3, "{arguments:?}\n{errors}");
            assert!(errors.contains("CAP_NET_RAW"), "{errors}");
        }
    }
}

/// Goal: a port that takes a right is refused with each remedy once. Method: port 81 without a right, for streams and datagrams, where the
/// kernel refuses it.
#[test]
fn a_low_port_is_refused() {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if first.is_ok_and(|first| first.trim().parse().is_ok_and(|first: u16| first <= 81)) {
        return eprintln!("a_low_port_is_refused: skipped, since this host lets all have port 81");
    }
    for scheme in ["tcp", "udp"] {
        let mut command = Command::new("setpriv");
        command.args(["--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]);
        if rustix::process::geteuid().is_root() {
            command.arg("--bounding-set=-all");
        }
        let listen = format!("{scheme}://127.0.0.1:81");
        let to = format!("{scheme}://127.0.0.1:82");
        command.args([PROGRAM, "relay", "--listen", &listen, "--to", &to]);
        let folder = Folder::new();
        let (code, _, errors) = run_command(command.env("XDG_RUNTIME_DIR", &folder.0));
        assert_eq!(code, 3, "{errors}");
        for word in ["CAP_NET_BIND_SERVICE", "ip_unprivileged_port_start", "setcap"] {
            assert_eq!(errors.matches(word).count(), 1, "{word}: {errors}");
        }
    }
}

/// Goal: a plan has everything that it was made from, and never places where a right is missing. Method: with all rights
/// taken away, as JSON and as text.
#[test]
fn plans_are_made() {
    let folder = Folder::new();
    let (code, text, errors) = run(&folder, &["plan", "--rate", "1000", "--message", "1500"]);
    assert_eq!(code, 0, "{errors}");
    for word in ["links      1000 Mb/s", "T_pci ", "T_algoH ", "T_algoN ", "messages of 1500 B: "] {
        assert!(text.contains(word), "{text}");
    }
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]);
    if rustix::process::geteuid().is_root() {
        command.arg("--bounding-set=-all");
    }
    command.args([
        PROGRAM,
        "plan",
        "--json",
        "--work",
        "nat",
        "--message",
        "64",
        "--message",
        "9000",
    ]);
    let (code, text, errors) = run_command(&mut command);
    assert_eq!(code, 0, "{errors}");
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(plan["t_pci_ns"]["64"].as_u64() > Some(0), "{plan}");
    assert!(plan["t_algo_host_ns"]["1500"].as_u64() > Some(0), "{plan}");
    assert!(plan["t_pci_ns"]["65000"].as_u64() > plan["t_pci_ns"]["64"].as_u64(), "{plan}");
    let plans = plan["plans"].as_array().expect("a list");
    assert_eq!(plans.len(), 2);
    for plan in plans {
        assert_eq!(plan["placement"], "host", "{plan}");
        assert!(plan["reason"].to_string().contains("CAP_BPF"), "{plan}");
        assert_eq!(plan["in_segments"], plan["message_bytes"] == 9000, "{plan}");
        assert!(plan["bandwidth_bytes_per_s"].as_u64() > Some(0), "{plan}");
    }
}
