//! What a world records of its run.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    fs, io,
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::Command,
    time::Duration,
};

use self::kit::{folder::Folder, skip::skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream, UdpSocket};
use vigie_runtime::{
    simulation::{DropReason, Link, NodeChange, TaskEnd, TraceEventKind, World},
    spawn, time,
};

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Answers each connection with one byte.
async fn answer() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        spawn(async move { stream.write_u8(1).await }).detach();
    }
}

/// Calls a server that crashes, restarts and is cut off meanwhile, over a bad link; tasks of the caller panic and are aborted.
/// Returns the world after that.
fn eventful(seed: u64, events_max: Option<usize>) -> World {
    let mut world = World::new(seed);
    if let Some(events_max) = events_max {
        world.record(events_max);
    }
    world.default_link(Link::new().loss(0.2));
    let server = world.node("server").run(answer);
    let main = world.main();
    world.block_on(async {
        for round in 0..8 {
            let call = async {
                let mut stream = TcpStream::connect("server:7").await?;
                stream.read_u8().await
            };
            let _ = time::timeout(Duration::from_secs(5), call).await;
            match round {
                1 => server.pause(),
                2 => server.resume(),
                3 => server.crash(),
                4 => {
                    let socket = UdpSocket::bind("0.0.0.0:0").await.expect("a port");
                    socket.send_to(b"?", "server:9").await.expect("a route");
                    time::sleep(millis(10)).await;
                    server.restart();
                }
                5 => main.partition(&server),
                6 => main.heal(&server),
                _ => {}
            }
        }
        let named = vigie_runtime::task::Builder::new().name("doomed");
        named.spawn(async { panic!("as planned") }).await.expect_err("it panics");
        let aborted = spawn(std::future::pending::<()>());
        aborted.abort();
        aborted.await.expect_err("it never ends");
    });
    world
}

/// Goal: the record tells what became of nodes, packets and tasks, and of faults, in order. Method: a run with one of each kind
/// of event; how often each occurs; each packet that arrives was sent before; each task that ends began before.
#[test]
fn a_record_tells_what_happened() {
    let world = eventful(1, Some(1 << 20));
    let events = world.events();
    assert!(events.is_sorted_by_key(|event| event.at));
    let on_server = |change: NodeChange| {
        let is_it = |event: &&_| world.node_of(event).name() == "server";
        let of_server = events.iter().filter(is_it);
        of_server.filter(|event| event.kind == TraceEventKind::Node(change)).count()
    };
    use NodeChange::{Crashed, Killed, Paused, Restarted, Resumed, Started};
    let counts = [Started, Paused, Resumed, Crashed, Restarted, Killed].map(on_server);
    assert_eq!(counts, [1, 1, 1, 1, 1, 0]);

    let (mut sent, mut arrived, mut tasks, mut faults) = (vec![], 0, vec![], vec![]);
    let (mut dropped, mut ends) = (vec![], vec![]);
    for event in &events {
        match &event.kind {
            TraceEventKind::Sent { packet, .. } => sent.push(*packet),
            TraceEventKind::Delivered { packet } => {
                assert!(sent.contains(packet), "{event:?}");
                arrived += 1;
            }
            TraceEventKind::Dropped { packet, reason, .. } => {
                assert_eq!(packet.is_some(), *reason == DropReason::Off);
                dropped.push(*reason);
            }
            TraceEventKind::TaskSpawned(task) => tasks.push(task.clone()),
            TraceEventKind::TaskEnded { task, end } => {
                assert!(tasks.contains(task), "{event:?}");
                assert!(task.site.file().ends_with("simulation_trace.rs"), "{event:?}");
                ends.push((*end, task.name.clone()));
            }
            TraceEventKind::Fault { index, what } => faults.push((*index, what.as_str())),
            TraceEventKind::Node(_) | TraceEventKind::Healed { .. } => {}
            // On a busy machine a poll may wait for the kernel's locks.
            TraceEventKind::Escaped { what } if what.contains("waited in the kernel") => {}
            kind => panic!("{kind}"),
        }
    }
    assert!(arrived > 20 && sent.len() >= arrived, "{arrived} of {}", sent.len());
    for reason in [DropReason::Cut, DropReason::Loss, DropReason::Off] {
        assert!(dropped.contains(&reason), "{reason:?} in {dropped:?}");
    }
    assert_eq!(faults, [(0, "pause"), (1, "crash"), (2, "cut to server"), (3, "cut to main")]);
    assert!(ends.contains(&(TaskEnd::Panicked, Some("doomed".into()))), "{ends:?}");
    let count = |end: TaskEnd| ends.iter().filter(|(it, _)| *it == end).count();
    assert_eq!((count(TaskEnd::Panicked), count(TaskEnd::Cancelled)), (1, 1));
    assert!(count(TaskEnd::Finished) > 0);
}

