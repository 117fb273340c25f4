//! The oracle: which events have happened, which request received them, and which are still owed.

use super::{Addressing, At, EventIdentity, Profile, Rule, Unclaimed, Violation};

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) profile: Profile,
    /// Events 0 to this, exclusive, have happened.
    pub(super) happened: usize,
    /// By the event's number.
    delivered: Vec<bool>,
    delivered_count: usize,
    /// The most events lost with waiters that left.
    lost_max: usize,
}

impl Ledger {
    pub(super) const fn new(profile: Profile) -> Self {
        Self { profile, happened: 0, delivered: Vec::new(), delivered_count: 0, lost_max: 0 }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.profile.addressing == Addressing::Shared
    }

    pub(super) fn delivered_count(&self) -> usize {
        self.delivered_count
    }

    /// Returns whether request `index` must have an event by now. If events are shared, `older`
    /// requests are served first.
    pub(super) fn is_wakeup_deferred(&self, index: usize, older: usize) -> bool {
        match self.profile.addressing {
            Addressing::Addressed => index < self.happened,
            Addressing::Shared => older < self.outstanding(),
        }
    }

    /// Returns how many shared events must still be delivered.
    pub(super) fn outstanding(&self) -> usize {
        self.happened.saturating_sub(self.delivered_count + self.lost_max)
    }

    /// A waiter left; it may have had an event.
    pub(super) fn left(&mut self, may_have_event: bool) {
        if may_have_event && self.profile.unclaimed == Unclaimed::Dropped {
            self.lost_max += 1;
        }
    }

    /// Request `request` got `identity`.
    pub(super) fn deliver(
        &mut self,
        request: usize,
        identity: EventIdentity,
        at: At,
    ) -> Result<(), Violation> {
        match identity {
            EventIdentity::Events(events) if events.is_empty() => {
                Err(Violation::Spurious { request, saw: "an empty event".to_owned(), at })
            }
            EventIdentity::Events(events) => {
                events.into_iter().try_for_each(|event| self.deliver_one(request, event, at))
            }
            EventIdentity::Unmarked if !self.is_shared() => self.deliver_one(request, request, at),
            EventIdentity::Unmarked if self.delivered_count >= self.happened => match self.happened
            {
                0 => Err(Violation::Spurious { request, saw: "none has".to_owned(), at }),
                // They look alike: the last one stands for the duplicate.
                happened => Err(Violation::Twice { event: happened - 1, request, at }),
            },
            EventIdentity::Unmarked => {
                self.delivered_count += 1;
                Ok(())
            }
            EventIdentity::Nothing(saw) => Err(Violation::Spurious { request, saw, at }),
            EventIdentity::End => {
                let saw = "the end of all events".to_owned();
                Err(Violation::Spurious { request, saw, at })
            }
        }
    }

    fn deliver_one(&mut self, request: usize, event: usize, at: At) -> Result<(), Violation> {
        if !self.is_shared() && event != request {
            let rule = Rule::Once;
            return Err(Violation::Misdelivered { rule, request, event, at });
        }
        if event >= self.happened {
            let saw = format!("event {event}, while only {} have happened", self.happened);
            return Err(Violation::Spurious { request, saw, at });
        }
        if event >= self.delivered.len() {
            self.delivered.resize(event + 1, false);
        }
        if std::mem::replace(&mut self.delivered[event], true) {
            return Err(Violation::Twice { event, request, at });
        }
        self.delivered_count += 1;
        Ok(())
    }
}
