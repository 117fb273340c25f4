//! Targets: what a relay connects to, with a weight, what is known of its health, and its counters.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
};

use tokio::sync::Notify;
use vigie_detect::Instant;

use super::{
    availability::{Availability, Choice},
    check::CheckHistory,
    counters::Counter,
    endpoint::Endpoint,
    health::{NameHealth, UpstreamHealth},
    own_listener::OwnAddressCheck,
    upstream::{TargetTls, Upstream, UpstreamAddress},
};

/// An address of a target.
pub(super) trait TargetAddress: Clone + Eq + From<SocketAddr> {
    /// Returns it as it is logged and counted; the same text is the same target to a hash.
    fn named(&self) -> String;

    /// Returns its port, if it has one.
    fn port(&self) -> Option<u16>;
}

impl TargetAddress for Endpoint {
    fn named(&self) -> String {
        self.to_string()
    }

    fn port(&self) -> Option<u16> {
        self.address().map(|address| address.port())
    }
}

impl TargetAddress for SocketAddr {
    fn named(&self) -> String {
        format!("udp://{self}")
    }

    fn port(&self) -> Option<u16> {
        Some(Self::port(self))
    }
}

/// The part that all addresses of an upstream share.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetKind {
    /// The name of their relay.
    pub(super) relay: Arc<str>,
    pub(super) weight: u16,
    pub(super) tls: TargetTls,
}

/// A target in use.
#[derive(Debug)]
pub(super) struct Target<A> {
    pub(super) address: A,
    pub(super) weight: u16,
    pub(super) tls: TargetTls,
    pub(super) name: String,
    /// The host's name of which this is an address.
    host: Option<String>,
    pub(super) health: Arc<UpstreamHealth>,
    /// Its turn, of the policy that goes round; written under the policy's lock.
    pub(super) turn: AtomicI64,
    pub(super) counters: TargetCounters,
    pub(super) checks: Arc<Mutex<CheckHistory>>,
    /// Of streams.
    pub(super) own_address: OwnAddressCheck,
}

#[derive(Debug, Default)]
pub(super) struct TargetCounters {
    pub(super) active: Counter,
    pub(super) connections: Counter,
    pub(super) failures: Counter,
    pub(super) checks_failed: Counter,
}

impl<A: TargetAddress> Target<A> {
    pub(super) fn new(address: A, kind: TargetKind, host: Option<String>) -> Self {
        let TargetKind { relay, weight, tls } = kind;
        let name = address.named();
        let health = Arc::new(UpstreamHealth::new(relay, &name));
        Self {
            address,
            weight,
            tls,
            name,
            host,
            health,
            turn: AtomicI64::new(0),
            counters: TargetCounters::default(),
            checks: Arc::default(),
            own_address: OwnAddressCheck::default(),
        }
    }

    /// The same, with what an earlier relay knows of the target.
    fn known_to(mut self, earlier: &EarlierTargets<A>) -> Self {
        let is_same =
            |one: &&Arc<Self>| one.address == self.address && is_same_server(&one.tls, &self.tls);
        if let Some(known) = earlier.targets.iter().find(is_same).filter(|_| earlier.has_health) {
            self.health = Arc::new(self.health.known_to(&known.health));
            self.checks = Arc::clone(&known.checks);
        }
        self
    }
}

/// Returns whether two targets at the same address are expected to have the same certificate.
#[cfg(feature = "tls")]
fn is_same_server(one: &TargetTls, other: &TargetTls) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.has_name_of(other),
        _ => false,
    }
}

#[cfg(not(feature = "tls"))]
const fn is_same_server(_: &TargetTls, _: &TargetTls) -> bool {
    true
}

/// The targets of a relay whose place another one takes.
#[derive(Clone, Debug)]
pub(super) struct EarlierTargets<A> {
    pub(super) targets: Vec<Arc<Target<A>>>,
    /// Whether their health is of use: without checks, none of them would be found up again.
    pub(super) has_health: bool,
}

impl<A> Default for EarlierTargets<A> {
    fn default() -> Self {
        Self { targets: Vec::new(), has_health: false }
    }
}

