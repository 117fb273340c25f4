//! Decides which receive gets which message.
//!
//! There are two indexed lists: receives that wait for a message, and messages that wait for a receive (the
//! paper's linked list of messages that arrived before they were asked for [via-lam, §4.3]). Of all receives
//! that fit a message, the one posted first gets it; of all messages that fit a receive, it gets the one that
//! arrived first. The cost does not depend on how many receives or messages wait. A list of one is not indexed at all, and messages
//! only by what was asked for since the list was empty: receives without wildcards, which are usual, pay for one index of four.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The label of a message for matching: its context, its sender and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "callers write one")]
pub struct Label {
    /// The communicator's context.
    pub context: u16,
    /// The sender's rank.
    pub source: u32,
    /// The tag.
    pub tag: u32,
}

/// A pattern of the messages that a receive takes. `None` is a wildcard: any source, any tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "callers write one")]
pub struct Pattern {
    /// The communicator's context.
    pub context: u16,
    /// The sender's rank.
    pub source: Option<u32>,
    /// The tag.
    pub tag: Option<u32>,
}

impl Pattern {
    /// Returns whether a message fits.
    #[inline]
    #[must_use]
    pub fn matches(&self, label: Label) -> bool {
        self.context == label.context
            && self.source.is_none_or(|source| source == label.source)
            && self.tag.is_none_or(|tag| tag == label.tag)
    }

    pub(super) const fn shape(&self) -> usize {
        match (self.source.is_some(), self.tag.is_some()) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        }
    }

    pub(super) fn key(&self) -> u128 {
        let wild = |field: Option<u32>| field.map_or(0, |value| u128::from(value) + 1);
        u128::from(self.context) << 66 | wild(self.source) << 33 | wild(self.tag)
    }
}

impl Label {
    /// Returns the pattern of this [shape](Pattern::shape) that fits this label.
    #[inline(always)]
    pub(super) const fn pattern(self, shape: usize) -> Pattern {
        let Self { context, source, tag } = self;
        let source = if shape & 2 == 0 { Some(source) } else { None };
        let tag = if shape & 1 == 0 { Some(tag) } else { None };
        Pattern { context, source, tag }
    }
}

const NONE: u32 = u32::MAX;

/// The nodes that an index keeps for use again when it becomes empty.
const EMPTIED_MAX: usize = 64;

/// A map that is only looked up in, never gone through.
#[expect(clippy::disallowed_types, reason = "its order is never seen")]
type Lists = std::collections::HashMap<u128, (u32, u32), KeyHash>;

/// Hashes a key by one multiplication. Peers choose tags, and must not know which of them collide: hence the seed.
#[derive(Clone, Copy, Debug)]
struct KeyHash {
    seed: u64,
}

