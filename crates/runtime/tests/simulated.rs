//! Runtimes of the simulated flavor: what a seed decides, and what a simulation refuses.

use std::{
    io,
    os::fd::OwnedFd,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use vigie_detect::{
    AsyncFd,
    net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream, pipe},
};
use vigie_runtime::{
    BuildError, Flavor, Handle, Runtime, fs,
    metrics::{self, ServeError},
    process, spawn, spawn_blocking, spawn_local, time, yield_now,
};

fn simulation(seed: u64) -> Runtime {
    Runtime::builder().flavor(Flavor::Simulated { seed }).build().expect("it needs no descriptor")
}

/// Runs tasks that meet in a channel, timers and blocking closures; returns the order in which they got on, and the trace.
fn race(seed: u64) -> (Vec<u32>, u64) {
    let runtime = simulation(seed);
    let order = runtime.block_on(async {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for number in 0..6_u32 {
            let sender = sender.clone();
            spawn(async move {
                if number % 2 == 0 {
                    time::sleep(Duration::from_millis(5)).await;
                }
                let number = spawn_blocking(move || number).await.expect("it does not panic");
                yield_now().await;
                sender.send(number).expect("it is read");
            })
            .detach();
        }
        drop(sender);
        let mut order = Vec::new();
        while let Some(number) = receiver.recv().await {
            order.push(number);
        }
        order
    });
    let trace = runtime.handle().simulation_trace().expect("it is a simulation");
    (order, trace)
}

/// Goal: a run is a function of its seed, and the seed draws the order. Method: the same race twice by each of 64 seeds, and
/// the number of different orders and traces.
#[test]
fn a_seed_replays() {
    let mut runs = Vec::new();
    for seed in 0..64 {
        let run = race(seed);
        assert_eq!(run, race(seed), "seed {seed}");
        let mut sorted = run.0.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5], "seed {seed}");
        assert!(run.0[..3].iter().all(|number| number % 2 == 1), "no timer is early: {:?}", run.0);
        runs.push(run);
    }
    let distinct = |mut all: Vec<String>| {
        all.sort();
        all.dedup();
        all.len()
    };
    assert!(distinct(runs.iter().map(|run| format!("{:?}", run.0)).collect()) > 10);
    assert_eq!(distinct(runs.iter().map(|run| run.1.to_string()).collect()), 64);
}

/// Goal: time moves only while nothing is ready, and to the deadline exactly. Method: sleeps of an hour and of a day, at
/// once and in turn; a task that yields until time has passed.
#[test]
fn time_jumps_to_deadlines() {
    simulation(1).block_on(async {
        let begin = time::Instant::now();
        let hour = spawn(time::sleep(Duration::from_secs(3600)));
        time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(86_400));
        assert!(hour.is_finished());

        let begin = time::Instant::now();
        while begin.elapsed() < Duration::from_micros(50) {
            yield_now().await;
        }
        assert!(begin.elapsed() < Duration::from_millis(1));
    });
}

/// Goal: tasks that wake themselves until some time has passed come to their end: after 10 000 polls at one instant, each further one
/// takes a microsecond; and a pause begins the count anew. Method: a task that yields until a millisecond has passed, twice.
#[test]
fn polls_without_a_pause_take_time() {
    simulation(1).block_on(async {
        for _ in 0..2 {
            let (begin, mut yields) = (time::Instant::now(), 0_u64);
            while begin.elapsed() < Duration::from_millis(1) {
                yield_now().await;
                yields += 1;
            }
            assert_eq!(begin.elapsed(), Duration::from_millis(1));
            // Up to two polls differ, by how the first and the last one are counted.
            assert!(yields.abs_diff(11_000) <= 2, "{yields}");
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Goal: a deadlock panics with the seed and the tasks that wait. Method: a task and a future that wait for each other; the
/// message of the panic.
#[test]
fn a_deadlock_says_who_waits() {
    let runtime = simulation(77);
    let run = || {
        runtime.block_on(async {
            vigie_runtime::task::Builder::new()
                .name("stuck")
                .spawn(std::future::pending::<()>())
                .await
        })
    };
    let payload = panic::catch_unwind(AssertUnwindSafe(run)).expect_err("nothing can happen");
    let message = payload.downcast_ref::<String>().expect("a text");
    for part in ["seed 77", "waiting", "stuck", "tests/simulated.rs"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    // The runtime is still there.
    assert_eq!(runtime.block_on(async { spawn(async { 42 }).await.expect("it ends") }), 42);
}

/// Goal: a service with clients runs unchanged, in virtual time, and its trace is a function of the seed. Method: an echo
/// server, and five clients that find it by its name; each seed twice; one client that hears nothing, whose deadlock names
/// the socket.
#[test]
fn sockets_are_those_of_the_simulation() {
    async fn serve(listener: TcpListener) -> io::Result<()> {
        loop {
            let (mut stream, _) = listener.accept().await?;
            spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            })
            .detach();
        }
    }
    async fn call(number: u8) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect("localhost:7").await?;
        stream.write_all(&vec![number; 100_000]).await?;
        stream.shutdown().await?;
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).await?;
        Ok(echo)
    }
    let run = |seed: u64| {
        let runtime = simulation(seed);
        let order = runtime.block_on(async {
            spawn(serve(TcpListener::bind("0.0.0.0:7").await.expect("a port"))).detach();
            let (sender, mut receiver) = mpsc::unbounded_channel();
            for number in 0..5_u8 {
                let sender = sender.clone();
                spawn(async move {
                    let echo = call(number).await.expect("a connection");
                    assert_eq!(echo, vec![number; 100_000]);
                    sender.send(number).expect("it is read");
                })
                .detach();
            }
            drop(sender);
            let mut order = Vec::new();
            while let Some(number) = receiver.recv().await {
                order.push(number);
            }
            (order, time::Instant::now())
        });
        (order, runtime.handle().simulation_trace())
    };
    let mut orders = Vec::new();
    for seed in 0..16 {
        let ran = run(seed);
        assert_eq!(ran, run(seed), "seed {seed}");
        assert_eq!(ran.0.0.len(), 5);
        orders.push(ran.0.0);
    }
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 8, "{orders:?}");

    let wait = || {
        simulation(5).block_on(async {
            let listener = TcpListener::bind("0.0.0.0:7").await.expect("a port");
            let stream = TcpStream::connect("127.0.0.1:7").await.expect("it listens");
            spawn(async move { listener.accept().await.map(drop) }).detach();
            spawn(async move { stream.readable().await.map(|()| drop(stream)) }).await
        })
    };
    drop(wait().expect("the listener is dropped at the end, which ends the wait"));
    let wait = || {
        simulation(5).block_on(async {
            let socket = UdpSocket::bind("0.0.0.0:9").await.expect("a port");
            spawn(async move { socket.recv(&mut [0; 9]).await }).await
        })
    };
    let payload = panic::catch_unwind(AssertUnwindSafe(wait)).expect_err("nothing comes");
    let message = payload.downcast_ref::<String>().expect("a text");
    assert!(message.contains("UDP 0.0.0.0:9, to read"), "{message}");
}