impl EarlierTargets<Endpoint> {
    /// For a relay with checks or without.
    pub(super) fn for_relay(self, has_checks: bool) -> Self {
        Self { has_health: self.has_health || has_checks, ..self }
    }
}

impl<A> Target<A> {
    pub(super) fn availability(&self) -> &Availability {
        self.health.availability()
    }

    /// Returns whether no check has ended yet.
    pub(super) fn is_unchecked(&self) -> bool {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Records that it was not reached.
    pub(super) fn failed(&self, error: &dyn fmt::Display, now: Instant) {
        self.counters.failures.add(1);
        self.health.note_unreachable(error, now);
    }

    fn stats(&self, now: Instant) -> TargetStats {
        let state = match self.availability().peek(now) {
            Choice::Use => TargetState::Available,
            Choice::Try => TargetState::OnTrial,
            Choice::Avoid if self.availability().is_down() => TargetState::Down,
            Choice::Avoid => TargetState::Avoided,
        };
        let TargetCounters { active, connections, failures, checks_failed } = &self.counters;
        TargetStats {
            target: self.name.clone(),
            host: self.host.clone(),
            route: None,
            weight: self.weight,
            state,
            active: active.value(),
            connections: connections.value(),
            failures: failures.value(),
            checks_failed: checks_failed.value(),
        }
    }
}

named! {
    /// The health of a target, as a relay sees it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum TargetState {
        /// Connections use it in its turn.
        Available => "available",
        /// It has failed, and the next connection whose turn it is tries it briefly.
        OnTrial => "on trial",
        /// It has failed, and is tried only after all others.
        Avoided => "avoided",
        /// Its checks fail, and it is tried only after all others.
        Down => "down",
    }
}

/// A target at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStats {
    /// Its address, as in `tcp://192.0.2.1:80`.
    pub target: String,
    /// The name of which this is an address.
    pub host: Option<String>,
    /// The number of the TLS route that it is of, from 0, among those with targets of their own; `None` if it is the relay's.
    pub route: Option<usize>,
    /// Its weight.
    pub weight: u16,
    /// Whether it is used.
    pub state: TargetState,
    /// Open connections to it, and those that are being opened; sessions of datagrams.
    pub active: u64,
    /// Connections made to it so far; sessions.
    pub connections: u64,
    /// Failed attempts to reach it; of datagrams, how often a network reported that one did not arrive.
    pub failures: u64,
    /// Failed checks.
    pub checks_failed: u64,
}

/// Counts a connection as one of its target's, while it lives.
#[derive(Debug)]
pub(super) struct TargetUse<A> {
    pub(super) target: Arc<Target<A>>,
}

impl<A> TargetUse<A> {
    pub(super) fn of(target: &Arc<Target<A>>) -> Self {
        target.counters.active.add(1);
        Self { target: Arc::clone(target) }
    }
}

impl<A> Drop for TargetUse<A> {
    fn drop(&mut self) {
        self.target.counters.active.subtract(1);
    }
}

/// The targets of a relay: those of each upstream, in order.
#[derive(Debug)]
pub(super) struct Targets<A> {
    upstreams: Vec<(Option<HostName>, TargetKind)>,
    list: Mutex<TargetList<A>>,
    /// Notified when a name has got other addresses.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct TargetList<A> {
    of_upstream: Vec<Vec<Arc<Target<A>>>>,
    all: Arc<[Arc<Target<A>>]>,
}

/// A name to be resolved.
#[derive(Debug)]
pub(super) struct HostName {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) health: NameHealth,
}

