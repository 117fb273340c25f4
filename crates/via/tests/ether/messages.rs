//! Messages over Ethernet: ranks in one process, with NICs at both ends of a veth pair in turns.

use vigie_via::ether::Ether;
use vigie_via::message::Communicator;

use crate::{
    nics::{Settings, far_nic, near_nic},
    ranks,
    veth::with_veth,
};

fn with_ranks<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    size: usize,
    body: fn(Vec<Communicator<Ether>>) -> F,
) {
    with_veth(test, |far| {
        let settings = Settings::default();
        let nic = |at| if at % 2 == 0 { near_nic(settings) } else { far_nic(far, settings) };
        ranks::with_ranks(|| (0..size).map(nic).collect(), body);
    });
}

/// Goal: messages of all lengths arrive whole and in order. Method: there and back, with pauses in which both ranks fall
/// asleep.
#[test]
fn messages_go_there_and_back() {
    with_ranks("messages::messages_go_there_and_back", 2, ranks::there_and_back);
}

/// Goal: many ranks exchange messages at once, some over the wire and some on one interface. Method:
/// five, all to all, several rounds.
#[test]
fn all_to_all() {
    with_ranks("messages::all_to_all", 5, ranks::all_to_all);
}
