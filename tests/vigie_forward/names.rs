//! Targets by name, with the host's own resolver: in a mount namespace, whose /etc/hosts is the test's.

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, UdpSocket},
    os::unix::fs::FileExt,
    process::Command,
    thread,
    time::Duration,
};

use crate::{
    connect,
    instance::{BOUND, Folder, Instance, counter, report},
    kit::namespace,
};

/// Sends its letter to each client, and then what comes.
pub(crate) fn letter_server(at: &str, letter: u8) -> u16 {
    let listener = TcpListener::bind(at).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                drop(stream.write_all(&[letter]));
                let mut back = stream.try_clone().expect("a descriptor");
                drop(std::io::copy(&mut stream, &mut back));
            });
        }
    });
    port
}

/// Goal: a relay whose target's name is itself does not connect to itself: the client is refused, the target counts as failed, and the log
/// says why. Method: `localhost`, by a listener of the loopback address and one of all addresses, streams and datagrams.
#[test]
fn a_name_of_the_relay_itself_is_refused() {
    for listen in ["127.0.0.1", "0.0.0.0"] {
        let folder = Folder::new();
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let socket = folder.path("stats");
        let text = format!(
            "[process]\nstats_socket = '{}'\n[[relay]]\nname = 'tcp'\nlisten = 'tcp://{listen}:{port}'\nto = 'tcp://localhost:{port}'\n\
             [[relay]]\nname = 'udp'\nlisten = 'udp://{listen}:{port}'\nto = 'udp://localhost:{port}'\n",
            socket.display()
        );
        let file = folder.write("config.toml", &text);
        let mut relay =
            Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready();
        let mut client = connect(([127, 0, 0, 1], port).into());
        assert_eq!(client.read(&mut [0]).expect("an end"), 0);
        relay.until("this relay itself listens there");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
        datagrams.send_to(b"x", ("127.0.0.1", port)).expect("it is sent");
        relay.until("target: udp://127.0.0.1");
        assert_eq!(counter(&socket, "tcp", "accepted"), 1, "{}", report(&socket));
        assert_eq!(counter(&socket, "udp", "active"), 0, "{}", report(&socket));
        assert!(counter(&socket, "tcp", "connects_failed") >= 1);
        assert_eq!(relay.end().code(), 0);
    }
}

/// Goal: a client that does not begin with the header that the relay asks for is named in the log, with the remedy. Method: HTTP.
#[test]
fn a_client_without_a_header_is_named() {
    let folder = Folder::new();
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:1"];
    let arguments = [&arguments[..], &["--proxy-from", "127.0.0.0/8"]].concat();
    let mut relay = Instance::start(&folder, &arguments).ready();
    let mut client = connect(relay.address("relay"));
    client.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").expect("it is connected");
    let line = relay.until(
        "flow `relay`: a client was refused, since it must begin with a PROXY protocol header",
    );
    let own = client.local_addr().expect("bound").to_string();
    assert!(line.contains(&own) && line.contains("remove it from the trusted networks"), "{line}");
    assert_eq!(relay.end().code(), 0);
}

/// Goal: each address of a name is a target, new connections follow when the name gets other addresses, open ones go on, and while the
/// name has none, the last ones stay; all is said. Method: /etc/hosts of a mount namespace, written anew while the relay runs, with
/// two servers at one port of two addresses; streams and datagrams.
#[test]
fn names_are_followed() {
    namespace::inside("names::names_are_followed", &[&["-Urm"], &["-m"]], || {
        let folder = Folder::new();
        // In one step, with the length that it has: no reader sees half of it.
        let path = folder.write("hosts", &" ".repeat(80));
        let hosts = |text: &str| {
            let file = File::options().write(true).open(&path).expect("it is ours");
            file.write_all_at(format!("{text:<79}\n").as_bytes(), 0).expect("it is ours");
        };
        hosts("127.0.0.1 localhost\n127.0.0.2 one.test\n");
        // No name server answers, and none is waited for.
        let no_server = folder.write("resolv.conf", "nameserver 127.0.0.1\noptions attempts:1\n");
        for (file, over) in [(path.clone(), "/etc/hosts"), (no_server, "/etc/resolv.conf")] {
            let mounted = Command::new("mount").arg("--bind").arg(file).arg(over).status();
            assert!(mounted.expect("a mount namespace").success());
        }
        let port = letter_server("127.0.0.2:0", b'a');
        assert_eq!(letter_server(&format!("127.0.0.3:{port}"), b'b'), port);
        let socket = folder.path("stats");
        let text = format!(
            "[process]\ndrain = '100ms'\nstats_socket = '{}'\n[[relay]]\nname = 'tcp'\nlisten = 'tcp://127.0.0.1:0'\nresolve = '1s'\n\
             to = 'tcp://one.test:{port}'\n[[relay]]\nname = 'udp'\nlisten = 'udp://127.0.0.1:0'\n\
             resolve = '1s'\nto = 'udp://one.test:{port}'\n",
            socket.display()
        );
        let config = folder.write("flows.toml", &text);
        let arguments = ["run", "--config", config.to_str().expect("text")];
        let mut relay = Instance::start(&folder, &arguments).ready();
        let (streams, datagrams) = (relay.address("tcp"), relay.address("udp"));
        let ask = || {
            let (mut stream, mut letter) = (connect(streams), [0]);
            stream.read_exact(&mut letter).expect("an answer");
            (stream, letter[0])
        };
        let (mut stays, letter) = ask();
        assert_eq!(letter, b'a');
        // No one answers there: the session is to leave it when the name has another address.
        let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
        client.send_to(b"who?", datagrams).expect("it is taken");

        hosts("127.0.0.1 localhost\n127.0.0.3 one.test\n");
        // Of either flow: each says it.
        let line = relay.until("has new addresses; name: one.test; new: [\"tcp://127.0.0.3");
        assert!(line.contains("gone: [\"tcp://127.0.0.2"), "{line}");
        relay.until("has new addresses; name: one.test; new: [\"udp://127.0.0.3");
        assert_eq!(ask().1, b'b');
        crate::exchange(&mut stays, b"still here");
        let server = UdpSocket::bind(("127.0.0.3", port)).expect("a port");
        server.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        let arrives = (0..BOUND.as_millis() / 100).any(|_| {
            client.send_to(b"who?", datagrams).expect("it is taken");
            server.recv(&mut [0; 16]).is_ok()
        });
        assert!(arrives, "the client's session stays with an address that is gone");

        hosts("127.0.0.1 localhost\n");
        relay.until("`: the name of a target cannot be resolved");
        assert_eq!(ask().1, b'b');
        hosts("127.0.0.1 localhost\n127.0.0.4 one.test\n127.0.0.3 one.test\n");
        relay.until("the name of a target can be resolved again");
        relay.until("new: [\"tcp://127.0.0.4");
        let shown = &report(&socket)["flows"][0]["targets"];
        // The one that was there comes first.
        assert_eq!(shown[0]["target"], format!("tcp://127.0.0.3:{port}"), "{shown}");
        assert_eq!(shown[1]["target"], format!("tcp://127.0.0.4:{port}"), "{shown}");
        assert_eq!(shown[1]["host"], "one.test", "{shown}");
        assert_eq!(ask().1, b'b');
        drop(stays);
        assert_eq!(relay.end().code(), 0);
    });
}
