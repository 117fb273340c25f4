//! Engines that renew their group while one of them dies.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use super::super::*;
use crate::{
    member::{MemberConfig, Quorum},
    packet::GroupId,
};

const SIZE: usize = 4;

/// The packets under way to each member, and the pairs between which nothing passes.
#[derive(Default)]
struct Hub {
    inboxes: BTreeMap<usize, VecDeque<Vec<u8>>>,
    cut: BTreeSet<(usize, usize)>,
}

struct HubPort {
    own: usize,
    /// The node of each rank.
    ranks: Vec<usize>,
    hub: Arc<Mutex<Hub>>,
}

impl Transport for HubPort {
    fn send(&mut self, to: Target, _: Network, packet: &[u8]) -> io::Result<()> {
        let mut hub = self.hub.lock().expect("no panic");
        let Hub { inboxes, cut } = &mut *hub;
        for (rank, node) in (0..).map(Rank).zip(&self.ranks) {
            let is_for = to == Target::Everyone || to == Target::Member(rank);
            if is_for && *node != self.own && !cut.contains(&(self.own, *node)) {
                inboxes.entry(*node).or_default().push_back(packet.to_vec());
            }
        }
        Ok(())
    }

    fn recv_each(&mut self, _: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let packets = self.hub.lock().expect("no panic").inboxes.remove(&self.own);
        packets.iter().flatten().for_each(|packet| take(packet));
        Ok(())
    }

    fn arm(&mut self, _: &Waker) -> io::Result<ArmOutcome> {
        Ok(ArmOutcome::Armed)
    }

    fn shrink(&mut self, survivors: &[Rank]) {
        self.ranks = survivors.iter().map(|rank| self.ranks[rank.index()]).collect();
    }
}

/// A group of which one member may be dead already.
struct Group4 {
    engines: BTreeMap<usize, BarrierEngine>,
    hub: Arc<Mutex<Hub>>,
    now: Instant,
}

impl Group4 {
    fn new(algorithm: Algorithm) -> Self {
        let hub = Arc::new(Mutex::new(Hub::default()));
        let group = Group::new(4).expect("a size");
        let schedule = Arc::new(algorithm.schedule(group).expect("suits"));
        let engine = |(own, rank): (usize, Rank)| {
            let config = MemberConfig::new(GroupId(1)).quorum(Quorum::Any);
            let member = Member::new(Arc::clone(&schedule), rank, config).expect("a member");
            let port = HubPort { own, ranks: (0..SIZE).collect(), hub: Arc::clone(&hub) };
            (own, BarrierEngine::new(member, algorithm, Box::new(port)))
        };
        let engines = (0..SIZE).zip(group.ranks()).map(engine).collect();
        Self { engines, hub, now: Instant::from_nanos(1) }
    }

    fn enter(&mut self) {
        for engine in self.engines.values_mut() {
            engine.enter(self.now, &[]).expect("outside");
        }
    }

    /// Delivers packets until no more are sent.
    fn settle(&mut self) {
        while !self.hub.lock().expect("no panic").inboxes.is_empty() {
            for engine in self.engines.values_mut() {
                engine.poll(self.now, Waker::noop());
            }
            // Packets for the dead member.
            let mut hub = self.hub.lock().expect("no panic");
            hub.inboxes.retain(|node, _| self.engines.contains_key(node));
        }
    }

    /// Lets time pass until all members are as wanted.
    fn run_until(&mut self, what: &str, is_so: impl Fn(&BarrierEngine) -> bool) {
        for _ in 0..100_000 {
            self.settle();
            if self.engines.values().all(&is_so) {
                return;
            }
            let due = self.engines.values().filter_map(BarrierEngine::next_deadline).min();
            self.now = self.now.max(due.unwrap_or_else(|| panic!("{what}: it hangs")));
            for engine in self.engines.values_mut() {
                engine.poll(self.now, Waker::noop());
            }
        }
        panic!("{what}: it does not end");
    }

    /// Members that have passed continue with another algorithm, and enter their next barrier. Returns how many.
    fn renew(&mut self, algorithm: Algorithm) -> usize {
        let mut count = 0;
        for engine in self.engines.values_mut() {
            engine.expect_renewal(true);
        }
        for engine in self.engines.values_mut() {
            let Some(exit) = engine.take_exit() else { continue };
            exit.expect("it has passed");
            let group = engine.member.schedule().group();
            let schedule = Arc::new(algorithm.schedule(group).expect("suits"));
            engine.renew(self.now, algorithm, schedule).expect("a member");
            engine.expect_renewal(false);
            engine.enter(self.now, &[]).expect("outside");
            count += 1;
        }
        count
    }
}

/// Goal: a member that dies while its group changes the algorithm leaves survivors that agree, whichever of them have
/// changed it already: they continue with one algorithm, and none hangs. Method: in virtual time, for several pairs
/// of algorithms, each victim, and each set of members that its messages of the last barrier before the change do not
/// reach.
#[test]
fn a_death_amid_a_renewal_leaves_one_group() {
    let named = |name: &str| -> Algorithm { name.parse().expect("a name") };
    let mut shares = BTreeSet::new();
    for (before, after) in [
        ("central", "dissemination"),
        ("dissemination", "concurrent"),
        ("concurrent", "pairwise"),
        ("ternary", "tournament"),
        ("shuffle-exchange", "central"),
    ] {
        for victim in 0..SIZE {
            for unreached in 0..1 << SIZE {
                let what = format!("{before}, {after}, {victim} dies, {unreached:04b} unreached");
                let mut group = Group4::new(named(before));
                let cut = (0..SIZE).filter(|node| unreached & (1 << node) != 0);
                group.hub.lock().expect("no panic").cut = cut.map(|node| (victim, node)).collect();
                // Its packets arrive, or do not; after that it sends nothing more.
                group.enter();
                group.settle();
                group.engines.remove(&victim);
                shares.insert(group.renew(named(after)));
                group.run_until(&what, BarrierEngine::has_failed);
                for engine in group.engines.values_mut() {
                    let error = engine.take_exit().expect("over").expect_err("one is dead");
                    assert_eq!(
                        error.lost().iter().map(|rank| rank.index()).collect::<Vec<_>>(),
                        [victim],
                        "{what}"
                    );
                }
                group.run_until(&what, BarrierEngine::is_settled);
                let survivors: Vec<_> = group
                    .engines
                    .values_mut()
                    .map(|engine| engine.shrink().expect("agreed"))
                    .collect();
                assert!(survivors.iter().all(|other| *other == survivors[0]), "{what}");
                for epoch in 0..3 {
                    group.enter();
                    group.run_until(&what, BarrierEngine::is_over);
                    for engine in group.engines.values_mut() {
                        let (passed, _) = engine.take_exit().expect("over").expect("all live");
                        assert_eq!(passed.epoch, epoch, "{what}");
                    }
                }
            }
        }
    }
    assert!(shares.contains(&0) && shares.contains(&3), "{shares:?}");
    assert!(shares.contains(&1) || shares.contains(&2), "none was amid it: {shares:?}");
}
