//! The choice of a connection's target: policies without I/O, over what is known of the targets.
//!
//! A policy puts all targets into an order, and the connection tries them one after the other. Those that have failed lately come
//! after all others, in an order by the same policy.

use std::{
    cmp::Ordering,
    hash::Hasher,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use fastrand::Rng;
use siphasher::sip::SipHasher13;
use vigie_detect::Instant;

use super::{availability::Choice, target::Target};

named! {
    /// The policy by which a relay chooses a target.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Balance {
        /// The first that can be reached, in the order in which they were added; weights do not matter.
        #[default]
        First => "first",
        /// In turn, each as often as its weight says, and evenly spread.
        RoundRobin => "round-robin",
        /// The one with the fewest open connections for its weight; in turn if several have as few.
        LeastConnections => "least-connections",
        /// The less busy one of two that chance picks, with weights as odds: nearly as even as the fewest connections, but several
        /// relays that share targets do not all run to the same one.
        RandomTwo => "random-two",
        /// Always the same for the same client's address, in every relay with these targets. If a target comes or goes, only its own
        /// share of the clients moves. Clients without an address (Unix sockets) are spread by chance.
        Hash => "hash",
    }
}

/// Carries out a policy.
#[derive(Debug)]
pub(super) struct Balancer {
    balance: Balance,
    /// Held while turns are taken, too.
    rng: Mutex<Rng>,
}

/// A target that may be chosen.
type Candidate<A> = Arc<Target<A>>;

impl Balancer {
    /// Draws chance from `seed`.
    pub(super) fn new(balance: Balance, seed: u64) -> Self {
        Self { balance, rng: Mutex::new(Rng::with_seed(seed)) }
    }

    /// Returns the targets in the order in which a connection of `client` should try them.
    pub(super) fn order<A>(
        &self,
        targets: &[Candidate<A>],
        client: Option<IpAddr>,
        now: Instant,
    ) -> Vec<Candidate<A>> {
        if let [only] = targets {
            return vec![Arc::clone(only)];
        }
        let is_avoided = |one: &Candidate<A>| one.availability().peek(now) == Choice::Avoid;
        let (avoided, mut open): (Vec<_>, Vec<_>) =
            targets.iter().map(Arc::clone).partition(is_avoided);
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        self.arrange(&mut open, client, &mut rng);
        if !avoided.is_empty() {
            let mut avoided = avoided;
            self.arrange(&mut avoided, client, &mut rng);
            open.append(&mut avoided);
        }
        open
    }

    /// Puts targets into the policy's order; the first one has had its turn then.
    fn arrange<A>(&self, targets: &mut [Candidate<A>], client: Option<IpAddr>, rng: &mut Rng) {
        if targets.len() < 2 {
            return;
        }
        match self.balance {
            Balance::First => {}
            Balance::RoundRobin => take_turn(targets),
            Balance::LeastConnections => {
                take_turn(targets);
                targets.sort_by(|one, other| load_order(one, other));
            }
            Balance::RandomTwo => {
                by_rank(targets, |_| rng.u64(..));
                if load_order(&targets[1], &targets[0]) == Ordering::Less {
                    targets.swap(0, 1);
                }
            }
            Balance::Hash => match client {
                Some(client) => by_hash(targets, client),
                None => by_rank(targets, |_| rng.u64(..)),
            },
        }
    }
}

/// Brings the target whose turn it is to the front, and the others behind it in their order: each turn, all of them gain their
/// weight, and the one that has most pays the sum. So a target of weight 3 among four gets every turn but one, and these are spread.
fn take_turn<A>(targets: &mut [Candidate<A>]) {
    let (mut at, mut most, mut sum) = (0, i64::MIN, 0);
    for (index, target) in targets.iter().enumerate() {
        let gained = target.add_turn(target.weight.into());
        sum += i64::from(target.weight);
        if gained > most {
            (at, most) = (index, gained);
        }
    }
    targets[at].add_turn(-sum);
    targets.rotate_left(at);
}

/// Compares by open connections for each unit of weight.
fn load_order<A>(one: &Candidate<A>, other: &Candidate<A>) -> Ordering {
    let load = |of: &Candidate<A>, by: &Candidate<A>| {
        u128::from(of.counters.active.value()) * u128::from(by.weight)
    };
    load(one, other).cmp(&load(other, one))
}

/// Sorts by rendezvous: each target draws a number for this client, an exponential one with its weight as the rate, and the smallest
/// comes first. So a target is first with the odds of its weight, and when it goes, its clients go to those
/// that they had second.
fn by_rank<A>(targets: &mut [Candidate<A>], mut draw: impl FnMut(&Target<A>) -> u64) {
    targets.sort_by_cached_key(|target| TargetRank::of(draw(target), target.weight));
}

fn by_hash<A>(targets: &mut [Candidate<A>], client: IpAddr) {
    by_rank(targets, |target| {
        // The same in all instances and versions: the keys are fixed.
        let mut hasher = SipHasher13::new_with_keys(0, 0);
        match client.to_canonical() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
        let (scheme, address) = hashed(&target.name);
        hasher.write(scheme.as_bytes());
        hasher.write(address.as_bytes());
        hasher.finish()
    });
}

/// Returns the name without the slashes of a URL: names had none when hashes began.
fn hashed(name: &str) -> (&str, &str) {
    match name.split_once("//") {
        Some((scheme @ ("tcp:" | "udp:"), address)) => (scheme, address),
        _ => ("", name),
    }
}

/// A place in the order of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TargetRank(f64);

impl TargetRank {
    fn of(drawn: u64, weight: u16) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "53 bits, as many as it has")]
        let uniform = ((drawn >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        Self(-uniform.ln() / f64::from(weight))
    }
}

impl Eq for TargetRank {}

impl PartialOrd for TargetRank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TargetRank {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests;
