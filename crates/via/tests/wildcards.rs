//! Receives from any source after `kill -9` of a rank, on real processes: this test binary starts itself again as three ranks, of which
//! one is killed.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::time::Duration;

use kit::{
    child::{command_in, role},
    speaker::Speaker,
};
use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime, time::timeout};
use vigie_via::{
    message::{Communicator, Endpoint, MessageError, RequestOutcome, SourceFilter::Any},
    protocol::{EngineConfig, EngineEvent, MessageEngine},
    shm::Shm,
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
    vi::{Address, Provider},
};

/// The test that is a rank in a child; its role is the rank's number, its transport and its flavor.
const RANK: &str = "in_a_role";
const SIZE: u32 = 3;
const VICTIM: u32 = 2;
/// A bound for each wait, longer than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const HELLO: u32 = 1;
const WANTED: u32 = 2;
const EARLY: u32 = 3;
const ASK: u32 = 4;
const IGNORED: u32 = 5;

/// The ways to wait for a message from any rank, each in a communicator of its own.
const WAYS: [&str; 11] = [
    "recv",
    "recv_into",
    "recv_view",
    "start_recv",
    "wait_into",
    "test",
    "set",
    "persistent",
    "probe",
    "matched_probe",
    "send_recv",
];

async fn receive<P: Provider>(all: &Communicator<P>, way: &str) -> Result<(), MessageError> {
    let mut bytes = [0; 8];
    match way {
        "recv" => all.recv(Any, WANTED).await.map(drop),
        "recv_into" => all.recv_into(Any, WANTED, &mut bytes[..]).await.map(drop),
        "recv_view" => all.recv_view(Any, WANTED).await.map(drop),
        "start_recv" => all.start_recv(Any, WANTED).wait().await.map(drop),
        "wait_into" => all.start_recv(Any, WANTED).wait_into(&mut bytes[..]).await.map(drop),
        "test" => {
            let mut request = all.start_recv(Any, WANTED);
            if request.test()?.is_none() {
                request.wait().await?;
            }
            Ok(())
        }
        "set" => {
            let mut set = all.request_set();
            assert!(set.push_recv(all.start_recv(Any, WANTED)).is_ok(), "of the same endpoint");
            let (_, ended) = set.wait_any().await.expect("it has one");
            assert!(!matches!(ended?, RequestOutcome::Sent));
            Ok(())
        }
        "persistent" => all.persistent_recv(Any, WANTED).start().wait().await.map(drop),
        "probe" => {
            all.probe(Any, WANTED).await?;
            all.recv(1, WANTED).await.map(drop)
        }
        "matched_probe" => all.matched_probe(Any, WANTED).await?.recv().await.map(drop),
        "send_recv" => all.send_recv((1, IGNORED), b"", (Any, WANTED)).await.map(drop),
        way => unreachable!("invariant: {way} is listed"),
    }
}

/// Lets rank 1 send a message in this communicator, and receives it in this way.
async fn receive_another<P: Provider>(all: &Communicator<P>, way: &str) {
    let ask = async { all.send(1, ASK, b"").await.expect("rank 1 lives") };
    let (received, ()) = tokio::join!(receive(all, way), ask);
    received.unwrap_or_else(|error| panic!("{way}, after it was told: {error}"));
}

fn names_the_victim(error: &MessageError) {
    assert_eq!(error.failed_rank().map(|(rank, _)| rank), Some(VICTIM), "{error}");
}

/// Is told once in each communicator, in each way.
async fn survive<P: Provider>(endpoint: &Endpoint<P>, all: &[Communicator<P>]) {
    for _ in 1..SIZE {
        all[0].recv(Any, HELLO).await.expect("all ranks live");
    }
    println!("\nready");
    // No receive is pending while the rank dies.
    loop {
        match endpoint.next_event().await.expect("the server lives") {
            EngineEvent::Failed { rank, .. } => break assert_eq!(rank, VICTIM),
            EngineEvent::Connected { .. } => {}
            event => panic!("{event:?}"),
        }
    }
    for (all, way) in all.iter().zip(WAYS) {
        all.recv(Any, EARLY).await.expect("a message that has arrived comes before the error");
        names_the_victim(&receive(all, way).await.expect_err(way));
        receive_another(all, way).await;
    }

    let [.., asked, dropped] = all else { unreachable!("invariant: there are two more") };
    assert_eq!(asked.failures(0), [VICTIM]);
    receive_another(asked, "recv").await;

    // One that is dropped has told nobody.
    drop(dropped.start_recv(Any, WANTED));
    names_the_victim(&dropped.recv(Any, WANTED).await.expect_err("nobody was told"));
    receive_another(dropped, "recv").await;
}

