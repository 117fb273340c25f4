//! Routes with several hops: which hop a flow takes.
//!
//! Every flow falls into one of 1024 buckets by its [`FlowHash`], and every bucket belongs to one of the hops that live. So the host and a
//! program need the same array and the same hash, and nothing else, to choose the same hop.
//!
//! The buckets are dealt by weighted rendezvous (highest random weight: Thaler and Ravishankar, 1998): for each bucket, every hop draws a
//! number that only depends on the two, an exponential one with its weight as the rate, and the smallest wins. A table depends on nothing but
//! the hops that live. So when one goes, exactly its own buckets move, when it returns, exactly they return, and prefixes with the same
//! hops share a table. The price is that a hop's share is its weight's only on average: of two equal hops, one has 512 ± 16 buckets.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc};

use thiserror::Error;

use super::hop_counters::HopCell;
use crate::packet::{Fragment, Headers, Port, Transport};

/// The next hop of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Route {
    /// The outgoing port.
    pub port: Port,
    /// The router; `None` if the destination is directly on the link.
    pub via: Option<IpAddr>,
}

impl Route {
    /// Creates a route to destinations on the link of a port.
    #[must_use]
    pub const fn on_link(port: Port) -> Self {
        Self { port, via: None }
    }

    /// Creates a route through a router on the link of a port.
    #[must_use]
    pub const fn via(port: Port, router: IpAddr) -> Self {
        Self { port, via: Some(router) }
    }
}

/// The maximum number of hops of a route.
pub const HOPS_MAX: usize = 64;

/// The number of buckets, a power of two.
pub(crate) const BUCKETS: usize = 1 << BUCKET_BITS;
pub(crate) const BUCKET_BITS: u32 = 10;

/// The odd number by which hashes are multiplied: 2⁶⁴ divided by the golden ratio.
pub(crate) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The flow of a packet, as far as the choice among several hops depends on it: a hash of addresses, ports and protocol for TCP and UDP,
/// and of the addresses alone for fragments and other protocols.
///
/// All fragments between two hosts so take one way, the first ones too, although those have ports. It need not be the way of
/// the whole packets of the same flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHash(u64);

impl FlowHash {
    /// Computes it from a packet; the default for one that is not IP.
    #[must_use]
    pub fn of(headers: &Headers, frame: &[u8]) -> Self {
        // As `nic::compile::route` does it, word by word.
        let is_flow = headers.fragment == Fragment::Whole
            && matches!(headers.transport, Transport::Tcp | Transport::Udp);
        let mut hash = if is_flow { u64::from(headers.protocol) } else { 0 };
        let mut add = |word: [u8; 4]| {
            hash = mix(hash ^ u64::from(u32::from_ne_bytes(word)));
        };
        match headers.addresses(frame) {
            Some((IpAddr::V4(from), IpAddr::V4(to))) => [from, to].map(|one| add(one.octets())),
            Some((IpAddr::V6(from), IpAddr::V6(to))) => [from, to].map(|one| {
                let words = one.octets();
                words.as_chunks().0.iter().for_each(|word| add(*word));
            }),
            _ => return Self::default(),
        };
        if is_flow && let Some((from, to)) = headers.ports(frame) {
            let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
            add([a, b, c, d]);
        }
        Self(hash.wrapping_mul(MULTIPLIER))
    }

    fn bucket(self) -> usize {
        usize::try_from(self.0 >> (u64::BITS - BUCKET_BITS)).unwrap_or(0)
    }
}

const fn mix(number: u64) -> u64 {
    let product = number.wrapping_mul(MULTIPLIER);
    product ^ (product >> 32)
}

/// The reason why hops cannot be those of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HopGroupError {
    /// There are none.
    #[error("a route needs a hop")]
    Empty,
    /// There are more than [`HOPS_MAX`].
    #[error("{count} hops of one route, and at most {HOPS_MAX} are possible: leave some out")]
    TooMany {
        /// Their number.
        count: usize,
    },
}

/// The hops of a route and their weights. The same hops in another order are the same group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopGroup(Arc<[(Route, NonZeroU16)]>);

