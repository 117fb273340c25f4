//! Source and sink, in one process.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::kind::RelayMeasure;
use crate::clock::{nanoseconds, now, sleep};
use crate::error::Failure;
use crate::host::{enter, pin};
use crate::process::{Role, print_result};

/// Bytes that a source writes and a sink reads at once.
const BLOCK_BYTES: usize = 128 << 10;

/// A message whose time is taken.
const PING_BYTES: usize = 64;

/// The body of a framed message.
const MESSAGE_BYTES: usize = 1 << 20;

/// How long a relay may take to listen.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The warm-up before anything is counted.
const WARM_UP: Duration = Duration::from_millis(200);

/// Framed messages that pass before any is timed: the planner learns from them.
const WARM_UP_MESSAGES: u32 = 12;

/// Framed messages that are timed, at 1 Gb/s.
const TIMED_MESSAGES: u32 = 30;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LoadRole {
    pub(crate) measure: RelayMeasure,
    pub(crate) sink: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) core: Option<usize>,
    /// Of the source and of the sink.
    pub(crate) namespaces: Option<[PathBuf; 2]>,
    pub(crate) budget: Duration,
    pub(crate) samples: u32,
}

/// What source and sink have measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LoadResult {
    /// How much was carried.
    Carried { gb_per_s: f64 },
    /// How long each message took.
    Times { nanoseconds: Vec<u64> },
}

impl Role for LoadRole {
    const NAME: &'static str = "relay load";
}

/// Becomes the load.
pub(crate) fn load(role: &LoadRole) -> Result<(), Failure> {
    if let Some(core) = role.core {
        pin(&[core])?;
    }
    if let Some([_, sink]) = &role.namespaces {
        enter(sink)?;
    }
    let listener = TcpListener::bind(role.sink).map_err(Failure::io("binding the sink"))?;
    match role.measure {
        RelayMeasure::Stream { connections } => stream(role, listener, connections, None),
        RelayMeasure::FramedStream => {
            let message = framed();
            stream(role, listener, 1, Some(message))
        }
        RelayMeasure::Latency { connections } => latency(role, listener, connections),
        RelayMeasure::FramedLatency => framed_latency(role, listener),
    }
}

fn framed() -> Vec<u8> {
    let mut message = vec![7; 4 + MESSAGE_BYTES];
    let length = u32::try_from(MESSAGE_BYTES).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&length.to_be_bytes());
    message
}

/// Connects once the relay listens, and has a connection of its own for it: a relay that cannot reach the sink closes.
fn connect(role: &LoadRole) -> Result<TcpStream, Failure> {
    let until = now() + CONNECT_PATIENCE;
    loop {
        match TcpStream::connect(role.target) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(Failure::io("setting up the source"))?;
                return Ok(stream);
            }
            Err(error) if now() > until => {
                return Err(Failure::io("connecting to the relay")(error));
            }
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
}

fn stream(
    role: &LoadRole,
    listener: TcpListener,
    connections: u32,
    block: Option<Vec<u8>>,
) -> Result<(), Failure> {
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let count = Arc::clone(&count);
            thread::spawn(move || {
                let mut buffer = vec![0; BLOCK_BYTES];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                    count.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let block = Arc::new(block.unwrap_or_else(|| vec![5; BLOCK_BYTES]));
    for _ in 0..connections {
        let mut stream = connect(role)?;
        let block = Arc::clone(&block);
        // It ends with the process.
        thread::spawn(move || while stream.write_all(&block).is_ok() {});
    }
    sleep(WARM_UP);
    let (began, before) = (now(), counted.load(Ordering::Relaxed));
    sleep(role.budget);
    let (ended, after) = (now(), counted.load(Ordering::Relaxed));
    if after == before {
        return Err(Failure::because("streaming through the relay", "nothing arrived"));
    }
    let gb_per_s = (after - before) as f64 / nanoseconds(ended - began).max(1) as f64;
    print_result(&LoadResult::Carried { gb_per_s });
    Ok(())
}

fn latency(role: &LoadRole, listener: TcpListener, connections: u32) -> Result<(), Failure> {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_nodelay(true);
            thread::spawn(move || {
                let mut message = [0; PING_BYTES];
                while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok()
                {
                }
            });
        }
    });
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(connect(role)?);
    }
    let mut nanos = Vec::new();
    let message = [9; PING_BYTES];
    for sample in 0..role.samples + 200 {
        let index = usize::try_from(sample).unwrap_or(0) % streams.len();
        let stream = &mut streams[index];
        let began = now();
        let answer = stream.write_all(&message).and_then(|()| {
            let mut answer = [0; PING_BYTES];
            stream.read_exact(&mut answer)
        });
        answer.map_err(Failure::io("a round trip through the relay"))?;
        if sample >= 200 {
            nanos.push(nanoseconds(now() - began));
        }
    }
    print_result(&LoadResult::Times { nanoseconds: nanos });
    Ok(())
}

/// From the source's first write to the sink's last read, one message at a time.
fn framed_latency(role: &LoadRole, listener: TcpListener) -> Result<(), Failure> {
    let (arrived, arrivals): (Sender<io::Result<Instant>>, Receiver<_>) = mpsc::channel();
    thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let mut message = vec![0; 4 + MESSAGE_BYTES];
        loop {
            let read = stream.read_exact(&mut message).map(|()| now());
            let is_over = read.is_err();
            if arrived.send(read).is_err() || is_over {
                return;
            }
        }
    });
    if let Some([source, _]) = &role.namespaces {
        enter(source)?;
    }
    let mut stream = connect(role)?;
    let message = framed();
    let mut nanos = Vec::new();
    for sample in 0..WARM_UP_MESSAGES + TIMED_MESSAGES {
        let began = now();
        stream.write_all(&message).map_err(Failure::io("sending a message"))?;
        let arrival = arrivals.recv_timeout(CONNECT_PATIENCE);
        let arrival =
            arrival.map_err(|_| Failure::because("receiving a message", "it did not arrive"))?;
        let arrival = arrival.map_err(Failure::io("receiving a message"))?;
        if sample >= WARM_UP_MESSAGES {
            nanos.push(nanoseconds(arrival - began));
        }
        // The links' buckets fill again.
        sleep(Duration::from_millis(2));
    }
    print_result(&LoadResult::Times { nanoseconds: nanos });
    Ok(())
}
