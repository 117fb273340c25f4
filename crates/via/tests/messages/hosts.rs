//! Hosts for tests: they run the tasks and drive the detection server.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::sync::oneshot;
use vigie_detect::{HostThread, Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    message::{Communicator, Endpoint},
    protocol::EngineConfig,
    shm::Shm,
    world::local,
};

use crate::kit::guard::against_hang;

/// A bound for each test, longer than it takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

pub(crate) type Ranks = Vec<Communicator<Shm>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One thread for all tasks, which drives the server when no task can run.
    UserLevel,
    /// Two workers, and a thread that detects events.
    Hybrid,
    /// Two workers of tokio, and a thread for the server of each rank.
    Tokio,
}

const KINDS: [Kind; 3] = [Kind::UserLevel, Kind::Hybrid, Kind::Tokio];

/// The facilities of a host that tasks use.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) kind: Kind,
    servers: Vec<Server>,
}

impl Host {
    /// Returns the server for a rank.
    pub(crate) fn server(&self, rank: usize) -> &Server {
        &self.servers[rank % self.servers.len()]
    }

    /// Starts a task; dropping the returned handle does not end it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let task = async move { drop(sender.send(task.await)) };
        match self.kind {
            Kind::Tokio => drop(tokio::spawn(task)),
            Kind::UserLevel | Kind::Hybrid => vigie_runtime::spawn(task).detach(),
        }
        receiver
    }

    /// Starts a task, and returns once it waits or has ended.
    pub(crate) async fn spawn_waiting<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, waits) = oneshot::channel();
        let task = self.spawn(async move {
            let mut task = pin!(task);
            if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx))).await {
                return result;
            }
            drop(sender);
            task.await
        });
        // Only an error can arrive.
        let _: Result<(), _> = waits.await;
        task
    }

    pub(crate) async fn pause(&self) {
        match self.kind {
            Kind::Tokio => tokio::task::yield_now().await,
            Kind::UserLevel | Kind::Hybrid => vigie_runtime::yield_now().await,
        }
    }

    /// Lets time pass in which idle hosts fall asleep.
    pub(crate) async fn wait(&self, time: Duration) {
        self.server(0).timers().wait(Instant::now() + time).await.expect("the server lives");
    }

    /// Connects `size` ranks of one world.
    pub(crate) async fn endpoints(&self, size: u32, config: EngineConfig) -> Vec<Endpoint<Shm>> {
        let (_, worlds) = local(self.server(0), size).expect("a world");
        let joins: Vec<_> = worlds
            .into_iter()
            .enumerate()
            .map(|(rank, world)| {
                let server = self.server(rank).clone();
                self.spawn(async move {
                    let nic = Shm::open().expect("a NIC");
                    let deadline = Instant::now() + BOUND;
                    Endpoint::join_over(&server, &world, nic, config, deadline).await
                })
            })
            .collect();
        let mut endpoints = Vec::new();
        for join in joins {
            endpoints.push(join.await.expect("it ran").expect("all ranks are connected"));
        }
        endpoints
    }
}

/// Runs `body` in a task of each host.
pub(crate) fn on_each_host<F>(body: impl Fn(Host) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    for kind in KINDS {
        let body = body.clone();
        println!("{kind:?}");
        against_hang(move || run(kind, body));
    }
}

/// Runs `body` with the communicators of `size` ranks, in a task of each host.
pub(crate) fn with_ranks<F>(
    size: u32,
    config: EngineConfig,
    body: impl Fn(Host, Ranks) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    on_each_host(move |host| {
        let body = body.clone();
        async move {
            let endpoints = host.endpoints(size, config).await;
            let ranks = endpoints.iter().map(Endpoint::communicator).collect();
            body(host, ranks).await;
        }
    });
}

fn run<F>(kind: Kind, body: impl FnOnce(Host) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    if kind == Kind::Tokio {
        let threads = [Server::spawn_thread(), Server::spawn_thread()];
        let threads: Vec<HostThread> =
            threads.into_iter().map(|host| host.expect("a thread")).collect();
        let servers = threads.iter().map(|host| host.server().clone()).collect();
        let host = Host { kind, servers };
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).build().expect("a runtime");
        let body = body(host);
        return runtime.block_on(async { tokio::spawn(body).await.expect("no panic") });
    }
    let flavor = if kind == Kind::UserLevel { Flavor::UserLevel } else { Flavor::Hybrid };
    let mut builder = Runtime::builder().flavor(flavor);
    if kind == Kind::Hybrid {
        builder = builder.workers(2);
    }
    let runtime = builder.build().expect("a runtime");
    let servers = vec![runtime.server().clone()];
    let host = Host { kind, servers };
    let body = body(host);
    runtime.block_on(async { vigie_runtime::spawn(body).await.expect("no panic") });
}

/// Returns a configuration with little credit, so that every send has to wait for it.
pub(crate) fn scarce() -> EngineConfig {
    EngineConfig::default()
        .area_bytes(4096)
        .frame_bytes_max(1024)
        .window_bytes(2048)
        .descriptors(16)
        .control_entries(8)
}

/// Polls a future this many times, with a waker that wakes no task, and drops it. Returns its result if
/// it has one by then.
pub(crate) async fn poll_and_drop<T>(
    host: &Host,
    count: usize,
    future: impl Future<Output = T> + Send,
) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..count {
        if let Some(result) = poll_once(future.as_mut()) {
            return Some(result);
        }
        host.pause().await;
    }
    None
}

pub(crate) fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
