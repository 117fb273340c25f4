//! Programs at many interfaces, and what is said where they cannot be.

use std::process::Command;

use crate::{
    instance::{Folder, PROGRAM, counter, run_command},
    network::{Network, SERVER, call, with_network},
    paths::{forward, has_programs},
};

/// Goal: a program forwards between more interfaces than the library expects unless told. Method: a router with 20, of which the last two are used.
#[test]
fn many_interfaces_have_a_program() {
    const TEST: &str = "programs::many_interfaces_have_a_program";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        let names: Vec<_> = (0..9).flat_map(|n| [format!("v{n}"), format!("w{n}")]).collect();
        for pair in names.chunks(2) {
            let (one, other) = (&pair[0], &pair[1]);
            network.router.run(&format!("ip link add {one} type veth peer name {other}"));
        }
        let mut arguments = vec!["l3", "--path", "tcx"];
        arguments.extend(names.iter().map(String::as_str).chain(["ra", "rb"]));
        let folder = Folder::new();
        let router = forward(network, &folder, &arguments);
        let (port, caller, socket) = (network.echo(), network.caller(), folder.path("stats"));
        // More than the program leaves to the host while that may have packets for a new neighbour.
        for _ in 0..600 {
            call(&caller, SERVER, port);
        }
        assert!(counter(&socket, "l3", "nic: sent_packets") > 0);
        assert_eq!(router.end().code(), 0);
    });
}

/// Goal: what cannot be because of a setting is said at its key. Method: files whose paths, addresses and ports do not fit this host.
#[test]
fn errors_are_at_their_keys() {
    const TEST: &str = "programs::errors_are_at_their_keys";
    with_network(TEST, |network| {
        let nat = "[[nat]]\ninside = ['ra']\noutside = 'rb'\n";
        let mut cases = vec![
            (
                format!("{nat}address = '10.2.0.1'\npath = 'af-packet'\n"),
                "line 5, column 8",
                "keeps their packets",
            ),
            (format!("{nat}address = '10.1.0.9'\n"), "line 4, column 11", "behind `ra`"),
            (
                format!(
                    "{nat}publish = ['tcp:1=10.1.0.2:1', 'tcp:33000=10.1.0.2:1']\naddress = '10.2.0.9'\n"
                ),
                "line 4, column 32",
                "port 33000",
            ),
        ];
        if has_programs(TEST) {
            // The kernel has no XDP for frames of this size.
            network.router.run("ip link set ra mtu 60000");
            network.client.run("ip link set c0 mtu 60000");
            let text = "[[l3]]\ninterfaces = ['ra', 'rb']\npath = 'xdp-native'\n".to_owned();
            cases.push((text, "line 3, column 8", "--path auto"));
        }
        for (text, place, words) in cases {
            let said = refused(network, &text);
            assert!(said.contains(place) && said.contains(words), "{text}\n{said}");
        }
    });
}

/// Returns what a forwarder with this file says that does not start.
#[track_caller]
fn refused(network: &Network, text: &str) -> String {
    let folder = Folder::new();
    let (id, file) = (network.router.id().to_string(), folder.write("f.toml", text));
    let mut command = Command::new("nsenter");
    command.args(["-t", &id, "-n", "--", PROGRAM, "run", "--config"]).arg(file);
    let (code, _, said) = run_command(&mut command);
    assert_eq!(code, 2, "{text}\n{said}");
    said
}
