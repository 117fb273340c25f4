//! Frames of 64 bytes through a router, a translator and a bridge, beside the kernel's own.
//!
//! *Question*: how many small frames a second does one core forward by `vigie-forward`, and how long does a small datagram
//! take there and back, beside the kernel that it replaces; and what does the command itself compute meanwhile?
//! *Prediction*: a program at tcx skips the kernel's hooks, routes and tables of translations, and has a fifth more for a
//! router, a quarter for a bridge and four fifths for a translator. *Method*: live XDP frames (`BPF_F_TEST_XDP_LIVE_FRAMES`) are redirected
//! into the router's first interface, where the kernel makes packets of them, and are counted and dropped at the server's,
//! all on one core, so that its time is the processor's; before that, datagrams of 22 bytes go there and
//! back between sockets that both ends poll. Kernel and program in turns, each between namespaces of its own; ratios are within a turn. The
//! least program shows what the way itself takes. *Unit*: million frames per second; µs.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vigie_detect::clock::monotonic_now;
use vigie_forward::bpf::{
    Assembler, AttachMode, Attachment, Generator, Helper, LoadedProgram, Program, ProgramKind,
    Register::{R1, R2},
};

use super::beginnings::socket_in;
use super::line::{CLIENT, Line, LineForwarder};
use super::live_frames::{FrameEnds, address, counting, feeding, index, sum};
use super::relay::processor_time;
use crate::error::Failure;
use crate::host::{Namespace, allowed, enter, pin};
use crate::report::{Outcome, Plan, Progress, Row, Show, Subject, lines};
use crate::statistics::median;

/// The row's case.
pub(crate) const FRAMES: &str = "frames";
const MFRAMES_S: &str = "mframes_s";
const RATE_BY_KERNEL: &str = "times_kernel";
const P50_US: &str = "p50_us";
const P50_BY_KERNEL: &str = "p50_times_kernel";
const OWN_CORES: &str = "own_cores";
const MEMORY_MIB: &str = "memory_mib";
const LOST: &str = "lost";

/// Each of the kernel's comes before the one that is compared with it.
const FORWARDERS: [(LineForwarder, &str, &str); 7] = [
    (LineForwarder::IpForward, "frames-kernel", "ip_forward"),
    (LineForwarder::ByHand, "frames-by-hand", "a program that only redirects"),
    (LineForwarder::Route, "frames-l3", "vigie-forward l3"),
    (LineForwarder::Masquerade, "frames-masquerade", "nft masquerade"),
    (LineForwarder::Nat, "frames-nat", "vigie-forward nat"),
    (LineForwarder::Bridge, "frames-bridge", "bridge"),
    (LineForwarder::Switch, "frames-l2", "vigie-forward l2"),
];

/// Frames of one call of the generator, and calls of a turn.
const BURST: u32 = 1 << 17;
const BURSTS: u32 = 16;
/// Round trips of a turn, and bytes of the datagram in a frame of 64 bytes.
const TRIPS: usize = 4000;
const DATAGRAM: [u8; 22] = [7; 22];
/// So many datagrams may be lost before the first that counts.
const FAILURES_MAX: u32 = 10;
/// A datagram that is not back by then is lost.
const SILENCE: Duration = Duration::from_millis(200);
/// Datagrams to the server, and from it.
const PORTS: (u16, u16) = (9, 7);

/// Small frames through all forwarders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramesPlan {
    rounds: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    mframes_s: f64,
    p50_us: f64,
    own_cores: f64,
    memory_mib: f64,
    lost: u64,
}

#[derive(Debug, Default)]
struct Sums {
    turns: Vec<Turn>,
    rate_by_kernel: Vec<f64>,
    /// Not of a program for one direction.
    p50_us: Vec<f64>,
    p50_by_kernel: Vec<f64>,
}

impl FramesPlan {
    pub(super) const fn new(rounds: u32) -> Self {
        Self { rounds }
    }

    /// Returns whether a name means this plan.
    pub(super) fn has(name: &str) -> bool {
        name == FRAMES
    }

    fn measure(self, progress: &mut Progress) -> Result<Vec<Sums>, String> {
        let mut sums: Vec<Sums> = FORWARDERS.iter().map(|_| Sums::default()).collect();
        for round in 0..self.rounds {
            progress.case(format!("turn {} of {}", round + 1, self.rounds));
            let mut of_kernel = Turn::default();
            for ((forwarder, ..), sums) in FORWARDERS.into_iter().zip(&mut sums) {
                let turn = turn(forwarder)?;
                if forwarder.is_kernel() {
                    of_kernel = turn;
                }
                sums.rate_by_kernel.push(turn.mframes_s / of_kernel.mframes_s);
                if forwarder != LineForwarder::ByHand {
                    sums.p50_by_kernel.push(turn.p50_us / of_kernel.p50_us);
                    sums.p50_us.push(turn.p50_us);
                }
                sums.turns.push(turn);
            }
            progress.case_done();
        }
        Ok(sums)
    }
}

