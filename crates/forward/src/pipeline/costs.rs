//! The costs of stages, measured on packets that pass.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use vigie_detect::{Clock, Instant};

use crate::cost::Cost;

/// The number of packets of one class that a mean requires.
const SAMPLES_MIN: u64 = 32;
/// The length from which packets count as long: the two classes give the two points of a line.
const LONG_BYTES: usize = 512;

/// Sums over the packets of one class.
#[derive(Clone, Copy, Debug, Default)]
struct SizeClass {
    count: u64,
    bytes: u64,
    time: Duration,
}

impl SizeClass {
    /// The mean length and the mean time, if there were enough packets.
    fn mean(&self) -> Option<(u64, Duration)> {
        if self.count < SAMPLES_MIN {
            return None;
        }
        let nanos = self.time.as_nanos() / u128::from(self.count);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Some((self.bytes / self.count, time))
    }
}

/// Measurements of all stages of a pipeline.
#[derive(Debug)]
pub(super) struct Costs {
    clock: Arc<dyn Clock>,
    every: NonZeroU32,
    until_next: u32,
    /// The time of reading the clock.
    reading: Duration,
    /// Short and long packets of each stage.
    stages: Vec<[SizeClass; 2]>,
}

impl Costs {
    pub(super) fn new(clock: Arc<dyn Clock>, every: NonZeroU32, stages: usize) -> Self {
        let between = |_| {
            let begin = clock.now();
            clock.now() - begin
        };
        let reading = (0..64).map(between).min().unwrap_or_default();
        let stages = vec![[SizeClass::default(); 2]; stages];
        Self { clock, every, until_next: 0, reading, stages }
    }

    /// Counts a packet. Returns whether to measure it.
    #[inline]
    pub(super) const fn is_due(&mut self) -> bool {
        if self.until_next == 0 {
            self.until_next = self.every.get() - 1;
            return true;
        }
        self.until_next -= 1;
        false
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Records the time of a stage, from `begin` until now.
    pub(super) fn took(&mut self, stage: usize, bytes: usize, begin: Instant) {
        let time = (self.clock.now() - begin).saturating_sub(self.reading);
        let Some(classes) = self.stages.get_mut(stage) else { return };
        let class = &mut classes[usize::from(bytes >= LONG_BYTES)];
        class.count += 1;
        class.bytes += u64::try_from(bytes).unwrap_or(0);
        class.time = class.time.saturating_add(time);
    }

    /// Returns the cost of a stage, if enough packets were measured: a line if there were both short and long ones.
    pub(super) fn of(&self, stage: usize) -> Option<Cost> {
        let [short, long] = self.stages.get(stage)?;
        match (short.mean(), long.mean()) {
            (Some(short), Some(long)) => Cost::through(short, long).ok(),
            (Some((_, time)), None) | (None, Some((_, time))) => Some(Cost::fixed(time)),
            (None, None) => None,
        }
    }
}
