//! One rank of the crash test that uses communicators: sets of requests, in duplicates that come and go.

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime, time::timeout};
use vigie_via::{
    message::{Communicator, Endpoint, MessageError, RequestOutcome, RequestSet},
    protocol::{MessageEngine, SendMode},
    vi::DisconnectReason,
};

use super::{
    killer::{Death, Killer},
    rank::{PATIENCE, VICTIM},
};

const ROUNDS: u8 = 3;

/// What is sent in a round: the lengths, whose places are the tags, and the modes.
const KINDS: [(usize, SendMode); 4] = [
    (8, SendMode::Standard),
    (0, SendMode::Synchronous),
    (20_000, SendMode::Standard),
    (1000, SendMode::Buffered),
];

fn body(from: u32, to: u32, round: u8, tag: u32) -> Vec<u8> {
    let place =
        u64::from(from) << 48 | u64::from(to) << 40 | u64::from(tag) << 8 | u64::from(round);
    let mut rng = fastrand::Rng::with_seed(place);
    (0..KINDS[tag as usize].0).map(|_| rng.u8(..)).collect()
}

/// Requires that an error names the victim.
fn named(error: &MessageError) {
    let expected = Some((VICTIM, DisconnectReason::PeerDied));
    assert_eq!(error.failed_rank(), expected, "{error}");
}

fn begin(all: &Communicator<Killer>, requests: &mut RequestSet<Killer>, round: u8) {
    let peers = (0..all.size()).filter(|peer| *peer != all.rank());
    for (peer, tag) in peers.flat_map(|peer| (0..4).map(move |tag| (peer, tag))) {
        assert!(requests.push_recv(all.start_recv(peer, tag)).is_ok(), "of the same endpoint");
        let bytes = body(all.rank(), peer, round, tag);
        match all.start_send(peer, tag, KINDS[tag as usize].1, bytes) {
            Ok(send) => assert!(requests.push_send(send).is_ok(), "of the same endpoint"),
            Err(error) => named(&error),
        }
    }
}

/// Exchanges messages of all kinds, all of which are waited for at once. Returns how many were received.
async fn exchange(all: &Communicator<Killer>, round: u8) -> usize {
    let mut requests = all.request_set();
    begin(all, &mut requests, round);
    let mut received = 0;
    while let Some((_, ended)) = requests.wait_any().await {
        match ended {
            Ok(RequestOutcome::Sent) => {}
            Ok(RequestOutcome::Received(message)) => {
                let status = message.status;
                let expected = body(status.source, all.rank(), round, status.tag);
                assert!(message.bytes == expected, "{status:?}");
                received += 1;
            }
            Err(error) => named(&error),
        }
    }
    received
}

async fn play(endpoint: &Endpoint<Killer>) {
    let all = endpoint.communicator();
    let survivors = all.size() as usize - 2;
    let mut is_whole = true;
    for round in 0..ROUNDS {
        // The victim is a leaf of the tree of messages, so that all others learn the same.
        let duplicate = match all.duplicate_together().await {
            Ok(duplicate) => duplicate,
            Err(error) => {
                named(&error);
                is_whole = false;
                all.clone()
            }
        };
        let received = exchange(&duplicate, round).await;
        let least = KINDS.len() * (survivors + usize::from(all.rank() == VICTIM));
        assert!(received >= least, "{received} messages of those that live");
        assert!(is_whole || received == least, "{received}, although the victim has died");
    }
    // Nothing is left before others may go.
    let _last_words = exchange(&all, ROUNDS).await;
}

/// Plays a rank that dies as planned.
pub(crate) fn run(mut engine: MessageEngine<Killer>, death: Option<Death>) {
    engine.nic_mut().plan(death);
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.block_on(async move {
        let server = Server::current().expect("in a runtime");
        let endpoint = Endpoint::new(&server, engine).expect("an endpoint");
        timeout(PATIENCE, play(&endpoint)).await.expect("no rank waits for ever");
        endpoint.close(Instant::now() + PATIENCE).await.expect("all has been handed over");
    });
}