impl HopGroup {
    /// Creates the group of 1 to 64 hops, with weights of 1 to 65 535. The weights of a hop that is named twice are added.
    ///
    /// # Errors
    /// [`HopGroupError`].
    pub fn new(hops: impl IntoIterator<Item = (Route, NonZeroU16)>) -> Result<Self, HopGroupError> {
        let mut weights = BTreeMap::<Route, NonZeroU16>::new();
        for (hop, weight) in hops {
            let known = weights.entry(hop);
            known.and_modify(|sum| *sum = sum.saturating_add(weight.get())).or_insert(weight);
        }
        match weights.len() {
            0 => Err(HopGroupError::Empty),
            1..=HOPS_MAX => Ok(Self(weights.into_iter().collect())),
            count => Err(HopGroupError::TooMany { count }),
        }
    }

    /// Returns the hops with their weights, in order.
    #[must_use]
    pub fn hops(&self) -> &[(Route, NonZeroU16)] {
        &self.0
    }
}

/// A group of hops with the buckets of those that live.
#[derive(Clone, Debug)]
pub struct HopTable {
    group: HopGroup,
    /// The counters of each hop.
    cells: Arc<[Arc<HopCell>]>,
    /// The index of each bucket's hop.
    buckets: Arc<[u8; BUCKETS]>,
}

