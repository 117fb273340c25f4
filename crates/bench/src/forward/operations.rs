//! What operators do to `vigie-forward`, and what one host may do to others: what is cut, lost or refused.
//!
//! *Question*: how many of 100 000 relayed connections (or as many as the limit of descriptors allows) does a reload cut, and how
//! many a restart that takes over; how many of 10 000 translations does a restart lose; and how many new flows of a host fail
//! once another host has begun 100 000 flows, by a SYN or a datagram each, none of which is answered? *Prediction*: none, and a
//! new flow takes no longer. *Method*: each connection carries a byte there and back after each change; each translation
//! carries a datagram from outside; 1000 new flows of one datagram there and back before the flood, and after it. *Unit*: the
//! number that failed; the ratio of medians.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use vigie_detect::clock::monotonic_now;
use vigie_forward::packet::{Packet, Port};
use vigie_via::link::{BackEnd, Link, LinkError};

use super::beginnings::socket_in;
use super::line::{ForwardCommand, Line, LineForwarder, NAT, report};
use super::live_frames::address;
use crate::error::Failure;
use crate::host::enter;
use crate::host::limits::allow_connections;
use crate::report::{Outcome, Plan, Progress, Row, Show, Subject, lines};
use crate::statistics::median;

/// The row's case.
pub(crate) const OPERATIONS: &str = "operations";
const TRIED: &str = "tried";
const FAILED: &str = "failed";
const RATIO: &str = "ratio";

type Measure = fn() -> Result<Found, String>;

/// What is done, in order.
const MEASURES: [(&str, &str, Measure); 3] = [
    ("operations-relay", "relayed connections, two reloads and a takeover", relayed),
    ("operations-nat", "translations, a restart", translated),
    ("operations-flood", "new flows after another host's flood", flooded),
];

/// The most relayed connections.
const CONNECTIONS: usize = 100_000;
/// Addresses of targets, and of clients: no pair of them has enough ports for all.
const HOSTS: u8 = 4;
const TRANSLATIONS: usize = 10_000;
const CALLS: u32 = 1_000;
const FLOOD: u32 = 100_000;
/// How often so many are sent, until as many flows have begun at the router.
const FLOODS_MAX: u32 = 30;
/// After so many failures in a row nothing else is tried.
const IN_ROW_MAX: usize = 5;
/// For what is not answered by then, nothing comes.
const SILENCE: Duration = Duration::from_secs(2);
/// The port of the server's socket (not the discard port, where the command asks for neighbours), and an address from which
/// nothing answers.
const SERVER_PORT: u16 = 7;
const SILENT: [u8; 4] = [10, 2, 0, 77];
const FLOODING: [u8; 4] = [10, 1, 0, 66];

#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationsPlan;

/// What became of connections or flows.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Connections or flows; `tried` counts each once for every change.
    samples: usize,
    tried: usize,
    failed: usize,
    /// The median time after the flood / before it.
    ratio: Option<f64>,
}

impl OperationsPlan {
    /// Returns whether a name means this plan.
    pub(super) fn has(name: &str) -> bool {
        name == OPERATIONS
    }
}

impl Plan for OperationsPlan {
    fn cases(&self) -> usize {
        MEASURES.len()
    }

    fn run(
        &self,
        _seed: u64,
        progress: &mut Progress,
    ) -> Result<Outcome, crate::error::BenchError> {
        let mut rows = Vec::new();
        for (name, label, measure) in MEASURES {
            progress.case(label);
            let mut row = Row::new(Subject::Carrier { name, label }, OPERATIONS);
            // Namespaces are entered, which must not outlast the measurement.
            let found = thread::spawn(measure).join();
            match found.unwrap_or_else(|_| Err("the measuring thread panicked".to_owned())) {
                Ok(found) => {
                    row = row.with_figure(TRIED, found.tried).with_figure(FAILED, found.failed);
                    row = row.with_figure("samples", found.samples);
                    if let Some(ratio) = found.ratio {
                        row = row.with_figure(RATIO, ratio);
                    }
                }
                Err(failure) => row.failure = Some(failure),
            }
            rows.push(row);
            progress.case_done();
        }
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = "What reloads, restarts and floods cost others";
        let columns = [
            ("tried", Show::Fixed(TRIED, 0)),
            ("failed", Show::Fixed(FAILED, 0)),
            ("median time, × before", Show::Fixed(RATIO, 2)),
        ];
        let own = rows.iter().filter(|row| row.case == OPERATIONS);
        let table = lines(title, "", own, &columns);
        let failures: Vec<_> = rows.iter().filter_map(|row| row.failure.clone()).collect();
        if failures.is_empty() {
            table.to_string()
        } else {
            format!("{table}\n{}", failures.join("\n"))
        }
    }
}