impl KeyHash {
    fn new() -> Self {
        Self { seed: RandomState::new().hash_one(0_u64) }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = Self;

    #[inline]
    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for KeyHash {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u128((*byte).into());
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
    fn write_u128(&mut self, key: u128) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let low = key as u64 ^ self.seed;
        let high = (key >> 64) as u64 ^ self.seed.rotate_left(32);
        let product =
            u128::from(low.wrapping_add(high.wrapping_mul(ODD))) * u128::from(self.seed | 1);
        self.seed = (product >> 64) as u64 ^ product as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.seed
    }
}

/// A value that is found by several keys.
pub(super) trait Keyed {
    /// Returns its key in the `lane`th of the index's lists.
    fn key(&self, lane: usize) -> u128;
}

/// An entry of an index.
#[derive(Debug)]
struct IndexNode<T> {
    order: u64,
    value: T,
    /// Previous and next in the list of its first key.
    links: (u32, u32),
}

/// Values in lists by each of their `N` keys, in the order of insertion.
#[derive(Debug)]
pub(super) struct MatchIndex<T, const N: usize> {
    nodes: Vec<Option<IndexNode<T>>>,
    /// Previous and next of each node in the lists of the other keys, which are rarely asked for.
    others: [Vec<(u32, u32)>; N],
    free: Vec<u32>,
    /// The first and the last node of each key, except for `current`.
    lists: Lists,
    /// The key to which the last values were added, and its list: many receives in a row often have the same pattern.
    current: Option<(u128, (u32, u32))>,
    /// The keys by which there are lists: always the first, and those of the others that were asked for since the index was empty.
    has_lists: [bool; N],
    /// A node that is alone and therefore in no list.
    solo: Option<u32>,
    inserted: u64,
}

impl<T: Keyed, const N: usize> MatchIndex<T, N> {
    /// What an entry takes, in bytes.
    #[cfg(test)]
    pub(super) const NODE_BYTES: usize = size_of::<Option<IndexNode<T>>>();

    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            others: [const { Vec::new() }; N],
            free: Vec::new(),
            lists: Lists::with_hasher(KeyHash::new()),
            current: None,
            has_lists: [false; N],
            solo: None,
            inserted: 0,
        }
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    #[inline]
    fn node(&self, id: u32) -> Option<&IndexNode<T>> {
        self.nodes.get(id as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn value(&self, id: u32) -> Option<&T> {
        self.node(id).map(|node| &node.value)
    }

    /// Returns a value, of which no key may be changed.
    pub(super) fn value_mut(&mut self, id: u32) -> Option<&mut T> {
        self.nodes.get_mut(id as usize)?.as_mut().map(|node| &mut node.value)
    }

    /// Returns the values, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.nodes).filter_map(|(id, node)| Some((id, &node.as_ref()?.value)))
    }

    /// Returns the number of the node that is inserted next.
    #[inline]
    fn next_id(&self) -> u32 {
        let new = || u32::try_from(self.nodes.len()).unwrap_or(NONE);
        self.free.last().copied().unwrap_or_else(new)
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let (is_alone, id) = (self.len() == 0, self.next_id());
        self.inserted += 1;
        let node = Some(IndexNode { order: self.inserted, value, links: (NONE, NONE) });
        if self.free.pop().is_some() {
            self.nodes[id as usize] = node;
        } else {
            self.nodes.push(node);
        }

        if is_alone {
            self.solo = Some(id);
            self.has_lists = std::array::from_fn(|lane| lane == 0);
            return id;
        }
        let first = self.solo.take();
        for lane in 0..N {
            if self.has_lists[lane] {
                first.into_iter().for_each(|first| self.link(first, lane));
                self.link(id, lane);
            }
        }
        id
    }

    /// Puts a node at the end of its list.
    #[inline]
    fn link(&mut self, id: u32, lane: usize) {
        let Some(key) = self.value(id).map(|value| value.key(lane)) else { return };
        let previous = self.replace_last(key, id);
        if let Some(links) = self.links_mut(previous, lane) {
            links.1 = id;
        }
        if let Some(links) = self.links_mut(id, lane) {
            *links = (previous, NONE);
        }
    }

    /// Returns previous and next of a node in one of its lists, to be changed.
    #[inline]
    fn links_mut(&mut self, id: u32, lane: usize) -> Option<&mut (u32, u32)> {
        if lane == 0 {
            return self.nodes.get_mut(id as usize)?.as_mut().map(|node| &mut node.links);
        }
        if id == NONE {
            return None;
        }
        let (index, others) = (id as usize, &mut self.others[lane]);
        if others.len() <= index {
            others.resize(self.nodes.len(), (NONE, NONE));
        }
        others.get_mut(index)
    }

    #[inline]
    fn replace_last(&mut self, key: u128, id: u32) -> u32 {
        if let Some((current, (_, last))) = &mut self.current
            && *current == key
        {
            return std::mem::replace(last, id);
        }
        let Some((first, last)) = self.lists.remove(&key) else {
            self.lists.insert(key, (id, id));
            return NONE;
        };
        if let Some((before, list)) = self.current.replace((key, (first, id))) {
            self.lists.insert(before, list);
        }
        last
    }

    #[inline]
    fn list(&self, key: u128) -> Option<(u32, u32)> {
        match self.current {
            Some((current, list)) if current == key => Some(list),
            _ => self.lists.get(&key).copied(),
        }
    }

    /// Returns the ends of a list, to be changed.
    #[inline]
    fn list_mut(&mut self, key: u128) -> Option<&mut (u32, u32)> {
        match &mut self.current {
            Some((current, list)) if *current == key => Some(list),
            _ => self.lists.get_mut(&key),
        }
    }

    fn remove_list(&mut self, key: u128) {
        if self.current.take_if(|(current, _)| *current == key).is_none() {
            self.lists.remove(&key);
        }
    }

    /// Makes the lists of a key.
    #[cold]
    fn make_lists(&mut self, lane: usize) {
        self.has_lists[lane] = true;
        let ids =
            self.nodes.iter().zip(0..).filter_map(|(node, id)| Some((node.as_ref()?.order, id)));
        let mut ids: Vec<(u64, u32)> = ids.collect();
        ids.sort_unstable();
        for (_, id) in ids {
            self.link(id, lane);
        }
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let node = self.nodes.get_mut(id as usize)?.take()?;
        self.free.push(id);

        // A node that is alone was never linked.
        if self.solo.take_if(|solo| *solo == id).is_some() {
            return Some(node.value);
        }
        self.unlink_all(id, &node);

        // What is searched later is no longer than what waits then.
        if self.len() == 0 && self.nodes.len() > EMPTIED_MAX {
            self.nodes.clear();
            self.free.clear();
            self.others.iter_mut().for_each(Vec::clear);
        }
        Some(node.value)
    }

    fn unlink_all(&mut self, id: u32, node: &IndexNode<T>) {
        for lane in 0..N {
            if !self.has_lists[lane] {
                continue;
            }
            let links = if lane == 0 {
                node.links
            } else {
                self.others[lane].get(id as usize).copied().unwrap_or((NONE, NONE))
            };
            self.unlink(node.value.key(lane), links, lane);
        }
    }

    /// Takes a node with these links out of a list.
    #[inline]
    fn unlink(&mut self, key: u128, (previous, next): (u32, u32), lane: usize) {
        if let Some(links) = self.links_mut(previous, lane) {
            links.1 = next;
        }
        if let Some(links) = self.links_mut(next, lane) {
            links.0 = previous;
        }
        match (previous, next) {
            (NONE, NONE) => self.remove_list(key),
            (NONE, next) => self.list_mut(key).into_iter().for_each(|list| list.0 = next),
            (previous, NONE) => self.list_mut(key).into_iter().for_each(|list| list.1 = previous),
            _ => {}
        }
    }

    /// Returns the order and the node of the first value with a key, which is the `lane`th of its keys.
    #[inline]
    pub(super) fn first(&mut self, lane: usize, key: u128) -> Option<(u64, u32)> {
        if let Some(id) = self.solo {
            let node = self.node(id)?;
            return (node.value.key(lane) == key).then_some((node.order, id));
        }
        if !self.has_lists[lane] {
            self.make_lists(lane);
        }
        let (id, _) = self.list(key)?;
        Some((self.node(id)?.order, id))
    }
}

/// The position of a receive or a message in its list.
pub(super) type NodeId = u32;

/// A receive and its request.
#[derive(Debug)]
struct PostedReceive {
    pattern: Pattern,
    request: u64,
}

impl Keyed for PostedReceive {
    fn key(&self, _lane: usize) -> u128 {
        self.pattern.key()
    }
}

/// Receives that wait for a message.
#[derive(Debug)]
pub(super) struct PostedReceives {
    index: MatchIndex<PostedReceive, 1>,
    /// The number of receives of each pattern shape: shapes with none need no search.
    shapes: [usize; 4],
}

impl PostedReceives {
    pub(super) fn new() -> Self {
        Self { index: MatchIndex::new(), shapes: [0; 4] }
    }

