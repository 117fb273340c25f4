//! The events that four tasks wait for, and the peer that causes them.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::process;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use vigie_barrier::Group;
use vigie_barrier::local::TaskBarrier;
use vigie_barrier::local::shm::{BootstrapPoint, ShmBootstrap};
use vigie_detect::net::UnixDatagram;
use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::datagram::{Device, NodeAddress, UdpConfig};
use vigie_via::message::{Communicator, Endpoint};
use vigie_via::protocol::{EngineConfig, EngineEvent, MessageEngine};
use vigie_via::shm::Shm;
use vigie_via::vi::Provider;

use crate::error::Failure;

/// Tasks that wait.
const WAITERS: u32 = 4;

/// How long tasks and peer may take to find each other.
const BOOTSTRAP_TIME: Duration = Duration::from_secs(20);

const DISCRIMINATOR: &[u8] = b"waits";

/// Ports of a device over UDP begin above this, by the process: others may measure at the same time.
const BASE_PORT: u32 = 20_000;

/// The port of the peer.
const PEER_PORT: u8 = 200;

/// A task that waits.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks that wait, and what makes them go on once.
pub(super) struct Waits {
    pub(super) tasks: Vec<Task>,
    pub(super) go: Box<dyn FnMut() + Send>,
}

/// What tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// Datagrams of the kernel's: what the others are compared to.
    Sockets,
    /// A barrier of tasks, whose last member is the peer.
    TaskBarrier,
    /// A barrier over shared memory.
    ShmBarrier,
    /// Datagrams of vigie's over UDP.
    Datagrams,
    /// Messages over shared memory.
    Messages,
}

impl WaitKind {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Self; 5] =
        [Self::Sockets, Self::TaskBarrier, Self::ShmBarrier, Self::Datagrams, Self::Messages];

    /// Returns the name in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::TaskBarrier => "barrier of tasks",
            Self::ShmBarrier => "barrier over shared memory",
            Self::Datagrams => "datagrams over UDP",
            Self::Messages => "messages over shared memory",
        }
    }

    pub(super) fn start(self, runtime: &Runtime) -> Result<Waits, Failure> {
        match self {
            Self::Sockets => runtime.block_on(async { sockets() }),
            Self::TaskBarrier => of_tasks(),
            Self::ShmBarrier => of_shared_memory(runtime),
            Self::Datagrams => datagrams(runtime),
            Self::Messages => messages(runtime),
        }
    }
}

