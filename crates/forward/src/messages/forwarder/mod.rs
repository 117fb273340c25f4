//! The forwarder: the node in the middle.

mod engine;
mod route_queue;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vigie_detect::Server;
use vigie_detect::clock::{monotonic_now, thread_cpu_time};
use vigie_via::vi::{Address, Provider};

pub(super) use self::engine::ForwarderEngine;
use super::algorithm::Algorithm;
use super::config::NodeConfig;
use super::error::MessagesError;
use super::node::BlockingNode;
use super::program_channel::{ChannelTimes, mean, program_channel};
use crate::model::{Path, Placement, SwitchingMode};

/// The maximum number of messages in the program, or returned by it and not yet sent.
const HOST_MESSAGES_MAX: usize = 64;

/// The statistics of a forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwarderReport {
    /// Messages forwarded completely.
    pub forwarded: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that the algorithm dropped.
    pub dropped: u64,
    /// Messages for unknown or disconnected destinations, and those whose source ended before they were complete.
    pub lost: u64,
    /// The time that the engine ran.
    pub elapsed: Duration,
    /// Processor time of the engine's thread, the paper's network processor.
    pub engine_cpu: Duration,
    /// Processor time of the program's thread: the cost of forwarding to the host.
    pub program_cpu: Duration,
    /// Runs of the algorithm in the engine.
    pub nic_runs: u64,
    /// The total time of those runs.
    pub nic_algorithm: Duration,
    /// The cost of hand-overs to the program.
    pub channel: ChannelTimes,
}

impl ForwarderReport {
    /// Returns T_algoN, the mean time of the algorithm in the engine.
    #[must_use]
    pub fn t_algo_n(&self) -> Duration {
        mean(self.nic_algorithm, self.nic_runs)
    }
}

/// A running forwarder: an engine on its own thread, which alone touches the provider, and a program on another thread
/// if the algorithm runs on the host.
pub struct Forwarder {
    address: Address,
    is_stopped: Arc<AtomicBool>,
    server: Server,
    engine: JoinHandle<Result<ForwarderReport, MessagesError>>,
    program: Option<JoinHandle<Duration>>,
}

impl Forwarder {
    /// Connects to the sinks, and starts forwarding on `path`: on [`Path::NIC`] and [`Path::NIC_CUT_THROUGH`] the
    /// algorithm runs in the engine, and messages never reach the program; on [`Path::HOST`] it runs in the program.
    /// `routes` gives the address of each destination.
    ///
    /// # Errors
    /// [`MessagesError::WholeMessage`], [`MessagesError::HostCutThrough`]: the algorithm or the host does not allow the
    /// path; otherwise any error of connecting.
    pub fn start<P: Provider>(
        nic: P,
        config: NodeConfig,
        routes: &[(u32, Address)],
        path: Path,
        algorithm: impl Algorithm,
    ) -> Result<Self, MessagesError> {
        let (mut engine, program) = assemble(nic, &config, path, Box::new(algorithm))?;
        engine.connect(routes)?;
        let (address, connect_steps) = (engine.address(), engine.connect_steps());
        let mut node = BlockingNode::new(engine, config.reactivity)?;
        node.wait(connect_steps)?;
        let program = match program {
            None => None,
            Some(program) => {
                let (thread, waker) = (thread::Builder::new(), node.waker());
                let thread = thread.name("forward-program".to_owned());
                Some(thread.spawn(move || program.serve(&waker))?)
            }
        };

        let (is_stopped, server) = (Arc::new(AtomicBool::new(false)), node.server().clone());
        let is_told = Arc::clone(&is_stopped);
        let thread = thread::Builder::new().name("forward-engine".to_owned());
        let engine = thread.spawn(move || {
            let (begun, cpu) = (monotonic_now(), thread_cpu_time());
            node.wait(|engine, _| {
                let is_over = is_told.load(Ordering::Acquire) || engine.is_over();
                Ok(is_over.then_some(()))
            })?;
            let mut report = node.with(|engine| engine.report());
            report.elapsed = monotonic_now() - begun;
            report.engine_cpu = thread_cpu_time().saturating_sub(cpu);
            Ok(report)
        })?;

        Ok(Self { address, is_stopped, server, engine, program })
    }

    /// Returns the address that sources connect to.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether its engine has ended without [`stop`](Self::stop), which then returns the reason.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.engine.is_finished()
    }

    /// Stops it, and returns its statistics. Messages not yet sent are lost; their sources get an error.
    ///
    /// # Errors
    /// The error that ended the engine before.
    pub fn stop(self) -> Result<ForwarderReport, MessagesError> {
        self.is_stopped.store(true, Ordering::Release);
        self.server.unpark();
        self.join()
    }

    /// Waits until it ends without [`stop`](Self::stop): see [`NodeConfig::ends_with_sources`].
    ///
    /// # Errors
    /// The error that ended the engine.
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

/// Builds an engine, and the program if the path needs one.
pub(super) fn assemble<P: Provider>(
    nic: P,
    config: &NodeConfig,
    path: Path,
    algorithm: Box<dyn Algorithm>,
) -> Result<(ForwarderEngine<P>, Option<super::program_channel::HostProgram>), MessagesError> {
    if (path.placement, path.mode) == (Placement::Host, SwitchingMode::CutThrough) {
        return Err(MessagesError::HostCutThrough);
    }
    if path.placement == Placement::Nic {
        return Ok((assemble_nic(nic, config, path, algorithm)?, None));
    }
    let (host, program) = program_channel(algorithm, HOST_MESSAGES_MAX);
    Ok((ForwarderEngine::new(nic, config, engine::Execution::Host(host))?, Some(program)))
}

/// Builds an engine that runs the algorithm itself.
pub(super) fn assemble_nic<P: Provider>(
    nic: P,
    config: &NodeConfig,
    path: Path,
    algorithm: Box<dyn Algorithm>,
) -> Result<ForwarderEngine<P>, MessagesError> {
    let is_cut = path.mode == SwitchingMode::CutThrough;
    if path.placement == Placement::Host {
        return Err(MessagesError::NoProgram);
    }
    if is_cut && algorithm.sees() == crate::model::Sees::Everything {
        return Err(MessagesError::WholeMessage);
    }
    ForwarderEngine::new(nic, config, engine::Execution::Nic { algorithm, is_cut })
}