impl<A: TargetAddress> Targets<A> {
    /// Those of the relay with this name in log lines. What an earlier relay knows of them is theirs, too: their health, and the addresses
    /// of names.
    pub(super) fn new(
        (relay, upstreams): (&Arc<str>, &[Upstream<A>]),
        changed: Arc<Notify>,
        earlier: &EarlierTargets<A>,
    ) -> Self {
        let (mut names, mut of_upstream) = (Vec::new(), Vec::new());
        for Upstream { address, weight, tls } in upstreams {
            let kind = TargetKind { relay: Arc::clone(relay), weight: *weight, tls: tls.clone() };
            let made = |address: &A, host: Option<&String>| {
                let target = Target::new(address.clone(), kind.clone(), host.cloned());
                Arc::new(target.known_to(earlier))
            };
            let (name, targets) = match address {
                UpstreamAddress::Fixed(address) => (None, vec![made(address, None)]),
                UpstreamAddress::Name(host, port) => {
                    let mut known = Vec::new();
                    for one in &earlier.targets {
                        let is_of_name =
                            one.host.as_ref() == Some(host) && one.address.port() == Some(*port);
                        if is_of_name && !known.contains(&one.address) {
                            known.push(one.address.clone());
                        }
                    }
                    let targets = known.iter().map(|one| made(one, Some(host))).collect();
                    let health = NameHealth::new(Arc::clone(relay), host);
                    (Some(HostName { host: host.clone(), port: *port, health }), targets)
                }
            };
            names.push((name, kind));
            of_upstream.push(targets);
        }
        let list = TargetList::new(of_upstream);
        Self { upstreams: names, list: Mutex::new(list), changed }
    }

    fn lock(&self) -> MutexGuard<'_, TargetList<A>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present ones, in order.
    pub(super) fn list(&self) -> Arc<[Arc<Target<A>>]> {
        Arc::clone(&self.lock().all)
    }

    pub(super) fn stats(&self, now: Instant) -> Vec<TargetStats> {
        self.list().iter().map(|target| target.stats(now)).collect()
    }

    /// Returns the names, each with the number of its upstream.
    pub(super) fn names(&self) -> impl Iterator<Item = (usize, &HostName)> {
        let all = self.upstreams.iter().enumerate();
        all.filter_map(|(index, (name, _))| Some((index, name.as_ref()?)))
    }

    /// Returns whether each name has an address.
    pub(super) fn are_all_known(&self) -> bool {
        self.lock().of_upstream.iter().all(|targets| !targets.is_empty())
    }

    /// Makes these the addresses of an upstream. Targets that stay keep their place, their health and their counters. Returns what is
    /// new and what is gone, if anything.
    pub(super) fn set(
        &self,
        index: usize,
        addresses: Vec<SocketAddr>,
    ) -> Option<(Vec<String>, Vec<String>)> {
        let (name, kind) = &self.upstreams[index];
        let mut list = self.lock();
        let mut of_upstream = list.of_upstream.clone();
        let targets = &mut of_upstream[index];
        let addresses: Vec<A> = addresses.into_iter().map(A::from).collect();
        let is_gone = |target: &Arc<Target<A>>| !addresses.contains(&target.address);
        let gone: Vec<_> = targets.extract_if(.., |target| is_gone(target)).collect();
        let stayed = targets.len();
        for address in addresses {
            if targets.iter().all(|target| target.address != address) {
                let host = name.as_ref().map(|name| name.host.clone());
                targets.push(Arc::new(Target::new(address, kind.clone(), host)));
            }
        }
        let names = |targets: &[Arc<Target<A>>]| -> Vec<String> {
            targets.iter().map(|target| target.name.clone()).collect()
        };
        let (new, gone) = (names(&targets[stayed..]), names(&gone));
        if new.is_empty() && gone.is_empty() {
            return None;
        }
        *list = TargetList::new(of_upstream);
        drop(list);
        self.changed.notify_one();
        Some((new, gone))
    }
}

impl<A> TargetList<A> {
    fn new(of_upstream: Vec<Vec<Arc<Target<A>>>>) -> Self {
        let all = of_upstream.iter().flatten().map(Arc::clone).collect();
        Self { of_upstream, all }
    }
}

