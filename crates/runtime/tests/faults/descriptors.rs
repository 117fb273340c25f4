//! Running out of descriptors: typed errors, no leak, and everything goes on once there are some again.

use std::{fs, io, net::SocketAddr, sync::mpsc, thread};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_runtime::{BuildError, Flavor, Runtime, spawn};

use super::alive::assert_alive;
use crate::{
    flavors::{FLAVORS, runtime},
    kit::child::in_child,
};

const EMFILE: i32 = 24;

fn open_descriptors() -> Vec<u64> {
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there");
    let number = |entry: io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().to_str().and_then(|name| name.parse().ok())
    };
    entries.map(|entry| number(entry).expect("a number")).collect()
}

/// Lets this process open `count` more descriptors, while `body` runs.
fn with_descriptors<T>(count: usize, body: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    // The limit is on the number of the descriptor: everything below must be taken.
    let mut fillers = Vec::new();
    let highest = open_descriptors().into_iter().max().unwrap_or(0);
    loop {
        let filler = fs::File::open("/dev/null").expect("there are descriptors");
        let is_last = open_descriptors().into_iter().max().unwrap_or(0) > highest;
        fillers.push(filler);
        if is_last {
            break;
        }
    }
    // The descriptor of the listing itself, which is closed again: so `count` are left below the limit.
    let highest = open_descriptors().into_iter().max().unwrap_or(0);
    let limit = highest + u64::try_from(count).expect("a small number");
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: before.maximum })
        .expect("the limit may be lowered");
    let result = body();
    setrlimit(Resource::Nofile, before).expect("the limit may be raised again");
    drop(fillers);
    result
}

/// Goal: a runtime that cannot have its descriptors says so, and leaves none behind. Method: every
/// number of descriptors that is too small, then enough.
#[test]
fn building_without_descriptors() {
    in_child("descriptors::building_without_descriptors", || {
        for flavor in FLAVORS {
            let open = open_descriptors();
            for count in 0.. {
                let built = with_descriptors(count, || Runtime::builder().flavor(flavor).build());
                match built {
                    Ok(runtime) => {
                        assert!(count > 0, "a runtime needs descriptors");
                        assert_alive(&runtime);
                        break;
                    }
                    Err(BuildError::Server(error)) => {
                        assert_eq!(error.raw_os_error(), Some(EMFILE), "{error}");
                    }
                    Err(error) => panic!("{error}"),
                }
                assert!(count < 16, "a runtime needs some few descriptors");
            }
            assert_eq!(open_descriptors(), open, "{flavor}");
        }
    });
}

/// Goal: a listener that has no descriptor left for a connection says so, and goes on once there is
/// one. Method: connections come while there is none; then the limit is raised again.
#[test]
fn accepting_without_descriptors() {
    in_child("descriptors::accepting_without_descriptors", || {
        FLAVORS.into_iter().for_each(accept_without_descriptors);
    });
}

fn accept_without_descriptors(flavor: Flavor) {
    let runtime = runtime(flavor);
    let (give, address) = mpsc::channel::<SocketAddr>();
    let (accept, accepts) = mpsc::channel();
    let (go_on, mut goes_on) = tokio::sync::mpsc::unbounded_channel::<()>();
    let server = runtime.spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        give.send(listener.local_addr().expect("bound")).expect("the test waits");
        loop {
            match listener.accept().await {
                Ok((mut stream, _)) => {
                    spawn(async move {
                        let byte = stream.read_u8().await.expect("a byte");
                        stream.write_u8(byte).await.expect("the echo");
                    })
                    .detach();
                }
                Err(error) => {
                    accept.send(error.raw_os_error()).expect("the test waits");
                    if goes_on.recv().await.is_none() {
                        return;
                    }
                }
            }
        }
    });
    let address = runtime.block_on(async {
        loop {
            vigie_runtime::yield_now().await;
            if let Ok(address) = address.try_recv() {
                return address;
            }
        }
    });
    // One for the client: none is left for the listener's side.
    let client = with_descriptors(1, || {
        let client = thread::spawn(move || std::net::TcpStream::connect(address));
        let client = client.join().expect("no panic").expect("the kernel accepts by itself");
        let refused = runtime.block_on(async {
            loop {
                vigie_runtime::yield_now().await;
                if let Ok(error) = accepts.try_recv() {
                    return error;
                }
            }
        });
        assert_eq!(refused, Some(EMFILE), "{flavor}");
        client
    });
    go_on.send(()).expect("the listener waits");
    runtime.block_on(async {
        let mut client = TcpStream::from_std(client).expect("watched");
        client.write_u8(5).await.expect("sent");
        assert_eq!(client.read_u8().await.expect("echoed"), 5);
        let mut another = TcpStream::connect(address).await.expect("connected");
        another.write_u8(6).await.expect("sent");
        assert_eq!(another.read_u8().await.expect("echoed"), 6);
    });
    server.abort();
    runtime.block_on(server).expect_err("aborted");
    assert_alive(&runtime);
}
