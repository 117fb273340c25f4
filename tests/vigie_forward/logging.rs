//! The log of connections and translations, and where its lines go if there is no room.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    instance::{BOUND, Folder, Instance, PROGRAM, counter, report},
    network::{SERVER, call, with_network},
    paths::forward,
    reload::{connect, mark, marked_echo},
};

/// Returns the whole lines of a log, all of which are JSON.
#[track_caller]
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |at| &text[..at]);
    let read =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    whole.lines().map(read).collect()
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..BOUND.as_millis() / 10 {
        if let Some(found) = found() {
            return found;
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    panic!("{what} has not come");
}

/// Waits for the line of a flow that ended in some way.
#[track_caller]
fn line_of(path: &Path, flow: &str, end: &str) -> Value {
    until(&format!("{flow}: {end}"), || {
        lines(path).into_iter().find(|line| line["flow"] == flow && line["end"] == end)
    })
}

/// Returns the configuration of relays that log, each with a name, its ends and further settings.
fn relays(log: &Path, flows: &[(&str, &str, String, &str)]) -> String {
    let mut text = format!("[process]\ndrain = '100ms'\nlog_file = '{}'\n", log.display());
    for (name, listen, to, settings) in flows {
        text += &format!(
            "[[relay]]\nname = '{name}'\nlisten = '{listen}'\nto = '{to}'\nlog = 'each'\n{settings}\n"
        );
    }
    text
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of} is a number"))
}

/// Starts a relay for each way in which connections end.
fn with_each_end(folder: &Folder, sink: &UdpSocket) -> Instance {
    let any = "tcp://127.0.0.1:0";
    let log = folder.path("log");
    let echo = format!("tcp://{}", marked_echo(b'm'));
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let datagrams = format!("udp://{}", sink.local_addr().expect("bound"));
    let text = relays(
        &log,
        &[
            ("plain", any, echo.clone(), "allow = '127.0.0.0/8'"),
            ("none", any, format!("tcp://{closed}"), ""),
            ("denied", any, echo.clone(), "deny = '127.0.0.0/8'"),
            ("one", any, echo.clone(), "per_source_max = 1"),
            ("messages", any, echo, "framed = 'u32-be'\nmessage_max = 8"),
            ("session", "udp://127.0.0.1:0", datagrams.clone(), "idle = '1s'"),
            ("refused", "udp://127.0.0.1:0", datagrams, "deny = '127.0.0.0/8'"),
            // The kernel refuses to send to a broadcast address without SO_BROADCAST.
            ("nowhere", "udp://127.0.0.1:0", "udp://127.255.255.255:9".to_owned(), ""),
        ],
    );
    let stats = folder.path("stats");
    let file = folder.write(
        "config.toml",
        &text.replace("[process]\n", &format!("[process]\nstats_socket = '{}'\n", stats.display())),
    );
    Instance::start(folder, &["run", "--config", file.to_str().expect("text")]).ready()
}

/// Connects to a relay that refuses, and may do so at once.
fn is_refused(to: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&to, BOUND) {
        Ok(mut stream) => {
            stream.set_read_timeout(Some(BOUND)).expect("a socket");
            !matches!(stream.read(&mut [0]), Ok(1))
        }
        Err(_) => true,
    }
}