impl<A> Target<A> {
    /// Adds to its turn, and returns the sum. The policy's lock orders this.
    pub(super) fn add_turn(&self, steps: i64) -> i64 {
        self.turn.fetch_add(steps, Ordering::Relaxed) + steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(
        upstreams: &[Upstream<SocketAddr>],
        earlier: &EarlierTargets<SocketAddr>,
    ) -> Targets<SocketAddr> {
        Targets::new((&Arc::default(), upstreams), Arc::default(), earlier)
    }

    /// Goal: a relay that takes the place of another one knows what that one knew: the health of targets with the same address, and the
    /// addresses of names; not the health that checks found, if it has none. Method: a target that fails, one that is down, and a name.
    #[test]
    fn what_is_known_outlives_a_relay() {
        let at = |last: u8| SocketAddr::from(([192, 0, 2, last], 80));
        let name = || Upstream::named("web", 80);
        let before = made(&[at(1).into(), at(2).into(), name()], &EarlierTargets::default());
        assert!(before.set(2, vec![at(5)]).is_some());
        let [failing, down] = [0, 1].map(|index| Arc::clone(&before.list()[index]));
        failing.failed(&"refused", Instant::from_nanos(0));
        down.health.note_down(&"refused");

        let known = |has_health| EarlierTargets { targets: before.list().to_vec(), has_health };
        let next = [at(2).into(), name(), at(3).into(), at(1).into(), Upstream::named("api", 80)];
        let states = |has_health| -> Vec<_> {
            let stats = made(&next, &known(has_health)).stats(Instant::from_nanos(1));
            stats.into_iter().map(|one| (one.target, one.state)).collect()
        };
        let (fine, avoided) = (TargetState::Available, TargetState::Avoided);
        let of = |last, state| (format!("udp://{}", at(last)), state);
        let expected = [of(2, TargetState::Down), of(5, fine), of(3, fine), of(1, avoided)];
        assert_eq!(states(true), expected);
        assert_eq!(states(false), [2, 5, 3, 1].map(|last| of(last, fine)));
        failing.health.note_reached(|| Instant::from_nanos(2));
        assert_eq!(states(true)[3], of(1, fine), "both learn of it");
    }

    /// Goal: targets that stay keep their place and what is known of them, new ones come behind them, and the targets of other upstreams
    /// are not touched; what is the same changes nothing. Method: addresses of a name between two fixed ones, in several orders.
    #[test]
    fn addresses_of_a_name_are_replaced() {
        let at = |last: u8| SocketAddr::from(([192, 0, 2, last], 80));
        let name = Upstream::named("web", 80).weight(7);
        let targets = made(&[at(1).into(), name, at(2).into()], &EarlierTargets::default());
        let shown =
            || targets.list().iter().map(|one| one.address.ip().to_string()).collect::<Vec<_>>();
        let ip =
            |last: &[u8]| last.iter().map(|last| format!("192.0.2.{last}")).collect::<Vec<_>>();
        let named = |last: &[u8]| {
            last.iter().map(|last| format!("udp://{}", at(*last))).collect::<Vec<_>>()
        };
        assert!(!targets.are_all_known());
        assert_eq!(targets.set(1, vec![at(5), at(4), at(5)]), Some((named(&[5, 4]), vec![])));
        assert_eq!(shown(), ip(&[1, 5, 4, 2]));
        assert!(targets.are_all_known());
        let before = targets.list();
        before[2].counters.connections.add(3);
        assert_eq!(targets.set(1, vec![at(4), at(5)]), None, "another order");
        assert_eq!(targets.set(1, vec![at(6), at(4)]), Some((named(&[6]), named(&[5]))));
        assert_eq!(shown(), ip(&[1, 4, 6, 2]));
        let stats = targets.stats(Instant::from_nanos(0));
        let connections: Vec<_> = stats.iter().map(|one| one.connections).collect();
        assert_eq!(connections, [0, 3, 0, 0]);
        let weights: Vec<_> = stats.iter().map(|one| (one.weight, one.host.as_deref())).collect();
        assert_eq!(weights, [(1, None), (7, Some("web")), (7, Some("web")), (1, None)]);
        // The same address by another upstream is another target.
        assert_eq!(targets.set(1, vec![at(1)]), Some((named(&[1]), named(&[4, 6]))));
        assert_eq!(shown(), ip(&[1, 1, 2]));
    }
}