/// Goal: panics, aborts, local tasks and the end of the runtime are those of the other flavors. Method: one of each.
#[test]
fn tasks_end_as_elsewhere() {
    struct Noting(Arc<Mutex<u32>>);
    impl Drop for Noting {
        fn drop(&mut self) {
            *self.0.lock().expect("no panic") += 1;
        }
    }
    let dropped = Arc::new(Mutex::new(0));
    let runtime = simulation(3);
    runtime.block_on(async {
        let failed = spawn(async { panic!("seen") }).await;
        assert!(failed.expect_err("it panics").is_panic());
        let aborted = spawn(std::future::pending::<()>());
        aborted.abort();
        assert!(aborted.await.expect_err("it never ends").is_cancelled());
        let local = std::rc::Rc::new(5);
        assert_eq!(spawn_local(async move { *local }).await.expect("it ends"), 5);
        let noting = Noting(Arc::clone(&dropped));
        spawn(async move {
            let _noting = noting;
            std::future::pending::<()>().await;
        })
        .detach();
        yield_now().await;
    });
    assert_eq!(*dropped.lock().expect("no panic"), 0);
    drop(runtime);
    assert_eq!(*dropped.lock().expect("no panic"), 1);
}

/// Every operation of the runtime that reaches the kernel outside of a simulation, and its error.
async fn operations(folder: PathBuf) -> Vec<(&'static str, Option<io::Error>)> {
    fn error<T>(result: io::Result<T>) -> Option<io::Error> {
        result.err()
    }
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let (read, write) = io::pipe().expect("a pipe");
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let null = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let file = || fs::File::from_std(null().expect("it is there"));
    let mut built = file();
    let runtime = |flavor| match Runtime::builder().flavor(flavor).build() {
        // Not by its destructor, which would wait for its threads inside a task.
        Ok(runtime) => {
            runtime.shutdown_background();
            None
        }
        Err(BuildError::Server(error)) => Some(error),
        Err(error) => Some(io::Error::other(error)),
    };
    let served = match metrics::serve(&Handle::current(), folder.join("metrics")) {
        Ok(_) => None,
        Err(ServeError::Io { source, .. }) => Some(source),
        Err(error) => Some(io::Error::other(error)),
    };
    let child = || {
        let mut command = process::Command::new("true");
        command.stdin(Stdio::null());
        command
    };
    vec![
        ("Command::spawn", error(child().spawn())),
        ("Command::status", error(child().status().await)),
        ("Command::output", error(child().output().await)),
        ("ChildStdin::from_std", error(pipe::Sender::from_owned_fd(write.into()))),
        ("ChildStdout::from_std", error(pipe::Receiver::from_owned_fd(read.into()))),
        ("io::stdin", error(vigie_runtime::io::stdin().read(&mut [0]).await)),
        ("File::from_std, to write", error(file().write_all(b"text").await)),
        ("File::from_std, to read", error(built.read(&mut [0]).await)),
        ("File::from_std, its metadata", error(file().metadata().await)),
        ("UnixStream::from_std", error(UnixStream::from_std(near))),
        ("AsyncFd::new", error(AsyncFd::new(OwnedFd::from(far)))),
        ("TcpListener::from_std", error(TcpListener::from_std(socket))),
        ("a user-level runtime", runtime(Flavor::UserLevel)),
        ("a hybrid runtime", runtime(Flavor::Hybrid)),
        ("a kernel-level runtime", runtime(Flavor::KernelLevel)),
        ("metrics::serve", served),
    ]
}