/// Counts those that failed. After several in a row, the rest counts as failed without being tried: each would take its time.
fn count_failures(tries: impl ExactSizeIterator<Item = bool>) -> usize {
    let (mut failed, mut in_row, count) = (0, 0, tries.len());
    for (number, is_well) in tries.enumerate() {
        in_row = if is_well { 0 } else { in_row + 1 };
        failed += usize::from(!is_well);
        if in_row == IN_ROW_MAX {
            return failed + count - number - 1;
        }
    }
    failed
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

/// A folder for files of a command, removed at the end.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self, String> {
        let name = format!("vigie-bench-operations-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(text)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// ---------------------------------------------------------------------- relayed connections

/// Both ends of relayed connections.
#[derive(Debug)]
struct RelayedEnds {
    /// The clients' ends, and the targets'.
    ends: Vec<(TcpStream, Option<TcpStream>)>,
    accepted: Receiver<(u32, TcpStream)>,
    targets: Vec<SocketAddr>,
}

impl RelayedEnds {
    fn listen() -> io::Result<Self> {
        let (sender, accepted) = channel();
        let mut targets = Vec::new();
        for host in 1..=HOSTS {
            let listener = TcpListener::bind((Ipv4Addr::new(127, 2, 0, host), 0))?;
            targets.push(listener.local_addr()?);
            let sender = sender.clone();
            thread::spawn(move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    // Each begins with its number.
                    let mut number = [0; 4];
                    let is_there = stream.set_read_timeout(Some(SILENCE)).is_ok()
                        && stream.read_exact(&mut number).is_ok();
                    if is_there && sender.send((u32::from_le_bytes(number), stream)).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { ends: Vec::new(), accepted, targets })
    }

    /// Connects so many more clients.
    fn connect(&mut self, to: u16, count: usize) -> io::Result<()> {
        let first = self.ends.len();
        for number in first..first + count {
            let host = u8::try_from(number % usize::from(HOSTS)).unwrap_or(0) + 1;
            // The relay listens at all addresses of this host: each has ports of its own.
            let mut stream = TcpStream::connect((Ipv4Addr::new(127, 3, 0, host), to))?;
            stream.set_nodelay(true)?;
            stream.write_all(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes())?;
            stream.set_read_timeout(Some(SILENCE))?;
            self.ends.push((stream, None));
        }
        for _ in 0..count {
            let Ok((number, stream)) = self.accepted.recv_timeout(SILENCE) else { break };
            stream.set_read_timeout(Some(SILENCE))?;
            if let Some((_, end)) = self.ends.get_mut(number as usize) {
                *end = Some(stream);
            }
        }
        Ok(())
    }

    /// Returns how many carry no byte there and back.
    fn broken(&mut self) -> usize {
        let carries = |(near, far): &mut (TcpStream, Option<TcpStream>)| {
            let far = far.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            let mut byte = [0];
            near.write_all(&[1])?;
            far.read_exact(&mut byte)?;
            far.write_all(&[2])?;
            near.read_exact(&mut byte)
        };
        count_failures(self.ends.iter_mut().map(|ends| carries(ends).is_ok()))
    }
}

/// Returns how many connections this process and the relay, which has the same limit, may hold both ends of.
fn most_connections() -> usize {
    let counts =
        [CONNECTIONS, CONNECTIONS / 2, CONNECTIONS / 5, CONNECTIONS / 12, CONNECTIONS / 250];
    let needed = |count: usize| u32::try_from(2 * count + count / 50 + 1000).unwrap_or(u32::MAX);
    let allowed = counts.into_iter().find(|count| allow_connections(needed(*count)).is_ok());
    allowed.unwrap_or(CONNECTIONS / 1000)
}

fn relayed() -> Result<Found, String> {
    let most = most_connections();
    let folder = Folder::make()?;
    let mut connections = RelayedEnds::listen().map_err(text)?;
    let targets: Vec<_> = connections.targets.iter().map(|to| format!("'tcp://{to}'")).collect();
    let port =
        TcpListener::bind("0.0.0.0:0").and_then(|one| one.local_addr()).map_err(text)?.port();
    let file = folder.0.join("flows.toml");
    let control = folder.0.join("control");
    let write = |idle: &str, more: &str| {
        let text_of = format!(
            "[process]\ndrain = '10m'\ntakeover = '{}'\n[[relay]]\nname = 'many'\nlisten = 'tcp://0.0.0.0:{port}'\n\
             to = [{}]\nbalance = 'round-robin'\nidle = '{idle}'\nconnections_max = {}\n{more}",
            control.display(),
            targets.join(", "),
            2 * most,
        );
        std::fs::write(&file, text_of).map_err(text)
    };
    let start = || ForwardCommand::start_here(&format!("run --config {}", file.display()));
    write("10m", "")?;
    let mut first = start()?;
    connections.connect(port, most).map_err(text)?;
    let mut failed = connections.broken();
    // A flow beside it that is new, then a setting of its own.
    let beside =
        "[[relay]]\nname = 'beside'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://127.0.0.1:9'\n";
    for (idle, expected) in
        [("10m", "1 unchanged, 0 ended, 1 new"), ("9m", "1 unchanged, 1 ended, 1 new")]
    {
        write(idle, beside)?;
        first.signal(Signal::HUP)?;
        // Also if it is refused.
        let said = first.until("SIGHUP: ")?;
        if !said.contains(expected) {
            return Err(format!("the reload was to have {expected}: {said}"));
        }
        failed += connections.broken();
    }
    let _second = start()?;
    let before = connections.ends.len();
    connections.connect(port, most / 100).map_err(text)?;
    failed += connections.broken();
    Ok(Found { samples: before, tried: 4 * before + most / 100, failed, ratio: None })
}

// ---------------------------------------------------------------------- translations

/// Sends numbers from sockets of their own. Returns from where each came to the server.
fn translate(clients: &[UdpSocket], server: &UdpSocket) -> io::Result<Vec<Option<SocketAddr>>> {
    let to = (Ipv4Addr::from(LineForwarder::Nat.server()), SERVER_PORT);
    let mut seen = vec![None; clients.len()];
    let mut number = [0; 4];
    for (own, client) in (0_u32..).zip(clients) {
        client.send_to(&own.to_le_bytes(), to)?;
        let (_, from) = server.recv_from(&mut number)?;
        if let Some(place) = seen.get_mut(u32::from_le_bytes(number) as usize) {
            *place = Some(from);
        }
    }
    Ok(seen)
}

fn translated() -> Result<Found, String> {
    allow_connections(u32::try_from(TRANSLATIONS + 1000).unwrap_or(u32::MAX)).map_err(text)?;
    let folder = Folder::make()?;
    let line = Line::bare(LineForwarder::Nat)?;
    let arguments = format!("{NAT} --state {}", folder.0.join("state").display());
    let router = ForwardCommand::start(&line.router, &arguments)?;
    let clients = (0..TRANSLATIONS).map(|_| socket_in(&line.client, 0));
    let clients = clients.collect::<Result<Vec<_>, _>>().map_err(text)?;
    let server = socket_in(&line.server, SERVER_PORT).map_err(text)?;
    for socket in clients.iter().chain([&server]) {
        socket.set_read_timeout(Some(SILENCE)).map_err(text)?;
    }
    let seen = translate(&clients, &server).map_err(text)?;
    router.end()?;
    let _router = ForwardCommand::start(&line.router, &arguments)?;
    let is_back = |(number, (client, seen)): (usize, (&UdpSocket, Option<SocketAddr>))| {
        let (bytes, mut answer) = (u32::try_from(number).unwrap_or(0).to_le_bytes(), [0; 4]);
        seen.is_some_and(|to| {
            server.send_to(&bytes, to).is_ok()
                && client.recv(&mut answer).is_ok()
                && answer == bytes
        })
    };
    let failed = count_failures(clients.iter().zip(seen).enumerate().map(is_back));
    Ok(Found { samples: TRANSLATIONS, tried: TRANSLATIONS, failed, ratio: None })
}

// ---------------------------------------------------------------------- a flood

/// Calls the server from new sockets. Returns the times of those that were answered; after several in a row that were not, it
/// calls no more.
fn call(line: &Line) -> Result<Vec<f64>, Failure> {
    let failed = || Failure::io("calling the server");
    let server = socket_in(&line.server, SERVER_PORT)?;
    server.set_read_timeout(Some(SILENCE / 20)).map_err(failed())?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 4];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((count, from)) = server.recv_from(&mut bytes) {
                    // One that is lost is missed by its caller.
                    let _ = server.send_to(&bytes[..count], from);
                }
            }
        });
        let mut in_row = 0;
        let calls = (0..CALLS).map(|number| {
            if in_row == IN_ROW_MAX {
                return Ok(None);
            }
            let caller = socket_in(&line.client, 0)?;
            caller.set_read_timeout(Some(SILENCE)).map_err(failed())?;
            let to = (Ipv4Addr::from(LineForwarder::Nat.server()), SERVER_PORT);
            let (begin, mut answer) = (monotonic_now(), [0; 4]);
            caller.send_to(&number.to_le_bytes(), to).map_err(failed())?;
            let is_back = caller.recv(&mut answer).is_ok() && answer == number.to_le_bytes();
            in_row = if is_back { 0 } else { in_row + 1 };
            Ok(is_back.then(|| (monotonic_now() - begin).as_secs_f64()))
        });
        let times = calls.collect::<Result<Vec<_>, _>>();
        is_over.store(true, Ordering::Relaxed);
        Ok(times?.into_iter().flatten().collect())
    })
}

