//! The model of forwarding, compared with its simulation and its paper [fast-forward, §2 and §3.4].
//!
//! Nothing is measured here: from the paper's parameters (Table 2), closed form and simulated pipeline
//! are shown beside the paper's values. The figures of the paper have no axes in its text, so no
//! bandwidth of figures 4 to 6 is compared, only the text's statements about them.

mod beginnings;
mod figures;
mod frames;
mod keys;
mod line;
pub(crate) mod live;
mod live_frames;
mod nic;
mod operations;
mod plot;
pub(crate) mod relay;
mod segments;
mod tables;
pub(crate) mod via;

use std::path::PathBuf;
use std::time::Duration;

use vigie_forward::{
    Bandwidth, Bus, Cost, Flow, Message, Node, Parameters, Path, Simulation, SwitchingMode,
};

use self::keys::{
    BYTES, DELTA_US, FLOWS, HOST, MEASURED_US, MODEL_MB_S, MODEL_PERCENT, MODEL_US, NIC, NIC_CUT,
    NONE, SIMULATED_MB_S, SIMULATED_PERCENT, SIMULATED_US, T_ALGO_US, TABLE_US, WINDOW, mb_per_s,
};
use crate::error::{BenchError, ModelError};
use crate::report::{Outcome, Plan, Progress, Row, Subject};

pub(crate) use self::figures::{gain_distance, simulation_error, table_distance};
use self::frames::FramesPlan;
use self::live::LivePlan;
use self::nic::NicPlan;
use self::operations::OperationsPlan;
use self::segments::SegmentsPlan;

/// The paper's three paths.
const PATHS: [(Subject, Path); 3] =
    [(HOST, Path::HOST), (NIC, Path::NIC), (NIC_CUT, Path::NIC_CUT_THROUGH)];

/// BIP's packets at 8192 bytes [fast-forward, §2.4, Table 2]; smaller messages are taken as one packet.
const PACKET_BYTES: u64 = 2048;

/// Messages of a simulated run: enough for a steady state, and a whole number of windows.
const MESSAGES: u32 = 1_200;

/// Everything that the paper says, calculated and simulated, and windows and flows beyond it.
#[derive(Clone, Debug)]
pub(crate) struct ModelPlan {
    /// Where figure 4 is drawn to; figures 5 and 6 are drawn to two files beside it.
    pub(crate) plot: Option<PathBuf>,
}

impl Plan for ModelPlan {
    fn cases(&self) -> usize {
        1
    }

    /// Fails with [`BenchError::Model`] if the paper's parameters were refused, which would be a fault of the model.
    fn run(&self, _seed: u64, _progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut rows = thresholds()?;
        rows.extend(times()?);
        rows.extend(sizes()?);
        for bytes in [1024, 8192] {
            rows.extend(deltas(bytes)?);
        }
        rows.extend(gains()?);
        rows.extend(windows()?);
        rows.extend(flows()?);
        // Nothing here is a sample of anything random: each row is one calculation.
        let rows = rows.into_iter().map(|row| row.with_figure("samples", 1)).collect();
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::all(rows)
    }

    fn draw(&self, rows: &[Row]) -> Result<(), BenchError> {
        plot::figures(self.plot.as_deref(), rows)
    }
}

/// Paths between interfaces: those by the host, those by programs at the driver, and segments, small frames and operations by the command.
#[derive(Debug)]
pub(crate) struct InterfacesPlan {
    by_host: Option<LivePlan>,
    by_nic: Option<NicPlan>,
    segments: Option<SegmentsPlan>,
    frames: Option<FramesPlan>,
    operations: Option<OperationsPlan>,
}

