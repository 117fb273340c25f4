//! Messages through a node in the middle, live: the experiment behind figures 4 to 6 [fast-forward, §3].
//!
//! Source, forwarder and sink are separate processes. First the parameters of the model are measured, on runs that are
//! not cells of the figures, except for their smallest message; then every cell is measured and compared with the
//! planner's prediction. The module `fit` says how each parameter is measured.

mod figures;
mod fit;
pub(super) mod keys;
pub(crate) mod node;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use vigie_forward::{Cost, Message as Cut, Path, StageModel};

pub(crate) use self::figures::{choice, prediction_error};
use self::fit::{FittedParameters, fit};
use self::keys::{ENGINE_CPU_US, HOST_CPU_US, HOST_SHARE, MB_S, PACKET_BYTES_U32, PLANNED, US};
pub(crate) use self::node::ViaCarrier;
use self::node::{CellPlan, MessagePath, NodeCosts, NodeMessage, NodePlan, NodeRole};
use super::keys::{BYTES, DELTA_US, HOST, MODEL_MB_S, NIC, NIC_CUT, NONE, WINDOW, mb_per_s};
use super::plot;
use crate::barrier::bridge::Bridge;
use crate::error::{BenchError, Failure, ModelError};
use crate::process::{Child, Role};
use crate::report::{Outcome, Plan, Progress, Row, Subject};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The costs of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunCosts {
    source: NodeCosts,
    forwarder: Option<NodeCosts>,
    sink: NodeCosts,
}

/// The topology of the nodes.
#[derive(Debug)]
struct ViaTopology {
    bridge: Option<Bridge>,
}

impl ViaTopology {
    fn make(carrier: ViaCarrier) -> Result<Self, BenchError> {
        let bridge = carrier.has_namespaces().then(|| Bridge::make(3)).transpose();
        let failed =
            |missing| BenchError::Failed { role: "node", failure: Failure::runtime(missing) };
        Ok(Self { bridge: bridge.map_err(failed)? })
    }

    fn start(&self, role: NodeRole, cell: CellPlan) -> Result<Child, BenchError> {
        let namespace = self.bridge.as_ref().and_then(|bridge| bridge.path(role.rank()));
        let enter = |path: PathBuf| {
            vec!["nsenter".to_owned(), format!("--net={}", path.display()), "--".to_owned()]
        };
        let wrapper = namespace.map(enter).unwrap_or_default();
        Child::start_under(&wrapper, &NodePlan { role, cell })
    }

    /// Runs one cell once: fresh processes, messages, final acknowledgement.
    fn run(
        &self,
        cell: CellPlan,
        way: MessagePath,
        algorithm_ns: u64,
    ) -> Result<RunCosts, BenchError> {
        let mut sink = self.start(NodeRole::Sink, cell)?;
        let mut next = address(&mut sink)?;
        let mut forwarder = None;
        if way != MessagePath::Direct {
            let mut child = self.start(NodeRole::Forwarder { way, algorithm_ns, next }, cell)?;
            next = address(&mut child)?;
            forwarder = Some(child);
        }
        let mut source = self.start(NodeRole::Source { next }, cell)?;
        let source = costs(&mut source)?;
        let forwarder = forwarder.as_mut().map(costs).transpose()?;
        Ok(RunCosts { source, forwarder, sink: costs(&mut sink)? })
    }
}

fn address(child: &mut Child) -> Result<Vec<u8>, BenchError> {
    match child.result(TIMEOUT)? {
        NodeMessage::At(address) => Ok(address),
        other => Err(unexpected(&other)),
    }
}

