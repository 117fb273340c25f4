//! Networks that fall apart and heal: with a majority's quorum one part goes on, without one every part does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fastrand::Rng;
use vigie_barrier::{
    Algorithm, Member, Rank, Target,
    member::{DeathReason, Event, Quorum, ShrinkError},
};
use vigie_detect::Instant;

use crate::{
    kit::seeds::for_each_seed,
    quiet::algorithms,
    world::{MICROSECOND, MILLISECOND, SECOND, config, schedule},
};

/// Nodes, by their ranks in the first group.
type Nodes = BTreeSet<usize>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It enters barriers.
    Working,
    /// It was told that too few are left.
    Minority,
    /// It was told that the others go on without it.
    Excluded,
    Dead,
}

/// A process with a member.
#[derive(Debug)]
struct Site {
    member: Member,
    verdict: Verdict,
    /// Which node is which rank of its present group.
    ranks: Vec<usize>,
    /// When it has left a barrier for the last time.
    exited_at: u64,
    enters_at: Option<u64>,
}

/// Sites, and a network that falls apart.
#[derive(Debug)]
struct Country {
    now: u64,
    random: Rng,
    sites: Vec<Site>,
    under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    number: u64,
    /// Pairs of nodes of which the first does not reach the second.
    cut: BTreeSet<(usize, usize)>,
    /// In which groups barriers were passed, after the first shrink.
    passed: BTreeSet<Nodes>,
    /// Views of minorities that were ignored.
    ignored: u64,
}

impl Country {
    fn new(seed: u64, size: u32, quorum: Quorum) -> Self {
        let mut random = Rng::with_seed(seed);
        let config = config(seed).quorum(quorum);
        let schedule = schedule(any(&mut random, size), size);
        let ranks: Vec<usize> = (0..usize::try_from(size).expect("small")).collect();
        let site = |rank| Site {
            member: Member::new(Arc::clone(&schedule), Rank(rank), config.clone())
                .expect("a member"),
            verdict: Verdict::Working,
            ranks: ranks.clone(),
            exited_at: 0,
            enters_at: Some(SECOND),
        };
        Self {
            now: SECOND,
            random,
            sites: (0..size).map(site).collect(),
            under_way: BTreeMap::new(),
            number: 0,
            cut: BTreeSet::new(),
            passed: BTreeSet::new(),
            ignored: 0,
        }
    }

    /// Cuts the network into sides.
    fn cut_into(&mut self, side: impl Fn(usize) -> usize) {
        let nodes = 0..self.sites.len();
        let pairs = nodes.clone().flat_map(|one| nodes.clone().map(move |other| (one, other)));
        self.cut = pairs.filter(|(one, other)| side(*one) != side(*other)).collect();
    }