/// Goal: each connection has one line, with its ends, its bytes and how it ended, also if it was refused; rules of access are counted; and the
/// file is opened again at SIGHUP. Method: a relay for each way to end, by streams, messages and datagrams.
#[test]
fn each_connection_has_a_line() {
    let folder = Folder::new();
    let (log, stats) = (folder.path("log"), folder.path("stats"));
    // The target of datagrams.
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let mut relay = with_each_end(&folder, &sink);

    let mut client = connect(relay.address("plain"));
    let from = client.local_addr().expect("connected");
    assert_eq!(mark(&mut client), b'm');
    client.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(client.read_to_end(&mut Vec::new()).expect("it ends"), 0);
    let line = line_of(&log, "plain", "finished");
    assert_eq!((number(&line["bytes_up"]), number(&line["bytes_down"])), (1, 2), "{line}");
    assert_eq!(line["client"], from.to_string());
    assert!(line["target"].as_str().expect("text").starts_with("tcp://127.0.0.1:"), "{line}");
    assert_eq!(
        (&line["event"], line["start"].as_str().map(str::len)),
        (&"connection".into(), Some(24))
    );
    assert!(line["duration_ms"].is_u64() && line.get("error").is_none(), "{line}");
    assert_eq!(counter(&stats, "plain", "rule: allow 127.0.0.0/8"), 1);

    for (flow, end) in [("none", "no_target"), ("denied", "denied")] {
        assert!(is_refused(relay.address(flow)));
        let line = line_of(&log, flow, end);
        assert_eq!((&line["target"], number(&line["bytes_up"])), (&Value::Null, 0));
        assert!(line["error"].is_string(), "{line}");
    }
    assert_eq!(counter(&stats, "denied", "rule: deny 127.0.0.0/8"), 1);
    let refused = "127.0.0.1 is denied by the rule for 127.0.0.0/8";
    assert_eq!(line_of(&log, "denied", "denied")["error"], refused);
    let error = line_of(&log, "none", "no_target")["error"].to_string();
    let tried = report(&stats)["flows"][1]["targets"][0]["target"].clone();
    let tried = tried.as_str().expect("an address");
    assert!(error.contains(&format!("{tried}: Connection refused")), "{error}");
    let said = relay.until("a target cannot be reached");
    assert!(said.contains(tried), "{said}");

    let mut first = connect(relay.address("one"));
    mark(&mut first);
    assert!(is_refused(relay.address("one")));
    line_of(&log, "one", "over_source_max");

    let mut client = connect(relay.address("messages"));
    client.write_all(&[0, 0, 0, 99]).expect("connected");
    drop(client.read(&mut [0]));
    line_of(&log, "messages", "malformed");

    let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for flow in ["session", "refused", "nowhere"] {
        client.send_to(b"hello", relay.address(flow)).expect("it listens");
    }
    let line = line_of(&log, "session", "idle");
    assert_eq!((number(&line["bytes_up"]), number(&line["bytes_down"])), (5, 0), "{line}");
    assert_eq!(line_of(&log, "refused", "denied")["error"], refused);
    assert_eq!(counter(&stats, "refused", "rule: deny 127.0.0.0/8"), 1);
    let line = line_of(&log, "nowhere", "refused");
    assert!(
        line["error"].to_string().contains("udp://127.255.255.255:9: Permission denied"),
        "{line}"
    );

    let before = lines(&log).len();
    fs::rename(&log, folder.path("log.1")).expect("it is ours");
    relay.signal(Signal::HUP);
    relay.until("SIGHUP: flows: 8 unchanged");
    assert!(log.exists(), "it is made at once");
    drop(first);
    line_of(&log, "one", "finished");
    assert_eq!((lines(&log).len(), lines(&folder.path("log.1")).len()), (1, before));

    // Its connection is cut, and the line is still written.
    let last = connect(relay.address("plain"));
    until("the connection", || (counter(&stats, "plain", "active") == 1).then_some(()));
    relay.signal(Signal::INT);
    drop((last, relay.wait()));
    line_of(&log, "plain", "cut");
}

/// Sends datagrams, each of which a relay refuses and so logs, until lines are lost.
#[track_caller]
fn flood(to: SocketAddr, stats: &Path) {
    let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
    until("a lost line", || {
        for _ in 0..500 {
            let _ = client.send_to(b"x", to);
        }
        (number(&report(stats)["log_lines_lost"]) > 0).then_some(())
    });
}

/// Compares the lines of a file with those that were counted.
#[track_caller]
fn assert_counted(log: &Path, stats: &Path, flow: &str) {
    until("all lines", || {
        let report = report(stats);
        let (written, lost) =
            (number(&report["log_lines_written"]), number(&report["log_lines_lost"]));
        let is_all = written + lost == counter(stats, flow, "denied");
        (is_all && lines(log).len() as u64 == written).then_some(())
    });
}