/// Goal: recording changes nothing, keeps the newest events in the room that it has, and is off by default. Method: one seed with
/// and without a record, and with a small one.
#[test]
fn a_record_is_bounded_and_changes_nothing() {
    let (without, with, small) =
        (eventful(2, None), eventful(2, Some(1 << 20)), eventful(2, Some(10)));
    assert_eq!(without.trace_hash(), with.trace_hash());
    assert_eq!(without.events(), []);
    let all = with.events();
    assert!(all.len() > 100);
    assert_eq!(small.events(), all[all.len() - 10..]);
}

/// Goal: the message of a failure is in the record. Method: an invariant that breaks.
#[test]
fn a_failure_is_recorded() {
    let mut world = World::new(3);
    world.record(100);
    world.invariant(|| assert!(time::Instant::now().as_nanos() < 1000, "it is late"));
    let run = || world.block_on(async { time::sleep(millis(1)).await });
    panic::catch_unwind(AssertUnwindSafe(run)).expect_err("it is late");
    let events = world.events();
    let last = events.last().expect("the failure");
    assert_eq!(
        (last.at.as_nanos(), last.kind.to_string()),
        (1_000_000, "the run failed: it is late".into())
    );
}

/// Opens a page in a browser, and returns what it has become there; `None` if there is no browser.
fn in_browser(page: &Path) -> Option<String> {
    let name = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(name)?;
    let profile = page.with_extension("profile");
    let output = Command::new("timeout")
        .args([
            "60",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args(["--window-size=1200,900", "--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("it has a version");
    assert!(output.status.success(), "the browser fails, or takes a minute: {output:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Goal: the page of a run shows its nodes, packets, tasks, faults and failure, needs no network, and no text of the run breaks it.
/// Method: a run with all of them, whose task has a name that would end a script; what a browser has drawn of it.
#[test]
fn a_page_shows_a_run() {
    let folder = Folder::new();
    let mut world = eventful(1, Some(1 << 16));
    let fail = || {
        world.block_on(async {
            let task = vigie_runtime::task::Builder::new().name("</script><b>");
            task.spawn(async {}).await.expect("it ends");
            panic!("<i>it failed</i>");
        })
    };
    panic::catch_unwind(AssertUnwindSafe(fail)).expect_err("it panics");
    let page = world.timeline();
    assert_eq!(page.matches("</script>").count(), 1);
    let addresses: Vec<_> = page.match_indices("http").map(|(at, _)| &page[at..at + 26]).collect();
    assert!(addresses.iter().all(|it| *it == "http://www.w3.org/2000/svg"), "{addresses:?}");

    let path = folder.path("page.html");
    fs::write(&path, &page).expect("there is room");
    let Some(drawn) = in_browser(&path) else {
        return skip("a_page_shows_a_run", "a browser (chromium)");
    };
    for (part, count_min) in [
        ("class=\"node\"", 2),
        ("class=\"sent\"", 20),
        ("class=\"lost\"", 3),
        ("class=\"task\"", 3),
        ("class=\"task panicked\"", 1),
        ("class=\"fault\"", 4),
        ("class=\"down\"", 1),
        ("class=\"paused\"", 1),
        ("class=\"failed\"", 1),
        ("<tr>", 100),
    ] {
        let count = drawn.matches(part).count();
        assert!(count >= count_min, "{count} times {part} in {drawn}");
    }
    assert!(drawn.contains("&lt;i&gt;it failed&lt;/i&gt;") && !drawn.contains("<b>"), "{drawn}");
}

/// Tasks that meet in channels, timers and closures, on one node.
fn tasks(seed: u64) -> World {
    let mut world = World::new(seed);
    world.block_on(async {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(3);
        for number in 0..20_u64 {
            let sender = sender.clone();
            spawn(async move {
                time::sleep(millis(number % 4)).await;
                let number = vigie_runtime::spawn_blocking(move || number).await;
                sender.send(number.expect("it ends")).await.expect("it is read");
            })
            .detach();
        }
        drop(sender);
        let mut ticks = time::interval(millis(2));
        while receiver.recv().await.is_some() {
            let _ = time::timeout(millis(1), ticks.tick()).await;
        }
    });
    world
}

/// Datagrams in a ring of nodes, over links that lose, double and delay them.
fn datagrams(seed: u64) -> World {
    let mut world = World::new(seed);
    world.default_link(Link::new().jitter(millis(20)).loss(0.1).duplication(0.1));
    for number in 0..4 {
        let next = format!("{}:9", (number + 1) % 4);
        world.node(&number.to_string()).run(move || {
            let next = next.clone();
            async move {
                let socket = UdpSocket::bind("0.0.0.0:9").await?;
                let mut room = [0; 9];
                loop {
                    socket.send_to(&[number], &*next).await?;
                    let _ = time::timeout(millis(15), socket.recv(&mut room)).await;
                }
                #[expect(unreachable_code, reason = "names the type of the error")]
                io::Result::Ok(())
            }
        });
    }
    world.block_on(async { time::sleep(Duration::from_secs(2)).await });
    world
}

/// Streams with full windows, half-closed at the end.
fn streams(seed: u64) -> World {
    let mut world = World::new(seed);
    world.default_link(Link::new().jitter(millis(3)).loss(0.03));
    world.node("echo").run(|| async {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            })
            .detach();
        }
        #[expect(unreachable_code, reason = "names the type of the error")]
        io::Result::Ok(())
    });
    world.block_on(async {
        let calls = (0..3_u8).map(|number| {
            spawn(async move {
                time::sleep(millis(1)).await;
                let (mut reader, mut writer) = TcpStream::connect("echo:7").await?.into_split();
                let sent = vec![number; 300_000];
                let copy = sent.clone();
                let write = spawn(async move {
                    writer.write_all(&copy).await?;
                    writer.shutdown().await
                });
                let mut heard = Vec::new();
                reader.read_to_end(&mut heard).await?;
                assert_eq!(heard, sent);
                write.await.expect("it ends")
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.expect("it ends").expect("the link is bad, not dead");
        }
    });
    world
}

/// Goal: a seed means the same on every machine, in every build: what a colleague or CI has found can be repeated here. Method:
/// the hashes of 20 runs, beside this file. After a change that is meant to change them,
/// `VIGIE_UPDATE_TRACES=1 cargo test -p vigie-runtime --test simulation_trace committed` writes them anew.
#[test]
fn traces_are_the_committed_ones() {
    type Scenario = fn(u64) -> World;
    let scenarios: [(&str, Scenario); 4] = [
        ("tasks", tasks),
        ("datagrams", datagrams),
        ("streams", streams),
        ("faults", |seed| eventful(seed, None)),
    ];
    let mut now = String::new();
    for (name, scenario) in scenarios {
        for seed in 0..5 {
            now.push_str(&format!("{name} {seed} {:016x}\n", scenario(seed).trace_hash()));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces.txt");
    if std::env::var_os("VIGIE_UPDATE_TRACES").is_some() {
        fs::write(path, &now).expect("the file can be written");
    }
    let committed = fs::read_to_string(path).expect("the file is there");
    assert_eq!(committed, now, "see this test's goal");
}
