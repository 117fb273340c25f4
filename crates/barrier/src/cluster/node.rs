//! A node: its NICs, and one processor on which interrupt handlers take precedence over the program.
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

use super::config::{Completion, FramesPerInterrupt};
use super::event::{NodeReport, SimEvent};
use super::frame::{Destination, Frame, NodeIndex};
use super::program::{Action, Program};
use super::world::SimWorld;
use crate::schedule::{Network, Target};

/// The reason why the processor left the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    /// There are frames in the ring of this NIC.
    Frames { nic: usize },
    /// A frame has been sent.
    Completion,
    /// A member outside the barrier answers another one; its library does that alongside its computation.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processor {
    Idle,
    Handles(Interrupt),
    /// Running the program's task since then.
    Runs {
        since_ns: u64,
    },
}

/// A task for which the program needs the processor.
#[derive(Debug)]
struct CpuTask<M> {
    left_ns: u64,
    then: Continuation<M>,
}

#[derive(Debug)]
enum Continuation<M> {
    Post { to: Target, network: Network, message: M },
    Continue,
    Enter,
}

/// The phase of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramPhase {
    Inside,
    /// In the loop between two barriers, or after the last one.
    Outside,
}

#[derive(Debug)]
pub(super) struct SimNode<P: Program> {
    index: NodeIndex,
    program: P,
    phase: ProgramPhase,
    processor: Processor,
    /// The number of the processor's present task, so that an interrupted task does not end at its original time.
    generation: u64,
    interrupts: VecDeque<Interrupt>,
    rings: Vec<VecDeque<P::Message>>,
    /// Answers to be posted.
    answers: VecDeque<(Target, Network, P::Message)>,
    task: Option<CpuTask<P::Message>>,
    /// The program's next action, once its frames have been sent.
    action: Option<Action<P::Message>>,
    /// Frames that have not been sent yet.
    leaving: u32,
    deadline_ns: Option<u64>,
}

impl<P: Program> SimNode<P> {
    pub(super) fn new(index: NodeIndex, program: P, nics: usize) -> Self {
        Self {
            index,
            program,
            phase: ProgramPhase::Outside,
            processor: Processor::Idle,
            generation: 0,
            interrupts: VecDeque::new(),
            rings: (0..nics).map(|_| VecDeque::new()).collect(),
            answers: VecDeque::new(),
            task: None,
            action: None,
            leaving: 0,
            deadline_ns: None,
        }
    }

    /// Lets the program compute for that long, then enter the barrier.
    pub(super) fn compute(&mut self, world: &mut SimWorld<P::Message>, compute_ns: u64) {
        self.phase = ProgramPhase::Outside;
        self.task = Some(CpuTask { left_ns: compute_ns, then: Continuation::Enter });
        self.run_next(world);
    }

    /// A frame is in the ring of a NIC.
    pub(super) fn land(
        &mut self,
        world: &mut SimWorld<P::Message>,
        nic: usize,
        message: P::Message,
    ) {
        self.rings[nic].push_back(message);
        let interrupt = Interrupt::Frames { nic };
        // Its handler will see it, or is seeing it now.
        let is_seen =
            self.processor == Processor::Handles(interrupt) || self.interrupts.contains(&interrupt);
        if !is_seen {
            self.interrupt(world, interrupt);
        }
    }

    /// A frame has been sent.
    pub(super) fn sent(&mut self, world: &mut SimWorld<P::Message>) {
        self.interrupt(world, Interrupt::Completion);
    }