fn sockets() -> Result<Waits, Failure> {
    let (mut tasks, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..WAITERS {
        let (sender, receiver) = UnixDatagram::pair().map_err(Failure::io("making sockets"))?;
        tasks.push(Box::pin(async move {
            while receiver.recv(&mut [0]).await.is_ok_and(|size| size > 0) {}
        }) as Task);
        senders.push(sender);
    }
    let go = move || senders.iter().for_each(|sender| drop(sender.try_send(&[1])));
    Ok(Waits { tasks, go: Box::new(go) })
}

fn of_tasks() -> Result<Waits, Failure> {
    let group = Group::new(WAITERS + 1).map_err(Failure::runtime)?;
    let mut members: Vec<_> = TaskBarrier::new(group).into_members().collect();
    let mut last = members.pop().ok_or_else(|| Failure::runtime("no members"))?;
    let tasks = members
        .into_iter()
        .map(|mut member| Box::pin(async move { while member.wait().await.is_ok() {} }) as Task);
    let go = move || {
        let mut wait = last.wait();
        let mut cx = Context::from_waker(Waker::noop());
        while Pin::new(&mut wait).poll(&mut cx).is_pending() {
            thread::yield_now();
        }
    };
    Ok(Waits { tasks: tasks.collect(), go: Box::new(go) })
}

fn of_shared_memory(runtime: &Runtime) -> Result<Waits, Failure> {
    let point = BootstrapPoint::random().map_err(Failure::runtime)?;
    let group = Group::new(WAITERS + 1).map_err(Failure::runtime)?;
    let joining: Vec<_> = group
        .ranks()
        .map(|rank| {
            let bootstrap = ShmBootstrap::new(group, rank, point.clone());
            runtime.spawn(bootstrap.join(Instant::now() + BOOTSTRAP_TIME))
        })
        .collect();
    let mut members = runtime.block_on(async {
        let mut members = Vec::new();
        for one in joining {
            let joined = one.await.map_err(Failure::runtime)?;
            members.push(joined.map_err(Failure::runtime)?);
        }
        Ok::<_, Failure>(members)
    })?;
    let mut last = members.pop().ok_or_else(|| Failure::runtime("no members"))?;
    let tasks = members
        .into_iter()
        .map(|mut member| Box::pin(async move { while member.wait().await.is_ok() {} }) as Task);
    let go = move || drop(last.wait_blocking());
    Ok(Waits { tasks: tasks.collect(), go: Box::new(go) })
}

fn datagrams(runtime: &Runtime) -> Result<Waits, Failure> {
    let base = BASE_PORT + process::id() % 40 * 512;
    let config = UdpConfig::new(Ipv4Addr::LOCALHOST.into());
    let config = config.base_port(u16::try_from(base).map_err(Failure::runtime)?);
    let device = Device::over_udp(runtime.server(), config).map_err(Failure::runtime)?;
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let port = u8::try_from(number).map_err(Failure::runtime)?;
        let port = device.acquire_port(port).map_err(Failure::runtime)?;
        port.post(vec![0; 64]).map_err(Failure::runtime)?;
        tasks.push(Box::pin(async move {
            while let Ok(received) = port.recv().await {
                if port.post(received.buffer).is_err() {
                    break;
                }
            }
        }) as Task);
    }
    let node: NodeAddress = device.node();
    let peer = Runtime::builder().flavor(Flavor::UserLevel).build().map_err(Failure::runtime)?;
    let sender = Device::over_udp(peer.server(), config).map_err(Failure::runtime)?;
    let port = sender.acquire_port(PEER_PORT).map_err(Failure::runtime)?;
    let go = move || {
        peer.block_on(async {
            for number in 0..WAITERS {
                let to = u8::try_from(number).unwrap_or(0);
                drop(port.send(node, to, vec![1]).await);
            }
        });
    };
    Ok(Waits { tasks, go: Box::new(go) })
}

fn messages(runtime: &Runtime) -> Result<Waits, Failure> {
    let peer = Runtime::builder().flavor(Flavor::UserLevel).build().map_err(Failure::runtime)?;
    let (own, other) = (end(runtime.server(), 0)?, end(peer.server(), 1)?);
    let address = other.with(|engine| engine.nic().address());
    let deadline = Instant::now() + BOOTSTRAP_TIME;
    own.with(|engine| engine.connect(1, &address, DISCRIMINATOR, deadline))
        .map_err(Failure::runtime)?;
    // Each end needs its own runtime to be driven.
    thread::scope(|scope| {
        let connecting = scope.spawn(|| runtime.block_on(connected(&own)));
        peer.block_on(connected(&other))?;
        connecting.join().map_err(|_| Failure::runtime("the thread that connects panicked"))?
    })?;
    let tasks = (0..WAITERS)
        .map(|tag| {
            let all: Communicator<Shm> = own.communicator();
            Box::pin(async move { while all.recv(1, tag).await.is_ok() {} }) as Task
        })
        .collect();
    let all = other.communicator();
    let go = move || {
        peer.block_on(async {
            for tag in 0..WAITERS {
                drop(all.send(0, tag, &[1; 8]).await);
            }
        });
    };
    Ok(Waits { tasks, go: Box::new(go) })
}

fn end(server: &Server, rank: u32) -> Result<Endpoint<Shm>, Failure> {
    let mut nic = Shm::open().map_err(Failure::runtime)?;
    nic.listen(DISCRIMINATOR).map_err(Failure::runtime)?;
    let engine =
        MessageEngine::new(nic, rank, 2, EngineConfig::default()).map_err(Failure::runtime)?;
    Endpoint::new(server, engine).map_err(Failure::runtime)
}

async fn connected(end: &Endpoint<Shm>) -> Result<(), Failure> {
    loop {
        match end.next_event().await.map_err(Failure::runtime)? {
            EngineEvent::Requested { request, rank: Some(rank), .. } => {
                end.with(|engine| engine.accept(request, rank)).map_err(Failure::runtime)?;
            }
            EngineEvent::Connected { .. } => return Ok(()),
            event => return Err(Failure::runtime(format!("not connected: {event:?}"))),
        }
    }
}
