//! A node: one processor, on which handlers of interrupts come before the program, and its NICs.
//!
//! ```text
//!                    frame lands, frame has left
//!                              │
//!                              ▼ interrupts, in order
//!   program ◀── preempted ── processor ── handler: frame after frame until the ring is empty, or a completion
//!      │                       │
//!      │ o_s, wait, loop       └─ no handler has anything to do: the program goes on
//!      ▼
//!    post ──▶ DMA ──▶ network
//! ```

use std::collections::VecDeque;

use super::parameters::{Batching, Completion};
use super::program::{Action, Program};
use super::world::{Happening, Report, World};
use super::{Destination, Frame, NodeIndex};
use crate::schedule::{Network, Target};

/// Why the processor left the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    /// There are frames in the ring of this NIC.
    Frames { nic: usize },
    /// A frame has left.
    Completion,
    /// A member that is outside of the barrier answers another one: its library does that beside what it computes.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processor {
    Idle,
    Handles(Interrupt),
    /// Runs the program's task since then.
    Runs {
        since_ns: u64,
    },
}

/// What the program needs the processor for.
#[derive(Debug)]
struct Task<M> {
    left_ns: u64,
    then: Then<M>,
}

#[derive(Debug)]
enum Then<M> {
    Post { to: Target, network: Network, message: M },
    GoOn,
    Enter,
}

/// Where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Inside,
    /// In the loop between two barriers, or after the last one.
    Outside,
}

#[derive(Debug)]
pub(super) struct Node<P: Program> {
    index: NodeIndex,
    program: P,
    stage: Stage,
    processor: Processor,
    /// The number of what the processor does, so that an interrupted task does not end when it was to.
    turn: u64,
    interrupts: VecDeque<Interrupt>,
    rings: Vec<VecDeque<P::Message>>,
    /// What is to be posted as an answer.
    answers: VecDeque<(Target, Network, P::Message)>,
    task: Option<Task<P::Message>>,
    /// What the program wants to do once its frames have left.
    action: Option<Action<P::Message>>,
    /// Frames that have not left.
    leaving: u32,
    deadline_ns: Option<u64>,
}

impl<P: Program> Node<P> {
    pub(super) fn new(index: NodeIndex, program: P, nics: usize) -> Self {
        Self {
            index,
            program,
            stage: Stage::Outside,
            processor: Processor::Idle,
            turn: 0,
            interrupts: VecDeque::new(),
            rings: (0..nics).map(|_| VecDeque::new()).collect(),
            answers: VecDeque::new(),
            task: None,
            action: None,
            leaving: 0,
            deadline_ns: None,
        }
    }

    /// Lets the program compute for that long, and enter the barrier then.
    pub(super) fn compute(&mut self, world: &mut World<P::Message>, compute_ns: u64) {
        self.stage = Stage::Outside;
        self.task = Some(Task { left_ns: compute_ns, then: Then::Enter });
        self.go_on(world);
    }

    /// A frame lies in the ring of a NIC.
    pub(super) fn land(&mut self, world: &mut World<P::Message>, nic: usize, message: P::Message) {
        self.rings[nic].push_back(message);
        let interrupt = Interrupt::Frames { nic };
        // Its handler will see it, or does already.
        let is_seen =
            self.processor == Processor::Handles(interrupt) || self.interrupts.contains(&interrupt);
        if !is_seen {
            self.interrupt(world, interrupt);
        }
    }

    /// A frame has left.
    pub(super) fn sent(&mut self, world: &mut World<P::Message>) {
        self.interrupt(world, Interrupt::Completion);
    }

    /// The processor has done what it did in this turn.
    pub(super) fn done(&mut self, world: &mut World<P::Message>, turn: u64) {
        // It was interrupted, and does something else now.
        if turn != self.turn {
            return;
        }
        match self.processor {
            Processor::Idle => return,
            Processor::Handles(Interrupt::Completion) => self.leaving -= 1,
            Processor::Handles(Interrupt::Frames { nic }) => {
                if let Some(message) = self.rings[nic].pop_front() {
                    self.program.deliver(world.now_ns, message);
                    self.answer(world);
                }
                if !self.rings[nic].is_empty() {
                    if world.parameters.batching == Batching::UntilEmpty {
                        return self.begin(world, world.parameters.receive_frame_ns);
                    }
                    self.interrupts.push_back(Interrupt::Frames { nic });
                }
            }
            Processor::Handles(Interrupt::Answer) => {
                let answer = self.answers.pop_front();
                answer.into_iter().for_each(|(to, network, message)| {
                    self.post(world, to, network, message);
                });
            }
            Processor::Runs { .. } => {
                let task = self.task.take();
                task.into_iter().for_each(|task| self.end(world, task.then));
            }
        }
        self.processor = Processor::Idle;
        self.go_on(world);
    }

