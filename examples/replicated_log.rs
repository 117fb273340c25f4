//! A replicated log on three nodes, and a confirmed entry that a torn write destroys: found in a simulated world, by one number.
//!
//! The leader stores an entry, sends it to two followers, and confirms it when one of them has stored it too. Each node syncs
//! before it acknowledges. But a crash may tear the write before the sync: the file has its new length, and zeros instead of an
//! end. A log that trusts the length takes them for an entry, and never asks the leader for it. Run it:
//!
//! ```text
//! cargo run --release --example replicated_log
//! ```
//!
//! Expected output:
//!
//! ```text
//! seed 56: a follower has lost entry 10, which was confirmed
//! with checksums, 300 seeds pass
//! ```

use std::io::{self, SeekFrom};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use vigie::fs::{self, File, OpenOptions};
use vigie::net::{TcpListener, TcpStream};
use vigie::simulation::{self, Disk, FaultKind, RandomFaults, World};
use vigie::{spawn, time};

const ENTRIES: u8 = 30;
const POLL: Duration = Duration::from_millis(10);

type Entry = [u8; 1500];
type Shared = Arc<Mutex<Replication>>;

/// What the leader knows.
#[derive(Default)]
struct Replication {
    entries: Vec<Entry>,
    /// So many of them are on a follower, too.
    stored: usize,
    confirmed: usize,
}

/// A log on the disk: records of a checksum and an entry.
struct Log {
    file: File,
    entries: Vec<Entry>,
}

impl Log {
    /// Opens the log, and cuts off what is no entry.
    async fn open(is_careful: bool) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).create(true).open("/log").await?;
        // Otherwise a crash may lose the name.
        File::open("/").await?.sync_all().await?;
        let (bytes, mut entries) = (fs::read("/log").await?, Vec::new());
        for record in bytes.chunks_exact(4 + size_of::<Entry>()) {
            let entry = record[4..].try_into().expect("its size");
            if is_careful && record[..4] != checksum(&entry) {
                break;
            }
            entries.push(entry);
        }
        let end = entries.len() * (4 + size_of::<Entry>());
        file.set_len(end as u64).await?;
        file.seek(SeekFrom::End(0)).await?;
        Ok(Self { file, entries })
    }

    async fn append(&mut self, entry: Entry) -> io::Result<()> {
        self.file.write_all(&[&checksum(&entry)[..], &entry].concat()).await?;
        self.file.sync_data().await?;
        self.entries.push(entry);
        Ok(())
    }
}

fn checksum(entry: &Entry) -> [u8; 4] {
    entry.iter().fold(1, |sum: u32, &byte| sum.wrapping_mul(31) + u32::from(byte)).to_be_bytes()
}

/// The leader: stores an entry, and waits until one follower has it. The other gets it as soon as it can.
async fn lead(shared: Shared) -> io::Result<()> {
    let mut log = Log::open(true).await?;
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    let all = Arc::clone(&shared);
    let _serving = spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn(serve(stream, Arc::clone(&all))).detach();
        }
    });
    for number in 1..=ENTRIES {
        log.append([number; _]).await?;
        shared.lock().expect("no panic").entries.push([number; _]);
        while shared.lock().expect("no panic").stored < usize::from(number) {
            time::sleep(POLL).await;
        }
        shared.lock().expect("no panic").confirmed = usize::from(number);
    }
    Ok(())
}

/// Hears how many entries a follower has, and sends the next one.
async fn serve(mut stream: TcpStream, shared: Shared) -> io::Result<()> {
    let count = usize::from(stream.read_u8().await?);
    loop {
        let next = {
            let mut replication = shared.lock().expect("no panic");
            replication.stored = count.max(replication.stored);
            replication.entries.get(count).copied()
        };
        match next {
            Some(entry) => return stream.write_all(&entry).await,
            None => time::sleep(POLL).await,
        }
    }
}

/// A follower: fetches and stores one entry after the other.
async fn follow(is_careful: bool) -> io::Result<()> {
    let mut log = Log::open(is_careful).await?;
    loop {
        let fetch = async {
            let (mut stream, mut entry) = (TcpStream::connect("leader:7").await?, [0; _]);
            stream.write_u8(u8::try_from(log.entries.len()).expect("few entries")).await?;
            stream.read_exact(&mut entry).await?;
            io::Result::Ok(entry)
        };
        match fetch.await {
            Ok(entry) => log.append(entry).await?,
            Err(_) => time::sleep(POLL).await,
        }
    }
}

/// Crashes the followers of a world; returns a confirmed entry that one of them has lost.
fn lost(world: &mut World, is_careful: bool) -> Option<u8> {
    let shared = Shared::default();
    let of_leader = Arc::clone(&shared);
    world.node("leader").run(move || lead(Arc::clone(&of_leader)));
    let known = Arc::clone(&shared);
    world.invariant(move || {
        let known = known.lock().expect("no panic");
        assert!(known.confirmed <= known.stored, "a confirmed entry is on one node");
    });
    let followers = ["one", "two"].map(|name| world.node(name).run(move || follow(is_careful)));
    world.block_on(async {
        for follower in &followers {
            follower.disk(Disk::new().delay(Duration::from_millis(5)));
        }
        let faults = RandomFaults::new(&followers).only([FaultKind::Crash]).down_max(1);
        let faults =
            faults.every(FaultKind::Crash, Duration::from_millis(100)).lasting(POLL..=POLL);
        faults.length(Duration::from_millis(400)).run().await;
        time::sleep(Duration::from_secs(3)).await;
        let confirmed = shared.lock().expect("no panic").confirmed;
        assert_eq!(confirmed, usize::from(ENTRIES), "it goes on");
        let logs = followers.map(|follower| follower.spawn(Log::open(is_careful)));
        let mut lost = None;
        for log in logs {
            let entries = log.await.expect("no crash").expect("a disk").entries;
            lost = lost.or_else(|| (1..=ENTRIES).find(|number| !entries.contains(&[*number; _])));
        }
        lost
    })
}

fn main() {
    let found = (0..1000).find_map(|seed| Some((seed, lost(&mut World::new(seed), false)?)));
    let (seed, entry) = found.expect("some seed shows it");
    println!("seed {seed}: a follower has lost entry {entry}, which was confirmed");
    simulation::for_each_seed(300, |world| assert_eq!(lost(world, true), None));
    println!("with checksums, 300 seeds pass");
}
