//! Sets of requests, and receives that their owners leave to themselves.
//!
//! A request that becomes ready is put on its set's list, and the set's waiter is named instead of its own: a wait for any of
//! thousands of requests polls those that are ready, and no other.

use super::{
    CancelState, MessageEngine, RequestId,
    request::{ReadyList, ReceiveState, RequestEntry, SetMember},
};
use crate::vi::Provider;

/// The most completions that a poll of a set takes.
const BUDGET: usize = 64;

impl<P: Provider> MessageEngine<P> {
    /// Makes an empty set. It counts among what the engine [keeps](Self::kept) until it is closed.
    pub(crate) fn open_set(&mut self) -> RequestId {
        RequestId(self.requests.insert(RequestEntry::Set(ReadyList::default())))
    }

    /// Forgets a set; its requests must have left it.
    pub(crate) fn close_set(&mut self, set: RequestId) {
        self.requests.remove(set.0);
    }

    fn member(&mut self, key: u64) -> Option<&mut SetMember> {
        match self.requests.get_mut(key)? {
            RequestEntry::Send(send) => Some(&mut send.member),
            RequestEntry::Receive(receive) => Some(&mut receive.member),
            RequestEntry::Set(_) => None,
        }
    }

    /// Puts a request into a set. From now on the set's waiter is woken for it.
    pub(crate) fn join_set(&mut self, id: RequestId, set: RequestId) {
        let Some(member) = self.member(id.0) else { return };
        *member = SetMember { set: set.0, is_listed: false };
        let is_pending = match self.requests.get(id.0) {
            Some(RequestEntry::Send(send)) => send.result.is_none() && !send.is_settled,
            Some(RequestEntry::Receive(receive)) => {
                matches!(receive.state, ReceiveState::Posted { .. })
            }
            _ => return,
        };
        if !is_pending {
            self.announce(id.0);
        }
    }

    /// Takes a request out of its set.
    pub(crate) fn leave_set(&mut self, id: RequestId) {
        if let Some(member) = self.member(id.0) {
            *member = SetMember::NONE;
        }
    }

    /// Returns the next request of a set that may have made progress, after taking what has arrived if none is known. Poll it.
    pub(crate) fn next_in_set(&mut self, set: RequestId) -> Option<RequestId> {
        for _ in 0..BUDGET {
            let Some(RequestEntry::Set(list)) = self.requests.get_mut(set.0) else { return None };
            if let Some(key) = list.keys.pop_front() {
                // One that has ended or left since finds no set any more.
                if let Some(member) = self.member(key).filter(|member| member.set == set.0) {
                    member.is_listed = false;
                    return Some(RequestId(key));
                }
            } else if !self.step_aside() && !self.flush() {
                return None;
            }
        }
        // There is more to do: the next poll finds it.
        self.ready.push(set);
        None
    }

    /// Lets the waiter of a set poll once more.
    pub(crate) fn poll_again(&mut self, set: RequestId) {
        self.ready.push(set);
    }

    /// Tells the owner of a request, or of its set, that the request may have made progress.
    pub(super) fn announce(&mut self, key: u64) {
        if let Some(RequestEntry::Receive(receive)) = self.requests.get(key)
            && receive.is_forgotten
        {
            return self.forgotten.push(key);
        }
        let member = self.member(key).filter(|member| member.set != 0);
        let Some(SetMember { set, is_listed }) = member else {
            return self.ready.push(RequestId(key));
        };
        let set = *set;
        if std::mem::replace(is_listed, true) {
            return;
        }
        if let Some(RequestEntry::Set(list)) = self.requests.get_mut(set) {
            list.keys.push_back(key);
            self.ready.push(RequestId(set));
        }
    }

    /// Leaves a receive to itself: it stays posted, and the message that it is matched with is discarded.
    pub fn forget_receive(&mut self, id: RequestId) {
        self.leave_set(id);
        match self.requests.get_mut(id.0) {
            Some(RequestEntry::Receive(receive))
                if matches!(receive.state, ReceiveState::Posted { .. }) =>
            {
                receive.is_forgotten = true;
                // So that a message in several frames does not wait for polls.
                (receive.limit, receive.is_attended) = (0, false);
            }
            _ => self.drop_receive(id),
        }
    }

    /// Discards the messages of receives that were left to themselves. Returns whether there were any.
    pub(super) fn drop_forgotten(&mut self) -> bool {
        let has_any = !self.forgotten.is_empty();
        for key in std::mem::take(&mut self.forgotten) {
            self.drop_receive(RequestId(key));
        }
        has_any
    }

    /// Discards all messages of a context that no receive has matched.
    pub(crate) fn forget_context(&mut self, context: u16) {
        self.buffers.remove(&context);
        self.told.remove(&context);
        let pattern = super::Pattern { context, source: None, tag: None };
        while self.has_unexpected(pattern) {
            let matched = self.post_receive(pattern);
            debug_assert_ne!(self.cancel_receive(matched), CancelState::Cancelled);
            self.drop_receive(matched);
        }
    }

    /// Returns whether no request and no message of a context is left.
    pub(crate) fn is_context_idle(&self, context: u16) -> bool {
        let is_of = |key| match self.requests.get(key) {
            Some(RequestEntry::Send(send)) => send.context == context,
            Some(RequestEntry::Receive(receive)) => receive.pattern.context == context,
            Some(RequestEntry::Set(_)) | None => false,
        };
        let has_message =
            |key| self.messages.get(key).is_some_and(|message| message.label.context == context);
        !self.requests.keys().any(is_of)
            && !self.messages.keys().any(has_message)
            && !self.unexpected.has_context(context)
    }
}

#[cfg(test)]
mod tests;