const REFUSES: [&str; 8] = [
    "relay",
    "--listen",
    "udp://127.0.0.1:0",
    "--to",
    "udp://127.0.0.1:9",
    "--deny",
    "127.0.0.0/8",
    "--log=each",
];

/// Goal: on a full disk the flow goes on, the loss is counted and told once, and those lines that follow once there is room are whole, also if
/// the full file was opened again. Method: a file system of 16 KiB, which then grows.
#[test]
fn a_full_disk_loses_only_lines() {
    with_network("logging::a_full_disk_loses_only_lines", |_| {
        let folder = Folder::new();
        let (disk, stats) = (folder.path("disk"), folder.path("stats"));
        fs::create_dir(&disk).expect("it is ours");
        let script = format!(
            "ip link set dev lo up && mount -t tmpfs -o size=16k tmpfs {} && exec \"$@\"",
            disk.display()
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, "sh", PROGRAM]).args(REFUSES);
        command.arg("--log-file").arg(disk.join("log")).arg("--stats-socket").arg(&stats);
        let mut relay = Instance::of(&mut command, &folder).ready();
        flood(relay.address("relay"), &stats);
        let said = relay.until("cannot be written");
        assert!(said.contains("No space left on device"), "{said}");
        let before = counter(&stats, "relay", "denied");
        flood(relay.address("relay"), &stats);
        until("a datagram", || (counter(&stats, "relay", "denied") > before).then_some(()));

        relay.signal(Signal::HUP);
        relay.until("SIGHUP: there is no file");
        let reopened = counter(&stats, "relay", "denied");
        flood(relay.address("relay"), &stats);
        until("a datagram", || (counter(&stats, "relay", "denied") > reopened).then_some(()));

        let grow =
            format!("nsenter -t {} -m mount -o remount,size=64m {}", relay.id(), disk.display());
        assert!(Command::new("sh").args(["-c", &grow]).status().expect("a shell").success());
        relay.until("are written again");
        let seen = format!("/proc/{}/root{}/log", relay.id(), disk.display());
        until("all lines", || {
            let report = report(&stats);
            let count = |name: &str| number(&report[name]);
            let (written, lost) = (count("log_lines_written"), count("log_lines_lost"));
            let text = fs::read_to_string(&seen).unwrap_or_default();
            // The lost line of which a part was written has its part on a line of its own.
            let is_json = |line: &&str| serde_json::from_str::<Value>(line).is_ok();
            let whole = text.lines().filter(is_json).count() as u64;
            let is_all = written + lost == counter(&stats, "relay", "denied") && whole == written;
            (is_all && text.lines().count() as u64 <= written + 1).then_some(())
        });
        let ended = relay.end();
        assert_eq!((ended.code(), ended.said.matches("cannot be written").count()), (0, 1));
    });
}

/// Goal: another file can take the place of a full one, and the process ends in time with a full one. Method: `/dev/full` behind a link, which then
/// leads to a file, and back.
#[test]
fn another_file_helps() {
    let folder = Folder::new();
    let (link, stats) = (folder.path("link"), folder.path("stats"));
    std::os::unix::fs::symlink("/dev/full", &link).expect("it is ours");
    let lead_to = |target: &str| {
        fs::remove_file(&link).expect("it is ours");
        std::os::unix::fs::symlink(target, &link).expect("it is ours");
    };
    let (at, socket) = (link.to_str().expect("text"), stats.to_str().expect("text"));
    let places = ["--log-file", at, "--stats-socket", socket];
    let mut relay = Instance::start(&folder, &[&REFUSES[..], &places].concat()).ready();
    flood(relay.address("relay"), &stats);
    relay.until("cannot be written");
    let file = folder.path("file");
    lead_to(file.to_str().expect("text"));
    relay.signal(Signal::HUP);
    relay.until("are written again");
    assert_counted(&file, &stats, "relay");
    lead_to("/dev/full");
    relay.signal(Signal::HUP);
    flood(relay.address("relay"), &stats);
    let ended = relay.end();
    assert_eq!(ended.code(), 0, "{}", ended.said);
    assert!(ended.said.contains("were lost"), "{}", ended.said);
}

