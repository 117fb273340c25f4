//! Files on the disks of simulated nodes: the calls, and what crashes and faults leave.

use std::{
    collections::BTreeSet,
    io::{self, SeekFrom},
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, SystemTime},
};

use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use vigie_runtime::{
    Flavor, Runtime,
    fs::{self, File, OpenOptions},
    simulation::{Disk, Node, World},
    time,
};

fn simulation(seed: u64) -> Runtime {
    Runtime::builder().flavor(Flavor::Simulated { seed }).build().expect("a runtime")
}

/// Goal: the same program sees the same on a simulated disk and on a real one. Method: it walks through the calls with legal
/// and illegal arguments in a folder, and writes down each answer; the answers of both are compared.
#[test]
fn a_simulated_disk_answers_as_a_real_one() {
    let folder = std::env::temp_dir().join(format!("vigie-disk-{}", std::process::id()));
    let real = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    let expected = real.block_on(walk(&folder)).expect("the real disk");
    for seed in 0..20 {
        let found = simulation(seed).block_on(walk(&folder)).expect("the simulated disk");
        assert_eq!(found, expected, "seed {seed}");
    }
}

/// The answers that were seen.
#[derive(Default)]
struct Answers(Vec<String>);

impl Answers {
    fn note(&mut self, what: &str, result: io::Result<String>) {
        let text = result.unwrap_or_else(|error| format!("{:?}", error.kind()));
        self.0.push(format!("{what}: {text}"));
    }
}

fn done(result: io::Result<()>) -> io::Result<String> {
    result.map(|()| "done".to_owned())
}

async fn walk(folder: &Path) -> io::Result<Vec<String>> {
    let mut answers = Answers::default();
    walk_names(folder, &mut answers).await?;
    walk_files(folder, &mut answers).await?;
    walk_removals(folder, &mut answers).await?;
    Ok(answers.0)
}

async fn walk_names(folder: &Path, answers: &mut Answers) -> io::Result<()> {
    let path = |name: &str| folder.join(name);
    let mut note = |what: &str, result| answers.note(what, result);

    note("no parent", done(fs::create_dir(path("a")).await));
    fs::create_dir_all(path("a/b")).await?;
    note("twice", done(fs::create_dir(path("a")).await));
    fs::write(path("a/one"), "ahoy").await?;
    note("through a file", done(fs::write(path("a/one/two"), "").await));
    note("a directory", done(fs::write(path("a"), "").await));
    note("read", fs::read_to_string(path("a/../a/./one")).await);
    note("missing", fs::read_to_string(path("a/none")).await);
    note("exists", fs::try_exists(path("a/none")).await.map(|it| it.to_string()));
    note("not empty", done(fs::remove_dir(path("a")).await));
    note("no file", done(fs::remove_file(path("a/b")).await));
    note("into itself", done(fs::rename(path("a"), path("a/b/c")).await));
    note("file over directory", done(fs::rename(path("a/one"), path("a/b")).await));
    note("directory over file", done(fs::rename(path("a/b"), path("a/one")).await));

    fs::symlink("one", path("a/link")).await?;
    fs::hard_link(path("a/one"), path("a/b/hard")).await?;
    note("link", fs::read_link(path("a/link")).await.map(|it| it.display().to_string()));
    note("through a link", fs::read_to_string(path("a/link")).await);
    let canonical = fs::canonicalize(path("a/b/../link")).await?;
    note("canonical", Ok(format!("{:?}", canonical.file_name())));
    for name in ["a", "a/one", "a/link"] {
        let (it, own) = (fs::metadata(path(name)).await?, fs::symlink_metadata(path(name)).await?);
        let kinds = |it: &fs::Metadata| (it.is_dir(), it.is_file(), it.is_symlink());
        let is_new = it.modified()? > SystemTime::UNIX_EPOCH;
        let size = it.is_file().then(|| (it.len(), it.nlink(), it.mode()));
        note(name, Ok(format!("{:?} {:?} {size:?} {is_new}", kinds(&it), kinds(&own))));
    }
    Ok(())
}

