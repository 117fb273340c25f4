//! The paths by which `vigie-forward` forwards packets and bytes, side by side.
//!
//! Run `cargo build --release --features cli-forward --bin vigie-forward` and then `cargo run --release --features
//! cli-forward --example forward`. A client, a router and a server run in three network namespaces; the client calls
//! the server over UDP, while the router forwards by each path in turn. A relay forwards TCP over loopback. Round
//! trips, on a machine with two cores:
//!
//! ```text
//! path                       p50         p99
//! TCP, direct             6.3 µs     23.1 µs
//! relay, copy            41.3 µs   4150.2 µs
//! relay, splice          41.5 µs   3993.0 µs
//! l3, af-packet          31.4 µs    481.3 µs
//! l3, xdp-generic         6.1 µs     11.1 µs
//! l3, xdp-native     SKIPPED: it needs `ethtool`, to turn off checksums
//! ```
//! Without the rights for namespaces the second part is skipped, with a message; without those for programs, their rows
//! say so.

use std::{
    env,
    error::Error,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use vigie::{Instant, detect::clock::monotonic_now, forward::nic::PassAll};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Round trips of one row.
const CALLS: usize = 2000;
/// Round trips that may be lost at first, while neighbours are resolved.
const TRIES: usize = 100;
/// A longer wait means that something hangs.
const BOUND: Duration = Duration::from_secs(20);
/// Tells this program, started again, that it is in a namespace of its own.
const MARK: &str = "VIGIE_EXAMPLE_IN_NAMESPACE";

fn main() -> Result<()> {
    let program = program()?;
    if env::var_os(MARK).is_some() {
        return in_namespaces(&program);
    }
    println!("{:<18} {:>11} {:>11}", "path", "p50", "p99");
    over_loopback(&program)?;
    let works = |way: &&&str| {
        let unshare = Command::new("unshare").args([way, "--", "ip", "link"]).output();
        unshare.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ["-n", "-Urn"].iter().find(works) else {
        eprintln!(
            "SKIPPED: packets between namespaces need `unshare -n` and `ip`: root, or user namespaces"
        );
        return Ok(());
    };
    let mut command = Command::new("unshare");
    let again = command.arg(way).arg("--").arg(env::current_exe()?).env(MARK, "1").status()?;
    if again.success() { Ok(()) } else { Err("the part in namespaces failed".into()) }
}

/// Finds the program beside this example.
fn program() -> Result<PathBuf> {
    let own = env::current_exe()?;
    let folder =
        own.parent().and_then(|folder| folder.parent()).ok_or("this program has no folder")?;
    let program = folder.join("vigie-forward");
    if program.exists() {
        return Ok(program);
    }
    Err("build the command first: cargo build --release --features cli-forward --bin vigie-forward"
        .into())
}

/// A forwarder; ended when it is dropped.
struct Forwarder {
    child: Child,
    said: Vec<String>,
}

impl Forwarder {
    /// Starts one, and waits until it forwards.
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let errors = child.stderr.take().ok_or("no standard error")?;
        let mut this = Self { child, said: Vec::new() };
        let mut lines = BufReader::new(errors).lines();
        for line in lines.by_ref() {
            let line = line?;
            let is_ready = line.contains("forwards; ");
            this.said.push(line);
            if is_ready {
                // Read the rest, so that it never blocks on its output.
                thread::spawn(move || lines.for_each(drop));
                return Ok(this);
            }
        }
        let last = this.said.last().map_or("it said nothing", String::as_str);
        Err(last.strip_prefix("vigie-forward: ").unwrap_or(last).into())
    }

    /// Returns the text that it printed after these words.
    fn said(&self, words: &str) -> Result<&str> {
        let found = self.said.iter().find_map(|line| Some(line.split_once(words)?.1));
        Ok(found.ok_or_else(|| format!("it does not say `{words}`"))?)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Measures round trips, and prints a row.
fn row(path: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begin: Instant = monotonic_now();
        call()?;
        times.push(monotonic_now() - begin);
    }
    times.sort_unstable();
    let micros = |share: usize| times[CALLS * share / 100].as_secs_f64() * 1e6;
    println!("{path:<18} {:>8.1} µs {:>8.1} µs", micros(50), micros(99));
    Ok(())
}

/// Relays TCP by copying and by splicing, compared with no relay.
fn over_loopback(program: &Path) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut message = [0; 64];
                while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok()
                {
                }
            });
        }
    });

    let measure = |name: &str, address: &str| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(BOUND))?;
        let mut message = [7; 64];
        row(name, || {
            stream.write_all(&message)?;
            Ok(stream.read_exact(&mut message)?)
        })
    };

    measure("TCP, direct", &to.to_string())?;
    for mode in ["copy", "splice"] {
        let mut command = Command::new(program);
        command.args(["relay", "--listen", "tcp://127.0.0.1:0", "--mode", mode, "--drain", "1s"]);
        let relay = Forwarder::start(command.args(["--to", &format!("tcp://{to}")]))?;
        measure(&format!("relay, {mode}"), relay.said("listens at tcp:")?)?;
    }

    Ok(())
}

