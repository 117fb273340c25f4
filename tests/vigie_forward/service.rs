//! What a service manager is told, and the unit that is in the guide.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::Command,
};

use rustix::process::Signal;

use crate::{
    connect, echo_server, exchange,
    instance::{BOUND, Folder, Instance, PROGRAM},
};

const UNIT: &str = include_str!("../../docs/guide/vigie-forward.service");

/// Receives messages until one has these lines. Returns it.
#[track_caller]
fn until(manager: &UnixDatagram, word: &str) -> String {
    let mut seen = String::new();
    loop {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).unwrap_or_else(|error| panic!("{error}; {seen}"));
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        if text.lines().any(|line| line.starts_with(word)) {
            return text;
        }
        seen = seen + &text + "\n";
    }
}

/// Goal: the command of the unit starts, and its manager is told of the start, the life, the reload and the end, at a path and at an
/// abstract name. Method: a socket in the manager's place, and the unit's arguments with a file of the test's; a connection that stays
/// open keeps the drain from ending before it was told.
#[test]
fn the_manager_is_told() {
    assert!(UNIT.lines().any(|line| line == "Type=notify-reload"), "it waits for what is told");
    for line in ["Restart=on-failure", "RestartSec=5s", "StartLimitIntervalSec=0"] {
        assert!(UNIT.lines().any(|one| one == line), "it is started again until it forwards");
    }
    let line = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    for is_abstract in [false, true] {
        let (folder, to) = (Folder::new(), echo_server());
        let text = format!("[[relay]]\nlisten = 'tcp://127.0.0.1:0'\nto = '{to}'\n");
        let config = folder.write("flows.toml", &text);
        let path = folder.path("manager");
        let (manager, named) = if is_abstract {
            let name = format!("vigie-test-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).expect("a name");
            (UnixDatagram::bind_addr(&address), format!("@{name}"))
        } else {
            (UnixDatagram::bind(&path), path.display().to_string())
        };
        let manager = manager.expect("a socket");
        manager.set_read_timeout(Some(BOUND)).expect("a socket");

        let line = line.replace("/etc/vigie-forward.toml", config.to_str().expect("text"));
        let mut words = line.split(' ');
        assert!(words.next().is_some_and(|program| program.ends_with("/vigie-forward")));
        let mut command = Command::new(PROGRAM);
        command.args(words).env("NOTIFY_SOCKET", named).env("WATCHDOG_USEC", "20000");
        let mut relay = Instance::of(&mut command, &folder).ready();
        assert!(until(&manager, "READY=1").contains("STATUS=forwards, 1 flow"));
        until(&manager, "WATCHDOG=1");
        until(&manager, "WATCHDOG=1");

        let mut client = connect(relay.address("relay-1"));
        exchange(&mut client, b"ahoy");
        relay.signal(Signal::HUP);
        let told = until(&manager, "RELOADING=1");
        let micros = told.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        assert!(micros.is_some_and(|micros| micros.parse::<u64>().is_ok()), "{told}");
        until(&manager, "READY=1");
        relay.signal(Signal::TERM);
        until(&manager, "STOPPING=1");
        until(&manager, "WATCHDOG=1");
        exchange(&mut client, b"still here");
        drop(client);
        assert_eq!(relay.wait().code(), 0);
    }
}