/// Goal: neither a pipe without a reader nor a closed one stops forwarding, and a late reader gets whole lines. Method: a named
/// pipe without a reader, and standard output that a program has left.
#[test]
fn a_pipe_without_a_reader_stops_nothing() {
    let folder = Folder::new();
    let (pipe, stats) = (folder.path("pipe"), folder.path("stats"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let (at, socket) = (pipe.to_str().expect("text"), stats.to_str().expect("text"));
    let places = ["--log-file", at, "--stats-socket", socket];
    let mut relay = Instance::start(&folder, &[&REFUSES[..], &places].concat()).ready();
    flood(relay.address("relay"), &stats);
    relay.until("cannot be written");
    let mut reader = fs::File::open(&pipe).expect("a pipe");
    let read = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    relay.until("are written again");
    assert_eq!(relay.end().code(), 0);
    let text = read.join().expect("no panic").expect("text");
    assert!(text.ends_with('\n') && text.lines().count() > 4096, "{} lines", text.lines().count());
    for line in text.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }

    let mut command = Command::new("bash");
    command.args(["-c", "exec \"$@\" > >(exec true)", "bash", PROGRAM]).args(REFUSES);
    command.args(["--stats-socket", socket]);
    let mut relay = Instance::of(&mut command, &folder).ready();
    flood(relay.address("relay"), &stats);
    let said = relay.until("cannot be written");
    assert!(said.contains("stdout") && said.contains("Broken pipe"), "{said}");
    assert_eq!(relay.end().code(), 0);
}

/// Goal: each translation has a line at its beginning and one at its end, with its ends and the reason; the remote end is left out on request; and
/// published ports are counted. Method: a session that expires, one that lasts until the flow stops, and a call to a published port.
#[test]
fn each_translation_has_its_lines() {
    with_network("logging::each_translation_has_its_lines", |network| {
        for (choice, has_remote) in [("each", true), ("sources", false)] {
            let folder = Folder::new();
            let log = folder.path("log");
            let inside = network.client.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
            let to = inside.local_addr().expect("bound").port();
            let publish = format!("udp:80=10.1.0.2:{to}");
            let nat = [
                "nat",
                "--inside",
                "ra",
                "--outside",
                "rb",
                "--address",
                "10.2.0.9",
                "--idle",
                "1s",
                "--publish",
                &publish,
            ];
            let places = ["--log", choice, "--log-file", log.to_str().expect("text")];
            let router = forward(network, &folder, &[&nat[..], &places].concat());
            let (port, caller) = (network.echo(), network.caller());
            let public = call(&caller, SERVER, port);
            let line = line_of(&log, "nat", "timed_out");
            let own = SocketAddr::from((
                Ipv4Addr::new(10, 1, 0, 2),
                caller.local_addr().expect("bound").port(),
            ));
            let is_its = |line: &Value| {
                line["public"] == public
                    && line["inside"] == own.to_string()
                    && line["protocol"] == "udp"
            };
            assert!(is_its(&line) && number(&line["duration_ms"]) >= 1000, "{line}");
            let remote = if has_remote { format!("{SERVER}:{port}").into() } else { Value::Null };
            assert_eq!(line["remote"], remote, "{line}");
            let begins = lines(&log).into_iter().filter(|one| one["event"] == "translation_begin");
            let begin = begins.into_iter().find(is_its).expect("it has begun");
            assert!(begin["time"].as_str() < line["time"].as_str(), "{begin} {line}");

            inside.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
            let outside = network.server.inside(|| UdpSocket::bind("0.0.0.0:0").expect("a port"));
            until("the published port", || {
                let _ = outside.send_to(b"hello", "10.2.0.9:80");
                inside.recv(&mut [0; 9]).ok()
            });
            assert!(
                counter(&folder.path("stats"), "nat", &format!("rule: publish {publish}")) >= 1
            );
            call(&caller, SERVER, port);
            assert_eq!(router.end().code(), 0);
            let all = lines(&log);
            let count = |event: &str| all.iter().filter(|one| one["event"] == event).count();
            assert_eq!(count("translation_begin"), count("translation_end"), "{all:?}");
            let stopped = line_of(&log, "nat", "stopped");
            assert!(stopped["duration_ms"].is_u64(), "{stopped}");
        }
    });
}

/// Goal: each translation that has begun ends once, also if it begins or ends while the flow ends. Method: sessions with short lives, of
/// which new ones begin all the time.
#[test]
fn translations_end_once() {
    with_network("logging::translations_end_once", |network| {
        let folder = Folder::new();
        let log = folder.path("log");
        let nat =
            ["nat", "--inside", "ra", "--outside", "rb", "--address", "10.2.0.9", "--idle", "1s"];
        let places = ["--log", "each", "--log-file", log.to_str().expect("text")];
        let router = forward(network, &folder, &[&nat[..], &places].concat());
        let port = network.echo();
        call(&network.caller(), SERVER, port);
        let is_over = AtomicBool::new(false);
        let ended = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = network.caller().send_to(b"x", (SERVER, port));
                    thread::park_timeout(Duration::from_millis(1));
                }
            });
            line_of(&log, "nat", "timed_out");
            let ended = router.end();
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        assert!(ended.code() == 0 && !ended.said.contains("were lost"), "{}", ended.said);
        let of = |event: &str| {
            let all = lines(&log).into_iter().filter(|line| line["event"] == event);
            let mut flows: Vec<_> =
                all.map(|line| (line["inside"].to_string(), line["public"].to_string())).collect();
            flows.sort();
            flows
        };
        assert_eq!(of("translation_begin"), of("translation_end"));
        line_of(&log, "nat", "stopped");
    });
}

