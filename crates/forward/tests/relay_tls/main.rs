//! Relays that speak TLS, over real sockets, between blocking peers that have rustls' own streams, `openssl` and `curl`.
//!
//! No test here asserts a time; time-outs are tested in virtual time (`world.rs`). Every socket has a bound, after which a read fails.

#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

mod certificates;
mod damage;
mod handshakes;
mod names;
mod peers;
mod programs;
mod transfers;
mod world;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use vigie_forward::relay::{Endpoint, Relay, RelayBuilder, RelayHandle, RelayStats};
use vigie_runtime::Runtime;

/// After this time a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A relay that serves until it is dropped.
struct Serving {
    address: SocketAddr,
    handle: RelayHandle,
    _runtime: Runtime,
}

impl Serving {
    fn start(builder: RelayBuilder) -> Self {
        let runtime = Runtime::builder().workers(2).build().expect("a runtime");
        let relay = builder.bind_on(runtime.server()).expect("it listens");
        let (address, handle) = (relay.endpoint().address().expect("TCP"), relay.handle());
        let spawner = runtime.handle().clone();
        let serving = relay.serve(move |connection| spawner.spawn(connection).detach());
        runtime.spawn(serving).detach();
        Self { address, handle, _runtime: runtime }
    }

    fn connect(&self) -> TcpStream {
        bounded(TcpStream::connect(self.address).expect("it listens"))
    }

    fn stats(&self) -> RelayStats {
        self.handle.stats()
    }

    /// Waits until a counter of the relay has the expected value.
    #[track_caller]
    fn until(&self, is_so: impl Fn(&RelayStats) -> bool) -> RelayStats {
        for _ in 0..PATIENCE.as_millis() {
            if is_so(&self.stats()) {
                return self.stats();
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        panic!("it never was: {:?}", self.stats());
    }
}

/// A relay without settings.
fn relay() -> RelayBuilder {
    Relay::builder(local())
}

fn at(address: SocketAddr) -> Endpoint {
    Endpoint::Tcp(address)
}

/// Lets reads and writes of a socket fail at the end of a test's patience.
fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Serves each connection in a thread of its own, until the process ends.
fn serve(with: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind(local()).expect("a port");
    let address = listener.local_addr().expect("bound");
    let with = std::sync::Arc::new(with);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let with = std::sync::Arc::clone(&with);
            thread::spawn(move || with(bounded(stream)));
        }
    });
    address
}

/// Bytes that reveal their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| rng.u8(..)).collect()
}
