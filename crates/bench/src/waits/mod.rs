//! How late an unrelated task's event is while other tasks wait for peers.
//!
//! Question: does a wait in a barrier, for a message or for a datagram keep its executor from other tasks? Prediction: a poll of such a
//! wait does one burst of looks, no longer than a sleep costs and never over 20 µs, and the core is given away between
//! polls. So an event is as late as beside tasks that wait for sockets, and a few bursts at most. Method: four tasks wait, whose
//! peer is a thread that comes again and again. Another thread sends a datagram every 500 µs to one more task, which compares
//! the time in it with the clock. Each kind of wait takes its turn, so that a drift of the machine meets them all.

mod kinds;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use vigie_detect::Instant;
use vigie_detect::net::UnixDatagram;
use vigie_runtime::{Flavor, Runtime};

pub(crate) use self::kinds::WaitKind;
use self::kinds::Waits;
use crate::clock;
use crate::error::{BenchError, Failure};
use crate::report::{Case, REACTION, Repetition, Row, Show, Turn, table};
use crate::schedulers::System;
use crate::statistics::Samples;

/// Name of the case in rows.
pub(crate) const CASE: &str = "waits";

/// Key of what the tasks wait for, in rows.
pub(crate) const KIND: &str = "kind";

/// Key of how often the peer comes, in rows.
pub(crate) const EVERY_US: &str = "every_us";

/// How often the other task has an event.
const EVENTS_EVERY: Duration = Duration::from_micros(500);

/// The flavors.
const SYSTEMS: [System; 2] = [System::VigieUserLevel, System::Vigie];

/// How often the peer comes.
const PERIODS: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(300)];

/// How much is measured of each kind of wait, on both flavors.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitsPlan {
    /// Number of events for each row and round.
    #[arg(long, default_value_t = 1_000)]
    events: usize,
    /// Number of rounds; percentiles are taken over the events of all of them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Case for WaitsPlan {
    /// A flavor, how often the peer comes, and what the tasks wait for.
    type Setting = (System, Duration, WaitKind);

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn rows(&self) -> Vec<(Self::Setting, Row)> {
        let mut rows = Vec::new();
        for system in SYSTEMS {
            for period in PERIODS {
                for kind in WaitKind::ALL {
                    let row = Row::new(system, CASE).parameter(KIND, kind.name());
                    let row = row.parameter(EVERY_US, period.as_secs_f64() * 1e6);
                    rows.push(((system, period, kind), row));
                }
            }
        }
        rows
    }

    fn measure(
        &self,
        &(system, period, kind): &Self::Setting,
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, {}, every {period:?}", kind.name()));
        let late = self.lateness(system, period, kind);
        let late = late.map_err(|failure| BenchError::Failed { role: "waits", failure })?;
        Ok(Repetition::default().samples(REACTION, late))
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [
            ("waits for", Show::Parameter(KIND)),
            ("every µs", Show::Parameter(EVERY_US)),
            ("events", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("p99", Show::Time("p99_us")),
            ("p99.9", Show::Time("p99.9_us")),
        ];
        table("Lateness of an event beside four tasks that wait", rows, &columns)
    }
}

impl WaitsPlan {
    fn lateness(
        &self,
        system: System,
        period: Duration,
        kind: WaitKind,
    ) -> Result<Samples, Failure> {
        let flavor = if system == System::Vigie { Flavor::Hybrid } else { Flavor::UserLevel };
        let runtime = Runtime::builder().flavor(flavor).workers(2).build();
        let runtime = runtime.map_err(Failure::runtime)?;
        let waits = kind.start(&runtime)?;
        self.lateness_beside(runtime, waits, period)
    }

    fn lateness_beside(
        &self,
        runtime: Runtime,
        waits: Waits,
        period: Duration,
    ) -> Result<Samples, Failure> {
        let events = self.events;
        let tasks: Vec<_> = waits.tasks.into_iter().map(|task| runtime.spawn(task)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let (goes, mut go) = (Arc::clone(&is_over), waits.go);
        let peer = thread::spawn(move || {
            while !goes.load(Ordering::Relaxed) {
                clock::sleep(period);
                go();
            }
        });
        let pair = runtime.block_on(async { UnixDatagram::pair() });
        let (sender, receiver) = pair.map_err(Failure::io("making sockets"))?;
        let received = runtime.spawn(async move {
            let (mut late, mut sent) = (Samples::new(), [0; 8]);
            for _ in 0..events {
                receiver.recv(&mut sent).await?;
                let now = Instant::now().as_nanos();
                late.extend([now.saturating_sub(u64::from_ne_bytes(sent))]);
            }
            Ok::<_, io::Error>(late)
        });
        let source = thread::spawn(move || {
            for _ in 0..events {
                clock::sleep(EVENTS_EVERY);
                let _ = sender.try_send(&Instant::now().as_nanos().to_ne_bytes());
            }
        });
        let late = runtime.block_on(received).map_err(Failure::runtime)?;
        is_over.store(true, Ordering::Relaxed);
        let source_ended = source.join();
        // The peer may wait for tasks that are no longer polled: it finds them gone.
        drop((tasks, runtime));
        let all_ended = (source_ended, peer.join());
        let (Ok(()), Ok(())) = all_ended else {
            return Err(Failure::runtime("a thread of the measurement panicked"));
        };
        late.map_err(Failure::io("receiving an event"))
    }
}