    #[cfg(test)]
    const fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the node that the next receive will have.
    #[inline]
    pub(super) fn next_node(&self) -> NodeId {
        self.index.next_id()
    }

    pub(super) fn post(&mut self, pattern: Pattern, request: u64) -> NodeId {
        self.shapes[pattern.shape()] += 1;
        self.index.insert(PostedReceive { pattern, request })
    }

    pub(super) fn remove(&mut self, node: NodeId) -> Option<u64> {
        let PostedReceive { pattern, request } = self.index.remove(node)?;
        self.shapes[pattern.shape()] -= 1;
        Some(request)
    }

    #[inline]
    fn find(&mut self, label: Label) -> Option<NodeId> {
        if let Some(id) = self.index.solo {
            return self.index.value(id)?.pattern.matches(label).then_some(id);
        }
        if self.shapes[1..] == [0; 3] {
            return self.index.first(0, label.pattern(0).key()).map(|(_, id)| id);
        }
        let shapes = (0..4).filter(|shape| self.shapes[*shape] > 0);
        let firsts = shapes.filter_map(|shape| self.index.first(0, label.pattern(shape).key()));
        firsts.min().map(|(_, id)| id)
    }

    /// Takes the receive that was posted first among those that a message fits.
    #[inline]
    pub(super) fn take(&mut self, label: Label) -> Option<u64> {
        let Label { context, source, tag } = label;
        if self.index.len() == 0 { None } else { self.take_posted(context, source, tag) }
    }