    /// Runs for so long.
    fn run(&mut self, most: u64) {
        let end = self.now + most;
        for steps in 0.. {
            assert!(steps < 3_000_000, "time stands still: {self:#?}");
            let living =
                (0..self.sites.len()).filter(|site| self.sites[*site].verdict != Verdict::Dead);
            let due = living.filter_map(|site| {
                let at = &self.sites[site];
                let deadline = at.member.next_deadline().map(Instant::as_nanos);
                Some((deadline.into_iter().chain(at.enters_at).min()?.max(self.now), site))
            });
            let due = due.min();
            let arrival = self.under_way.first_key_value().map(|(key, _)| key.0);
            let next = [due.map(|(at, _)| at), arrival].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let Some((_, (to, packet))) = self.under_way.pop_first() else { continue };
                if self.sites[to].verdict != Verdict::Dead {
                    let _ = self.sites[to].member.receive(Instant::from_nanos(self.now), &packet);
                    self.after(to);
                }
            } else if let Some((_, site)) = due {
                self.wake(site);
            }
        }
        self.now = end;
    }

    fn wake(&mut self, index: usize) {
        let now = Instant::from_nanos(self.now);
        let site = &mut self.sites[index];
        if site.enters_at.is_some_and(|at| at <= self.now) {
            site.enters_at = None;
            // It may have failed meanwhile.
            let _ = site.member.enter(now, &[]);
        }
        site.member.handle_deadline(now);
        self.after(index);
    }

    fn after(&mut self, index: usize) {
        while let Some(event) = self.sites[index].member.poll_event() {
            self.happen(index, event);
        }
        while let Some(transmit) = self.sites[index].member.poll_transmit() {
            let ranks = self.sites[index].ranks.clone();
            let to = match transmit.to {
                Target::Member(rank) => vec![ranks[rank.index()]],
                _ => ranks.into_iter().filter(|to| *to != index).collect(),
            };
            for to in to.into_iter().filter(|to| !self.cut.contains(&(index, *to))) {
                self.number += 1;
                let at = self.now + 50 * MICROSECOND + self.random.u64(..50 * MICROSECOND);
                // Some are under way when the network falls apart or heals.
                let late = if self.random.u32(..50) == 0 { 20 * MILLISECOND } else { 0 };
                self.under_way.insert((at + late, self.number), (to, transmit.packet.clone()));
            }
        }
    }

    fn happen(&mut self, index: usize, event: Event) {
        let group: Nodes = self.sites[index].ranks.iter().copied().collect();
        let whole = self.sites.len();
        let site = &mut self.sites[index];
        match event {
            Event::Exited { .. } => {
                site.exited_at = self.now;
                site.enters_at = Some(self.now + self.random.u64(..300 * MILLISECOND));
                if group.len() < whole {
                    self.passed.insert(group);
                }
            }
            Event::Failed { reason: DeathReason::Excluded, .. } => site.verdict = Verdict::Excluded,
            Event::Failed { .. } => {}
            Event::Agreed { survivors } => {
                let size = u32::try_from(survivors.len()).expect("few");
                let schedule = schedule(Algorithm::Dissemination { ways: 1 }, size);
                site.member.shrink(schedule).expect("agreed");
                site.ranks = survivors.iter().map(|rank| site.ranks[rank.index()]).collect();
                site.enters_at = Some(self.now + self.random.u64(..20 * MILLISECOND));
            }
            Event::Minority { survivors } => {
                let count = u32::try_from(survivors.len()).expect("few");
                let refused = site.member.shrink(schedule(Algorithm::Central, count));
                let size = u32::try_from(whole).expect("few");
                assert_eq!(refused, Err(ShrinkError::Minority { survivors: count, size }));
                site.verdict = Verdict::Minority;
            }
            other => panic!("{other:?}"),
        }
    }

    /// Whether two groups have passed barriers of which neither is a part of the other.
    fn has_two_groups(&self) -> bool {
        let mut groups: Vec<_> = self.passed.iter().collect();
        groups.sort_by_key(|group| group.len());
        groups.windows(2).any(|pair| !pair[0].is_subset(pair[1]))
    }

    fn with_verdict(&self, wanted: Verdict) -> Nodes {
        (0..self.sites.len()).filter(|site| self.sites[*site].verdict == wanted).collect()
    }
}

fn any(random: &mut Rng, size: u32) -> Algorithm {
    let of_size = algorithms(size);
    of_size[random.usize(..of_size.len())]
}

