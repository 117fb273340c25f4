//! Processes meet at barriers over the network, with one algorithm after the other.
//!
//! Each member is a process in a network namespace of its own on a bridge, like a host on a switch, where that is
//! allowed (root, or user namespaces); otherwise members use loopback addresses, and raw Ethernet is left out. They
//! meet at an address where rank 0 listens. The time of a barrier is measured as in figure 4 of the barrier paper: each
//! member loops over a barrier and a dummy loop, and minimum, mean and maximum of each member are averaged over all.
//!
//! ```text
//! cargo run --release --features barrier --example barrier
//! ```
//!
//! It ends after some seconds, and prints, among other figures:
//!
//! ```text
//! 8 members in network namespaces on a bridge
//! over      algorithm           min µs   mean µs    max µs
//! udp       concurrent            51.2      87.0     310.5
//! …
//! udp: concurrent: expected 42.0 µs by measured costs, observed p50 53.1 µs, p99 160.2 µs, ratio 1.26
//! …
//! ```
//!
//! The expected time follows from the network's costs in the LogP model, which the members measure when they form a
//! group. A wait is longer when members do not arrive at the same time.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vigie::barrier::net::{MulticastState, NetBarrier};
use vigie::barrier::{Algorithm, Rank};
use vigie::via::datagram::UdpSettings;
use vigie::via::link::Link;
use vigie::{Flavor, Instant, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MEMBERS: u32 = 8;
const BARRIERS: u32 = 300;
const WARM_UP: u32 = 20;
/// As in the paper.
const DUMMY: Duration = Duration::from_micros(30);
/// The time limit of a run, in seconds.
const BOUND: &str = "50";

const CASES: [(&str, &str); 9] = [
    ("udp", "concurrent"),
    ("udp", "ternary"),
    ("udp", "binary"),
    ("udp", "dissemination"),
    ("udp", "central"),
    ("ether", "concurrent"),
    ("ether", "ternary"),
    ("ether", "binary"),
    ("ether", "dissemination"),
];

/// `rank,port` and whether the member is in a namespace.
const ROLE: &str = "VIGIE_EXAMPLE_BARRIER";
const MARK: &str = "VIGIE_EXAMPLE_BARRIER_INSIDE";

fn main() -> Result<()> {
    if let Ok(role) = env::var(ROLE) {
        return play(&role);
    }
    if env::var_os(MARK).is_some() {
        return conduct(&Bridge::make()?.0);
    }
    // A namespace in which it may create others; inside a user namespace, or as root.
    for way in ["-Urn", "-n"] {
        let allowed =
            Command::new("unshare").args([way, "--", "unshare", "-n", "ip", "link"]).output();
        if allowed.is_ok_and(|output| output.status.success()) {
            let again = Command::new("unshare")
                .args([way, "--", "timeout", BOUND])
                .arg(env::current_exe()?)
                .env(MARK, "1")
                .status()?;
            return if again.success() { Ok(()) } else { Err(format!("inside: {again}").into()) };
        }
    }
    conduct(&[])
}

/// Starts the members, and prints their results.
fn conduct(keepers: &[Child]) -> Result<()> {
    let is_inside = !keepers.is_empty();
    let place =
        if is_inside { "in network namespaces on a bridge" } else { "on loopback addresses" };
    println!("{MEMBERS} members {place}");

    // In a namespace every port is free.
    let port = if is_inside { 4747 } else { free_port()? };
    let mut members = Vec::new();
    for rank in 0..MEMBERS {
        let program = env::current_exe()?;
        let mut command = match keepers.get(usize::try_from(rank)?) {
            Some(keeper) => {
                let mut command = Command::new("nsenter");
                command
                    .args(["-t", &keeper.id().to_string(), "-n", "--", "timeout", BOUND])
                    .arg(program);
                command
            }
            None => {
                let mut command = Command::new("timeout");
                command.arg(BOUND).arg(program);
                command
            }
        };
        command.env(ROLE, format!("{rank},{port},{is_inside}")).stdout(Stdio::piped());
        members.push(command.spawn()?);
    }

    let mut sums = [[0.0; 3]; CASES.len()];
    let mut notes = String::new();
    for member in &mut members {
        let mut said = String::new();
        member.stdout.take().ok_or("piped")?.read_to_string(&mut said)?;
        for line in said.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [case, times @ ..] = &words[..] else { continue };
            let Ok(case) = case.parse::<usize>() else {
                notes = format!("{notes}{line}\n");
                continue;
            };
            for (sum, time) in sums[case].iter_mut().zip(times) {
                *sum += time.parse::<f64>()? / f64::from(MEMBERS);
            }
        }
    }

    for member in &mut members {
        let status = member.wait()?;
        if !status.success() {
            return Err(format!("a member ended with {status}").into());
        }
    }

    println!("{:<10}{:<18}{:>8}{:>10}{:>10}", "over", "algorithm", "min µs", "mean µs", "max µs");
    for ((over, algorithm), [min, mean, max]) in CASES.iter().zip(sums) {
        if mean > 0.0 {
            println!("{over:<10}{algorithm:<18}{min:>8.1}{mean:>10.1}{max:>10.1}");
        }
    }

    print!("{notes}");
    assert!(sums[0][1] > 0.0, "barriers over UDP work everywhere");
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn address(rank: u32, is_inside: bool, port: u16) -> IpAddr {
    let last = u8::try_from(rank + 1).unwrap_or(u8::MAX);
    let [high, low] = port.to_be_bytes();
    if is_inside {
        Ipv4Addr::new(10, 80, 0, last).into()
    } else {
        // Concurrent runs do not meet.
        Ipv4Addr::new(127, high, low, last).into()
    }
}

/// One member: runs all cases, and prints a line for each.
fn play(role: &str) -> Result<()> {
    let words: Vec<&str> = role.split(',').collect();
    let [rank, port, is_inside] = words[..] else { return Err("a role".into()) };
    let (rank, port): (u32, u16) = (rank.parse()?, port.parse()?);
    let is_inside = is_inside == "true";
    let place = if is_inside { address(0, true, port) } else { Ipv4Addr::LOCALHOST.into() };
    Runtime::builder().flavor(Flavor::UserLevel).build()?.block_on(async {
        for (index, (over, name)) in CASES.iter().enumerate() {
            let algorithm: Algorithm = name.parse()?;
            let mut builder = NetBarrier::builder().algorithm(algorithm).measure_costs();
            builder = match *over {
                "udp" => builder.network(UdpSettings::new(address(rank, is_inside, port))),
                _ if is_inside => builder.network(Link::builder("veth0").open()?),
                // There is no wire between the members.
                _ => continue,
            };
            let place = SocketAddr::new(place, port);
            let mut barrier = builder.form_at(place, Rank(rank), MEMBERS).await?;
            if let (MulticastState::Blocked { why }, 0) = (barrier.multicast(), rank) {
                println!("{over}, {name}: no multicast: {why}");
            }
            let [min, mean, max] = measure(&mut barrier).await?;
            println!("{index} {min} {mean} {max}");
            if rank == 0 {
                println!("{over}: {}", barrier.report()?);
            }
            barrier.leave(Duration::from_secs(2)).await?;
        }
        Ok(())
    })
}

/// Minimum, mean and maximum time of a barrier of this member, in microseconds.
async fn measure(barrier: &mut NetBarrier) -> Result<[f64; 3]> {
    let [mut min, mut sum, mut max] = [f64::MAX, 0.0, 0.0_f64];
    for turn in 0..WARM_UP + BARRIERS {
        let begun = Instant::now();
        while begun.elapsed() < DUMMY {
            std::hint::spin_loop();
        }
        let entered = Instant::now();
        barrier.wait().await?;
        let micros = entered.elapsed().as_secs_f64() * 1e6;
        if turn >= WARM_UP {
            (min, sum, max) = (min.min(micros), sum + micros, max.max(micros));
        }
    }
    Ok([min, sum / f64::from(BARRIERS), max])
}

/// Namespaces on a bridge in this one, each kept by a process that ends with this one.
struct Bridge(Vec<Child>);

impl Bridge {
    fn make() -> Result<Self> {
        let mut this = Self(Vec::new());
        run(
            "ip link set lo up; ip link add br0 type bridge mcast_snooping 0 && ip link set br0 up",
        )?;
        for rank in 0..MEMBERS {
            let mut keeper = Command::new("unshare")
                .args(["-n", "sh", "-c", "echo here; exec cat"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let output = keeper.stdout.take().ok_or("piped")?;
            BufReader::new(output).read_line(&mut String::new())?;
            let (id, address) = (keeper.id(), address(rank, true, 0));
            this.0.push(keeper);
            run(&format!(
                "ip link add port{rank} type veth peer name veth0 netns {id} && ip link set port{rank} master br0 up && \
                 nsenter -t {id} -n sh -c 'ip link set lo up; ip addr add {address}/24 dev veth0 && \
                 ip link set veth0 up && ip route add 224.0.0.0/4 dev veth0'"
            ))?;
        }
        // Adding ports may have turned it on again; without a querier, multicast would stop after minutes.
        run("ip link set br0 type bridge mcast_snooping 0")?;
        Ok(this)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for keeper in &mut self.0 {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

fn run(command: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", command]).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{command}`: {}", String::from_utf8_lossy(&output.stderr)).into())
}
