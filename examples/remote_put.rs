//! One process writes into the memory of another without its help: RDMA over Virtual Interfaces.
//!
//! Rank 1 registers 4 KiB of memory and tells rank 0 its key with the connection. Rank 0 writes into it: once silently,
//! and once with immediate data, which ends a wait of rank 1. Then rank 0 tries forbidden writes: beyond the end, with
//! an invented key, and with a revoked key. Nothing is written then, and the status says why.
//!
//! ```text
//! cargo build --features cli-run --bins --examples
//! target/debug/vigie-run -n 2 target/debug/examples/remote_put
//! ```
//!
//! It prints these lines, those of each rank in this order:
//!
//! ```text
//! rank 1: 4096 bytes may be written under a key that I gave out
//! rank 0: written without a word, then once more with the immediate data 7: done, done
//! rank 1: rank 0 says 7; my memory holds "rank 0 was here" and "and here"
//! rank 0: beyond the end: the peer's memory is not registered for this, or too short
//! rank 0: under a made-up key: the peer's memory is not registered for this, or too short
//! rank 1: revoked my key
//! rank 0: under a revoked key: the peer's memory is not registered for this, or too short
//! rank 1: my memory is as it was
//! ```

use std::error::Error;
use std::io::IoSlice;
use std::process::ExitCode;
use std::time::Duration;