async fn walk_files(folder: &Path, answers: &mut Answers) -> io::Result<()> {
    let path = |name: &str| folder.join(name);
    let mut note = |what: &str, result| answers.note(what, result);
    note("nothing to open for", done(OpenOptions::new().open(path("a/one")).await.map(drop)));
    note("exclusive", done(File::create_new(path("a/one")).await.map(drop)));
    let mut file = OpenOptions::new().read(true).write(true).open(path("a/one")).await?;
    file.seek(SeekFrom::End(3)).await?;
    file.write_all(b"land").await?;
    file.flush().await?;
    note("hole", fs::read(path("a/one")).await.map(|it| format!("{it:?}")));
    file.set_len(6).await?;
    note("position", file.stream_position().await.map(|it| it.to_string()));
    file.rewind().await?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).await?;
    note("cut", Ok(format!("{text:?}")));
    let mut room = [0; 3];
    note("at", file.read_at(&mut room, 1).await.map(|count| format!("{count} {room:?}")));
    let mut appending = OpenOptions::new().append(true).open(path("a/one")).await?;
    appending.write_all(b"+").await?;
    note("metadata", appending.metadata().await.map(|it| it.len().to_string()));
    note("write only", appending.read_u8().await.map(|it| it.to_string()));
    appending.sync_all().await?;
    File::open(path("a")).await?.sync_all().await
}

async fn walk_removals(folder: &Path, answers: &mut Answers) -> io::Result<()> {
    let path = |name: &str| folder.join(name);
    let mut note = |what: &str, result| answers.note(what, result);
    let file = File::open(path("a/one")).await?;
    fs::rename(path("a/one"), path("a/b/moved")).await?;
    fs::remove_file(path("a/b/hard")).await?;
    note("open while renamed", file.metadata().await.map(|it| it.nlink().to_string()));
    note("copied", fs::copy(path("a/b/moved"), path("a/copy")).await.map(|it| it.to_string()));
    let mut names = BTreeSet::new();
    let mut entries = fs::read_dir(path("a")).await?;
    while let Some(entry) = entries.next_entry().await? {
        names.insert((entry.file_name(), entry.file_type().await?.is_dir()));
    }
    note("entries", Ok(format!("{names:?}")));
    fs::remove_file(path("a/b/moved")).await?;
    note("open while removed", file.metadata().await.map(|it| it.nlink().to_string()));
    note("dangling", done(fs::metadata(path("a/link")).await.map(drop)));
    fs::remove_dir_all(folder).await?;
    note("gone", done(fs::metadata(folder).await.map(drop)));
    Ok(())
}

/// Runs `future` on `node`, while the script waits for it.
async fn on<T: Send + 'static>(
    node: &Node,
    future: impl Future<Output = io::Result<T>> + Send + 'static,
) -> T {
    node.spawn(future).await.expect("it ends").expect("no error")
}

async fn reboot(node: &Node) {
    node.crash();
    time::sleep(Duration::from_millis(1)).await;
    node.restart();
    time::sleep(Duration::from_millis(1)).await;
}

/// Writes `text`, and syncs the file but not its directory.
async fn write_synced(path: &str, text: &str) -> io::Result<()> {
    let mut file = File::create(path).await?;
    file.write_all(text.as_bytes()).await?;
    file.sync_all().await
}