impl HopTable {
    /// Deals the buckets to the hops that live, or to all if none does.
    ///
    /// # Cost
    /// A logarithm for each bucket and hop: some 20 µs a hop.
    pub(super) fn new(
        group: HopGroup,
        cells: Arc<[Arc<HopCell>]>,
        is_alive: impl Fn(&Route) -> bool,
    ) -> Self {
        let all = || (0_u8..).zip(group.hops());
        let mut hops: Vec<_> = all().filter(|(_, (hop, _))| is_alive(hop)).collect();
        if hops.is_empty() {
            hops = all().collect();
        }
        let hops: Vec<_> = hops
            .into_iter()
            .map(|(index, (hop, weight))| (index, identity(hop), f64::from(weight.get())))
            .collect();
        let mut buckets = [0; BUCKETS];
        for (number, bucket) in (0_u64..).zip(&mut buckets) {
            let drawn = |(index, identity, weight): &(u8, u64, f64)| {
                let drawn = mix(mix(identity ^ mix(number)));
                #[expect(clippy::cast_precision_loss, reason = "53 bits, as many as it has")]
                let uniform = ((drawn >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                (-uniform.ln() / weight, *index)
            };
            let least = hops.iter().map(drawn).min_by(|one, other| one.0.total_cmp(&other.0));
            *bucket = least.map_or(0, |(_, index)| index);
        }
        Self { group, cells, buckets: Arc::new(buckets) }
    }

    /// Returns all hops, including those that do not live.
    #[must_use]
    pub const fn group(&self) -> &HopGroup {
        &self.group
    }

    /// Returns how many of the 1024 buckets each hop has, in the order of the [group](HopGroup::hops): 0 if it does not live.
    #[must_use]
    pub fn shares(&self) -> Vec<usize> {
        let mut shares = vec![0; self.group.hops().len()];
        self.buckets.iter().for_each(|index| shares[usize::from(*index)] += 1);
        shares
    }

    /// Returns the hop of a flow.
    #[must_use]
    pub fn hop(&self, flow: FlowHash) -> Route {
        self.of_bucket(self.buckets[flow.bucket()])
    }

    /// Returns the hop of a flow, with its counters.
    #[inline]
    pub(super) fn counted_hop(&self, flow: FlowHash) -> (Route, Option<&HopCell>) {
        let index = self.buckets[flow.bucket()];
        (self.of_bucket(index), self.cells.get(usize::from(index)).map(|cell| &**cell))
    }

    pub(super) const fn cells(&self) -> &Arc<[Arc<HopCell>]> {
        &self.cells
    }

    /// Returns all hops with their counters.
    #[cfg(feature = "nic")]
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Route, &Arc<HopCell>)> {
        self.group.hops().iter().map(|(hop, _)| *hop).zip(&*self.cells)
    }

    /// Returns the hop of each bucket.
    #[cfg(feature = "nic")]
    pub(crate) fn of_buckets(&self) -> impl Iterator<Item = Route> {
        self.buckets.iter().map(|index| self.of_bucket(*index))
    }

    fn of_bucket(&self, index: u8) -> Route {
        self.group.0[usize::from(index)].0
    }
}

/// Tables with the same buckets are equal, whatever they have counted.
impl PartialEq for HopTable {
    fn eq(&self, other: &Self) -> bool {
        self.group == other.group && self.buckets == other.buckets
    }
}

impl Eq for HopTable {}

/// A number that only depends on the hop.
fn identity(hop: &Route) -> u64 {
    let (low, high) = match hop.via {
        None => (0, 0),
        Some(IpAddr::V4(address)) => (u64::from(address.to_bits()), 4),
        Some(IpAddr::V6(address)) => {
            let [a, b, c, d, e, f, g, h, low @ ..] = address.octets();
            (u64::from_be_bytes(low), u64::from_be_bytes([a, b, c, d, e, f, g, h]))
        }
    };
    mix(mix(mix(u64::from(hop.port.0) + 1) ^ low) ^ high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(weights: &[u16]) -> HopGroup {
        let hops = (0_u16..).zip(weights).map(|(port, weight)| {
            let via = Route::via(Port(port), [10, 0, u8::try_from(port).unwrap(), 1].into());
            (via, NonZeroU16::new(*weight).unwrap())
        });
        HopGroup::new(hops).unwrap()
    }

    fn table(group: HopGroup, is_alive: impl Fn(&Route) -> bool) -> HopTable {
        HopTable::new(group, Arc::default(), is_alive)
    }

    /// Goal: shares are as the weights say, up to chance; when a hop goes, exactly its buckets move, to all others, and return with it; a hop
    /// that is left out and one that does not live are the same; if none lives, all are used. Method: groups of all sizes.
    #[test]
    fn only_the_flows_of_a_hop_move() {
        for count in 2..=HOPS_MAX {
            let weights: Vec<u16> = (0_u16..).map(|at| 1 + at % 3 * 2).take(count).collect();
            let all = group(&weights);
            let whole = table(all.clone(), |_| true);
            assert_eq!(table(all.clone(), |_| false), whole);
            let sum: u16 = weights.iter().sum();
            for (share, weight) in whole.shares().into_iter().zip(&weights) {
                let odds = f64::from(*weight) / f64::from(sum);
                let expected = odds * 1024.0;
                let deviation = (expected * (1.0 - odds)).sqrt();
                let share = f64::from(u32::try_from(share).unwrap());
                assert!((share - expected).abs() < 4.0 * deviation, "{share} of {expected}");
            }
            let gone = Port(u16::try_from(count / 2).unwrap());
            let without = table(all.clone(), |hop| hop.port != gone);
            let mut to = std::collections::BTreeSet::new();
            for (before, after) in whole.of_buckets().zip(without.of_buckets()) {
                if before.port == gone {
                    to.insert(after.port);
                } else {
                    assert_eq!(before, after);
                }
            }
            assert!(!to.contains(&gone) && (to.len() > 1 || count < 4), "{count}: {to:?}");
            let left = all.hops().iter().filter(|(hop, _)| hop.port != gone).copied();
            let left = table(HopGroup::new(left).unwrap(), |_| true);
            assert!(left.of_buckets().eq(without.of_buckets()));
        }
    }

    /// Goal: what is no group is refused, and order and repetition do not matter. Method: one of each.
    #[test]
    fn groups_are_checked() {
        assert_eq!(HopGroup::new([]), Err(HopGroupError::Empty));
        let [one, two] = [1, 2].map(|weight| NonZeroU16::new(weight).unwrap());
        let many = (0..65).map(|port| (Route::on_link(Port(port)), one));
        assert_eq!(HopGroup::new(many), Err(HopGroupError::TooMany { count: 65 }));
        let [a, b] = [0, 1].map(|port| Route::on_link(Port(port)));
        let twice = HopGroup::new([(b, one), (a, one), (b, one)]);
        assert_eq!(twice, HopGroup::new([(a, one), (b, two)]));
    }
}