impl InterfacesPlan {
    /// Plans the paths of these names, or all if there are none, in so many turns.
    pub(crate) fn new(only: &[String], rounds: u32) -> Self {
        let (of_nic, others): (Vec<_>, Vec<_>) =
            only.iter().cloned().partition(|name| NicPlan::has(name));
        let (of_segments, of_host): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|name| SegmentsPlan::has(name));
        let (of_frames, of_host): (Vec<_>, Vec<_>) =
            of_host.into_iter().partition(|name| FramesPlan::has(name));
        let (of_operations, of_host): (Vec<_>, Vec<_>) =
            of_host.into_iter().partition(|name| OperationsPlan::has(name));
        let is_asked = |names: &[String]| only.is_empty() || !names.is_empty();
        Self {
            by_host: is_asked(&of_host).then(|| LivePlan::new(of_host, rounds)),
            // Its turns are short.
            by_nic: is_asked(&of_nic).then(|| NicPlan::new(of_nic, 2 * rounds)),
            // Two minutes: only if they are named.
            segments: (!of_segments.is_empty()).then(|| SegmentsPlan::new(rounds)),
            frames: (!of_frames.is_empty()).then(|| FramesPlan::new(rounds)),
            operations: (!of_operations.is_empty()).then_some(OperationsPlan),
        }
    }

    fn parts(&self) -> impl Iterator<Item = &dyn Plan> {
        let by_host = self.by_host.iter().map(|plan| plan as &dyn Plan);
        let by_nic = self.by_nic.iter().map(|plan| plan as &dyn Plan);
        let segments = self.segments.iter().map(|plan| plan as &dyn Plan);
        let frames = self.frames.iter().map(|plan| plan as &dyn Plan);
        let operations = self.operations.iter().map(|plan| plan as &dyn Plan);
        by_host.chain(by_nic).chain(segments).chain(frames).chain(operations)
    }
}

impl Plan for InterfacesPlan {
    fn cases(&self) -> usize {
        self.parts().map(Plan::cases).sum()
    }

    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        for part in self.parts() {
            outcome.rows.extend(part.run(seed, progress)?.rows);
        }
        Ok(outcome)
    }

    fn tables(&self, rows: &[Row]) -> String {
        let tables: Vec<_> = self.parts().map(|part| part.tables(rows)).collect();
        tables.join("\n\n")
    }
}

