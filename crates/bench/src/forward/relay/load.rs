//! Source and sink, in one process.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::datagrams;
use super::echo;
use super::kind::RelayMeasure;
use super::role::{CONNECT_PATIENCE, LoadResult, LoadRole, PING_BYTES, WARM_UP, connect};
use super::throughput;
use super::tls;
use crate::clock::{nanoseconds, now, sleep};
use crate::error::Failure;
use crate::host::{enter, pin};
use crate::process::print_result;

/// Bytes that a source writes and a sink reads at once.
const BLOCK_BYTES: usize = 128 << 10;

/// The body of a framed message.
const MESSAGE_BYTES: usize = 1 << 20;

/// Framed messages that pass before any is timed: the planner learns from them.
const WARM_UP_MESSAGES: u32 = 12;

/// Framed messages that are timed, at 1 Gb/s.
const TIMED_MESSAGES: u32 = 30;

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
        RelayMeasure::Throughput { connections } => {
            print_result(&throughput::throughput(role, &listener, connections)?);
            Ok(())
        }
        RelayMeasure::Echo { connections } | RelayMeasure::TlsEcho { connections } => {
            print_result(&echo::echo(role, &listener, connections)?);
            Ok(())
        }
        RelayMeasure::Datagrams { clients } => {
            print_result(&datagrams::datagrams(role, clients)?);
            Ok(())
        }
        RelayMeasure::Tls { connections } => {
            print_result(&tls::tls(role, listener, connections)?);
            Ok(())
        }
    }
}

fn framed() -> Vec<u8> {
    let mut message = vec![7; 4 + MESSAGE_BYTES];
    let length = u32::try_from(MESSAGE_BYTES).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&length.to_be_bytes());
    message
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
    print_result(&LoadResult::Carried { gb_per_s, relay_s_per_gb: None });
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