/// A network namespace, and the process that keeps it.
struct Host(Child);

impl Host {
    fn new() -> Result<Self> {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo here; exec sleep 120"])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = keeper.stdout.take().ok_or("no standard output")?;
        BufReader::new(output).read_line(&mut String::new())?;
        Ok(Self(keeper))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.id().to_string(), "-n", "--", program]);
        command
    }

    fn run(&self, line: &str) -> Result<()> {
        let mut words = line.split(' ');
        let output = self.command(words.next().unwrap_or_default()).args(words).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    fn namespace(&self) -> Result<File> {
        Ok(File::open(format!("/proc/{}/ns/net", self.0.id()))?)
    }

    /// Creates a socket there: sockets stay in the namespace where they were created.
    fn socket(&self, address: &str) -> Result<UdpSocket> {
        let namespace = self.namespace()?;
        let enter = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<_, Box<dyn Error + Send + Sync>>(UdpSocket::bind(address)?)
        };
        thread::scope(|scope| scope.spawn(enter).join()).map_err(|_| "a thread panicked")?
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Routes between namespaces, by each path.
fn in_namespaces(program: &Path) -> Result<()> {
    let (client, router, server) = (Host::new()?, Host::new()?, Host::new()?);

    // Otherwise the kernel would forward as well.
    let off =
        "echo 0 >/proc/sys/net/ipv4/ip_forward || test $(cat /proc/sys/net/ipv4/ip_forward) = 0";
    if !router.command("sh").args(["-c", off]).status()?.success() {
        return Err("the kernel's own forwarding cannot be turned off".into());
    }

    for (host, near, far, network) in [(&client, "ra", "c0", 1), (&server, "rb", "s0", 2)] {
        let id = host.0.id();
        router.run(&format!("ip link add name {near} type veth peer name {far} netns {id}"))?;
        for (host, name, last) in [(&router, near, 1), (host, far, 2)] {
            host.run(&format!("ip addr add 10.{network}.0.{last}/24 dev {name}"))?;
            host.run(&format!("ip link set dev {name} up"))?;
        }
        host.run(&format!("ip route add default via 10.{network}.0.1"))?;
    }

    let echo = server.socket("10.2.0.2:0")?;
    let to = echo.local_addr()?;
    thread::spawn(move || {
        let mut message = [0; 64];
        while let Ok((count, from)) = echo.recv_from(&mut message) {
            let _ = echo.send_to(&message[..count], from);
        }
    });

    let caller = client.socket("10.1.0.2:0")?;
    caller.connect(to)?;
    for path in ["af-packet", "xdp-generic", "xdp-native"] {
        // Frames redirected into a veth pair are lost unless its other end has a program, too.
        let passing = if path == "xdp-native" { prepare(&client, &server) } else { Ok(Vec::new()) };
        let name = format!("l3, {path}");
        let mut command = router.command(&program.to_string_lossy());
        let started = Forwarder::start(command.args(["l3", "ra", "rb", "--path", path]));
        match (started, passing) {
            (Ok(_forwarder), Ok(_passing)) => {
                warm_up(&caller)?;
                row(&name, || round_trip(&caller))?;
            }
            (Err(error), _) | (_, Err(error)) => println!("{name:<18} SKIPPED: {error}"),
        }
    }

    Ok(())
}

/// Prepares veth pairs for programs in their driver. Frames redirected into a pair are lost unless its other end has a
/// program, too; and checksums that senders leave to the driver are never computed.
fn prepare(client: &Host, server: &Host) -> Result<Vec<PassAll>> {
    let mut all = Vec::new();
    for (host, name) in [(client, "c0"), (server, "s0")] {
        host.run(&format!("ethtool -K {name} tx off"))
            .map_err(|_| "it needs `ethtool`, to turn off checksums")?;
        // Its only interface besides lo.
        all.push(PassAll::inside(host.namespace()?.as_fd(), 2)?);
    }
    Ok(all)
}

/// Calls until there is an answer: meanwhile neighbours are resolved.
fn warm_up(caller: &UdpSocket) -> Result<()> {
    caller.set_read_timeout(Some(Duration::from_millis(100)))?;
    let answered = (0..TRIES).any(|_| round_trip(caller).is_ok());
    caller.set_read_timeout(Some(BOUND))?;
    if answered { Ok(()) } else { Err("no answer".into()) }
}

fn round_trip(caller: &UdpSocket) -> Result<()> {
    let mut message = [7; 64];
    caller.send(&message)?;
    caller.recv(&mut message)?;
    Ok(())
}
