//! Flows that fail at a reload: when the old ones begin again, and when they cannot.

use std::{
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
};

use rustix::process::Signal;

use crate::{
    instance::{BOUND, Folder, report},
    metrics::{assert_explained, get},
    network::{Host, SERVER, call, calls_through, with_network},
    reload::{ask_over, marked_echo_at},
};

/// Asks for the health. Returns the status and the text.
#[track_caller]
fn health(metrics: &Path) -> (String, String) {
    let (head, text) = get(UnixStream::connect(metrics).expect("it listens"), "GET /health");
    (head.split(' ').nth(1).expect("a status").to_owned(), text)
}

#[track_caller]
fn assert_down(metrics: &Path, stats: &Path, flow: &str) {
    assert_eq!(health(metrics), ("503".to_owned(), format!("not forwarding: {flow}\n")));
    let (_, text) = get(UnixStream::connect(metrics).expect("it listens"), "GET /metrics");
    assert!(text.contains("vigie_forward_flows_down 1\n"), "{text}");
    assert_eq!(report(stats)["down"], serde_json::json!([flow]));
}

/// Goal: a relay whose new and old settings both fail at a reload makes the health 503, is tried again, and then serves by its old settings.
/// Method: a port of which another socket has a part, so that it cannot be had at all addresses; the old address is removed before the
/// reload, and added again after one failed retry.
#[test]
fn the_settings_of_before_are_tried_again() {
    with_network("restore::the_settings_of_before_are_tried_again", |network| {
        let folder = Folder::new();
        let (metrics, stats) = (folder.path("metrics"), folder.path("stats"));
        let router = &network.router;
        let (target, holder) = router.inside(|| {
            let holder = TcpListener::bind("127.0.0.2:0").expect("a port");
            (marked_echo_at("127.0.0.1:0", 1), holder)
        });
        let port = holder.local_addr().expect("bound").port();
        let write = |ip: &str| {
            let text = format!(
                "[process]\nmetrics = 'unix:{}'\nstats_socket = '{}'\n[[relay]]\nname = 'web'\nlisten = 'tcp://{ip}:{port}'\nto = 'tcp://{target}'\n",
                metrics.display(),
                stats.display()
            );
            folder.write("config.toml", &text)
        };
        let file = write("10.1.0.1");
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let mut instance = router.forwarder(&folder, &arguments).ready();
        assert_eq!(health(&metrics), ("200".to_owned(), "ready\n".to_owned()));

        write("0.0.0.0");
        router.run("ip addr del 10.1.0.1/24 dev ra");
        instance.signal(Signal::HUP);
        let line = instance.until("the settings of before fail, too");
        assert!(line.contains(&format!("tcp://10.1.0.1:{port}")), "{line}");
        // Of the new file alone.
        assert_eq!(line.matches("config.toml, line ").count(), 1, "{line}");
        assert_down(&metrics, &stats, "web");
        instance.until("SIGHUP: flows: 0 unchanged, 0 ended, 0 new, 1 failed");
        instance.said.clear();
        let line = instance.until("and does not forward");
        assert!(!line.contains("config.toml"), "{line}");
        assert_down(&metrics, &stats, "web");

        router.run("ip addr add 10.1.0.1/24 dev ra");
        instance.until("flow `web` forwards again");
        assert_eq!(health(&metrics), ("200".to_owned(), "ready\n".to_owned()));
        assert_eq!(report(&stats)["down"], serde_json::json!(null));
        let web = format!("10.1.0.1:{port}").parse().expect("an address");
        let ask = ask_over(move || TcpStream::connect_timeout(&web, BOUND));
        assert_eq!(network.client.inside(ask).expect("it is served"), 1);
        assert_eq!(instance.end().code(), 0);
    });
}

/// Goal: an old flow does not begin again beside a new one that has got one of its interfaces: the new one forwards, the old one is named as
/// down, and the next reload that works ends that. Method: a router that becomes a translation, whose file this test has locked, and a wire
/// with the router's second interface, in both orders of the file.
#[test]
fn a_new_flow_keeps_its_interfaces() {
    with_network("restore::a_new_flow_keeps_its_interfaces", |network| {
        let router = &network.router;
        // Behind the wire, in the server's place.
        let beyond = Host::new();
        network.wire("rc", "10.3.0.1/24", &beyond, "d0", "10.2.0.9/24");
        network.wire("rd", "10.4.0.1/24", &beyond, "d1", "10.4.0.2/24");
        for is_first in [true, false] {
            let folder = Folder::new();
            let (metrics, stats) = (folder.path("metrics"), folder.path("stats"));
            let process = format!(
                "[process]\nmetrics = 'unix:{}'\nstats_socket = '{}'\n",
                metrics.display(),
                stats.display()
            );
            let l3 = "[[l3]]\nname = 'router'\ninterfaces = ['ra', 'rb']\npath = 'af-packet'\n";
            let wire = "[[l2]]\nname = 'wire'\nbetween = ['rb', 'rc']\npath = 'af-packet'\n";
            let nat = format!(
                "[[nat]]\nname = 'router'\ninside = ['ra']\noutside = 'rd'\naddress = '10.4.0.9'\npath = 'af-packet'\nstate = '{}'\n",
                folder.path("state").display()
            );
            let state = std::fs::File::create(folder.path("state")).expect("a file");
            rustix::fs::flock(&state, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
            let file = folder.write("config.toml", &format!("{process}{l3}"));
            let arguments = ["run", "--config", file.to_str().expect("text")];
            let mut instance = router.forwarder(&folder, &arguments).ready();

            let flows = if is_first { format!("{wire}{nat}") } else { format!("{nat}{wire}") };
            folder.write("config.toml", &format!("{process}{flows}"));
            instance.signal(Signal::HUP);
            let line = instance.until("keeps the translations of another flow");
            assert!(line.contains("; this flow does not forward"), "{line}");
            instance.until(
                "SIGHUP: flows: 0 unchanged, 1 ended, 1 new, 1 failed (new: wire; ended: router)",
            );
            assert_down(&metrics, &stats, "router");
            let port = network.echo();
            let caller = beyond.caller();
            caller.set_read_timeout(Some(BOUND)).expect("a socket");
            assert!(calls_through(&caller, SERVER, port, "by the wire"));

            drop(state);
            instance.said.clear();
            instance.signal(Signal::HUP);
            instance.until("SIGHUP: flows: 1 unchanged, 0 ended, 1 new, 0 failed");
            assert_eq!(health(&metrics), ("200".to_owned(), "ready\n".to_owned()));
            assert!(calls_through(&caller, SERVER, port, "still by the wire"));
            let reached = network.client.caller();
            let there = beyond.echo();
            let from = call(&reached, "10.4.0.2", there);
            assert!(from.starts_with("10.4.0.9:"), "{from}");
            // Of translations and of a wire.
            let stream = UnixStream::connect(&metrics).expect("it listens");
            assert_explained(&get(stream, "GET /metrics").1);
            assert_eq!(instance.end().code(), 0);
        }
    });
}