/// The node of Table 2, with times in proportion to the bytes.
fn paper(bytes: u64, bus: Bus, window: u32) -> Result<Parameters, ModelError> {
    let per_packet = |us| Bandwidth::measured(PACKET_BYTES, Duration::from_micros(us));
    let node = Node::new(Cost::per_byte(per_packet(15)?), Cost::per_byte(per_packet(11)?));
    let message = Message::cut(bytes, PACKET_BYTES)?;
    Ok(node.bus(bus).window(window).parameters(message)?)
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn elapsed(flow: Flow) -> Result<Duration, ModelError> {
    Ok(Simulation::new(vec![flow]).run()?.elapsed)
}

/// Time per message in the steady state: what the last thousand add.
fn period(parameters: Parameters, path: Path, t_algo: Duration) -> Result<Duration, ModelError> {
    let flow = Flow::new(parameters, path, t_algo);
    let added = elapsed(flow.messages(MESSAGES))?.saturating_sub(elapsed(flow.messages(200))?);
    Ok(added / (MESSAGES - 200))
}

/// δ*: Table 3 and the crossovers of figures 5 and 6, and where the simulated paths cross.
fn thresholds() -> Result<Vec<Row>, ModelError> {
    let cases = [
        (1024, NIC, SwitchingMode::StoreAndForward, None, 10.0),
        (1024, NIC_CUT, SwitchingMode::CutThrough, None, 10.0),
        (8192, NIC, SwitchingMode::StoreAndForward, Some(22.0), 19.0),
        (8192, NIC_CUT, SwitchingMode::CutThrough, Some(67.0), 65.0),
    ];
    let row = |(bytes, subject, mode, table, measured)| {
        let parameters = paper(bytes, Bus::HalfDuplex, 1)?;
        let path =
            if mode == SwitchingMode::CutThrough { Path::NIC_CUT_THROUGH } else { Path::NIC };
        let mut row = Row::new(subject, "threshold")
            .parameter(BYTES, bytes)
            .with_figure(MODEL_US, us(parameters.delta_star(mode)))
            .with_figure(SIMULATED_US, us(simulated_threshold(parameters, path)?))
            .with_figure(MEASURED_US, measured);
        if let Some(table) = table {
            row = row.with_figure(TABLE_US, table);
        }
        Ok(row)
    };
    cases.into_iter().map(row).collect()
}

/// The largest δ, to the nanosecond, for which the simulated interface is no slower than the simulated
/// host: by halves, below a millisecond.
fn simulated_threshold(parameters: Parameters, path: Path) -> Result<Duration, ModelError> {
    let host = elapsed(Flow::new(parameters, Path::HOST, Duration::ZERO))?;
    let (mut low, mut high) = (0, 1_000_000);
    while low + 1 < high {
        let middle = u64::midpoint(low, high);
        let nic = elapsed(Flow::new(parameters, path, Duration::from_nanos(middle)))?;
        if nic <= host {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Duration::from_nanos(low))
}

/// T(8192) at δ = 0 with T_algo = 0.
fn times() -> Result<Vec<Row>, ModelError> {
    let parameters = paper(8192, Bus::HalfDuplex, 1)?;
    let row = |subject, model: Duration, simulated: Duration, table: f64| {
        let speed = |time| Bandwidth::measured(8192, time).map(mb_per_s);
        Ok(Row::new(subject, "time")
            .parameter(BYTES, 8192)
            .with_figure(MODEL_US, us(model))
            .with_figure(SIMULATED_US, us(simulated))
            .with_figure(TABLE_US, table)
            .with_figure(MODEL_MB_S, speed(model)?)
            .with_figure(SIMULATED_MB_S, speed(simulated)?))
    };
    let none = parameters.t_none();
    let mut rows = vec![row(NONE, none, none, 60.0)];
    for ((subject, path), table) in PATHS.into_iter().zip([142.0, 120.0, 75.0]) {
        let simulated = elapsed(Flow::new(parameters, path, Duration::ZERO))?;
        let model = parameters.time(path, Duration::ZERO).unwrap_or_default();
        rows.push(row(subject, model, simulated, table));
    }
    rows.into_iter().collect()
}

/// Bandwidths of one path: closed form and simulation.
fn bandwidths(
    row: Row,
    parameters: Parameters,
    path: Path,
    t_algo: Duration,
) -> Result<Row, ModelError> {
    let bytes = parameters.message().bytes();
    let simulated = Bandwidth::measured(bytes, period(parameters, path, t_algo)?)?;
    let row = row.with_figure(SIMULATED_MB_S, mb_per_s(simulated));
    Ok(match parameters.predict(path, t_algo) {
        Some(model) => row.with_figure(MODEL_MB_S, mb_per_s(model.bandwidth)),
        None => row,
    })
}

/// Figure 4: bandwidth by size, nothing computed.
fn sizes() -> Result<Vec<Row>, ModelError> {
    let mut rows = Vec::new();
    for bytes in (6..=18).map(|power| 1_u64 << power) {
        let parameters = paper(bytes, Bus::HalfDuplex, 1)?;
        let none = mb_per_s(Bandwidth::measured(bytes, parameters.t_none())?);
        let row = Row::new(NONE, "size").parameter(BYTES, bytes).with_figure(MODEL_MB_S, none);
        rows.push(row.with_figure(SIMULATED_MB_S, none));
        for (subject, path) in PATHS {
            let row = Row::new(subject, "size").parameter(BYTES, bytes);
            rows.push(bandwidths(row, parameters, path, Duration::ZERO)?);
        }
    }
    Ok(rows)
}

/// Figures 5 and 6: bandwidth by δ, with T_algoH = 0.
fn deltas(bytes: u64) -> Result<Vec<Row>, ModelError> {
    let parameters = paper(bytes, Bus::HalfDuplex, 1)?;
    let mut rows = Vec::new();
    let (last, step) = if bytes <= PACKET_BYTES { (30, 1) } else { (100, 5) };
    for delta_us in (0..=last).step_by(step) {
        for (subject, path) in PATHS {
            let delta = Duration::from_micros(delta_us);
            let t_algo = if path == Path::HOST { Duration::ZERO } else { delta };
            let row = Row::new(subject, "delta").parameter(BYTES, bytes);
            let row = row.parameter(DELTA_US, delta_us);
            rows.push(bandwidths(row, parameters, path, t_algo)?);
        }
    }
    Ok(rows)
}

/// "45 % of improvement" [fast-forward, §5]: time saved at window 1, bandwidth gained at window 2.
fn gains() -> Result<Vec<Row>, ModelError> {
    let at = |window, path| -> Result<(f64, f64), ModelError> {
        let parameters = paper(8192, Bus::HalfDuplex, window)?;
        let model = parameters.predict(path, Duration::ZERO);
        let model = model.map_or(0.0, |one| us(one.span) / f64::from(window));
        Ok((model, us(period(parameters, path, Duration::ZERO)?)))
    };
    let saved = |host: f64, nic: f64| 100.0 * (host - nic) / host;
    let gained = |host: f64, nic: f64| 100.0 * (host / nic - 1.0);
    let mut rows = Vec::new();
    for (window, percent) in [(1, saved as fn(f64, f64) -> f64), (2, gained)] {
        let (host, nic) = (at(window, Path::HOST)?, at(window, Path::NIC_CUT_THROUGH)?);
        rows.push(
            Row::new(NIC_CUT, "gain")
                .parameter(WINDOW, window)
                .with_figure(MODEL_PERCENT, percent(host.0, nic.0))
                .with_figure(SIMULATED_PERCENT, percent(host.1, nic.1)),
        );
    }
    Ok(rows)
}

/// Windows, with an algorithm of 40 µs that makes messages meet at the bus.
fn windows() -> Result<Vec<Row>, ModelError> {
    let mut rows = Vec::new();
    for bus in [Bus::HalfDuplex, Bus::FullDuplex] {
        for window in [1, 2, 3, 4, 8] {
            let parameters = paper(8192, bus, window)?;
            let cut = Subject::Model { name: "host-cut-through", label: "host, cut-through" };
            for (subject, path) in PATHS.into_iter().chain([(cut, Path::HOST_CUT_THROUGH)]) {
                for t_algo in [0, 40] {
                    let row = Row::new(subject, "window")
                        .parameter("bus", if bus == Bus::HalfDuplex { "half" } else { "full" })
                        .parameter(WINDOW, window)
                        .parameter(T_ALGO_US, t_algo);
                    let t_algo = Duration::from_micros(t_algo);
                    rows.push(bandwidths(row, parameters, path, t_algo)?);
                }
            }
        }
    }
    Ok(rows)
}

/// Several flows on links of their own, each with one message in the node and 5 µs of algorithm: the sum of
/// their bandwidths, beside that of one flow times their number.
fn flows() -> Result<Vec<Row>, ModelError> {
    let parameters = paper(8192, Bus::HalfDuplex, 1)?;
    let t_algo = Duration::from_micros(5);
    let mut rows = Vec::new();
    for count in [1_u16, 2, 3, 4, 8] {
        for (subject, path) in PATHS {
            let flow = Flow::new(parameters, path, t_algo).messages(MESSAGES);
            let flows = (0..count).map(|port| flow.ports(port, port)).collect();
            let report = Simulation::new(flows).run()?;
            let sum =
                report.flows.iter().map(|flow| mb_per_s(flow.steady_bandwidth())).sum::<f64>();
            let alone = parameters.predict(path, t_algo).map_or(0.0, |one| mb_per_s(one.bandwidth));
            rows.push(
                Row::new(subject, "flows")
                    .parameter(FLOWS, count)
                    .with_figure(MODEL_MB_S, alone * f64::from(count))
                    .with_figure(SIMULATED_MB_S, sum),
            );
        }
    }
    Ok(rows)
}