    /// As [`take`](Self::take). A label that was put together just now travels in registers.
    fn take_posted(&mut self, context: u16, source: u32, tag: u32) -> Option<u64> {
        let id = self.find(Label { context, source, tag })?;
        self.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::unexpected::{Unexpected, UnexpectedEntry, UnexpectedMessages};

    fn key_of(entry: &UnexpectedEntry) -> u64 {
        match entry.message {
            Unexpected::Begun { key, .. } => key,
            Unexpected::Whole(_) => u64::MAX,
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post(Pattern),
        Arrive(Label),
        CancelPosted(usize),
        DropUnexpected(usize),
    }

    fn wild(range: std::ops::Range<u32>) -> impl Strategy<Value = Option<u32>> {
        prop_oneof![3 => range.prop_map(Some), 1 => Just(None)]
    }

    fn step() -> impl Strategy<Value = Step> {
        let pattern = (0_u16..2, wild(0..3), wild(0..3))
            .prop_map(|(context, source, tag)| Step::Post(Pattern { context, source, tag }));
        let label = (0_u16..2, 0_u32..3, 0_u32..3)
            .prop_map(|(context, source, tag)| Step::Arrive(Label { context, source, tag }));
        prop_oneof![
            4 => pattern,
            4 => label,
            1 => any::<usize>().prop_map(Step::CancelPosted),
            1 => any::<usize>().prop_map(Step::DropUnexpected),
        ]
    }

    proptest! {
        /// Goal: the earliest posted receive and the earliest arrived message, over exact patterns and
        /// wildcards. Method: random steps against two plain lists that are searched from the front.
        #[test]
        fn earliest_of_all_that_fit(steps in proptest::collection::vec(step(), 1..200)) {
            let (mut posted, mut unexpected) = (PostedReceives::new(), UnexpectedMessages::new());
            let mut waiting: Vec<(Pattern, u64, NodeId)> = Vec::new();
            let mut arrived: Vec<(Label, u64, NodeId)> = Vec::new();
            for (number, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Post(pattern) => {
                        let expected = arrived.iter().position(|one| pattern.matches(one.0));
                        let found = unexpected.find(&pattern);
                        let found = found.map(|(node, entry)| (node, key_of(entry)));
                        prop_assert_eq!(found.map(|one| one.1), expected.map(|at| arrived[at].1));
                        if let (Some(at), Some((node, _))) = (expected, found) {
                            let removed = unexpected.remove(node).as_ref().map(key_of);
                            prop_assert_eq!(removed, Some(arrived.remove(at).1));
                        } else {
                            let node = posted.next_node();
                            waiting.push((pattern, number, posted.post(pattern, number)));
                            prop_assert_eq!(waiting.last().map(|one| one.2), Some(node));
                        }
                    }
                    Step::Arrive(label) => {
                        let expected = waiting.iter().position(|one| one.0.matches(label));
                        let found = posted.take(label);
                        prop_assert_eq!(found, expected.map(|at| waiting[at].1));
                        if let Some(at) = expected {
                            waiting.remove(at);
                        } else {
                            let node = unexpected.insert(label, Unexpected::Begun { key: number, sender: 0 });
                            arrived.push((label, number, node));
                        }
                    }
                    Step::CancelPosted(which) => if !waiting.is_empty() {
                        let (_, number, node) = waiting.remove(which % waiting.len());
                        prop_assert_eq!(posted.remove(node), Some(number));
                    },
                    Step::DropUnexpected(which) => if !arrived.is_empty() {
                        let (_, number, node) = arrived.remove(which % arrived.len());
                        let removed = unexpected.remove(node).as_ref().map(key_of);
                        prop_assert_eq!(removed, Some(number));
                    },
                }
                prop_assert_eq!((posted.len(), unexpected.len()), (waiting.len(), arrived.len()));
                let of = |shape| waiting.iter().filter(|one| one.0.shape() == shape).count();
                prop_assert_eq!(posted.shapes, [0, 1, 2, 3].map(of));
            }
        }
    }

    /// Goal: the cost of an exact match does not grow with what else waits. Method: count the lists and check
    /// that emptied ones are gone; the search itself touches at most four of them.
    #[test]
    fn emptied_lists_are_gone() {
        let mut posted = PostedReceives::new();
        let nodes: Vec<NodeId> = (0..1000)
            .map(|tag| {
                let pattern = Pattern { context: 0, source: Some(1), tag: Some(tag) };
                posted.post(pattern, u64::from(tag))
            })
            .collect();
        assert_eq!(posted.index.lists.len(), 1000);
        for tag in [7, 7, 8] {
            let pattern = Pattern { context: 0, source: Some(1), tag: Some(tag) };
            let again = posted.post(pattern, 0);
            assert!(posted.remove(again).is_some());
        }
        assert_eq!(posted.index.nodes.len(), 1001, "nodes are used again");
        for node in nodes {
            assert!(posted.remove(node).is_some());
        }
        assert_eq!((posted.index.lists.len(), posted.index.current, posted.len()), (0, None, 0));
        assert_eq!(posted.index.nodes.len(), 0, "few are kept");
    }
}
