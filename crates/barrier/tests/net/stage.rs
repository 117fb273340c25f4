//! Groups of tasks on loopback addresses.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr},
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use vigie_barrier::net::{NetBarrier, NetBuilder};
use vigie_detect::{HostThread, Server};
use vigie_via::{datagram::UdpConfig, world};

/// No test takes longer.
const BOUND: Duration = Duration::from_secs(120);

/// Loopback addresses that no other test has, one for each member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    net: u32,
    base_port: u16,
}

impl Place {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::of(process::id().wrapping_mul(61).wrapping_add(count))
    }

    /// The same in each process that is given this number.
    pub(crate) fn of(number: u32) -> Self {
        let port = u16::try_from(20_000 + (number >> 16) % 100 * 256).expect("small");
        Self { net: number & 0xffff, base_port: port }
    }

    pub(crate) fn address(self, rank: u32) -> IpAddr {
        let [.., high, low] = self.net.to_be_bytes();
        Ipv4Addr::new(127, high, low, u8::try_from(rank + 1).expect("small")).into()
    }

    pub(crate) fn config(self, rank: u32) -> UdpConfig {
        UdpConfig::new(self.address(rank)).base_port(self.base_port)
    }

    pub(crate) const fn udp_port(self, port: u8) -> u16 {
        self.base_port + port as u16
    }
}

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Runs `body` for each member of a group of `size`, on few threads, with a bound. Returns what they return, by rank.
pub(crate) fn play<T, F>(
    size: u32,
    builder: impl Fn(u32, NetBuilder) -> NetBuilder,
    body: impl Fn(NetBarrier) -> F + Send + Sync + 'static,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failed>> + Send + 'static,
{
    let place = Place::new();
    let host = Server::spawn_thread().expect("a host thread");
    let builders = (0..size).map(|rank| {
        let base = NetBarrier::builder().server(host.server()).network(place.config(rank));
        builder(rank, base)
    });
    play_with(&host, builders.collect(), body)
}

/// As [`play`], with builders that name their networks.
pub(crate) fn play_with<T, F>(
    host: &HostThread,
    builders: Vec<NetBuilder>,
    body: impl Fn(NetBarrier) -> F + Send + Sync + 'static,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failed>> + Send + 'static,
{
    let size = u32::try_from(builders.len()).expect("few");
    let (_launcher, worlds) = world::local(host.server(), size).expect("a world");
    let body = Arc::new(body);
    on_threads(async move {
        let tasks: Vec<_> = worlds
            .into_iter()
            .zip(builders)
            .map(|(world, builder)| {
                let body = Arc::clone(&body);
                tokio::spawn(async move {
                    let barrier = builder.form(&world).await?;
                    body(barrier).await
                })
            })
            .collect();
        let mut all = Vec::new();
        for (rank, task) in tasks.into_iter().enumerate() {
            let result = task.await.unwrap_or_else(|error| panic!("member {rank}: {error}"));
            all.push(result.unwrap_or_else(|error| panic!("member {rank}: {error}")));
        }
        all
    })
}

/// Runs a future on a runtime of its own, with a bound.
pub(crate) fn on_threads<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let done = runtime.block_on(async { tokio::time::timeout(BOUND, future).await });
    // Tasks that hang are not waited for.
    runtime.shutdown_background();
    done.expect("it hangs")
}

/// Counts entries, so that each exit can be checked against them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries(Arc<AtomicU32>);

impl Entries {
    /// Before a member enters.
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// After a member has left its barrier number `epoch`, from 0.
    pub(crate) fn check(&self, epoch: u32, size: u32) {
        let entered = self.0.load(Ordering::SeqCst);
        assert!(
            entered >= (epoch + 1) * size,
            "left barrier {epoch} after {entered} entries of {size}"
        );
    }
}
