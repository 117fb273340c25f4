//! Messages that wait for a receive: the paper's linked list of messages that arrived before they were asked for [via-lam, §4.3].
//!
//! A whole message is kept in its entry, and that in one line of a cache with up to 24 of its bytes: a receiver that comes late finds
//! a hundred thousand of them.

use std::collections::BTreeMap;

use super::{
    envelope::NO_REQUEST,
    matching::{Keyed, Label, MatchIndex, NodeId, Pattern},
    payload::{Sink, put},
    request::MessagePart,
};
use crate::vi::{SHORT_BODY_MAX, ShortBody};

/// A whole message that no receive has matched.
#[derive(Debug)]
pub(super) enum WholeMessage {
    /// One of few bytes.
    Few { words: [u64; SHORT_BODY_MAX / 8], length: u8, flags: u8, sender: u32 },
    /// One whose bytes begin at `start`.
    Many { bytes: Vec<u8>, start: u16, flags: u8, sender: u32 },
}

impl WholeMessage {
    /// Returns one of few bytes, whose sender's request has this index.
    #[inline]
    pub(super) fn few(body: ShortBody, flags: u8, sender: u32) -> Self {
        let length = u8::try_from(body.len()).unwrap_or_default();
        Self::Few { words: body.words(), length, flags, sender }
    }

    /// Returns one whose bytes are those from `start` on.
    pub(super) fn many(mut bytes: Vec<u8>, start: usize, flags: u8, sender: u32) -> Self {
        let start = u16::try_from(start).unwrap_or_else(|_| {
            bytes.drain(..start);
            0
        });
        Self::Many { bytes, start, flags, sender }
    }

    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Few { length, .. } => *length as usize,
            Self::Many { bytes, start, .. } => bytes.len() - *start as usize,
        }
    }

    pub(super) const fn flags(&self) -> u8 {
        let (Self::Few { flags, .. } | Self::Many { flags, .. }) = self;
        *flags
    }

    pub(super) const fn sender(&self) -> u32 {
        let (Self::Few { sender, .. } | Self::Many { sender, .. }) = self;
        *sender
    }

    /// Hands the bytes to a sink. Returns how many it took.
    pub(super) fn copy_to<S: Sink + ?Sized>(self, sink: &mut S) -> usize {
        match self {
            Self::Few { words, length, .. } => {
                let (body, length) = (ShortBody::of_words(words, length.into()), length.into());
                if let Some(place) = sink.chunk_mut_at(0, length).get_mut(..length) {
                    return body.copy_to(place);
                }
                put(sink, 0, &body.to_vec())
            }
            Self::Many { mut bytes, start, .. } => {
                let length = bytes.len();
                if start == 0 && sink.adopt(&mut bytes) {
                    return length;
                }
                put(sink, 0, &bytes[start.into()..])
            }
        }
    }

    pub(super) fn into_part(self) -> MessagePart {
        match self {
            Self::Few { words, length, .. } => {
                MessagePart::new(ShortBody::of_words(words, length.into()).to_vec(), 0)
            }
            Self::Many { bytes, start, .. } => MessagePart::new(bytes, start.into()),
        }
    }
}

/// A message that waits for a receive.
#[derive(Debug)]
pub(super) enum Unexpected {
    /// All of it is here.
    Whole(WholeMessage),
    /// It is among the engine's messages, under this key. `sender`: the index of its sender's request.
    Begun { key: u64, sender: u32 },
}

/// An entry of the list.
#[derive(Debug)]
pub(super) struct UnexpectedEntry {
    pub(super) label: Label,
    pub(super) message: Unexpected,
}

impl UnexpectedEntry {
    /// Returns its source and the index of its sender's request, if the sender has told it.
    #[inline]
    const fn origin(&self) -> Option<(u32, u32)> {
        let sender = match &self.message {
            Unexpected::Whole(whole) => whole.sender(),
            Unexpected::Begun { sender, .. } => *sender,
        };
        if sender == NO_REQUEST { None } else { Some((self.label.source, sender)) }
    }
}

impl Keyed for UnexpectedEntry {
    #[inline]
    fn key(&self, lane: usize) -> u128 {
        self.label.pattern(lane).key()
    }
}

/// Messages that wait for a receive.
#[derive(Debug)]
pub(super) struct UnexpectedMessages {
    index: MatchIndex<UnexpectedEntry, 4>,
    wholes: usize,
    /// The last message of each sender's request: an earlier one of that number has ended for its sender, and cannot be taken back.
    by_origin: BTreeMap<(u32, u32), NodeId>,
}

