//! Programs, which run on nodes: members of a barrier.

use std::collections::BTreeSet;

use crate::group::Rank;
use crate::schedule::{Network, Schedule, Source, Step, Target};

/// A member of a barrier as the program of a simulated node: it has no clock and does no I/O.
///
/// The node calls [`enter`](Self::enter), and then [`next`](Self::next) whenever its processor has nothing else to
/// do; messages arrive in between.
pub trait Program {
    /// The contents of a frame.
    type Message: Clone;

    /// Enters the barrier at this time.
    fn enter(&mut self, now_ns: u64);

    /// Returns the program's next action. Outside a barrier, it can only answer others.
    fn next(&mut self, now_ns: u64) -> Action<Self::Message>;

    /// A message is in its buffer. It may belong to a later barrier.
    fn deliver(&mut self, now_ns: u64, message: Self::Message);

    /// Returns when to call [`handle_deadline`](Self::handle_deadline) if the program is still blocked.
    fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// The deadline has passed.
    fn handle_deadline(&mut self, _now_ns: u64) {}
}

/// A program's next action.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action<M> {
    /// Posts a message, which takes o_s of processor time.
    Send {
        /// The receivers.
        to: Target,
        /// The network.
        network: Network,
        /// The message.
        message: M,
    },
    /// A wait has ended, which takes the user's part of a wait.
    Waited,
    /// Waits for a message.
    Blocked,
    /// Leaves the barrier.
    Exit,
    /// Cannot go on, for this reason; the simulation ends.
    Failed(String),
}

/// The bare steps of a schedule: no colours, no recovery. A lost frame is never replaced.
#[derive(Clone, Debug)]
pub struct ScheduleProgram<'a> {
    rank: Rank,
    steps: &'a [Step],
    /// The next step; `None` outside a barrier.
    position: Option<usize>,
    epoch: u32,
    arrived: BTreeSet<(u32, Source)>,
}

impl<'a> ScheduleProgram<'a> {
    /// Takes the steps of one member.
    #[must_use]
    pub fn new(schedule: &'a Schedule, rank: Rank) -> Self {
        let steps = schedule.steps(rank);
        Self { rank, steps, position: None, epoch: 0, arrived: BTreeSet::new() }
    }
}

impl Program for ScheduleProgram<'_> {
    /// The barrier and the sender's number of the message.
    type Message = (u32, Source);

    fn enter(&mut self, _now_ns: u64) {
        self.position = Some(0);
    }

    fn next(&mut self, _now_ns: u64) -> Action<Self::Message> {
        let Some(position) = self.position else { return Action::Blocked };
        let action = match self.steps.get(position) {
            None => {
                self.position = None;
                self.epoch += 1;
                return Action::Exit;
            }
            Some(Step::Send { to, round, network }) => {
                let source = Source::new(self.rank, *round, *network);
                Action::Send { to: *to, network: *network, message: (self.epoch, source) }
            }
            Some(Step::Receive(sources)) => {
                let key = |source: &Source| (self.epoch, *source);
                if !sources.iter().all(|source| self.arrived.contains(&key(source))) {
                    return Action::Blocked;
                }
                for source in sources {
                    self.arrived.remove(&(self.epoch, *source));
                }
                Action::Waited
            }
        };
        self.position = Some(position + 1);
        action
    }

    fn deliver(&mut self, _now_ns: u64, message: Self::Message) {
        self.arrived.insert(message);
    }
}