    /// The processor has finished its task number `generation`.
    pub(super) fn done(&mut self, world: &mut SimWorld<P::Message>, generation: u64) {
        // It was interrupted, and is now doing something else.
        if generation != self.generation {
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
                    if world.config.frames_per_interrupt == FramesPerInterrupt::UntilEmpty {
                        return self.begin(world, world.config.receive_frame_ns);
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
        self.run_next(world);
    }

    /// The program asked to be called at this time.
    pub(super) fn deadline(&mut self, world: &mut SimWorld<P::Message>) {
        if self.deadline_ns.is_some_and(|deadline_ns| deadline_ns <= world.now_ns) {
            self.deadline_ns = None;
            self.run_next(world);
        }
    }

    fn interrupt(&mut self, world: &mut SimWorld<P::Message>, interrupt: Interrupt) {
        self.interrupts.push_back(interrupt);
        if let Processor::Runs { since_ns } = self.processor {
            if let Some(task) = &mut self.task {
                task.left_ns -= world.now_ns - since_ns;
            }
            self.processor = Processor::Idle;
        }
        self.run_next(world);
    }

    /// Gives an idle processor its next work: a handler, the program's task, or the program's next action.
    fn run_next(&mut self, world: &mut SimWorld<P::Message>) {
        while self.processor == Processor::Idle {
            if let Some(interrupt) = self.interrupts.pop_front() {
                self.processor = Processor::Handles(interrupt);
                let costs = &world.config;
                let handler_ns = match interrupt {
                    Interrupt::Frames { .. } => costs.receive_one_ns(),
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

    fn begin(&mut self, world: &mut SimWorld<P::Message>, task_ns: u64) {
        self.generation += 1;
        world.schedule_event(
            task_ns,
            SimEvent::Done { node: self.index, generation: self.generation },
        );
    }

    /// A task of the program has used its time.
    fn end(&mut self, world: &mut SimWorld<P::Message>, then: Continuation<P::Message>) {
        match then {
            Continuation::Continue => {}
            Continuation::Enter => {
                self.phase = ProgramPhase::Inside;
                self.program.enter(world.now_ns);
                world.reports.push_back((self.index, NodeReport::Entered));
            }
            Continuation::Post { to, network, message } => self.post(world, to, network, message),
        }
    }

    fn post(
        &mut self,
        world: &mut SimWorld<P::Message>,
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
        world.schedule_event(world.config.dma_ns, SimEvent::Offer { nic, frame });
    }

    /// Outside a barrier, a program only answers.
    fn answer(&mut self, world: &SimWorld<P::Message>) {
        if self.phase == ProgramPhase::Inside {
            return;
        }
        while let Action::Send { to, network, message } = self.program.next(world.now_ns) {
            self.answers.push_back((to, network, message));
            self.interrupts.push_back(Interrupt::Answer);
        }
    }

    /// Asks the program for its next action; returns whether that needs the processor.
    fn advance(&mut self, world: &mut SimWorld<P::Message>) -> bool {
        if self.phase == ProgramPhase::Outside {
            return false;
        }
        let action = self.action.take().unwrap_or_else(|| self.program.next(world.now_ns));
        // Frames are posted one after the other, and a blocked program waits anyway.
        let is_free = matches!(action, Action::Send { .. } | Action::Blocked);
        let is_awaited = world.config.completion == Completion::Awaited;
        if is_awaited && self.leaving > 0 && !is_free {
            // The next message reuses the buffer of the last one [eth-barrier, §2.2].
            self.action = Some(action);
            return false;
        }
        match action {
            Action::Send { to, network, message } => {
                let then = Continuation::Post { to, network, message };
                self.task = Some(CpuTask { left_ns: world.config.send_ns, then });
                true
            }
            Action::Waited => {
                self.task =
                    Some(CpuTask { left_ns: world.config.wait_ns, then: Continuation::Continue });
                true
            }
            Action::Blocked => self.rest(world),
            Action::Exit => {
                // Until the cluster decides what is next.
                self.phase = ProgramPhase::Outside;
                world.reports.push_back((self.index, NodeReport::Exited));
                false
            }
            Action::Failed(reason) => {
                self.phase = ProgramPhase::Outside;
                world.reports.push_back((self.index, NodeReport::Failed(reason)));
                false
            }
        }
    }

    /// Waits until something arrives or the program's deadline passes.
    fn rest(&mut self, world: &mut SimWorld<P::Message>) -> bool {
        let Some(deadline_ns) = self.program.next_deadline() else { return false };
        if deadline_ns <= world.now_ns {
            self.program.handle_deadline(world.now_ns);
            return true;
        }
        if self.deadline_ns.is_none_or(|armed_ns| deadline_ns < armed_ns) {
            self.deadline_ns = Some(deadline_ns);
            let delay_ns = deadline_ns - world.now_ns;
            world.schedule_event(delay_ns, SimEvent::Deadline { node: self.index });
        }
        false
    }
}
