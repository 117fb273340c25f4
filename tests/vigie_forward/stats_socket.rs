//! Lines at the stats socket that no client of this program sends, and clients that send none.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
};

use crate::{
    echo_server,
    instance::{BOUND, Folder, Instance, PROGRAM, report, run},
};

fn open(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a socket");
    stream
}

/// Sends bytes and the end, and returns the answer until its end. The instance may refuse the rest.
fn say(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = open(socket);
    drop(stream.write_all(bytes));
    drop(stream.shutdown(std::net::Shutdown::Write));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it is silent");
    }
    answer
}

/// Random, changed and cut lines. None says that the listeners were taken.
fn line(rng: &mut fastrand::Rng) -> Vec<u8> {
    let words =
        ["report", "move", "relay", "nic", "host", "takeover", "taken", "", "{}", "\u{fffd}"];
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(1..5) {
        bytes.extend(words[rng.usize(..words.len())].bytes());
        bytes.push(b' ');
    }
    for _ in 0..rng.usize(..3) {
        let at = rng.usize(..bytes.len());
        match rng.u8(..3) {
            0 => bytes.truncate(at + 1),
            1 => bytes[at] = rng.u8(..),
            _ => bytes = bytes.repeat(rng.usize(1..30)),
        }
    }
    bytes.retain(|byte| *byte != b'\n');
    let text = String::from_utf8_lossy(&bytes);
    if text.trim() == "taken" || rng.u8(..8) == 0 {
        return bytes;
    }
    bytes.push(b'\n');
    bytes
}

/// Goal: any line gets its answer, an error that says why, or the end, and the instance goes on; clients that say nothing, or half a line, keep no other from its answer,
/// however many they are. Method: 300 conversations by seed, beside 40 such clients; the report after each ten.
#[test]
fn any_line_is_answered() {
    let (folder, to) = (Folder::new(), echo_server());
    let socket = folder.path("stats");
    let named = socket.to_str().expect("text");
    let relay = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--stats-socket", named];
    let relay = Instance::start(&folder, &relay).ready();
    let mut silent = Vec::new();
    for number in 0..40 {
        let mut client = open(&socket);
        if number % 2 == 0 {
            client.write_all(b"repo").expect("it is taken");
        }
        silent.push(client);
    }
    let (mut errors, mut others) = (0, 0);
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let lines: Vec<u8> = (0..rng.usize(1..6)).flat_map(|_| line(&mut rng)).collect();
        let answer = say(&socket, &lines);
        let answer = String::from_utf8(answer).expect("text");
        for reply in answer.lines().filter(|reply| !reply.is_empty()) {
            let reply: serde_json::Value = serde_json::from_str(reply).expect("JSON");
            let error = reply["error"].as_str();
            assert!(error.is_none_or(|error| error.len() > 10), "seed {seed}: {reply}");
            if error.is_some() { errors += 1 } else { others += 1 }
        }
        if seed % 10 == 0 {
            assert_eq!(report(&socket)["pid"], relay.id(), "seed {seed}");
        }
    }
    assert!(errors > 100 && others > 10, "{errors} {others}");
    let long = say(&socket, &[b'x'; 256]);
    assert!(String::from_utf8_lossy(&long).contains("at most 256 bytes"), "{long:?}");

    // The oldest have made room, and the last one has kept its place until as many others came.
    let mut last = open(&socket);
    last.write_all(b"rep").expect("it is taken");
    report(&socket);
    last.write_all(b"ort\n").expect("it is taken");
    let mut answer = String::new();
    BufReader::new(&last).read_line(&mut answer).expect("an answer");
    assert!(answer.contains("\"flows\""), "{answer}");
    assert_eq!(silent[0].read(&mut [0; 1]).unwrap_or(0), 0, "it was ended");
    assert_eq!(relay.end().code(), 0);
}

/// Goal: without `--socket`, `stats` and `move` name the option and the sockets of instances that are not at the usual path. Method: one by its command
/// line, and one by a file, both with paths relative to their folder.
#[test]
fn sockets_elsewhere_are_named() {
    let (folder, to) = (Folder::new(), echo_server());
    let relay = format!("[[relay]]\nlisten = 'tcp://127.0.0.1:0'\nto = '{to}'\n");
    folder.write("config.toml", &format!("[process]\ntakeover = 'by-file'\n{relay}"));
    let start = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        Instance::of(command.args(arguments).current_dir(&folder.0), &folder).ready()
    };
    let by_line =
        ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--stats-socket", "by-line"];
    let instances =
        [("by-line", start(&by_line)), ("by-file", start(&["run", "--config", "config.toml"]))];
    // It was right when the instance read it.
    folder.write(
        "config.toml",
        &format!("[process]\ntakeover = 'by-file'\ndrain = 5\n{relay}[[rely]\n"),
    );
    let (empty, place) = (Folder::new(), folder.0.canonicalize().expect("it is there"));
    for arguments in [&["stats"][..], &["move", "relay", "nic"]] {
        let (code, _, errors) = run(&empty, arguments);
        assert!(code == 1 && errors.contains("--socket"), "{code} {errors}");
        for (name, instance) in &instances {
            let line = format!("  {} (process {})", place.join(name).display(), instance.id());
            assert!(errors.lines().any(|found| found == line), "{line} in {errors}");
        }
    }
    for (_, instance) in instances {
        assert_eq!(instance.end().code(), 0);
    }
    let (_, _, errors) = run(&empty, &["stats"]);
    assert!(!errors.contains("by-file"), "{errors}");
}
