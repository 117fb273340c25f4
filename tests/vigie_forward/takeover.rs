//! A new process that takes over from one that runs.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixDatagram, UnixStream},
    process::Command,
};

use rustix::process::Signal;

use crate::{
    instance::{BOUND, Folder, Instance, PROGRAM, counter, report},
    reload::{Clients, ask_by_datagram, ask_over, connect, mark, marked_datagrams, marked_echo},
};

/// A file with a relay of each kind, and metrics, at ports that the kernel chooses for the first process.
fn flows(folder: &Folder, to: SocketAddr, udp_to: SocketAddr) -> String {
    format!(
        "[process]\ndrain = '60s'\ntakeover = '{0}/control'\nmetrics = '127.0.0.1:0'\n\
         [[relay]]\nname = 'tcp'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://{to}'\n\
         [[relay]]\nname = 'unix'\nlisten = 'unix:{0}/door'\nto = 'tcp://{to}'\n\
         [[relay]]\nname = 'udp'\nlisten = 'udp://127.0.0.1:0'\nto = 'udp://{udp_to}'\nidle = '500ms'\n",
        folder.0.display()
    )
}

fn metrics_at(instance: &mut Instance) -> SocketAddr {
    let line = instance.until("metrics at http://");
    let at = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    at.and_then(|text| text.parse().ok()).expect("an address")
}

fn health(metrics: SocketAddr) -> String {
    let mut stream = connect(metrics);
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n").expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Goal: while a process is replaced by another one, no client is refused or reset, each is answered by the target of before or after,
/// and by that of after alone once the new process is ready; a connection that is open goes on until its end; each process ends
/// by itself; the last process owns stats, metrics and files. Method: clients that connect without a pause, to TCP, to a Unix socket and by
/// datagrams, over 6 replacements, between each of which 50 of each kind are served.
#[test]
fn a_restart_refuses_no_client() {
    const RESTARTS: usize = 6;
    let folder = Folder::new();
    let (targets, datagrams) = ([0, 1].map(marked_echo), [0, 1].map(marked_datagrams));
    let start = |number: usize| {
        let text = flows(&folder, targets[number % 2], datagrams[number % 2]);
        let file = folder.write(&format!("config-{number}.toml"), &text);
        Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready()
    };
    let mut instance = start(0);
    let (tcp, udp) = (instance.address("tcp"), instance.address("udp"));
    let metrics = metrics_at(&mut instance);
    let (door, control) = (folder.path("door"), folder.path("control"));
    let path = door.clone();
    let asks = [
        ask_over(move || TcpStream::connect(tcp)),
        ask_over(move || UnixStream::connect(&path)),
        ask_by_datagram(udp),
    ];
    Clients::run_beside(&asks, |clients| {
        for number in 1..=RESTARTS {
            let expected = u8::try_from(number % 2).expect("small");
            let mut open = connect(tcp);
            assert_eq!(mark(&mut open), 1 - expected);
            let mut next = start(number);
            assert_eq!((next.address("tcp"), next.address("udp")), (tcp, udp));
            assert_eq!(metrics_at(&mut next), metrics);
            next.until("has taken over from process");
            assert_eq!(report(&control)["pid"], next.id());
            instance.until("has taken over: drains");
            for ask in &asks {
                // Of those that the old process has accepted, the last ones may still be served.
                while ask().expect("it listens") != expected {
                    clients.check();
                }
            }
            clients.wait();
            assert_eq!(mark(&mut open), 1 - expected);
            drop(open);
            assert_eq!(std::mem::replace(&mut instance, next).wait().code(), 0);
            assert!(door.exists() && control.exists());
            assert!(health(metrics).starts_with("HTTP/1.1 200"));
        }
    });
    assert!(counter(&control, "tcp", "accepted") > 0);
    assert_eq!(instance.end().code(), 0);
    assert!(!door.exists() && !control.exists());
}

/// Goal: a new process that cannot start, or is killed before it has taken over, changes nothing for the one that runs; the manager of that
/// one is told its successor. Method: a new process whose second flow has a port that is taken, a client that asks for the listeners
/// and goes, and a socket in the manager's place.
#[test]
fn a_failed_restart_changes_nothing() {
    let (folder, to) = (Folder::new(), marked_echo(1));
    let (control, door) = (folder.path("control"), folder.path("door"));
    let manager = folder.path("manager");
    let told = UnixDatagram::bind(&manager).expect("a socket");
    told.set_read_timeout(Some(BOUND)).expect("a socket");
    let relay = |door: &str| format!("[[relay]]\nlisten = 'unix:{door}'\nto = 'tcp://{to}'\n");
    let text = format!("[process]\ntakeover = '{}'\n", control.display())
        + &relay(door.to_str().expect("text"));
    let file = folder.write("first.toml", &text);
    let arguments = ["run", "--config", file.to_str().expect("text")];
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("NOTIFY_SOCKET", &manager);
    let mut first = Instance::of(&mut command, &folder).ready();
    first.until("no instance at");

    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("bound");
    let second = format!("{text}[[relay]]\nlisten = 'tcp://{taken}'\nto = 'tcp://{to}'\n");
    let file = folder.write("second.toml", &second);
    let failed = Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]);
    let ended = failed.wait();
    assert_eq!(ended.code(), 1, "{}", ended.said);
    let mut asking = UnixStream::connect(&control).expect("it listens");
    asking.write_all(b"takeover\ntaken relay-1\n").expect("it is taken");
    let mut byte = [0];
    asking.read_exact(&mut byte).expect("an answer");
    drop(asking);
    let ask = || {
        let mut client = UnixStream::connect(&door).expect("it listens");
        client.write_all(b"x").expect("it is taken");
        let mut answer = [0; 2];
        client.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, [1, b'x']);
    };
    ask();
    assert_eq!(report(&control)["pid"], first.id());

    let second = Instance::start(&folder, &arguments).ready();
    assert_eq!(first.wait().code(), 0);
    let mut messages = String::new();
    while !messages.contains(&format!("MAINPID={}", second.id())) {
        let mut bytes = [0; 256];
        let count = told.recv(&mut bytes).unwrap_or_else(|error| panic!("{error}: {messages}"));
        messages += &String::from_utf8_lossy(&bytes[..count]);
    }
    assert!(!messages.contains("STOPPING"), "{messages}");
    ask();
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code(), 0);
    assert!(!door.exists() && !control.exists());
}