/// Goal: a killed process loses nothing of what was written, a crashed machine only what was not synced; each of its nodes has a
/// disk of its own. Method: many seeds; synced and unsynced files and names before and after a kill and a crash; the unsynced
/// ones must be lost in some seeds and kept in others.
#[test]
fn crashes_lose_what_was_not_synced() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..60 {
        let mut world = World::new(seed);
        let node = world.node("node").start();
        let outcome = world.block_on(async {
            on(&node, async {
                fs::create_dir("/data").await?;
                File::open("/").await?.sync_all().await?;
                write_synced("/data/named", "named").await?;
                File::open("/data").await?.sync_all().await?;
                write_synced("/data/nameless", "nameless").await?;
                fs::write("/data/named", "changed").await
            })
            .await;
            node.kill();
            node.restart();
            time::sleep(Duration::from_millis(1)).await;
            let cached = on(&node, fs::read_to_string("/data/named")).await;
            assert_eq!(cached, "changed", "a kill loses nothing");
            reboot(&node).await;
            on(&node, async {
                let named = fs::read_to_string("/data/named").await?;
                // The length may be there without the bytes.
                let text = named.trim_end_matches('\0');
                assert!(["named", "changed", ""].contains(&text), "{named:?}");
                let has_nameless = fs::try_exists("/data/nameless").await?;
                if has_nameless {
                    assert_eq!(fs::read_to_string("/data/nameless").await?, "nameless");
                }
                Ok((named, has_nameless))
            })
            .await
        });
        world.block_on(async { assert!(!fs::try_exists("/data").await.expect("its own disk")) });
        outcomes.insert(outcome);
    }
    for expected in [("named", false), ("named", true), ("changed", true), ("", true)] {
        assert!(outcomes.contains(&(expected.0.to_owned(), expected.1)), "{outcomes:?}");
    }
}

/// Goal: a rename is atomic, and it is kept once the directory is synced. Method: many seeds; a file is replaced by the usual way
/// of a temporary file, with and without a sync of the directory, and the machine crashes.
#[test]
fn renames_are_atomic() {
    for (syncs, expected) in [(true, vec!["new"]), (false, vec!["new", "old"])] {
        let mut found = BTreeSet::new();
        for seed in 0..40 {
            let mut world = World::new(seed);
            let node = world.node("node").start();
            let text = world.block_on(async {
                on(&node, async move {
                    write_synced("/state", "old").await?;
                    File::open("/").await?.sync_all().await?;
                    write_synced("/state.new", "new").await?;
                    fs::rename("/state.new", "/state").await?;
                    if syncs {
                        File::open("/").await?.sync_all().await?;
                    }
                    Ok(())
                })
                .await;
                reboot(&node).await;
                on(&node, fs::read_to_string("/state")).await
            });
            found.insert(text);
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "with a sync: {syncs}");
    }
}

/// Goal: a disk can be full, slow and broken, from one moment to the next. Method: a write beyond the capacity, and one after
/// something was removed; a sync on a slow disk; reads while each operation fails; shares of errors that are none.
#[test]
fn disks_fail() {
    let mut world = World::new(4);
    let node = world.node("node").start();
    world.block_on(async {
        node.disk(Disk::new().capacity(1000));
        on(&node, async {
            fs::write("/full", [7; 900]).await?;
            let error = fs::write("/more", [8; 200]).await.expect_err("no room");
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert_eq!(fs::read("/more").await?, [8; 100], "what had room");
            fs::remove_file("/full").await?;
            fs::write("/more", [8; 200]).await
        })
        .await;
        node.disk(Disk::new().delay(Duration::from_secs(2)).jitter(Duration::ZERO));
        let begin = time::Instant::now();
        on(&node, async { File::open("/more").await?.sync_all().await }).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(4), "opening and syncing");
        node.disk(Disk::new().errors(1.0));
        let failed = node.spawn(fs::read("/more")).await.expect("it ends");
        assert_eq!(failed.expect_err("it is broken").raw_os_error(), Some(5));
        node.disk(Disk::new());
        assert_eq!(on(&node, fs::read("/more")).await, [8; 200]);
    });
    for share in [-0.1, 1.1, f64::NAN] {
        std::panic::catch_unwind(|| Disk::new().errors(share)).expect_err("no share");
    }
}

/// Goal: what reaches a simulated file by another way than vigie's calls fails. Method: std's file of one.
#[test]
fn a_simulated_file_has_no_other_door() {
    simulation(1).block_on(async {
        fs::write("/file", "ahoy").await.expect("a disk");
        let std = File::open("/file").await.expect("it is there").into_std().await;
        io::Read::read(&mut &std, &mut [0; 4]).expect_err("no descriptor of the file");
        let real = File::from_std(std::fs::File::open("/dev/null").expect("a device"));
        let refused = real.metadata().await.expect_err("not of the simulation");
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    });
}
