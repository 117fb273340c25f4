//! `kill -9` at every transmission, on real processes: this test binary starts itself again as three ranks,
//! of which one kills itself.

#[path = "crash/killer.rs"]
mod killer;
#[path = "crash/rank.rs"]
mod rank;

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
};

use killer::Death;
use rank::{PATIENCE, Rank, VICTIM};
use vigie_via::vi::Address;

const ROLE: &str = "VIGIE_CRASH_RANK";
const DEATH: &str = "VIGIE_CRASH_DEATH";
/// Set if the ranks connect when they first need each other.
const ON_DEMAND: &str = "VIGIE_CRASH_ON_DEMAND";
const SIZE: u32 = 3;
/// More transmissions than a rank makes.
const DEATHS_MAX: u64 = 2000;
/// More steps than it takes to connect with both others.
const EARLY_DEATHS: u64 = 24;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn descriptor_count() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// A rank. Does nothing when run as a test.
#[test]
fn in_a_role() {
    let Ok(role) = env::var(ROLE) else { return };
    let number: u32 = role.parse().expect("a rank");
    let death = env::var(DEATH).ok().filter(|_| number == VICTIM).map(|text| {
        let (when, at) = text.split_once(' ').expect("when and at what");
        let at = at.parse().expect("a number");
        if when == "before" { Death::Before(at) } else { Death::After(at) }
    });
    let before = descriptor_count();
    let mut rank = Rank::new(number, SIZE);
    println!("\naddress {}", hexadecimal(&rank.address().0));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the addresses");
    let addresses: Vec<_> = line.split_whitespace().map(|text| Address(parse(text))).collect();
    assert_eq!(addresses.len(), usize::try_from(SIZE).expect("small"));
    if env::var_os(ON_DEMAND).is_some() {
        rank.introduce(&addresses, death);
    } else {
        rank.connect(&addresses);
        rank.plan(death);
    }
    rank.run();
    assert_eq!(descriptor_count(), before, "descriptors are left");
    let maps = fs::read_to_string("/proc/self/maps").expect("proc");
    assert!(!maps.contains("vigie-shm"), "mappings are left: {maps}");
}

struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

enum Said {
    Line(u32, String),
    End,
}

impl Ranks {
    fn start(variables: &[(&str, &str)], heard: &mpsc::Sender<Said>) -> Self {
        let mut ranks = Self(Vec::new());
        for rank in 0..SIZE {
            let mut command = Command::new(env::current_exe().expect("this test"));
            command
                .args(["--exact", "in_a_role", "--nocapture"])
                .env(ROLE, rank.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .envs(variables.iter().copied());
            let mut child = command.spawn().expect("this test, once more");
            let output = BufReader::new(child.stdout.take().expect("piped"));
            let heard = heard.clone();
            thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    let _ = heard.send(Said::Line(rank, line));
                }
                let _ = heard.send(Said::End);
            });
            ranks.0.push(child);
        }
        ranks
    }

    /// Lets the ranks run to their ends. Returns their addresses and how they ended.
    fn run(variables: &[(&str, &str)]) -> (Vec<String>, Vec<ExitStatus>) {
        let (heard, said) = mpsc::channel();
        let mut ranks = Self::start(variables, &heard);
        let mut addresses = vec![String::new(); ranks.0.len()];
        let (mut missing, mut running, mut output) = (SIZE, SIZE, String::new());
        while running > 0 {
            let next = said.recv_timeout(PATIENCE);
            match next.unwrap_or_else(|_| panic!("{variables:?}: a rank hangs: {output}")) {
                Said::Line(rank, line) => {
                    if let Some(address) = line.strip_prefix("address ") {
                        addresses[usize::try_from(rank).expect("small")] = address.to_owned();
                        missing -= 1;
                    }
                    output += &format!("{rank}: {line}\n");
                }
                Said::End => running -= 1,
            }
            if missing == 0 {
                missing = SIZE;
                for child in &mut ranks.0 {
                    let mut input = child.stdin.take().expect("piped");
                    writeln!(input, "{}", addresses.join(" ")).expect("a rank that listens");
                }
            }
        }
        let ends = ranks.0.iter_mut().map(|child| child.wait().expect("a child")).collect();
        (addresses, ends)
    }
}

/// Names of leftovers in shared places.
fn leavings() -> Vec<String> {
    ["/dev/shm", "/tmp"]
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.contains("vigie-shm"))
        .collect()
}

/// Returns whether the victim was killed; all others must have ended in order.
fn has_died(death: &str, ends: Vec<ExitStatus>) -> bool {
    let mut has_died = false;
    for (rank, end) in (0..).zip(ends) {
        let is_killed = rank == VICTIM && end.signal() == Some(9);
        assert!(is_killed || end.success(), "{death}: rank {rank} ended by {end}");
        has_died |= is_killed;
    }
    has_died
}

/// Goal: `kill -9` of a rank at any protocol step costs the others no more than the messages from and to
/// that rank: requests that wait for it end in an error that names it, no rank hangs, the others'
/// messages continue, and nothing is left behind. Method: three processes exchange messages of every
/// kind; one kills itself before or after its k-th transmission, for each k until it ends regularly.
#[test]
fn a_rank_may_die_at_any_transmission() {
    let before = leavings();
    for when in ["before", "after"] {
        let mut death_count = 0;
        for k in 1..=DEATHS_MAX {
            let death = format!("{when} {k}");
            let (addresses, ends) = Ranks::run(&[(DEATH, &death)]);
            let sockets = fs::read_to_string("/proc/net/unix").expect("proc");
            for address in addresses {
                // The name of the socket is in the address, behind five bytes.
                let name = &address[10..42];
                assert!(!sockets.contains(name), "{death}: the socket {name} is left");
            }
            if !has_died(&death, ends) {
                break;
            }
            death_count += 1;
        }
        println!("{death_count} deaths, each {when} a transmission");
        assert!((40..DEATHS_MAX).contains(&death_count), "{death_count} transmissions");
    }
    assert_eq!(leavings(), before);
}

/// Goal: `kill -9` of a rank while it and the others connect is told to the survivors: what they want of it ends in an error that
/// names it, and they reach each other. Method: three processes that connect when they first need each other, all at once; one
/// kills itself before or after its k-th step of that, for the first steps.
#[test]
fn a_rank_may_die_while_it_connects() {
    let before = leavings();
    for when in ["before", "after"] {
        for k in 1..=EARLY_DEATHS {
            let death = format!("{when} {k}");
            let (_, ends) = Ranks::run(&[(DEATH, &death), (ON_DEMAND, "1")]);
            assert!(has_died(&death, ends), "{death}: it had no such step");
        }
    }
    assert_eq!(leavings(), before);
}