/// Goal: a network that falls apart for good leaves one group under a majority's quorum, and as many as there are parts
/// under none; members that are too few get an error that says so. Method: two to nine members, two or three parts, every
/// algorithm; for both quorums the same seeds.
#[test]
fn one_part_goes_on_or_all_do() {
    let (mut ties, mut none) = (0, 0);
    for_each_seed(40, |seed| {
        for quorum in [Quorum::Majority, Quorum::Any] {
            let mut random = Rng::with_seed(!seed);
            let size = random.u32(2..=9);
            let parts = random.usize(2..=3).min(usize::try_from(size).expect("small"));
            let mut sides: Vec<usize> = (0..usize::try_from(size).expect("small"))
                .map(|node| if node < parts { node } else { random.usize(..parts) })
                .collect();
            random.shuffle(&mut sides);
            let mut country = Country::new(seed, size, quorum);
            country.run(random.u64(..SECOND));
            country.cut_into(|node| sides[node]);
            country.run(40 * SECOND);
            let part = |side: usize| -> Nodes {
                (0..sides.len()).filter(|node| sides[*node] == side).collect()
            };
            let may_go_on = |side: &Nodes| match (2 * side.len()).cmp(&sides.len()) {
                std::cmp::Ordering::Greater => true,
                std::cmp::Ordering::Equal => side.contains(&0),
                std::cmp::Ordering::Less => false,
            };
            let all: BTreeSet<Nodes> = (0..parts).map(part).collect();
            let expected: BTreeSet<Nodes> = match quorum {
                Quorum::Any => all.clone(),
                _ => all.iter().filter(|side| may_go_on(side)).cloned().collect(),
            };
            let what = format!("{seed}, {quorum:?}: {sides:?}");
            let lasting: BTreeSet<Nodes> = country
                .with_verdict(Verdict::Working)
                .iter()
                .map(|site| country.sites[*site].ranks.iter().copied().collect())
                .collect();
            assert_eq!(lasting, expected, "{what}");
            assert_eq!(country.passed, expected, "{what}");
            let working: Nodes = expected.iter().flatten().copied().collect();
            assert_eq!(country.with_verdict(Verdict::Working), working, "{what}");
            let few = country.with_verdict(Verdict::Minority).len();
            assert_eq!(few + working.len(), sides.len(), "{what}: no member is excluded");
            ties += u32::from(
                quorum == Quorum::Majority && expected.len() == 1 && {
                    2 * working.len() == sides.len()
                },
            );
            none += u32::from(expected.is_empty());
        }
    });
    assert!(ties > 0 && none > 0, "{ties} {none}");
}

/// Runs a network that falls apart in whatever way and heals, several times, and members that die.
fn turmoil(seed: u64, quorum: Quorum) -> Country {
    let mut random = Rng::with_seed(seed ^ 0xfa11);
    let size = random.u32(3..=9);
    let mut country = Country::new(seed, size, quorum);
    let count = country.sites.len();
    country.run(random.u64(..SECOND));
    for _ in 0..random.usize(1..=4) {
        if random.bool() {
            let sides: Vec<usize> = (0..count).map(|_| random.usize(..3)).collect();
            country.cut_into(|node| sides[node]);
        } else {
            // Some do not reach some, though these may reach them.
            let share = random.f64() / 2.0;
            let nodes = 0..count;
            let pairs = nodes.clone().flat_map(|one| nodes.clone().map(move |other| (one, other)));
            country.cut = pairs.filter(|_| random.f64() < share).collect();
        }
        if random.u32(..4) == 0 {
            country.sites[random.usize(..count)].verdict = Verdict::Dead;
        }
        country.run(random.u64(..6 * SECOND));
        if random.bool() {
            country.cut.clear();
            country.run(random.u64(..3 * SECOND));
        }
    }
    country.cut.clear();
    country.run(80 * SECOND);
    country.ignored = country.sites.iter().map(|site| site.member.counters().minority).sum();
    country
}

/// Goal: whatever a network does, there are never two groups under a majority's quorum, and no member hangs: each one
/// passes barriers in the end, or was told why it cannot. Method: random cuts in one or both directions that come and go,
/// and deaths; the groups that have passed barriers must be parts of each other. The same seeds without a quorum do have
/// two groups, so that the check can fail.
#[test]
fn never_two_groups_with_a_quorum() {
    let (mut split, mut minorities, mut went_on, mut ignored) = (0, 0, 0, 0);
    for_each_seed(60, |seed| {
        let country = turmoil(seed, Quorum::Majority);
        assert!(!country.has_two_groups(), "{seed}: {:?}", country.passed);
        for site in country.with_verdict(Verdict::Working) {
            let last = country.now - country.sites[site].exited_at;
            assert!(last < 30 * SECOND, "{seed}: {site} hangs: {country:#?}");
        }
        minorities += country.with_verdict(Verdict::Minority).len();
        went_on += usize::from(!country.passed.is_empty());
        ignored += country.ignored;
        let country = turmoil(seed, Quorum::Any);
        split += u32::from(country.has_two_groups());
    });
    assert!(
        split > 0 && minorities > 0 && went_on > 0 && ignored > 0,
        "{split} {minorities} {went_on} {ignored}"
    );
}
