//! The live path by the interface: frames that a program at the driver forwards between network namespaces.
//!
//! *Question*: how many frames of 64 bytes a second does a compiled pipeline forward, how much more does it cost than the
//! least program that a person would write for it, and is a frame lost while its tables change? *Prediction*: the way through
//! two veth pairs costs some 350 ns a frame, a program 10 to 40 of them: a rewrite is within 5 % of the one by hand.
//! *Method*: three namespaces joined by veth pairs; live XDP frames (`BPF_F_TEST_XDP_LIVE_FRAMES`) are redirected into
//! the first pair, go through the program, and are counted and dropped by another program at the far end, all on one core:
//! its time is the processor's time. Programs in turns, medians over them. *Unit*: million frames per second; ns a frame.

mod pipelines;
mod tables;
mod wires;

use std::time::Duration;

use vigie_detect::clock::monotonic_now;
use vigie_forward::nic::NicError;

use self::pipelines::{Forwarding, NicProgram};
use self::wires::VethPairs;
use super::live_frames::FRAME_BYTES;
use crate::error::BenchError;
use crate::report::{Outcome, Plan, Progress, Row, Subject};
use crate::statistics::median;

/// Keys of figures.
pub(crate) const DELIVERED_MPPS: &str = "delivered_mpps";
pub(crate) const FRAME_NS: &str = "frame_ns";
pub(crate) const BY_HAND: &str = "times_by_hand";
pub(crate) const PROGRAM_NS: &str = "program_ns";
pub(crate) const LOST: &str = "lost";
pub(crate) const CHANGES: &str = "changes";
/// The row's case.
pub(crate) const NIC_RATE: &str = "nic-rate";

/// Frames of one call of the generator.
const BURST: u32 = 1 << 17;

/// Bursts of a turn.
const BURSTS: u32 = 16;

/// The programs to measure. The one by hand is always measured, since others are compared with it.
#[derive(Clone, Debug)]
pub(crate) struct NicPlan {
    /// These programs only, by their names in results; all if it is empty.
    only: Vec<String>,
    /// How often each program is measured, in turns.
    rounds: u32,
}

/// The results of one turn.
#[derive(Clone, Copy, Debug, Default)]
struct NicRepetition {
    sent: u64,
    /// Frames that the program has handed on.
    forwarded: u64,
    delivered: u64,
    frame_ns: f64,
    changes: u64,
}

/// Everything of one program.
#[derive(Debug, Default)]
struct Sums {
    mpps: Vec<f64>,
    frame_ns: Vec<f64>,
    by_hand: Vec<f64>,
    program_ns: Vec<f64>,
    lost: u64,
    missed: u64,
    frames: u64,
    changes: u64,
}

impl NicPlan {
    pub(super) const fn new(only: Vec<String>, rounds: u32) -> Self {
        Self { only, rounds }
    }

    /// Returns whether there is a program with this name.
    pub(super) fn has(name: &str) -> bool {
        NicProgram::ALL.iter().any(|program| program.names().0 == name)
    }

    fn programs(&self) -> Vec<NicProgram> {
        let is_wanted = |program: &NicProgram| {
            let name = program.names().0;
            *program == NicProgram::ByHand
                || self.only.is_empty()
                || self.only.iter().any(|one| one == name)
        };
        NicProgram::ALL.into_iter().filter(is_wanted).collect()
    }

    fn measure(&self, progress: &mut Progress) -> Result<Vec<Sums>, String> {
        let wires = VethPairs::make()?;
        let programs = self.programs();
        let mut sums: Vec<Sums> = programs.iter().map(|_| Sums::default()).collect();
        for round in 0..self.rounds {
            progress.case(format!("turn {} of {}", round + 1, self.rounds));
            let mut turns = vec![(NicRepetition::default(), 0); programs.len()];
            // Each turn begins with another one, so that none is always first.
            let first = usize::try_from(round).unwrap_or(0);
            for number in (0..programs.len()).map(|number| (number + first) % programs.len()) {
                wires.forwarder()?;
                let forwarding = programs[number].start(&wires).map_err(said)?;
                let turn = self.turn(&wires, programs[number], &forwarding)?;
                turns[number] = (turn, forwarding.program_ns().map_err(said)?);
            }
            // The one by hand is the first in the list.
            let by_hand = turns[0].0.frame_ns;
            for ((turn, program_ns), sums) in turns.into_iter().zip(&mut sums) {
                sums.take(&turn, by_hand, program_ns);
            }
            progress.case_done();
        }
        Ok(sums)
    }