    /// The program wanted to be called at this time.
    pub(super) fn deadline(&mut self, world: &mut World<P::Message>) {
        if self.deadline_ns.is_some_and(|deadline_ns| deadline_ns <= world.now_ns) {
            self.deadline_ns = None;
            self.go_on(world);
        }
    }

    fn interrupt(&mut self, world: &mut World<P::Message>, interrupt: Interrupt) {
        self.interrupts.push_back(interrupt);
        if let Processor::Runs { since_ns } = self.processor {
            if let Some(task) = &mut self.task {
                task.left_ns -= world.now_ns - since_ns;
            }
            self.processor = Processor::Idle;
        }
        self.go_on(world);
    }

    /// Gives an idle processor the next thing to do: a handler, the program's task, or what the program wants next.
    fn go_on(&mut self, world: &mut World<P::Message>) {
        while self.processor == Processor::Idle {
            if let Some(interrupt) = self.interrupts.pop_front() {
                self.processor = Processor::Handles(interrupt);
                let costs = &world.parameters;
                let handler_ns = match interrupt {
                    Interrupt::Frames { .. } => costs.receive_ns(),
                    Interrupt::Completion => costs.completion_ns,
                    Interrupt::Answer => costs.send_ns,
                };
                return self.begin(world, handler_ns);
            }
            if let Some(task) = &self.task {
                self.processor = Processor::Runs { since_ns: world.now_ns };
                return self.begin(world, task.left_ns);
            }
            if !self.advance(world) {
                return;
            }
        }
    }

    fn begin(&mut self, world: &mut World<P::Message>, task_ns: u64) {
        self.turn += 1;
        world.plan(task_ns, Happening::Done { node: self.index, turn: self.turn });
    }

    /// A task of the program has had its time.
    fn end(&mut self, world: &mut World<P::Message>, then: Then<P::Message>) {
        match then {
            Then::GoOn => {}
            Then::Enter => {
                self.stage = Stage::Inside;
                self.program.enter(world.now_ns);
                world.reports.push_back((self.index, Report::Entered));
            }
            Then::Post { to, network, message } => self.post(world, to, network, message),
        }
    }

    fn post(
        &mut self,
        world: &mut World<P::Message>,
        to: Target,
        network: Network,
        message: P::Message,
    ) {
        let to = match to {
            Target::Member(rank) => Destination::Node(rank.index()),
            Target::Everyone => Destination::Others,
        };
        let nic = match network {
            Network::First => 0,
            Network::Second => 1,
        };
        self.leaving += 1;
        world.counts.sent += 1;
        let frame = Frame { from: self.index, to, message };
        world.plan(world.parameters.dma_ns, Happening::Offer { nic, frame });
    }

    /// Outside of a barrier, a program has nothing to do but to answer.
    fn answer(&mut self, world: &World<P::Message>) {
        if self.stage == Stage::Inside {
            return;
        }
        while let Action::Send { to, network, message } = self.program.next(world.now_ns) {
            self.answers.push_back((to, network, message));
            self.interrupts.push_back(Interrupt::Answer);
        }
    }

    /// Asks the program what it wants; returns whether that needs the processor.
    fn advance(&mut self, world: &mut World<P::Message>) -> bool {
        if self.stage == Stage::Outside {
            return false;
        }
        let action = self.action.take().unwrap_or_else(|| self.program.next(world.now_ns));
        // Frames are posted one after the other, and a program that is blocked waits anyway.
        let is_free = matches!(action, Action::Send { .. } | Action::Blocked);
        let is_awaited = world.parameters.completion == Completion::Awaited;
        if is_awaited && self.leaving > 0 && !is_free {
            // The buffer of what was sent is used again for what is sent next [eth-barrier, §2.2].
            self.action = Some(action);
            return false;
        }
        match action {
            Action::Send { to, network, message } => {
                let then = Then::Post { to, network, message };
                self.task = Some(Task { left_ns: world.parameters.send_ns, then });
                true
            }
            Action::Waited => {
                self.task = Some(Task { left_ns: world.parameters.wait_ns, then: Then::GoOn });
                true
            }
            Action::Blocked => self.rest(world),
            Action::Exit => {
                // Until the cluster says what is next.
                self.stage = Stage::Outside;
                world.reports.push_back((self.index, Report::Exited));
                false
            }
            Action::Failed(reason) => {
                self.stage = Stage::Outside;
                world.reports.push_back((self.index, Report::Failed(reason)));
                false
            }
        }
    }

    /// Waits until something comes or the program's deadline has come.
    fn rest(&mut self, world: &mut World<P::Message>) -> bool {
        let Some(deadline_ns) = self.program.next_deadline() else { return false };
        if deadline_ns <= world.now_ns {
            self.program.handle_deadline(world.now_ns);
            return true;
        }
        if self.deadline_ns.is_none_or(|armed_ns| deadline_ns < armed_ns) {
            self.deadline_ns = Some(deadline_ns);
            let delay_ns = deadline_ns - world.now_ns;
            world.plan(delay_ns, Happening::Deadline { node: self.index });
        }
        false
    }
}
