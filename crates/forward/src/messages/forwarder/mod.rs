//! The forwarder: the node in the middle.

mod engine;
mod route;

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vigie_detect::clock::{monotonic_now, thread_cpu_time};
use vigie_via::vi::{Address, Provider, Reason};

pub(super) use self::engine::Engine;
use super::error::MessagesError;
use super::hand_over::{HandOverTimes, hand_over, mean};
use super::idle::{Bell, Patience, Rest, sharpen};
use super::settings::Settings;
use super::work::Work;
use crate::model::{Mode, Path, Placement};

/// How many messages the program has at most, or has given back and the links have not taken yet.
const HOST_MESSAGES_MAX: usize = 64;

/// What a forwarder has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwarderReport {
    /// Messages that went on, whole.
    pub forwarded: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that the algorithm dropped.
    pub dropped: u64,
    /// Messages for destinations that there are not, or not any more, and such whose source ended before they did.
    pub lost: u64,
    /// How long the engine ran.
    pub elapsed: Duration,
    /// Processor time of the engine's thread: the paper's network processor.
    pub engine_cpu: Duration,
    /// Processor time of the program's thread: what forwarding takes from the host.
    pub program_cpu: Duration,
    /// Runs of the algorithm in the engine, and their time.
    pub nic_runs: u64,
    /// See [`nic_runs`](Self::nic_runs).
    pub nic_algorithm: Duration,
    /// What hand-overs to the program took.
    pub hand_over: HandOverTimes,
}

impl ForwarderReport {
    /// Returns T_algoN, the mean time of the algorithm in the engine.
    #[must_use]
    pub fn t_algo_n(&self) -> Duration {
        mean(self.nic_algorithm, self.nic_runs)
    }
}

/// A forwarder that runs: an engine on a thread of its own, which alone touches the provider, and a program on another
/// if the algorithm runs on the host.
pub struct Forwarder {
    address: Address,
    stop: Sender<()>,
    bell: Bell,
    engine: JoinHandle<Result<ForwarderReport, MessagesError>>,
    program: Option<JoinHandle<Duration>>,
}

impl Forwarder {
    /// Connects with the sinks, and begins to forward on `path`: on [`Path::NIC`] and [`Path::NIC_CUT_THROUGH`] the
    /// algorithm runs in the engine, and messages never come to the program; on [`Path::HOST`] it runs in
    /// the program. `routes`: which destination is where.
    ///
    /// # Errors
    /// [`MessagesError::WholeMessage`], [`MessagesError::HostCutThrough`]: the algorithm or the host does not allow
    /// the path; all others of a connection.
    pub fn start<P: Provider>(
        nic: P,
        settings: Settings,
        routes: &[(u32, Address)],
        path: Path,
        work: impl Work,
    ) -> Result<Self, MessagesError> {
        let bell = Bell::new()?;
        let (engine, program) = assemble(nic, &settings, path, Box::new(work), &bell)?;
        let mut engine = engine;
        sharpen();
        engine.connect(routes)?;
        let mut patience = Patience::new(settings.patience, engine.now());
        let mut rest = Rest::new(settings.idle);
        while !engine.is_ready()? {
            if patience.is_over(engine.now()) {
                return Err(MessagesError::Refused(Reason::TimedOut));
            }
            rest.rest(engine.port(), None, patience.until())?;
        }
        let address = engine.address();
        let (stop, stopped) = channel();
        let program = match program {
            None => None,
            Some(program) => {
                let thread = thread::Builder::new().name("forward-program".to_owned());
                Some(thread.spawn(move || program.serve())?)
            }
        };
        let idle = settings.idle;
        let heard = bell.clone();
        let thread = thread::Builder::new().name("forward-engine".to_owned());
        let engine = thread.spawn(move || {
            sharpen();
            let (begun, cpu) = (monotonic_now(), thread_cpu_time());
            let mut rest = Rest::new(idle);
            while stopped.try_recv() != Ok(()) && !engine.is_over() {
                if engine.turn()? {
                    rest.worked();
                    continue;
                }
                rest.rest(engine.port(), Some(&heard), vigie_detect::Instant::MAX)?;
                heard.quiet();
            }
            let mut report = engine.report();
            report.elapsed = monotonic_now() - begun;
            report.engine_cpu = thread_cpu_time().saturating_sub(cpu);
            Ok(report)
        })?;
        Ok(Self { address, stop, bell, engine, program })
    }

    /// Returns where sources reach it.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether its engine has ended by itself: [`stop`](Self::stop) tells why.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.engine.is_finished()
    }

    /// Ends it, and returns what it has done. Messages that have not left are lost, which their sources will notice.
    ///
    /// # Errors
    /// What ended the engine before.
    pub fn stop(self) -> Result<ForwarderReport, MessagesError> {
        // An engine that has ended hears nothing.
        let _ = self.stop.send(());
        self.bell.ring();
        self.join()
    }

    /// Waits until it has ended by itself: see [`Settings::ends_with_sources`].
    ///
    /// # Errors
    /// What ended the engine.
    pub fn join(self) -> Result<ForwarderReport, MessagesError> {
        let report = self.engine.join().map_err(|_| MessagesError::ThreadEnded("engine"))?;
        let program_cpu = match self.program {
            None => Duration::ZERO,
            Some(program) => program.join().map_err(|_| MessagesError::ThreadEnded("program"))?,
        };
        Ok(ForwarderReport { program_cpu, ..report? })
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("address", &self.address)
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

/// Makes an engine, and the program if there is to be one.
pub(super) fn assemble<P: Provider>(
    nic: P,
    settings: &Settings,
    path: Path,
    work: Box<dyn Work>,
    bell: &Bell,
) -> Result<(Engine<P>, Option<super::hand_over::Program>), MessagesError> {
    let sees_all = work.sees() == crate::model::Sees::Everything;
    match (path.placement, path.mode) {
        (Placement::Nic, Mode::CutThrough) if sees_all => Err(MessagesError::WholeMessage),
        (Placement::Host, Mode::CutThrough) => Err(MessagesError::HostCutThrough),
        (Placement::Host, _) => {
            let (host, program) = hand_over(work, bell.clone(), HOST_MESSAGES_MAX);
            let way = engine::Way::Host(host);
            Ok((Engine::new(nic, settings, way)?, Some(program)))
        }
        (Placement::Nic, mode) => {
            let way = engine::Way::Nic { work, is_cut: mode == Mode::CutThrough };
            Ok((Engine::new(nic, settings, way)?, None))
        }
    }
}