fn costs(child: &mut Child) -> Result<NodeCosts, BenchError> {
    match child.result(TIMEOUT)? {
        NodeMessage::Done(costs) => Ok(costs),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(said: &NodeMessage) -> BenchError {
    BenchError::Protocol { role: NodePlan::NAME, line: format!("{said:?}") }
}

/// The ways, with their paths in the model.
const WAYS: [(MessagePath, Subject, Path); 3] = [
    (MessagePath::Host, HOST, Path::HOST),
    (MessagePath::Nic, NIC, Path::NIC),
    (MessagePath::NicCutThrough, NIC_CUT, Path::NIC_CUT_THROUGH),
];

/// Sizes of messages where nothing is computed.
const SIZES: [u32; 8] = [64, 256, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// What carries how many messages.
#[derive(Clone, Debug, Args)]
#[group(requires = "over")]
#[command(next_help_heading = "Messages (--over)")]
pub(crate) struct ViaPlan {
    #[arg(skip = ViaCarrier::Udp)]
    pub(crate) carrier: ViaCarrier,
    /// How often each message path is measured; the median run counts.
    #[arg(skip)]
    pub(crate) rounds: u32,
    /// Where figure 4 is drawn to; figures 5 and 6 are drawn to two files beside it.
    #[arg(skip)]
    pub(crate) plot: Option<PathBuf>,
    /// Number of messages of a run; the last is acknowledged.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Number of messages in flight at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// Rate of each link in bytes per second, which the sending process keeps; 0: as fast as the machine allows.
    #[arg(long, default_value_t = 20_000_000)]
    rate: u64,
    /// Let processes poll before they sleep, as long as that pays off: lower latency, more processor time.
    #[arg(long)]
    spin: bool,
}

impl Plan for ViaPlan {
    /// The parameters of the model are a case too.
    fn cases(&self) -> usize {
        1 + self.cells().len()
    }

    fn run(&self, _seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        progress.case("parameters of the model");
        let topology = ViaTopology::make(self.carrier)?;
        let fitted = fit(self, &topology)?;
        progress.case_done();
        let mut rows = vec![fitted.row(self)];
        for (case, bytes, delta_us) in self.cells() {
            progress.case(format!("{case} {bytes} B, {delta_us} µs"));
            rows.extend(self.measure_case(&topology, case, bytes, delta_us, &fitted)?);
            progress.case_done();
        }
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::all(rows)
    }

    fn draw(&self, rows: &[Row]) -> Result<(), BenchError> {
        plot::figures(self.plot.as_deref(), rows)
    }
}

impl ViaPlan {
    /// The cells of the figures: case, bytes, δ in microseconds.
    fn cells(&self) -> Vec<(&'static str, u32, u64)> {
        let mut cells: Vec<_> = SIZES.iter().map(|bytes| ("size", *bytes, 0)).collect();
        let short = [0, 5, 10, 20, 30, 50, 80, 120, 200];
        let long = [0, 10, 20, 40, 80, 160, 250, 330, 450, 700];
        cells.extend(short.map(|delta_us| ("delta", 1024, delta_us)));
        cells.extend(long.map(|delta_us| ("delta", 8192, delta_us)));
        cells
    }

    fn template(&self, bytes: u32) -> CellPlan {
        CellPlan {
            carrier: self.carrier,
            bytes,
            messages: self.messages,
            window: self.window,
            packet_bytes: PACKET_BYTES_U32,
            pace: self.rate,
            spins: self.spin,
        }
    }

    /// Measures one cell by all ways, in turns.
    fn measure_case(
        &self,
        topology: &ViaTopology,
        case: &'static str,
        bytes: u32,
        delta_us: u64,
        fitted: &FittedParameters,
    ) -> Result<Vec<Row>, BenchError> {
        let mut ways = WAYS.to_vec();
        if case == "size" {
            ways.insert(0, (MessagePath::Direct, NONE, Path::HOST));
        }
        let mut found = vec![Vec::new(); ways.len()];
        for _ in 0..self.rounds {
            for ((way, ..), runs) in ways.iter().zip(&mut found) {
                let algorithm_ns = if *way == MessagePath::Host { 0 } else { delta_us * 1_000 };
                runs.push(topology.run(self.template(bytes), *way, algorithm_ns)?);
            }
        }
        let message = Cut::cut(u64::from(bytes), u64::from(PACKET_BYTES_U32));
        let message = message.map_err(ModelError::from)?;
        let delta = Cost::fixed(fitted.t_algo(Duration::from_micros(delta_us)));
        let stage = StageModel::new("busy").on_nic(delta);
        let plan = fitted.node().plan(message, std::slice::from_ref(&stage));
        let plan = plan.map_err(ModelError::from)?;
        let rows = ways.iter().zip(found).map(|((way, subject, path), mut runs)| {
            runs.sort_by_key(|run: &RunCosts| run.source.elapsed_ns);
            let median = runs[runs.len() / 2];
            let mut row = Row::new(*subject, case)
                .parameter(BYTES, bytes)
                .parameter(DELTA_US, delta_us)
                .parameter(WINDOW, self.window)
                .with_figure("samples", self.messages * self.rounds)
                .with_figure(US, median.us())
                .with_figure(MB_S, f64::from(bytes) / median.us());
            let all: Vec<u64> = runs.iter().map(|run| run.source.elapsed_ns).collect();
            row.samples_ns.insert("runs", all);
            let candidate = plan.candidates().iter().find(|one| one.path == *path);
            let predicted = candidate.and_then(|one| one.outcome.as_ref().ok());
            if let (Some(prediction), true) = (predicted, *way != MessagePath::Direct) {
                row = row
                    .with_figure(MODEL_MB_S, mb_per_s(prediction.bandwidth))
                    .with_figure(PLANNED, Value::from(plan.path() == *path));
            }
            match median.forwarder {
                Some(costs) => costs.onto(row),
                None => row,
            }
        });
        Ok(rows.collect())
    }
}

impl RunCosts {
    /// Returns the time of one message: the whole time, with the final acknowledgement as one more.
    ///
    /// # Source
    /// [fast-forward, §3.2]: the latency is the time divided by 10001.
    fn us(&self) -> f64 {
        self.source.elapsed_ns as f64 / 1e3 / (self.source.messages + 1) as f64
    }
}

impl NodeCosts {
    /// Adds a forwarder's processor times to a row.
    fn onto(&self, row: Row) -> Row {
        let per_message = |ns: u64| ns as f64 / 1e3 / self.messages.max(1) as f64;
        row.with_figure(HOST_CPU_US, per_message(self.program_cpu_ns))
            .with_figure(ENGINE_CPU_US, per_message(self.engine_cpu_ns))
            .with_figure(HOST_SHARE, self.program_cpu_ns as f64 / self.ran_ns.max(1) as f64)
    }
}