/// Goal: what would leave the simulation is refused with a typed error that names a remedy, and the same program runs on a real flavor.
/// Method: each operation that reaches the kernel, in both.
#[test]
fn what_would_leave_the_simulation_is_refused() {
    let folder = std::env::temp_dir().join(format!("vigie-refused-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (what, error) in simulation(0).block_on(operations(folder.clone())) {
        let error = error.unwrap_or_else(|| panic!("{what} leaves the simulation"));
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains("a simulation has no") && text.contains(": "), "{what}: {text}");
    }
    let real = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    for (what, error) in real.block_on(operations(folder.clone())) {
        assert!(error.is_none(), "{what}: {error:?}");
    }
    std::fs::remove_dir_all(&folder).expect("it is there");

    let refused =
        Runtime::builder().flavor(Flavor::Simulated { seed: 0 }).metrics_socket("/nowhere").build();
    assert!(refused.expect_err("no real socket").to_string().contains("metrics_socket"));
}

/// Goal: Unix sockets answer in a simulation as the kernel's do. Method: one program on both: streams and datagrams by path, by
/// abstract name and in pairs, their addresses, ends and errors; its answers are compared, for many seeds.
#[test]
fn unix_sockets_answer_as_real_ones() {
    let folder = std::env::temp_dir().join(format!("vigie-unix-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let real = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    let expected = real.block_on(talk(&folder)).expect("real sockets");
    std::fs::remove_dir_all(&folder).expect("it is there");
    for seed in 0..20 {
        let found = simulation(seed).block_on(talk(&folder)).expect("simulated sockets");
        assert_eq!(found, expected, "seed {seed}");
    }
}

async fn talk(folder: &Path) -> io::Result<Vec<String>> {
    let path = |name: &str| folder.join(name);
    let mut seen = Vec::new();
    let kind = |result: io::Result<()>| format!("{:?}", result.map_err(|error| error.kind()));
    seen.push(kind(UnixStream::connect(path("stream")).await.map(drop)));
    let abstract_name = format!("\0vigie-{}", std::process::id());
    for name in [path("stream"), PathBuf::from(&abstract_name)] {
        let listener = UnixListener::bind(&name)?;
        seen.push(kind(UnixListener::bind(&name).map(drop)));
        let mut client = UnixStream::connect(&name).await?;
        let (mut served, address) = listener.accept().await?;
        let names = [address, client.local_addr()?, served.local_addr()?, client.peer_addr()?];
        seen.push(format!(
            "{:?}",
            names.map(|it| (it.is_unnamed(), it.as_pathname() == Some(&name)))
        ));
        client.write_all(&[7; 100_000]).await?;
        client.shutdown().await?;
        let mut bytes = Vec::new();
        served.read_to_end(&mut bytes).await?;
        served.write_all(b"ahoy").await?;
        drop(served);
        client.read_to_end(&mut bytes).await?;
        seen.push(format!("{} {:?}", bytes.len(), &bytes[100_000..]));
        drop(listener);
        seen.push(kind(UnixStream::connect(&name).await.map(drop)));
    }
    let (mut one, mut other) = UnixStream::pair()?;
    one.write_all(b"pair").await?;
    drop(one);
    let mut text = String::new();
    other.read_to_string(&mut text).await?;
    seen.push(format!("{text} {}", kind(other.write_all(b"gone").await)));

    let receiver = UnixDatagram::bind(path("datagram"))?;
    let sender = UnixDatagram::unbound()?;
    seen.push(kind(sender.connect(path("nothing"))));
    seen.push(kind(sender.send(b"to none").await.map(drop)));
    sender.send_to(b"once", path("datagram")).await?;
    let mut room = [0; 3];
    let (count, from) = receiver.recv_from(&mut room).await?;
    seen.push(format!("{:?} {}", &room[..count], from.is_unnamed()));
    sender.connect(path("datagram"))?;
    // More than the queue takes: each is received, in order.
    let sending = spawn(async move {
        for number in 0..1000_u32 {
            sender.send(&[number.to_be_bytes().as_slice(), &[0; 1000]].concat()).await?;
        }
        io::Result::Ok(())
    });
    for number in 0..1000_u32 {
        let mut room = [0; 1004];
        assert_eq!(
            (receiver.recv(&mut room).await?, &room[..4]),
            (1004, &number.to_be_bytes()[..])
        );
    }
    sending.await.expect("it ends")?;
    let (one, other) = UnixDatagram::pair()?;
    one.send(b"").await?;
    seen.push(format!("{} {}", other.recv(&mut room).await?, other.peer_addr()?.is_unnamed()));
    drop(other);
    seen.push(kind(one.send(b"gone").await.map(drop)));
    Ok(seen)
}