/// Goal: a flow ends in time although the log takes nothing. Method: a queue that the refused datagrams of a relay have filled, with `/dev/full`
/// behind it, and a translation that ends with its flow.
#[test]
fn a_blocked_log_delays_no_end() {
    with_network("logging::a_blocked_log_delays_no_end", |network| {
        let folder = Folder::new();
        let stats = folder.path("stats");
        let text = format!(
            "[process]\nstats_socket = '{}'\ndrain = '0s'\nlog_file = '/dev/full'\n\
             [[relay]]\nname = 'relay'\nlisten = 'udp://127.0.0.1:0'\nto = 'udp://127.0.0.1:9'\n\
             deny = '127.0.0.0/8'\nlog = 'each'\n\
             [[nat]]\nname = 'nat'\ninside = ['ra']\noutside = 'rb'\naddress = '10.2.0.9'\nlog = 'each'\n",
            stats.display()
        );
        let file = folder.write("config.toml", &text);
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let mut router = network.router.forwarder(&folder, &arguments).ready();
        call(&network.caller(), SERVER, network.echo());
        let relay = router.address("relay");
        network.router.inside(|| flood(relay, &stats));
        let ended = router.end();
        assert!(!ended.said.contains("has not ended in time"), "{}", ended.said);
        assert_eq!(ended.code(), 0, "{}", ended.said);
        assert!(ended.said.contains("were lost"), "{}", ended.said);
    });
}

/// Goal: a place where no file can be made is refused at the start, with what to do. Method: a folder that is not there.
#[test]
fn a_bad_place_is_refused() {
    let places = ["--log-file", "/no-such-folder/log"];
    let ended = Instance::start(&Folder::new(), &[&REFUSES[..], &places].concat()).wait();
    assert_eq!(ended.code(), 2, "{}", ended.said);
    assert!(
        ended.said.contains("`log_file`: /no-such-folder/log cannot be opened"),
        "{}",
        ended.said
    );
}