impl UnexpectedMessages {
    pub(super) fn new() -> Self {
        Self { index: MatchIndex::new(), wholes: 0, by_origin: BTreeMap::new() }
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns how many of them are whole and not among the engine's messages.
    #[inline]
    pub(super) const fn wholes(&self) -> usize {
        self.wholes
    }

    #[inline]
    pub(super) fn insert(&mut self, label: Label, message: Unexpected) -> NodeId {
        self.wholes += usize::from(matches!(message, Unexpected::Whole(_)));
        let entry = UnexpectedEntry { label, message };
        let origin = entry.origin();
        let node = self.index.insert(entry);
        if let Some(origin) = origin {
            self.by_origin.insert(origin, node);
        }
        node
    }

    #[inline]
    pub(super) fn remove(&mut self, node: NodeId) -> Option<UnexpectedEntry> {
        let entry = self.index.remove(node)?;
        self.wholes -= usize::from(matches!(entry.message, Unexpected::Whole(_)));
        if let Some(origin) = entry.origin()
            && self.by_origin.get(&origin) == Some(&node)
        {
            self.by_origin.remove(&origin);
        }
        Some(entry)
    }

    /// Returns the message of a rank's request with this index, if no receive has matched it.
    pub(super) fn sent_by(&self, rank: u32, request: u32) -> Option<(NodeId, &UnexpectedEntry)> {
        let node = *self.by_origin.get(&(rank, request))?;
        Some((node, self.index.value(node)?))
    }

    /// Returns the message that arrived first among those that fit.
    #[inline]
    pub(super) fn find(&mut self, pattern: &Pattern) -> Option<(NodeId, &UnexpectedEntry)> {
        if self.index.len() == 0 {
            return None;
        }
        let (_, id) = self.index.first(pattern.shape(), pattern.key())?;
        Some((id, self.index.value(id)?))
    }

    /// Replaces a whole message by its key among the engine's messages. Returns it.
    pub(super) fn begin(&mut self, node: NodeId, key: u64) -> Option<WholeMessage> {
        let entry = self.index.value_mut(node)?;
        let Unexpected::Whole(whole) = &entry.message else { return None };
        let sender = whole.sender();
        let Unexpected::Whole(whole) =
            std::mem::replace(&mut entry.message, Unexpected::Begun { key, sender })
        else {
            return None;
        };
        self.wholes -= 1;
        Some(whole)
    }

    /// Returns the whole messages, in no order.
    pub(super) fn whole_messages(&self) -> impl Iterator<Item = (NodeId, Label, &WholeMessage)> {
        self.index.values().filter_map(|(node, entry)| match &entry.message {
            Unexpected::Whole(whole) => Some((node, entry.label, whole)),
            Unexpected::Begun { .. } => None,
        })
    }

    /// Returns whether a whole message of a context waits.
    pub(super) fn has_context(&self, context: u16) -> bool {
        self.wholes > 0 && self.whole_messages().any(|(_, label, _)| label.context == context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a message of few bytes takes one line of a cache. Method: the size of an entry.
    #[test]
    fn an_entry_is_a_line() {
        assert_eq!(MatchIndex::<UnexpectedEntry, 4>::NODE_BYTES, 64);
    }

    /// Goal: a message is found by its sender's request, also if the request's number was used before, and none is kept in view that cannot be
    /// taken back or has gone. Method: many messages of which few have a request, removed in different orders.
    #[test]
    fn messages_are_found_by_their_requests() {
        let label = |source| Label { context: 0, source, tag: 0 };
        let whole = |sender| {
            Unexpected::Whole(WholeMessage::few(ShortBody::new(&[]).expect("short"), 0, sender))
        };
        let mut messages = UnexpectedMessages::new();
        for _ in 0..1000 {
            messages.insert(label(1), whole(NO_REQUEST));
        }
        let old = messages.insert(label(1), Unexpected::Begun { key: 3, sender: 5 });
        let new = messages.insert(label(1), whole(5));
        let other = messages.insert(label(2), whole(5));
        assert_eq!(messages.by_origin.len(), 2, "not the thousand");
        let found = |messages: &UnexpectedMessages, rank, request| {
            messages.sent_by(rank, request).map(|(node, _)| node)
        };
        assert_eq!((found(&messages, 1, 5), found(&messages, 2, 5)), (Some(new), Some(other)));
        assert_eq!((found(&messages, 1, 6), found(&messages, 1, NO_REQUEST)), (None, None));

        assert!(messages.remove(old).is_some());
        assert_eq!(found(&messages, 1, 5), Some(new));
        assert!(messages.begin(new, 4).is_some());
        assert_eq!(found(&messages, 1, 5), Some(new));
        assert!(messages.remove(new).is_some() && messages.remove(other).is_some());
        assert_eq!((messages.len(), messages.by_origin.len()), (1000, 0));
    }

    /// Goal: whole messages of all lengths are handed over as they came, to sinks that take them at once, in pieces, whole or in part.
    /// Method: lengths around the longest that an entry holds, with bytes in front that do not belong to them.
    #[test]
    fn whole_messages_are_handed_over() {
        for length in [0, 1, 8, 23, 24, 25, 300] {
            let bytes: Vec<u8> =
                (0..length).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
            for start in [0, 16, 70_000] {
                let make = || {
                    ShortBody::new(&bytes).map_or_else(
                        || {
                            let all = [vec![255; start], bytes.clone()].concat();
                            WholeMessage::many(all, start, 1, 7)
                        },
                        |body| WholeMessage::few(body, 1, 7),
                    )
                };
                let whole = make();
                assert_eq!((whole.len(), whole.flags(), whole.sender()), (length, 1, 7));
                let part = whole.into_part();
                assert_eq!(part.bytes[part.start..], bytes);

                let mut found = Vec::new();
                assert_eq!(make().copy_to(&mut found), length);
                assert_eq!(found, bytes);
                let mut place = vec![0; length / 2];
                assert_eq!(make().copy_to(&mut place[..]), length / 2);
                assert_eq!(place, bytes[..length / 2]);
            }
        }
    }
}
