//! Longest-prefix match: a binary trie with compressed paths.
//!
//! It is persistent: a change makes new nodes along one path and shares all others, so that holders of an older version
//! are not affected, and a change costs as much as a look-up.

use std::{net::IpAddr, sync::Arc};

use super::prefix::{Prefix, key, mask};

/// Values by prefixes of both versions of IP.
#[derive(Clone, Debug)]
pub(super) struct Trie<V> {
    v4: Option<Arc<TrieNode<V>>>,
    v6: Option<Arc<TrieNode<V>>>,
}

impl<V> Default for Trie<V> {
    fn default() -> Self {
        Self { v4: None, v6: None }
    }
}

/// All prefixes below extend its own. A node without a value has two children.
#[derive(Clone, Debug)]
struct TrieNode<V> {
    bits: u128,
    length: u8,
    value: Option<V>,
    children: [Option<Arc<Self>>; 2],
}

/// The address with these bits.
fn address_of(key: u128, is_v4: bool) -> IpAddr {
    if is_v4 {
        let [a, b, c, d, ..] = key.to_be_bytes();
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(key.to_be_bytes())
    }
}

/// The bit at a position, counted from the most significant.
#[inline]
const fn bit(bits: u128, at: u8) -> usize {
    ((bits >> (127 - at)) & 1) as usize
}

/// The number of leading bits in common, at most `max`.
fn common(a: u128, b: u128, max: u8) -> u8 {
    u8::try_from((a ^ b).leading_zeros()).map_or(max, |same| same.min(max))
}

impl<V: Clone> TrieNode<V> {
    const fn leaf(bits: u128, length: u8, value: V) -> Self {
        Self { bits, length, value: Some(value), children: [None, None] }
    }

    fn insert(
        node: Option<&Arc<Self>>,
        bits: u128,
        length: u8,
        value: V,
    ) -> (Arc<Self>, Option<V>) {
        let Some(node) = node else { return (Arc::new(Self::leaf(bits, length, value)), None) };
        let shared = common(node.bits, bits, node.length.min(length));
        if shared < node.length {
            // The new prefix ends, or branches off, above this node.
            let mut parent = Self {
                bits: bits & mask(shared),
                length: shared,
                value: None,
                children: [None, None],
            };
            parent.children[bit(node.bits, shared)] = Some(Arc::clone(node));
            if shared == length {
                parent.value = Some(value);
            } else {
                let leaf = Self::leaf(bits, length, value);
                parent.children[bit(bits, shared)] = Some(Arc::new(leaf));
            }
            return (Arc::new(parent), None);
        }

        let mut changed = Self::clone(node);
        if length == node.length {
            let before = changed.value.replace(value);
            return (Arc::new(changed), before);
        }

        let side = bit(bits, node.length);
        let (child, before) = Self::insert(node.children[side].as_ref(), bits, length, value);
        changed.children[side] = Some(child);
        (Arc::new(changed), before)
    }

    /// Returns the node without a prefix, and its previous value; `None` if it had none.
    fn remove(node: &Arc<Self>, bits: u128, length: u8) -> Option<(Option<Arc<Self>>, V)> {
        if length < node.length || (node.bits ^ bits) & mask(node.length) != 0 {
            return None;
        }
        let mut changed = Self::clone(node);
        let before;
        if length == node.length {
            before = changed.value.take()?;
        } else {
            let side = bit(bits, node.length);
            let (child, value) = Self::remove(node.children[side].as_ref()?, bits, length)?;
            changed.children[side] = child;
            before = value;
        }
        Some((changed.shortened(), before))
    }

    /// Removes a node that has neither a value nor two children.
    fn shortened(mut self) -> Option<Arc<Self>> {
        if self.value.is_some() {
            return Some(Arc::new(self));
        }
        match (self.children[0].take(), self.children[1].take()) {
            (None, child) | (child, None) => child,
            both => {
                self.children = [both.0, both.1];
                Some(Arc::new(self))
            }
        }
    }

