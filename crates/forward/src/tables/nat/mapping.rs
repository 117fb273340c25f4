//! Mappings: the external end that an inside end has for all its peers (RFC 4787, REQ-1; RFC 5382, REQ-1).

use std::{collections::BTreeMap, net::IpAddr};

use indexmap::IndexMap;
use slab::Slab;

use super::{NatEndpoint, state::KeyedHashBuilder};

/// An external address and a protocol, which have ports of their own.
pub(super) type PoolKey = (IpAddr, u8);

/// One mapping. It lives as long as one of its flows.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) pool: PoolKey,
    pub(super) internal: NatEndpoint,
    pub(super) external: NatEndpoint,
    flows: usize,
    /// The outside addresses that flows from inside lead to, with the number of these flows: they may use the mapping
    /// from any port of theirs (RFC 4787, REQ-8).
    peers: BTreeMap<IpAddr, u32>,
}

/// The mappings, by both ends.
pub(super) struct Mappings {
    all: Slab<Mapping>,
    by_internal: IndexMap<(PoolKey, NatEndpoint), usize, KeyedHashBuilder>,
    by_external: IndexMap<(PoolKey, u16), usize, KeyedHashBuilder>,
}

impl Mappings {
    pub(super) fn new(hash: KeyedHashBuilder) -> Self {
        Self {
            all: Slab::new(),
            by_internal: IndexMap::with_hasher(hash),
            by_external: IndexMap::with_hasher(hash),
        }
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Mapping> {
        self.all.get(slot)
    }

    pub(super) fn of_internal(&self, pool: PoolKey, internal: NatEndpoint) -> Option<usize> {
        self.by_internal.get(&(pool, internal)).copied()
    }

    /// Returns the mapping of an external end, if `peer` may use it; without a peer, anyone may.
    pub(super) fn of_external(
        &self,
        (protocol, external): (u8, NatEndpoint),
        peer: Option<IpAddr>,
    ) -> Option<usize> {
        let key = ((external.address, protocol), external.port);
        let slot = *self.by_external.get(&key)?;
        let mapping = self.all.get(slot)?;
        peer.is_none_or(|peer| mapping.peers.contains_key(&peer)).then_some(slot)
    }

    pub(super) fn add(&mut self, pool: PoolKey, internal: NatEndpoint, port: u16) -> usize {
        let external = NatEndpoint::new(pool.0, port);
        let peers = BTreeMap::new();
        let slot = self.all.insert(Mapping { pool, internal, external, flows: 0, peers });
        self.by_internal.insert((pool, internal), slot);
        self.by_external.insert((pool, port), slot);
        slot
    }

    /// One flow more uses the mapping: from inside to `peer`, or from outside.
    pub(super) fn join(&mut self, slot: usize, peer: Option<IpAddr>) {
        let Some(mapping) = self.all.get_mut(slot) else { return };
        mapping.flows += 1;
        if let Some(peer) = peer {
            *mapping.peers.entry(peer).or_default() += 1;
        }
    }

    /// One flow less uses it. Returns the mapping if that was the last one.
    pub(super) fn leave(&mut self, slot: usize, peer: Option<IpAddr>) -> Option<Mapping> {
        let mapping = self.all.get_mut(slot)?;
        mapping.flows -= 1;
        if let Some(peer) = peer
            && let Some(count) = mapping.peers.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                mapping.peers.remove(&peer);
            }
        }
        if mapping.flows > 0 {
            return None;
        }
        let mapping = self.all.try_remove(slot)?;
        self.by_internal.swap_remove(&(mapping.pool, mapping.internal));
        self.by_external.swap_remove(&(mapping.pool, mapping.external.port));
        Some(mapping)
    }
}