/// The first packet of a flow from the flooding host: a SYN, or a datagram.
fn first_packet(to: [u8; 6], number: u32, is_tcp: bool) -> Vec<u8> {
    let (protocol, rest): (u8, &[u8]) = if is_tcp {
        (6, &[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0])
    } else {
        (17, &[0, 12, 0, 0, 7, 7, 7, 7])
    };
    let length = u16::try_from(20 + 4 + rest.len()).unwrap_or(0);
    let ports = [number % 50_000 + 1_000, number / 50_000 + 1_000];
    let mut frame = Vec::with_capacity(64);
    frame.extend(to);
    frame.extend([2, 0, 0, 0, 0, 66, 8, 0, 0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(FLOODING);
    frame.extend(SILENT);
    ports.iter().for_each(|port| frame.extend(u16::try_from(*port).unwrap_or(0).to_be_bytes()));
    frame.extend(rest);
    let mut packet = Packet::new(Port(0), &frame);
    // It is IPv4, as written above.
    let _ = packet.fill_checksums();
    packet.bytes().to_vec()
}

fn flood(client: &Path, to: [u8; 6]) -> Result<(), String> {
    enter(client).map_err(text)?;
    let link = Link::builder("c0").back_end(BackEnd::PacketRings).send_frames(512);
    let mut link = link.open().map_err(text)?;
    for (number, is_tcp) in (0..FLOOD).flat_map(|number| [(number, true), (number, false)]) {
        let frame = first_packet(to, number, is_tcp);
        while let Err(error) = link.send_frame(&frame) {
            if !matches!(error, LinkError::Full) {
                return Err(text(error));
            }
            link.flush().map_err(text)?;
        }
    }
    link.flush().map_err(text)
}

/// Returns how many translations have begun: those that are there, and those that were ended for others.
fn begun_translations(socket: &Path) -> Result<u64, String> {
    let report = report(socket)?;
    let counters = &report["flows"][0]["counters"];
    let of = |name: &str| counters[name].as_u64().ok_or_else(|| format!("`stats` has no `{name}`"));
    Ok(of("translations")? + of("translations: ended for others")?)
}

fn flooded() -> Result<Found, String> {
    let folder = Folder::make()?;
    let socket = folder.0.join("stats");
    let line = Line::bare(LineForwarder::Nat)?;
    let arguments = format!("{NAT} --stats-socket {}", socket.display());
    let _router = ForwardCommand::start(&line.router, &arguments)?;
    let [a, b, c, d] = FLOODING;
    let run = |host: &crate::host::Namespace, what: String| host.run("ip", &what).map_err(text);
    run(&line.client, format!("addr add {a}.{b}.{c}.{d}/24 dev c0"))?;
    let [a, b, c, d] = SILENT;
    run(
        &line.router,
        format!("neigh replace {a}.{b}.{c}.{d} lladdr 02:00:00:00:00:77 dev rb nud permanent"),
    )?;
    let before = call(&line).map_err(text)?;
    let (client, near) = (line.client.path(), address(&line.router, "ra")?);
    let mut begun = 0;
    // Many packets are lost where they come in.
    for _ in 0..FLOODS_MAX {
        let client = client.clone();
        let sent = thread::spawn(move || flood(&client, near)).join();
        sent.unwrap_or_else(|_| Err("the flooding thread panicked".to_owned()))?;
        begun = begun_translations(&socket)?;
        if begun >= u64::from(FLOOD) {
            break;
        }
    }
    if begun < u64::from(FLOOD) {
        return Err(format!("only {begun} flows of the flood began: no flood was measured"));
    }
    let after = call(&line).map_err(text)?;
    let ratio = median(&after).zip(median(&before)).map(|(after, before)| after / before);
    let calls = CALLS as usize;
    let failed = (2 * calls).saturating_sub(before.len() + after.len());
    Ok(Found { samples: calls, tried: 2 * calls, failed, ratio })
}