    fn each(&self, is_v4: bool, visit: &mut impl FnMut(Prefix, &V)) {
        if let Some(value) = &self.value
            && let Ok(prefix) = Prefix::new(address_of(self.bits, is_v4), self.length)
        {
            visit(prefix, value);
        }
        for child in self.children.iter().flatten() {
            child.each(is_v4, visit);
        }
    }
}

impl<V: Clone> Trie<V> {
    const fn root_mut(&mut self, is_v4: bool) -> &mut Option<Arc<TrieNode<V>>> {
        if is_v4 { &mut self.v4 } else { &mut self.v6 }
    }

    pub(super) fn insert(&mut self, prefix: Prefix, value: V) -> Option<V> {
        let address = prefix.address();
        let root = self.root_mut(address.is_ipv4());
        let (node, before) =
            TrieNode::insert(root.as_ref(), key(address), prefix.length_bits(), value);
        *root = Some(node);
        before
    }

    pub(super) fn remove(&mut self, prefix: Prefix) -> Option<V> {
        let address = prefix.address();
        let root = self.root_mut(address.is_ipv4());
        let (node, before) = TrieNode::remove(root.as_ref()?, key(address), prefix.length_bits())?;
        *root = node;
        Some(before)
    }

    /// Returns the value of the longest prefix of the address.
    #[inline]
    pub(super) fn lookup(&self, address: IpAddr) -> Option<&V> {
        let bits = key(address);
        let mut node = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut found = None;
        while let Some(here) = node {
            if (here.bits ^ bits) & mask(here.length) != 0 {
                break;
            }
            found = here.value.as_ref().or(found);
            if here.length >= 128 {
                break;
            }
            node = &here.children[bit(bits, here.length)];
        }
        found
    }

    /// Visits all, in the order of their addresses, shorter prefixes first, version 4 first.
    pub(super) fn each(&self, mut visit: impl FnMut(Prefix, &V)) {
        for (root, is_v4) in [(&self.v4, true), (&self.v6, false)] {
            if let Some(root) = root {
                root.each(is_v4, &mut visit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn prefixes() -> impl Strategy<Value = Prefix> {
        let v4 = (any::<u32>(), 0..=32_u8).prop_map(|(bits, length)| {
            // Few distinct leading bits, so that prefixes are nested.
            let bits = bits & 0xc30c_0003;
            Prefix::new(Ipv4Addr::from(bits).into(), length).unwrap()
        });
        let v6 = (any::<u128>(), 0..=128_u8).prop_map(|(bits, length)| {
            Prefix::new(IpAddr::from((bits & (0b101 << 125 | 3)).to_be_bytes()), length).unwrap()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        /// Goal: it finds the same as a search through all prefixes, after any changes, and older versions stay
        /// unchanged. Method: an ordered map as the oracle.
        #[test]
        fn the_longest_prefix_wins(
            changes in prop::collection::vec((prefixes(), prop::option::weighted(0.7, any::<u32>())), 1..60),
            probes in prop::collection::vec(prefixes(), 20),
        ) {
            let mut trie = Trie::default();
            let mut oracle = BTreeMap::new();
            let longest = |oracle: &BTreeMap<Prefix, u32>, address| {
                let matching = oracle.iter().filter(|(prefix, _)| prefix.contains(address));
                matching.max_by_key(|(prefix, _)| prefix.length_bits()).map(|(_, value)| *value)
            };
            for (prefix, value) in changes {
                let older = trie.clone();
                let older_oracle = oracle.clone();
                match value {
                    Some(value) => assert_eq!(trie.insert(prefix, value), oracle.insert(prefix, value)),
                    None => assert_eq!(trie.remove(prefix), oracle.remove(&prefix)),
                }
                for probe in &probes {
                    let address = probe.address();
                    assert_eq!(trie.lookup(address).copied(), longest(&oracle, address));
                    assert_eq!(older.lookup(address).copied(), longest(&older_oracle, address));
                }
            }
            let mut all = BTreeMap::new();
            trie.each(|prefix, value| assert_eq!(all.insert(prefix, *value), None));
            assert_eq!(all, oracle);
        }
    }
}