impl Plan for FramesPlan {
    fn cases(&self) -> usize {
        self.rounds as usize
    }

    fn run(
        &self,
        _seed: u64,
        progress: &mut Progress,
    ) -> Result<Outcome, crate::error::BenchError> {
        // Namespaces are entered, which must not outlast the measurement.
        let measured = std::thread::scope(|scope| scope.spawn(|| self.measure(progress)).join());
        let measured = measured.unwrap_or_else(|_| Err("the measuring thread panicked".to_owned()));
        let row = |(_, name, label): (LineForwarder, &'static str, &'static str)| {
            Row::new(Subject::Carrier { name, label }, FRAMES)
        };
        let rows = match measured {
            Ok(sums) => {
                FORWARDERS.into_iter().zip(sums).map(|(one, sums)| sums.put(row(one))).collect()
            }
            Err(failure) => FORWARDERS
                .map(|one| {
                    let mut row = row(one);
                    row.failure = Some(failure.clone());
                    row
                })
                .into(),
        };
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = "Frames of 64 bytes between three namespaces, all on one core";
        let columns = [
            ("10⁶ frames/s", Show::Fixed(MFRAMES_S, 2)),
            ("× the kernel", Show::Fixed(RATE_BY_KERNEL, 2)),
            ("lost", Show::Fixed(LOST, 0)),
            ("round trip, p50 (µs)", Show::Fixed(P50_US, 2)),
            ("× the kernel's", Show::Fixed(P50_BY_KERNEL, 3)),
            ("the command's cores", Show::Fixed(OWN_CORES, 3)),
            ("memory (MiB)", Show::Fixed(MEMORY_MIB, 1)),
        ];
        let own = rows.iter().filter(|row| row.case == FRAMES);
        let table = lines(title, "forwarder", own, &columns);
        let failure = rows.iter().find_map(|row| row.failure.as_ref());
        failure.map_or_else(|| table.to_string(), |failure| format!("{table}\n{failure}"))
    }
}

impl Sums {
    fn put(&self, row: Row) -> Row {
        let of = |figure: fn(&Turn) -> f64| self.turns.iter().map(figure).collect::<Vec<_>>();
        let figures = [
            (MFRAMES_S, of(|turn| turn.mframes_s)),
            (P50_US, self.p50_us.clone()),
            (OWN_CORES, of(|turn| turn.own_cores)),
            (MEMORY_MIB, of(|turn| turn.memory_mib)),
            (RATE_BY_KERNEL, self.rate_by_kernel.clone()),
            (P50_BY_KERNEL, self.p50_by_kernel.clone()),
        ];
        let row = figures.iter().fold(row, |row, (key, figures)| match median(figures) {
            Some(figure) => row.with_figure(key, figure),
            None => row,
        });
        let lost: u64 = self.turns.iter().map(|turn| turn.lost).sum();
        row.with_figure(LOST, lost).with_figure("samples", self.turns.len())
    }
}

fn turn(forwarder: LineForwarder) -> Result<Turn, String> {
    let line = Line::make(forwarder)?;
    let p50_us = round_trip(&line, forwarder.server()).map_err(|failure| failure.to_string())?;
    // The kernel takes live frames at a veth interface only where it polls.
    let polls = line.router.run("ethtool", "-K ra gro on");
    polls.map_err(|missing| format!("{missing}; it needs ethtool (`apt install ethtool`)"))?;
    let rate = std::thread::scope(|scope| scope.spawn(|| rate(&line, forwarder)).join());
    let rate = rate.unwrap_or_else(|_| Err("the generating thread panicked".to_owned()))?;
    Ok(Turn { p50_us, ..rate })
}