async fn play<P: Provider>(engine: MessageEngine<P>) {
    let server = Server::current().expect("in a runtime");
    let endpoint = Endpoint::new(&server, engine).expect("an endpoint");
    let first = endpoint.communicator();
    let others = (0..WAYS.len() + 1).map(|_| first.duplicate().expect("a context"));
    let all: Vec<_> = [first.clone()].into_iter().chain(others).collect();
    if first.rank() == 0 {
        survive(&endpoint, &all).await;
    } else {
        for (all, _) in all.iter().zip(WAYS) {
            all.send(0, EARLY, b"").await.expect("rank 0 lives");
        }
        first.send(0, HELLO, b"").await.expect("rank 0 lives");
        for all in &all {
            // The victim waits here for its end.
            all.recv(0, ASK).await.expect("rank 0 lives");
            all.send(0, WANTED, b"answer").await.expect("rank 0 lives");
        }
    }
    endpoint.close(Instant::now() + PATIENCE).await.expect("all has been handed over");
}

fn run<P: Provider>(mut nic: P, number: u32, flavor: Flavor) {
    nic.listen(b"unused").expect("no other listener");
    let mut engine =
        MessageEngine::new(nic, number, SIZE, EngineConfig::default()).expect("an engine");
    engine.connect_on_demand(b"wildcards").expect("no other listener");
    let address: String =
        engine.nic().address().0.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\naddress {address}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the addresses");
    for (rank, text) in (0..).zip(line.split_whitespace()).filter(|(rank, _)| *rank != number) {
        let bytes = (0..text.len()).step_by(2);
        let bytes = bytes.map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"));
        engine.introduce(rank, Address(bytes.collect())).expect("a rank");
    }
    let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
    runtime.block_on(async move {
        timeout(PATIENCE, play(engine)).await.expect("no rank waits for ever");
    });
}

/// A rank. Does nothing when run as a test.
#[test]
fn in_a_role() {
    let Some(role) = role(RANK) else { return };
    let [number, transport, flavor] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let number = number.parse().expect("a rank");
    let flavor = match flavor {
        "UserLevel" => Flavor::UserLevel,
        "Hybrid" => Flavor::Hybrid,
        _ => Flavor::KernelLevel,
    };
    if transport == "shm" {
        return run(Shm::open().expect("a NIC"), number, flavor);
    }
    let config = SoftwareNicConfig::default()
        .keep_alive(Duration::from_millis(100))
        .dead_after(Duration::from_secs(3));
    let address = "127.0.0.1:0".parse().expect("an address");
    run(Udp::bind(address, Secret::new([6; 16]), config).expect("a NIC"), number, flavor);
}

/// Goal: a death while no receive from any source is pending is told by the next one of each communicator that finds no message, by
/// none after it, and by none after `failures`. Method: three processes on each flavor; one is killed while rank 0 waits for the
/// event of its death; then rank 0 receives in each way, twice.
fn is_told_once(transport: &str) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        println!("{transport} {flavor:?}");
        let start =
            |rank| Speaker::start(command_in(&format!("{rank} {transport} {flavor:?}"), &[], RANK));
        let mut ranks: Vec<_> = (0..SIZE).map(start).collect();
        let addresses: Vec<_> = ranks.iter().map(|rank| rank.line("address ")).collect();
        for rank in &mut ranks {
            rank.tell(&addresses.join(" "));
        }
        ranks[0].line("ready");
        ranks.pop().expect("the victim").kill();
        for (number, rank) in ranks.into_iter().enumerate() {
            let end = rank.finish();
            assert!(end.success(), "{transport}, {flavor:?}: rank {number} ended by {end}");
        }
    }
}

#[test]
fn a_death_is_told_once_over_shared_memory() {
    is_told_once("shm");
}

#[test]
fn a_death_is_told_once_over_udp() {
    is_told_once("udp");
}
