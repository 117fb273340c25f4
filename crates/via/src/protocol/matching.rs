//! Decides which receive gets which message.
//!
//! There are two indexed lists: receives that wait for a message, and messages that wait for a receive (the
//! paper's linked list of messages that arrived before they were asked for [via-lam, §4.3]). Of all receives
//! that fit a message, the one posted first gets it; of all messages that fit a receive, it gets the one that
//! arrived first. The cost depends on how many *different* patterns wait (logarithmically), not on how many
//! receives or messages. A list of one is not indexed at all.

use std::collections::BTreeMap;

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

    const fn shape(&self) -> usize {
        match (self.source.is_some(), self.tag.is_some()) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        }
    }

    fn key(&self) -> u128 {
        let wild = |field: Option<u32>| field.map_or(0, |value| u128::from(value) + 1);
        u128::from(self.context) << 66 | wild(self.source) << 33 | wild(self.tag)
    }
}

impl Label {
    /// Returns the four patterns that fit this label, by their shape.
    const fn patterns(self) -> [Pattern; 4] {
        let Self { context, source, tag } = self;
        let (source, tag) = (Some(source), Some(tag));
        [
            Pattern { context, source, tag },
            Pattern { context, source, tag: None },
            Pattern { context, source: None, tag },
            Pattern { context, source: None, tag: None },
        ]
    }
}

const NONE: u32 = u32::MAX;

/// An entry of an index, in one list for each of its `N` keys.
#[derive(Debug)]
struct IndexNode<T, const N: usize> {
    order: u64,
    value: T,
    keys: [u128; N],
    /// Previous and next in the list of each key.
    links: [(u32, u32); N],
}

/// Values in lists by key, each in the order of insertion.
#[derive(Debug)]
struct MatchIndex<T, const N: usize> {
    nodes: Vec<Option<IndexNode<T, N>>>,
    free: Vec<u32>,
    /// The first and the last node of each key.
    lists: BTreeMap<u128, (u32, u32)>,
    /// A node that is alone and therefore in no list.
    solo: Option<u32>,
    inserted: u64,
}

impl<T: Copy, const N: usize> MatchIndex<T, N> {
    const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            lists: BTreeMap::new(),
            solo: None,
            inserted: 0,
        }
    }

    #[inline]
    const fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    #[inline]
    fn node(&self, id: u32) -> Option<&IndexNode<T, N>> {
        self.nodes.get(id as usize)?.as_ref()
    }

    fn node_mut(&mut self, id: u32) -> Option<&mut IndexNode<T, N>> {
        self.nodes.get_mut(id as usize)?.as_mut()
    }

    fn insert(&mut self, keys: [u128; N], value: T) -> u32 {
        let is_alone = self.len() == 0;
        self.inserted += 1;
        let node = IndexNode { order: self.inserted, value, keys, links: [(NONE, NONE); N] };
        let id = if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = Some(node);
            id
        } else {
            self.nodes.push(Some(node));
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        };
        if is_alone {
            self.solo = Some(id);
        } else {
            if let Some(first) = self.solo.take() {
                self.link(first);
            }
            self.link(id);
        }
        id
    }

    fn link(&mut self, id: u32) {
        let Some(keys) = self.node(id).map(|node| node.keys) else { return };
        for (lane, key) in keys.into_iter().enumerate() {
            let previous = match self.lists.get_mut(&key) {
                Some((_, last)) => std::mem::replace(last, id),
                None => {
                    self.lists.insert(key, (id, id));
                    NONE
                }
            };
            if let Some(node) = self.node_mut(id) {
                node.links[lane] = (previous, NONE);
            }
            if let Some(node) = self.node_mut(previous) {
                node.links[lane].1 = id;
            }
        }
    }

    fn remove(&mut self, id: u32) -> Option<T> {
        let node = self.nodes.get_mut(id as usize)?.take()?;
        self.free.push(id);
        if self.solo == Some(id) {
            self.solo = None;
            return Some(node.value);
        }
        for (lane, (key, (previous, next))) in node.keys.into_iter().zip(node.links).enumerate() {
            if let Some(node) = self.node_mut(previous) {
                node.links[lane].1 = next;
            }
            if let Some(node) = self.node_mut(next) {
                node.links[lane].0 = previous;
            }
            if previous == NONE && next == NONE {
                self.lists.remove(&key);
            } else if let Some((first, last)) = self.lists.get_mut(&key) {
                if previous == NONE {
                    *first = next;
                }
                if next == NONE {
                    *last = previous;
                }
            }
        }
        Some(node.value)
    }

    fn first(&self, key: u128) -> Option<(u64, u32)> {
        if let Some(id) = self.solo {
            let node = self.node(id)?;
            return node.keys.contains(&key).then_some((node.order, id));
        }
        let (id, _) = *self.lists.get(&key)?;
        Some((self.node(id)?.order, id))
    }
}

