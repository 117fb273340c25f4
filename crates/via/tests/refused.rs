//! What has no meaning in a simulated world: devices, memory and processes of the kernel.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{error::Error, io, time::Duration};

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, JoinHandle, Runtime, simulation::World as SimulatedWorld, spawn};
use vigie_via::{
    Nic, Secret,
    ether::Ether,
    link::{Link, LinkBuilder},
    message::Endpoint,
    shm::Shm,
    world::{World, local},
};

/// The first error that is of the kernel's kind, among the causes.
fn io_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn link() -> LinkBuilder {
    Link::builder("lo")
}

type Answer = (&'static str, Option<Box<dyn Error>>);

fn answer<T, E: Error + 'static>(what: &'static str, result: Result<T, E>) -> Answer {
    (what, result.err().map(|error| Box::new(error) as Box<dyn Error>))
}

/// Every operation of the crate that opens something of the kernel, or watches what was opened `before`.
async fn operations(before: Shm) -> Vec<Answer> {
    let server = Server::current().expect("the task's server");
    let (_launcher, mut worlds) = local(&server, 1).expect("a world");
    let alone = worlds.pop().expect("one rank");
    let soon = server.now() + Duration::from_secs(5);
    vec![
        answer("Shm::open", Shm::open()),
        answer("Nic::new, with a Shm of outside", Nic::new(&server, before)),
        answer("Endpoint::join", Endpoint::<Shm>::join(&alone, soon).await),
        answer("LinkBuilder::open", link().open()),
        answer("EtherBuilder::open", Ether::builder("lo").open(Secret::new([1; 16]))),
        answer("EtherBuilder::open_wire", Ether::builder("lo").open_wire()),
        #[cfg(vigie_verbs)]
        answer("Verbs::open", {
            let config = vigie_via::verbs::VerbsConfig::new(
                [127, 0, 0, 1].into(),
                vigie_via::verbs::VerbsSecret::new([1; 32]),
            );
            vigie_via::verbs::Verbs::open(&config)
        }),
    ]
}

/// Goal: what the kernel has and a simulation has not is refused with a typed error and a remedy; outside, the same operations get to the
/// kernel. Method: each of them, in both.
#[test]
fn devices_are_refused_in_a_simulation() {
    let mut world = SimulatedWorld::new(1);
    for (what, error) in world.block_on(operations(Shm::open().expect("shared memory"))) {
        let error = error.unwrap_or_else(|| panic!("{what} leaves the simulation"));
        let cause = io_error(&*error).unwrap_or_else(|| panic!("{what}: {error}"));
        assert_eq!(cause.kind(), io::ErrorKind::Unsupported, "{what}: {error}");
        assert!(cause.to_string().contains("a simulation has no"), "{what}: {error}");
    }
    let real = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    for (what, error) in real.block_on(operations(Shm::open().expect("shared memory"))) {
        // Not everyone may open raw sockets, and `lo` has no Ethernet addresses.
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(!text.contains("simulation"), "{what}: {text}");
        assert!(!what.contains("Shm") || text.is_empty(), "{what}: {text}");
    }
}

/// Goal: a rank on a simulated node joins no launcher of the machine, and does not end the test's process. Method: a child with a
/// launcher's variables, which lead nowhere, and a rank that aborts.
#[test]
fn launchers_are_refused_in_a_simulation() {
    const TEST: &str = "launchers_are_refused_in_a_simulation";
    if !kit::child::is_child(TEST) {
        let mut command = kit::child::command(&[], TEST);
        let variables =
            [("VIGIE_RENDEZVOUS", "tcp://127.0.0.1:1"), ("VIGIE_RANK", "0"), ("VIGIE_SIZE", "2")];
        command.envs(variables).env("VIGIE_SECRET", "00112233445566778899aabbccddeeff");
        return kit::child::run(command, TEST);
    }
    let mut world = SimulatedWorld::new(2);
    let aborted = world.block_on(async {
        let soon = Instant::now() + Duration::from_secs(5);
        let error = World::join(soon).await.expect_err("there is no launcher here");
        let cause = io_error(&error).unwrap_or_else(|| panic!("{error}"));
        assert_eq!(cause.kind(), io::ErrorKind::Unsupported, "{error}");
        let server = Server::current().expect("the task's server");
        let alone = World::single(&server).expect("a world");
        let aborting: JoinHandle<()> = spawn(async move { alone.abort(3) });
        aborting.await
    });
    assert!(aborted.expect_err("it panics").is_panic());
}