/// Half of all round trips between the ends take no longer, in µs. Each end has a core of its own.
fn round_trip(line: &Line, server: [u8; 4]) -> Result<f64, Failure> {
    let failed = || Failure::io("sending datagrams there and back");
    let (near, far) = (socket_in(&line.client, PORTS.0)?, socket_in(&line.server, PORTS.1)?);
    for socket in [&near, &far] {
        socket.set_nonblocking(true).map_err(failed())?;
    }
    near.connect((Ipv4Addr::from(server), PORTS.1)).map_err(failed())?;
    let is_over = AtomicBool::new(false);
    let echo = || {
        pin(allowed().get(1..2).unwrap_or_default())?;
        let mut bytes = DATAGRAM;
        while !is_over.load(Ordering::Relaxed) {
            if let Ok((count, from)) = far.recv_from(&mut bytes) {
                // One that is lost is missed at the other end.
                let _ = far.send_to(&bytes[..count], from);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let echo = scope.spawn(echo);
        let times = scope.spawn(|| trips(&near)).join().expect("invariant: it does not panic");
        is_over.store(true, Ordering::Relaxed);
        echo.join().expect("invariant: it does not panic")?;
        let mut times = times.map_err(failed())?;
        times.sort_unstable();
        Ok(times[times.len() / 2].as_secs_f64() * 1e6)
    })
}

fn trips(near: &UdpSocket) -> std::io::Result<Vec<Duration>> {
    // A core that is refused is another core.
    let _ = pin(allowed().get(..1).unwrap_or_default());
    let mut number = 0_u64;
    let mut trip = || {
        // An earlier one that was held must not pass for this one.
        number += 1;
        let (mut sent, mut bytes) = (DATAGRAM, DATAGRAM);
        sent[..8].copy_from_slice(&number.to_le_bytes());
        let begin = monotonic_now();
        near.send(&sent)?;
        loop {
            let elapsed = monotonic_now() - begin;
            match near.recv(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && elapsed < SILENCE => {}
                Ok(_) if bytes != sent && elapsed < SILENCE => {}
                received => return received.map(|_| elapsed),
            }
        }
    };
    // Neighbours are found, and the program knows the flow: until then, datagrams may be lost.
    let mut failures = 0;
    for _ in 0..TRIPS / 4 {
        if let Err(error) = trip() {
            failures += 1;
            if failures > FAILURES_MAX {
                return Err(error);
            }
        }
    }
    (0..TRIPS).map(|_| trip()).collect()
}

/// Sends frames from the client's interface, on one core.
fn rate(line: &Line, forwarder: LineForwarder) -> Result<Turn, String> {
    pin(&allowed()[..1]).map_err(|error| error.to_string())?;
    let said = |error: &dyn std::error::Error| error.to_string();
    let inside = |host: &Namespace| enter(&host.path()).map_err(|error| said(&error));
    let next = match forwarder {
        LineForwarder::Bridge | LineForwarder::Switch => address(&line.server, "s0")?,
        _ => address(&line.router, "ra")?,
    };
    let ends = FrameEnds {
        macs: (address(&line.client, "c0")?, next),
        addresses: (CLIENT, forwarder.server()),
        ports: PORTS,
    };
    let (source, sink) = (index(&line.client, "c0")?, index(&line.server, "s0")?);
    let load = |program| LoadedProgram::load(&program).map_err(|error| said(&error));
    let (generator, counter) = (load(feeding(source, &ends.frame())?)?, load(counting()?)?);
    inside(&line.server)?;
    let attached = Attachment::new(&counter, sink, AttachMode::Native);
    let _attached = attached.map_err(|error| said(&error))?;
    inside(&line.router)?;
    let by_hand = (forwarder == LineForwarder::ByHand).then(|| {
        let program = load(redirecting(index(&line.router, "rb")?)?)?;
        let arrival = index(&line.router, "ra")?;
        Attachment::new(&program, arrival, AttachMode::Tcx).map_err(|error| said(&error))
    });
    let _by_hand = by_hand.transpose()?;
    inside(&line.client)?;
    let generator = Generator::new(&generator, &ends.frame(), source);
    let burst = || generator.burst(BURST).map_err(|error| said(&error));
    let own_time = || line.command.as_ref().and_then(|command| processor_time(Some(command.id())));

    burst()?;
    let (before, own_before) = (sum(&counter, 0, 0)?, own_time());
    let begin = monotonic_now();
    (0..BURSTS).try_for_each(|_| burst())?;
    let elapsed = (monotonic_now() - begin).as_secs_f64();
    let delivered = sum(&counter, 0, 0)? - before;
    if delivered == 0 {
        return Err(format!("no frame has passed {forwarder:?}"));
    }
    let own = match (&line.command, own_before, own_time()) {
        (None, ..) => 0.0,
        (Some(_), Some(before), Some(after)) => after - before,
        _ => return Err(format!("the command for {forwarder:?} has ended")),
    };
    Ok(Turn {
        mframes_s: delivered as f64 / elapsed / 1e6,
        p50_us: 0.0,
        own_cores: own / elapsed,
        memory_mib: line.command.as_ref().map_or(0.0, |command| memory_mib(command.id())),
        lost: (u64::from(BURST) * u64::from(BURSTS)).saturating_sub(delivered),
    })
}

/// A program that hands everything on, without a look: no forwarder at tcx can do less.
fn redirecting(interface: u32) -> Result<Program, String> {
    let mut a = Assembler::new("vigie_redirects", ProgramKind::Tcx);
    a.set(R1, i32::try_from(interface).unwrap_or(0)).set(R2, 0).call(Helper::Redirect).exit();
    a.finish().map_err(|error| error.to_string())
}

/// Returns the resident memory of a process, what it has mapped of the kernel's rings included; not a number if it has ended.
fn memory_mib(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}