/// The position of a receive or a message in its list.
pub(super) type NodeId = u32;

/// Receives that wait for a message.
#[derive(Debug)]
pub(super) struct PostedReceives {
    index: MatchIndex<(Pattern, u64), 1>,
    /// The number of receives of each pattern shape: shapes with none need no search.
    shapes: [usize; 4],
}

impl PostedReceives {
    pub(super) const fn new() -> Self {
        Self { index: MatchIndex::new(), shapes: [0; 4] }
    }

    #[cfg(test)]
    const fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn post(&mut self, pattern: Pattern, request: u64) -> NodeId {
        self.shapes[pattern.shape()] += 1;
        self.index.insert([pattern.key()], (pattern, request))
    }

    pub(super) fn remove(&mut self, node: NodeId) -> Option<u64> {
        let (pattern, request) = self.index.remove(node)?;
        self.shapes[pattern.shape()] -= 1;
        Some(request)
    }

    #[inline]
    fn find(&self, label: Label) -> Option<NodeId> {
        if let Some(id) = self.index.solo {
            return self.index.node(id)?.value.0.matches(label).then_some(id);
        }
        if self.index.len() == 0 {
            return None;
        }
        let patterns = label.patterns();
        let shapes = patterns.iter().zip(self.shapes).filter(|(_, count)| *count > 0);
        shapes.filter_map(|(pattern, _)| self.index.first(pattern.key())).min().map(|(_, id)| id)
    }

    /// Takes the receive that was posted first among those that a message fits.
    #[inline]
    pub(super) fn take(&mut self, label: Label) -> Option<u64> {
        let id = self.find(label)?;
        self.remove(id)
    }
}

/// Messages that wait for a receive.
#[derive(Debug)]
pub(super) struct UnexpectedMessages {
    index: MatchIndex<u64, 4>,
}

impl UnexpectedMessages {
    pub(super) const fn new() -> Self {
        Self { index: MatchIndex::new() }
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn insert(&mut self, label: Label, message: u64) -> NodeId {
        self.index.insert(label.patterns().map(|pattern| pattern.key()), message)
    }

    pub(super) fn remove(&mut self, node: NodeId) -> Option<u64> {
        self.index.remove(node)
    }

    /// Returns the message that arrived first among those that fit.
    pub(super) fn find(&self, pattern: &Pattern) -> Option<(NodeId, u64)> {
        if self.index.len() == 0 {
            return None;
        }
        let (_, id) = self.index.first(pattern.key())?;
        Some((id, self.index.node(id)?.value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                        prop_assert_eq!(found.map(|one| one.1), expected.map(|at| arrived[at].1));
                        if let (Some(at), Some((node, _))) = (expected, found) {
                            prop_assert_eq!(unexpected.remove(node), Some(arrived.remove(at).1));
                        } else {
                            waiting.push((pattern, number, posted.post(pattern, number)));
                        }
                    }
                    Step::Arrive(label) => {
                        let expected = waiting.iter().position(|one| one.0.matches(label));
                        let found = posted.take(label);
                        prop_assert_eq!(found, expected.map(|at| waiting[at].1));
                        if let Some(at) = expected {
                            waiting.remove(at);
                        } else {
                            arrived.push((label, number, unexpected.insert(label, number)));
                        }
                    }
                    Step::CancelPosted(which) => if !waiting.is_empty() {
                        let (_, number, node) = waiting.remove(which % waiting.len());
                        prop_assert_eq!(posted.remove(node), Some(number));
                    },
                    Step::DropUnexpected(which) => if !arrived.is_empty() {
                        let (_, number, node) = arrived.remove(which % arrived.len());
                        prop_assert_eq!(unexpected.remove(node), Some(number));
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
        for node in nodes {
            assert!(posted.remove(node).is_some());
        }
        assert_eq!((posted.index.lists.len(), posted.len()), (0, 0));
        assert_eq!(posted.index.nodes.len(), 1000, "nodes are used again");
    }
}