    fn turn(
        &self,
        wires: &VethPairs,
        program: NicProgram,
        forwarding: &Forwarding,
    ) -> Result<NicRepetition, String> {
        // One burst before it counts.
        wires.burst(BURST)?;
        let (sunk, forwarded) = (wires.delivered()?, forwarding.forwarded()?);
        let begin = monotonic_now();
        let mut turn = NicRepetition::default();
        std::thread::scope(|scope| {
            let changing = program.changes().then(|| scope.spawn(|| forwarding.change()));
            let bursts = (0..BURSTS).try_for_each(|_| wires.burst(BURST));
            turn.frame_ns = (monotonic_now() - begin).as_nanos() as f64;
            forwarding.stop();
            if let Some(changing) = changing {
                turn.changes = changing.join().map_err(|_| "the changing thread panicked")??;
            }
            bursts
        })?;
        turn.sent = u64::from(BURST) * u64::from(BURSTS);
        turn.delivered = wires.delivered()? - sunk;
        turn.forwarded = forwarding.forwarded()? - forwarded;
        turn.frame_ns /= turn.delivered.max(1) as f64;
        Ok(turn)
    }
}

impl Plan for NicPlan {
    fn cases(&self) -> usize {
        self.rounds as usize
    }

    fn run(&self, _seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        // Namespaces are entered, which must not outlast the measurement.
        let measured = std::thread::scope(|scope| scope.spawn(|| self.measure(progress)).join());
        let measured = measured.unwrap_or_else(|_| Err("the measuring thread panicked".to_owned()));
        let programs = self.programs();
        let rows = match measured {
            Ok(sums) => programs.into_iter().zip(sums).map(|(one, sums)| row(one, &sums)).collect(),
            Err(failure) => {
                let failed = |program: NicProgram| {
                    let mut row = Row::new(program.subject(), NIC_RATE);
                    row.failure = Some(failure.clone());
                    row
                };
                programs.into_iter().map(failed).collect()
            }
        };
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::nic_tables(rows)
    }
}

fn said(error: NicError) -> String {
    error.to_string()
}

impl Sums {
    fn take(&mut self, turn: &NicRepetition, base: f64, program_ns: u32) {
        self.mpps.push(1e3 / turn.frame_ns);
        self.frame_ns.push(turn.frame_ns);
        self.by_hand.push(turn.frame_ns / base);
        self.program_ns.push(program_ns.into());
        // Frames that do not reach the program were lost by the generator's pair.
        self.missed += turn.sent.saturating_sub(turn.forwarded);
        self.lost += turn.forwarded.saturating_sub(turn.delivered);
        self.frames += turn.delivered;
        self.changes += turn.changes;
    }
}

fn row(program: NicProgram, sums: &Sums) -> Row {
    let put = |row: Row, key: &str, figures: &[f64]| match median(figures) {
        Some(figure) => row.with_figure(key, figure),
        None => row,
    };
    let row = Row::new(program.subject(), NIC_RATE).parameter("bytes", FRAME_BYTES);
    let row = put(row, DELIVERED_MPPS, &sums.mpps);
    let row = put(row, FRAME_NS, &sums.frame_ns);
    let row = put(row, BY_HAND, &sums.by_hand);
    let row = put(row, PROGRAM_NS, &sums.program_ns);
    let row = row.with_figure(LOST, sums.lost).with_figure("missed", sums.missed);
    let row = row.with_figure("frames", sums.frames).with_figure("samples", sums.mpps.len());
    if program.changes() { row.with_figure(CHANGES, sums.changes) } else { row }
}

impl NicProgram {
    const fn subject(self) -> Subject {
        let (name, label) = self.names();
        Subject::Carrier { name, label }
    }
}

/// How long a change waits before the next one.
const PAUSE: Duration = Duration::from_micros(50);