use vigie::detect::Server;
use vigie::via::Nic;
use vigie::via::shm::Shm;
use vigie::via::vi::{
    Address, CqId, Data, MemoryAttributes, NicEvent, Operation, ProtectionTag, Provider,
    ReceiveDescriptor, Reliability, RemoteKey, RemoteSegment, SendDescriptor, Status, ViAttributes,
    ViId,
};
use vigie::via::world::World;
use vigie::{Flavor, Instant, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SECONDS: Duration = Duration::from_secs(30);
const AREA_BYTES: usize = 4096;
const FIRST: &[u8] = b"rank 0 was here";
const SECOND: &[u8] = b"and here";
const SECOND_AT: u64 = 1024;
/// The number of connections: an error breaks a reliable one, so each forbidden write needs another.
const CONNECTIONS: usize = 3;

fn main() -> ExitCode {
    // A `main` that returned the error would print its fields, not its text, which says what to do.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("remote_put: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build()?;
    runtime.block_on(async {
        let world = World::join(Instant::now() + SECONDS).await?;
        if world.size() != 2 {
            return Err("start two of me: vigie-run -n 2 remote_put".into());
        }
        let nic = Nic::new(&Server::current()?, Shm::open()?)?;
        nic.with(|nic| nic.listen(b"remote_put"))?;
        let address = nic.with(|nic| nic.address());
        let addresses = world.all_gather("address", &address.0, deadline()).await?;
        if world.rank().0 == 0 {
            let peer = addresses.into_iter().nth(1).flatten().ok_or("rank 1 has gone")?;
            writer(&world, &nic, &Address(peer)).await?;
        } else {
            owner(&world, &nic).await?;
        }
        world.leave(deadline()).await?;
        Ok(())
    })
}

fn deadline() -> Instant {
    Instant::now() + SECONDS
}

/// A VI whose peer may write this side's memory of the same protection tag.
fn vi_of(nic: &mut Shm, tag: ProtectionTag, cq: CqId) -> Result<ViId> {
    Ok(nic.create_vi(ViAttributes {
        // A write completes when it is in the peer's memory, and reports an error if it was not allowed.
        reliability: Reliability::ReliableReception,
        tag,
        send_cq: Some(cq),
        receive_cq: Some(cq),
        allows_write: true,
        allows_read: false,
    })?)
}

// ---- rank 1, whose memory is written ------------------------------------------------------------

async fn owner(world: &World, nic: &Nic<Shm>) -> Result<()> {
    let (cq, tag, region) = nic.with(|nic| -> Result<_> {
        let tag = nic.create_tag();
        let rights = MemoryAttributes { tag, allows_write: true, allows_read: false };
        Ok((nic.create_cq()?, tag, nic.allocate(AREA_BYTES, rights)?))
    })?;

    println!("rank 1: {AREA_BYTES} bytes may be written under a key that I gave out");
    for _ in 0..CONNECTIONS {
        let vi = nic.with(|nic| vi_of(nic, tag, cq))?;
        // A write with immediate data consumes a descriptor; its data does not need one.
        nic.with(|nic| nic.post_receive(vi, &ReceiveDescriptor { cookie: 0, segments: &[] }))?;
        let request = loop {
            match nic.event().await? {
                NicEvent::Requested { request, .. } => break request,
                // The previous connection, which rank 0's error broke.
                _ => continue,
            }
        };
        nic.accept(request, vi, &region.key.0.to_le_bytes()).await?;
    }

    // No more connections are requested. Waiting for their events keeps the NIC working.
    let watched = nic.clone();
    vigie::spawn(async move { while watched.event().await.is_ok() {} }).detach();
    let completion = loop {
        // Receives of broken connections are flushed.
        let completion = nic.completion(cq).await?;
        if completion.status.is_done() {
            break completion;
        }
    };

    let said = completion.immediate.ok_or("no immediate data")?;
    let first = String::from_utf8(region.memory.read_to_vec(0, FIRST.len())?)?;
    let second = String::from_utf8(region.memory.read_to_vec(SECOND_AT, SECOND.len())?)?;
    println!("rank 1: rank 0 says {said}; my memory holds {first:?} and {second:?}");
    let before = region.memory.read_to_vec(0, AREA_BYTES)?;
    world.barrier(deadline()).await?;

    // Rank 0 tries the forbidden writes.
    world.barrier(deadline()).await?;
    nic.with(|nic| nic.deregister(region.handle))?;
    println!("rank 1: revoked my key");
    world.barrier(deadline()).await?;

    // It tries once more.
    world.barrier(deadline()).await?;
    if region.memory.read_to_vec(0, AREA_BYTES)? != before {
        return Err("my memory was changed".into());
    }

    println!("rank 1: my memory is as it was");
    Ok(())
}

// ---- rank 0, which writes -------------------------------------------------------------------------

async fn writer(world: &World, nic: &Nic<Shm>, peer: &Address) -> Result<()> {
    let (cq, tag) = nic.with(|nic| -> Result<_> {
        let tag = nic.create_tag();
        Ok((nic.create_cq()?, tag))
    })?;

    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let vi = nic.with(|nic| vi_of(nic, tag, cq))?;
        let greeting = nic.connect(vi, peer, b"remote_put", b"", deadline()).await?;
        connections.push((vi, RemoteKey(u64::from_le_bytes(greeting.as_slice().try_into()?))));
    }

    let [(good, key), (bad, _), (late, _)] = connections[..] else { return Err("three".into()) };
    let silent = put(nic, cq, good, (key, 0), FIRST, None).await?;
    let told = put(nic, cq, good, (key, SECOND_AT), SECOND, Some(7)).await?;
    println!(
        "rank 0: written without a word, then once more with the immediate data 7: {silent}, {told}"
    );
    world.barrier(deadline()).await?;
    let end = AREA_BYTES as u64;
    expect_refusal("beyond the end", put(nic, cq, bad, (key, end - 1), FIRST, None).await?)?;
    let no_key = RemoteKey(key.0 ^ 1 << 40);
    expect_refusal("under a made-up key", put(nic, cq, late, (no_key, 0), FIRST, None).await?)?;
    world.barrier(deadline()).await?;

    // Rank 1 revokes the key.
    world.barrier(deadline()).await?;
    expect_refusal("under a revoked key", put(nic, cq, good, (key, 0), b"late", None).await?)?;
    world.barrier(deadline()).await?;
    Ok(())
}

/// Writes `bytes` to a place in the peer's memory. Returns the status.
async fn put(
    nic: &Nic<Shm>,
    cq: CqId,
    vi: ViId,
    (key, offset): (RemoteKey, u64),
    bytes: &[u8],
    immediate: Option<i32>,
) -> Result<Status> {
    nic.post(|nic| {
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: 0,
            immediate,
            is_signaled: true,
            remote: Some(RemoteSegment { key, offset }),
            data: Data::Inline(&[IoSlice::new(bytes)]),
        };
        nic.post_send(vi, &descriptor)
    })?;
    Ok(nic.completion(cq).await?.status)
}

fn expect_refusal(what: &str, status: Status) -> Result<()> {
    println!("rank 0: {what}: {status}");
    if status == Status::RdmaProtectionError {
        Ok(())
    } else {
        Err(format!("{what}: it should have been refused, but ended with: {status}").into())
    }
}
