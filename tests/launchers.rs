//! Launchers that clusters have, for real: MPICH's Hydra and Slurm; and hosts without one, which meet over TCP. The
//! ranks are this test binary again.
//!
//! Hydra is Debian's package mpich; for Slurm `scripts/with-slurm` makes two nodes on this machine, and for hosts
//! `scripts/with-hosts` makes network namespaces on a bridge, between which messages go over UDP. What is not
//! installed is skipped, and says so.

use std::{
    env,
    future::Future,
    io::Write,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use vigie::{
    Flavor, Instant, Runtime,
    detect::Server,
    via::{
        message::Endpoint,
        protocol::EngineConfig,
        software_nic::SoftwareNicConfig,
        udp::Udp,
        world::{Rank, World, WorldError},
    },
};

/// Nothing here takes as long, unless it hangs.
const BOUND: Duration = Duration::from_secs(60);
/// Says to this binary, as a rank, which test it is a rank of.
const ROLE: &str = "VIGIE_TEST_ROLE";

/// A command before whose arguments a launcher stands.
#[derive(Clone, Copy)]
struct Launcher {
    name: &'static str,
    words: &'static [&'static str],
}

const HYDRA: Launcher = Launcher { name: "mpiexec.hydra", words: &["-n", "4"] };
const SLURM: Launcher = Launcher {
    name: concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/with-slurm"),
    words: &["srun", "--kill-on-bad-exit", "-N2", "-n4", "--overcommit", "--mpi=pmi2"],
};

/// Slurms and networks of hosts are many processes each: one after the other.
static PRIVILEGED: Mutex<()> = Mutex::new(());

