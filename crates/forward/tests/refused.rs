//! What has no meaning in a simulated world: pipelines on interfaces, programs in the kernel, and nodes with threads of their own.

use std::{
    error::Error,
    fs::File,
    io,
    net::{TcpListener, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use vigie_detect::Server;
use vigie_forward::{
    Path, Sees,
    bpf::{
        KernelMap, LoadedProgram, MapKind, MapSpec, ProgramKind, Support, XDP_PASS,
        constant_program,
    },
    host::{self, link},
    messages::{Forwarder, MessageVerdict, NodeConfig, Sink, Source, algorithm_fn},
    nic::{NicPipeline, PassAll},
    packet::Port,
    pipeline::Pipeline,
    relay::{RelayListener, UdpRelayListener},
};
use vigie_runtime::{Flavor, Runtime, simulation::World};
use vigie_via::{Secret, software_nic::SoftwareNicConfig, udp::Udp, vi::Provider};

/// No interface has this index.
const ABSENT: u32 = 1 << 30;

type Answer = (&'static str, Option<Box<dyn Error>>);

fn answer<T, E: Error + 'static>(what: &'static str, result: Result<T, E>) -> Answer {
    (what, result.err().map(|error| Box::new(error) as Box<dyn Error>))
}

fn udp() -> Udp {
    let any = "127.0.0.1:0".parse().expect("an address");
    Udp::bind(any, Secret::new([7; 16]), SoftwareNicConfig::default()).expect("a port")
}

/// Every operation of the crate that needs interfaces, programs or threads of the kernel.
async fn operations() -> Vec<Answer> {
    let config = || NodeConfig::new().timeout(Duration::from_millis(1));
    let pipeline = || Pipeline::builder().build().expect("no stages");
    let namespace = File::open("/proc/self/ns/net").expect("a namespace");
    let forward = || algorithm_fn(Sees::Header, |_, _| MessageVerdict::Forward);
    let peer = udp().address();
    let server = Server::current().expect("a server");
    let stream = || TcpListener::bind("127.0.0.1:0").expect("a port").into();
    let datagrams = || UdpSocket::bind("127.0.0.1:0").expect("a port").into();
    vec![
        answer("RelayListener", RelayListener::from_fd_on(&server, stream())),
        answer("UdpRelayListener", UdpRelayListener::from_fd_on(&server, datagrams())),
        answer("host", host::Forwarder::builder(pipeline()).port(Port(0), link("lo")).build()),
        answer("KernelMap::new", KernelMap::new(MapSpec::new(MapKind::Array, 4, 4, 1), "refused")),
        answer(
            "LoadedProgram::load",
            LoadedProgram::load(&constant_program(ProgramKind::Xdp, XDP_PASS)),
        ),
        answer("NicPipeline", NicPipeline::builder().port(Port(0), ABSENT).start(&[])),
        answer("PassAll::new", PassAll::new(ABSENT)),
        answer("PassAll::inside", PassAll::inside(namespace.as_fd(), ABSENT)),
        answer("Sink::open", Sink::open(udp(), config())),
        answer("Source::connect", Source::connect(udp(), &peer, config())),
        answer("Forwarder::start", Forwarder::start(udp(), config(), &[], Path::HOST, forward())),
    ]
}

/// The first error that is of the kernel's kind, among the causes.
fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found.kind());
        }
        next = error.source();
    }
    None
}

/// Goal: what the kernel has and a simulation has not is refused with a typed error and a remedy; outside, the same operations get to the
/// kernel. Method: each of them, in both.
#[test]
fn pipelines_of_the_kernel_are_refused() {
    let mut world = World::new(1);
    let answers = world.block_on(async {
        let support = Support::probe();
        let tried = [answer("Support, XDP", support.xdp), answer("Support, TCX", support.tcx)];
        operations().await.into_iter().chain(tried).collect::<Vec<_>>()
    });
    for (what, error) in answers {
        let error = error.unwrap_or_else(|| panic!("{what} leaves the simulation"));
        let text = format!("{what}: {error} {:?}", error.source().map(ToString::to_string));
        assert_eq!(io_kind(&*error), Some(io::ErrorKind::Unsupported), "{text}");
        assert!(text.contains("a simulation has no"), "{text}");
    }
    let real = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    for (what, error) in real.block_on(operations()) {
        // Not everyone may load programs, and there is no such interface.
        let text = error.map(|error| format!("{error:?}")).unwrap_or_default();
        assert!(!text.contains("simulation"), "{what}: {text}");
        assert!(!what.starts_with("Sink") || text.is_empty(), "{what}: {text}");
    }
}
