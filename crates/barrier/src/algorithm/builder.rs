//! Builds the steps of one member.

use crate::{
    group::Rank,
    schedule::{Network, Round, Source, Step, Target},
};

/// The steps of one member, whose messages are numbered in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct ScheduleBuilder {
    steps: Vec<Step>,
    sent: u32,
}

impl ScheduleBuilder {
    pub(super) fn send(&mut self, to: u32, network: Network) {
        self.push(Target::Member(Rank(to)), network);
    }

    pub(super) fn multicast(&mut self) {
        self.push(Target::Everyone, Network::First);
    }

    fn push(&mut self, to: Target, network: Network) {
        self.steps.push(Step::Send { to, round: round(self.sent), network });
        self.sent += 1;
    }

    /// Waits for all of these; adds no step if there are none.
    pub(super) fn receive(&mut self, sources: impl IntoIterator<Item = Source>) {
        let sources: Vec<Source> = sources.into_iter().collect();
        if !sources.is_empty() {
            self.steps.push(Step::Receive(sources));
        }
    }

    pub(super) fn finish(self) -> Vec<Step> {
        self.steps
    }
}

/// Numbers a message. In no algorithm does a member of the largest group send more than 65 535 of them.
pub(super) fn round(index: u32) -> Round {
    debug_assert!(index <= u32::from(u16::MAX), "message {index} of a member");
    Round(u16::try_from(index).unwrap_or(u16::MAX))
}

/// Names the message with that number on the first network.
pub(super) fn source(rank: u32, index: u32) -> Source {
    Source::new(Rank(rank), round(index), Network::First)
}