impl Launcher {
    /// Starts this binary as the ranks of `test`, with a bound on its time. `None`: it is not there.
    fn run(self, test: &str) -> Option<Output> {
        let exe = env::current_exe().expect("this binary has a path");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &BOUND.as_secs().to_string(), self.name]);
        command.args(self.words).arg(exe);
        command.args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
        command.env(ROLE, test).stdin(Stdio::null());
        Self::finish(test, self.name, &mut command)
    }

    /// Runs a command with a bound on its time. `None`: something is not there.
    fn finish(test: &str, name: &str, command: &mut Command) -> Option<Output> {
        let is_privileged = name.contains("with-");
        let _turn =
            is_privileged.then(|| PRIVILEGED.lock().unwrap_or_else(PoisonError::into_inner));
        let output = command.output().expect("`timeout` is on every system");
        // What `timeout` and `with-slurm` end with if something is not installed.
        if let Some(77 | 127) = output.status.code() {
            let why = String::from_utf8_lossy(&output.stderr);
            // Written past the test harness, which shows what a test prints only if it fails.
            let said = format!("\n*** SKIPPED: {test}: {name} cannot be used ***\n{why}\n");
            drop(std::io::stderr().write_all(said.as_bytes()));
            return None;
        }
        assert_ne!(output.status.code(), Some(124), "it hangs: {}", text(&output));
        Some(output)
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// If this process is a rank of `test`, runs `body` as that and ends the process.
fn be_rank_of<F: Future<Output = ()>>(test: &str, body: impl FnOnce(World, Instant) -> F) {
    if env::var(ROLE).as_deref() != Ok(test) {
        return;
    }
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.block_on(async {
        let deadline = Instant::now() + BOUND;
        let world = World::join(deadline).await.expect("the environment leads to the launcher");
        body(world, deadline).await;
    });
    std::process::exit(0);
}

/// Every rank tells every other something, over the launcher and in messages.
async fn exchange(world: World, deadline: Instant) {
    let (own, size) = (world.rank().0, world.size());
    assert_eq!(size, 4);
    let early = world.get(Rank((own + 1) % size), "long", deadline).await;
    let is_expected = matches!(early, Ok(Some(_)) | Err(WorldError::NotPut { .. }));
    assert!(is_expected, "{early:?}");
    // As long as may be, so that it travels in pieces.
    let value = |rank: u32| vec![u8::try_from(rank).expect("small"); 500];
    world.put("long", &value(own), deadline).await.expect("it takes it");
    world.put("empty", b"", deadline).await.expect("it takes it");
    world.barrier(deadline).await.expect("all come");
    for rank in 0..size {
        let long = world.get(Rank(rank), "long", deadline).await.expect("it tells it");
        assert_eq!(long, Some(value(rank)));
        let empty = world.get(Rank(rank), "empty", deadline).await.expect("it tells it");
        assert_eq!(empty, Some(Vec::new()));
    }
    let secrets = world.all_gather("id", &world.identity().secret, deadline).await.expect("all");
    assert!(secrets.iter().all(|one| one.as_deref() == Some(&world.identity().secret[..])));
    let endpoint = Endpoint::join(&world, deadline).await.expect("all connect");
    let all = endpoint.communicator();
    for round in 0..20_u8 {
        for to in (0..size).filter(|to| *to != own) {
            all.send(to, 1, &[round; 1024]).await.expect("it is sent");
        }
        for from in (0..size).filter(|from| *from != own) {
            let mut message = [0; 1024];
            all.recv_into(from, 1, &mut message[..]).await.expect("it comes");
            assert_eq!(message, [round; 1024]);
        }
    }
    for _ in 0..3 {
        world.barrier(deadline).await.expect("all come");
    }
    world.leave(deadline).await.expect("the launcher hears");
    let after = world.barrier(deadline).await;
    assert!(matches!(after, Err(WorldError::Left)), "{after:?}");
    println!("\n@rank {own} of {size} is content");
}

fn assert_content(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    for rank in 0..4 {
        assert!(stdout.contains(&format!("@rank {rank} of 4 is content")), "{}", text(output));
    }
}

/// One rank asks the launcher to end all; the others wait for it.
async fn abort(world: World, deadline: Instant) {
    world.barrier(deadline).await.expect("all come");
    if world.rank() == Rank(1) {
        world.abort(7);
    }
    drop(world.barrier(deadline).await);
    // Who is not killed by the launcher shall be seen.
    thread::park_timeout(BOUND);
    println!("\n@survived");
}

/// One rank ends without leaving; the others wait for it.
async fn die(world: World, deadline: Instant) {
    world.barrier(deadline).await.expect("all come");
    if world.rank() == Rank(1) {
        std::process::exit(5);
    }
    drop(world.barrier(deadline).await);
    thread::park_timeout(BOUND);
    println!("\n@survived");
}

/// Goal: ranks that Hydra starts find each other and exchange messages. Method: four, with values as long as may
/// be and messages from everybody to everybody.
#[test]
fn hydra_exchange() {
    be_rank_of("hydra_exchange", exchange);
    if let Some(output) = HYDRA.run("hydra_exchange") {
        assert_content(&output);
    }
}

/// Goal: an abort ends all ranks, and the launcher with its code. Method: one of four aborts with 7.
#[test]
fn hydra_abort() {
    be_rank_of("hydra_abort", abort);
    if let Some(output) = HYDRA.run("hydra_abort") {
        assert_eq!(output.status.code(), Some(7), "{}", text(&output));
        assert!(!text(&output).contains("@survived"), "{}", text(&output));
    }
}

/// Goal: the death of a rank ends all. Method: one of four ends without leaving.
#[test]
fn hydra_death() {
    be_rank_of("hydra_death", die);
    if let Some(output) = HYDRA.run("hydra_death") {
        assert!(!output.status.success(), "{}", text(&output));
        assert!(!text(&output).contains("@survived"), "{}", text(&output));
    }
}

/// Goal: ranks that Slurm starts on two nodes find each other and exchange messages. Method: as under Hydra.
#[test]
#[ignore = "needs privilege: slurmd runs as root"]
fn slurm_exchange() {
    be_rank_of("slurm_exchange", exchange);
    if let Some(output) = SLURM.run("slurm_exchange") {
        assert_content(&output);
    }
}

/// Goal: an abort ends all ranks. Method: one of four aborts with 7; the others are killed, and srun ends with the
/// largest code.
#[test]
#[ignore = "needs privilege: slurmd runs as root"]
fn slurm_abort() {
    be_rank_of("slurm_abort", abort);
    if let Some(output) = SLURM.run("slurm_abort") {
        assert!(!output.status.success(), "{}", text(&output));
        assert!(!text(&output).contains("@survived"), "{}", text(&output));
    }
}

/// Goal: the death of a rank ends all, with srun's flag for that. Method: one of four ends without leaving.
#[test]
#[ignore = "needs privilege: slurmd runs as root"]
fn slurm_death() {
    be_rank_of("slurm_death", die);
    if let Some(output) = SLURM.run("slurm_death") {
        assert!(!output.status.success(), "{}", text(&output));
        assert!(!text(&output).contains("@survived"), "{}", text(&output));
    }
}

/// Goal: ranks that Slurm started without telling them of each other do not each take themselves for the world.
/// Method: srun without `--mpi=pmi2`.
#[test]
#[ignore = "needs privilege: slurmd runs as root"]
fn slurm_without_pmi() {
    const TEST: &str = "slurm_without_pmi";
    if env::var(ROLE).as_deref() == Ok(TEST) {
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
        let joined = runtime.block_on(World::join(Instant::now() + BOUND));
        let error = joined.expect_err("nobody brings them together");
        println!("\n@{error}");
        std::process::exit(0);
    }
    assert!(Path::new(SLURM.name).exists());
    let launcher =
        Launcher { words: &["srun", "-N2", "-n2", "--overcommit", "--mpi=none"], ..SLURM };
    if let Some(output) = launcher.run(TEST) {
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(stdout.matches("@`SLURM_STEP_NUM_TASKS`").count(), 2, "{}", text(&output));
    }
}

/// Starts a shell beside `count` hosts, which finds in its environment this binary as `EXE`, its arguments as a rank of
/// `test` as `ARGS`, and `vigie-run` as `RUN`.
fn beside_hosts(test: &str, count: u32, script: &str) -> Option<Output> {
    const NAME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/with-hosts");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "120", NAME, &count.to_string(), "bash", "-euc", script]);
    command.env("EXE", env::current_exe().expect("this binary has a path"));
    command.env("ARGS", format!("{test} --exact --nocapture --include-ignored --test-threads=1"));
    command.env("RUN", env!("CARGO_BIN_EXE_vigie-run")).env(ROLE, test).stdin(Stdio::null());
    Launcher::finish(test, NAME, &mut command)
}

/// Every rank tells every other something in messages over UDP.
async fn exchange_over_network(world: World, deadline: Instant) {
    let home: IpAddr = env::var("VIGIE_HOME").expect("set by the script").parse().expect("one");
    // Connecting says nothing to anybody: it finds the address of this host in the network.
    let way = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    way.connect(SocketAddr::new(home, 9)).expect("there is a way");
    let here = SocketAddr::new(way.local_addr().expect("it has one").ip(), 0);
    let nic = Udp::bind(here, world.secret(), SoftwareNicConfig::default());
    let server = Server::current().expect("in a runtime");
    let (nic, config) = (nic.expect("a NIC"), EngineConfig::default());
    let endpoint = Endpoint::join_over(&server, &world, nic, config, deadline).await;
    let (endpoint, own, size) = (endpoint.expect("all connect"), world.rank().0, world.size());
    let all = endpoint.communicator();
    for to in (0..size).filter(|to| *to != own) {
        let message = [own, to].map(u32::to_le_bytes).concat().repeat(128);
        let sent = vigie::time::timeout_at(deadline, all.send(to, 1, &message)).await;
        sent.unwrap_or_else(|_| panic!("{own} cannot send to {to}")).expect("it is sent");
    }
    for from in (0..size).filter(|from| *from != own) {
        let mut message = [0; 1024];
        let received =
            vigie::time::timeout_at(deadline, all.recv_into(from, 1, &mut message[..])).await;
        received.unwrap_or_else(|_| panic!("{own} hears nothing of {from}")).expect("it comes");
        assert_eq!(message[..], [from, own].map(u32::to_le_bytes).concat().repeat(128));
    }
    world.barrier(deadline).await.expect("all come");
    world.leave(deadline).await.expect("the launcher hears");
    println!("\n@rank {own} of {size} at {} is content", here.ip());
}

/// Checks that all ranks were content, on as many hosts.
fn assert_hosts(output: &Output, ranks: u32, hosts: usize) {
    assert!(output.status.success(), "{}", text(output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let mut addresses = std::collections::BTreeSet::new();
    for rank in 0..ranks {
        let (_, rest) = stdout
            .split_once(&format!("@rank {rank} of {ranks} at "))
            .unwrap_or_else(|| panic!("{}", text(output)));
        addresses.extend(rest.split(' ').next());
    }
    assert_eq!(addresses.len(), hosts, "{}", text(output));
}

/// Goal: ranks that Hydra starts on many hosts exchange messages over their network. Method: 32 ranks on four
/// hosts, 1 KiB from everybody to everybody.
#[test]
#[ignore = "needs privilege: hosts are network namespaces"]
fn hosts_hydra() {
    const TEST: &str = "hosts_hydra";
    be_rank_of(TEST, exchange_over_network);
    let script = "exec mpiexec.hydra -launcher rsh -launcher-exec \"$VIGIE_RSH\" \
                  -localhost \"$VIGIE_HOME\" -hosts \"$VIGIE_HOSTS\" -n 32 \"$EXE\" $ARGS";
    if let Some(output) = beside_hosts(TEST, 4, script) {
        assert_hosts(&output, 32, 4);
    }
}

/// Goal: ranks of hosts without any launcher of a cluster meet over TCP and exchange messages over their network.
/// Method: one `vigie-run` on each of three hosts, the first of which serves the rendezvous.
#[test]
#[ignore = "needs privilege: hosts are network namespaces"]
fn hosts_meet_over_tcp() {
    const TEST: &str = "hosts_meet_over_tcp";
    be_rank_of(TEST, exchange_over_network);
    let script = "
        export VIGIE_SECRET=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n')
        IFS=, read -r one two three <<<\"$VIGIE_HOSTS\"
        pids=()
        \"$VIGIE_RSH\" $one \"$RUN\" -n 6 --listen $one:7000 --here 0-1 \"$EXE\" $ARGS & pids+=($!)
        \"$VIGIE_RSH\" $two \"$RUN\" -n 6 --meet $one:7000 --here 2-3 \"$EXE\" $ARGS & pids+=($!)
        \"$VIGIE_RSH\" $three \"$RUN\" -n 6 --meet $one:7000 --here 4-5 \"$EXE\" $ARGS & pids+=($!)
        for pid in \"${pids[@]}\"; do wait $pid; done";
    if let Some(output) = beside_hosts(TEST, 3, script) {
        assert_hosts(&output, 6, 3);
    }
}
