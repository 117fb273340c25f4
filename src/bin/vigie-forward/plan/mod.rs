//! `vigie-forward plan`: the cost of forwarding on this machine, and where the model would place it.

mod measure;
mod paths;
mod present;

use std::{fmt::Write, fs, io, path::Path, process::Command, time::Duration};

use serde_json::json;
use thiserror::Error;
use vigie::forward::{Bandwidth, Bus, Cost, Message, ModelError, Node, Plan, StageModel};

use self::measure::{PACKET_BYTES, PacketCosts, SEGMENTS_BYTES};
pub(crate) use self::{
    measure::program_cost,
    paths::{PathDecision, RefusedPath, path_name, ranked, work_of},
};
use crate::{
    cli::{PlanArgs, PlannedWork},
    privileges::{HeldRights, Right, listed},
    stats::{ClientError, FlowReport, report},
};

/// The rate assumed for links that do not report theirs, in megabits per second.
const RATE_ASSUMED: u32 = 10_000;
/// The time limit of a measurement in a process of its own, in seconds.
const PROBE_S: &str = "20";

/// The reason why there is no plan.
#[derive(Debug, Error)]
pub(crate) enum PlanError {
    #[error("measuring {what}: {source}")]
    Measure { what: &'static str, source: io::Error },
    #[error("there is no interface `{0}` (`ip link` lists them)")]
    NoInterface(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Instance(#[from] ClientError),
}

/// A value and its origin.
struct Sourced<T> {
    value: T,
    source: String,
}

/// The inputs of the model.
struct Machine {
    rate_mbit: Sourced<u32>,
    hand_over: Sourced<PacketCosts>,
    host: PacketCosts,
    /// Or why it could not be measured.
    program: Result<PacketCosts, String>,
}

/// The traffic of a plan: messages of a size, in segments if they are longer than a frame and segments pass.
struct PlannedMessage {
    bytes: u32,
    in_segments: bool,
    plan: Plan,
}

/// Measures, and returns the text to print.
pub(crate) fn run(arguments: &PlanArgs) -> Result<String, PlanError> {
    let machine = Machine::measure(arguments, arguments.work)?;
    let plan = |bytes: &u32| machine.plan(arguments, arguments.work, *bytes);
    let plans = arguments.message.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    let present = present(arguments, &machine)?;
    Ok(if arguments.json {
        as_json(&machine, &plans, &present)
    } else {
        as_text(&machine, &plans, &present)
    })
}

/// The length of the messages by which present flows are judged, in bytes: what TCP sends at once.
const PRESENT_MESSAGE_BYTES: u32 = 65_000;

/// Explains the flows of the running instance, if there is one: their names, and a sentence each.
fn present(arguments: &PlanArgs, machine: &Machine) -> Result<Vec<(String, String)>, PlanError> {
    let instance = match report(arguments.socket.as_deref()) {
        Ok(instance) => instance,
        // Plans are also made before anything runs, and beside instances of others.
        Err(_) if arguments.socket.is_none() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };

    let explain = |flow: &FlowReport| -> Result<_, PlanError> {
        let work = match flow.kind.as_str() {
            "l2" => Some(PlannedWork::L2),
            "l3" => Some(PlannedWork::L3),
            "nat" => Some(PlannedWork::Nat),
            _ => None,
        };
        let plan = match work {
            Some(work) if work == arguments.work => {
                Some(machine.plan(arguments, work, PRESENT_MESSAGE_BYTES)?)
            }
            Some(work) => {
                let machine = Machine::measure(arguments, work)?;
                Some(machine.plan(arguments, work, PRESENT_MESSAGE_BYTES)?)
            }
            None => None,
        };
        let plan = plan.as_ref().map(|planned| &planned.plan);
        Ok((flow.name.clone(), present::explain(flow, plan)))
    };
    instance.flows.iter().map(explain).collect()
}

const fn work_word(work: PlannedWork) -> &'static str {
    match work {
        PlannedWork::L2 => "l2",
        PlannedWork::L3 => "l3",
        PlannedWork::Nat => "nat",
    }
}

impl Machine {
    /// Plans for messages of a size.
    fn plan(
        &self,
        arguments: &PlanArgs,
        work: PlannedWork,
        bytes: u32,
    ) -> Result<PlannedMessage, PlanError> {
        let in_segments = !arguments.frames && u64::from(bytes) > PACKET_BYTES;
        let packet_bytes = if in_segments { SEGMENTS_BYTES } else { PACKET_BYTES };
        let of = |costs: &PacketCosts| if in_segments { costs.segments } else { costs.frames };
        let link = Bandwidth::new(u64::from(self.rate_mbit.value) * 125_000)?;
        // The host reads and writes memory at the same time.
        let node = Node::new(Cost::per_byte(link), of(&self.hand_over.value))
            .bus(Bus::FullDuplex)
            .window(arguments.window);
        let stage = StageModel::new(work_word(work)).on_host(of(&self.host));
        let stage = match &self.program {
            Ok(costs) => stage.on_nic(of(costs)),
            Err(because) => stage.not_on_nic(because.clone()),
        };
        let message = Message::cut(u64::from(bytes), packet_bytes)?;
        Ok(PlannedMessage { bytes, in_segments, plan: node.plan(message, &[stage])? })
    }

    fn measure(arguments: &PlanArgs, work: PlannedWork) -> Result<Self, PlanError> {
        let failed = |what| move |source| PlanError::Measure { what, source };
        let (hand_over, by) = measure::hand_over().map_err(failed("the hand-over"))?;
        let hand_over = Sourced { value: hand_over, source: by.to_owned() };
        let host = measure::host_cost(work).map_err(failed("the host's stages"))?;
        let program = in_own_namespace(work);
        Ok(Self { rate_mbit: rate(arguments)?, hand_over, host, program })
    }
}

fn rate(arguments: &PlanArgs) -> Result<Sourced<u32>, PlanError> {
    if let Some(value) = arguments.rate {
        return Ok(Sourced { value, source: "as given".to_owned() });
    }
    let Some(name) = &arguments.interface else {
        let source = "assumed: no --interface, and no --rate".to_owned();
        return Ok(Sourced { value: RATE_ASSUMED, source });
    };
    let folder = Path::new("/sys/class/net").join(name);
    if name.contains('/') || !folder.exists() {
        return Err(PlanError::NoInterface(name.clone()));
    }
    let told = fs::read_to_string(folder.join("speed")).ok();
    let told = told.and_then(|text| text.trim().parse::<u32>().ok()).filter(|rate| *rate > 0);
    Ok(match told {
        Some(value) => Sourced { value, source: format!("as {name} reports") },
        None => {
            Sourced { value: RATE_ASSUMED, source: format!("assumed: {name} does not report it") }
        }
    })
}

/// Measures a program in a process with its own network namespace, since it must be attached for that.
fn in_own_namespace(work: PlannedWork) -> Result<PacketCosts, String> {
    let missing = HeldRights::now().missing(&[Right::Bpf, Right::NetAdmin]);
    if !missing.is_empty() {
        return Err(format!("a program needs {}, which this process lacks", listed(&missing)));
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("unshare")
        .args(["-n", "--", "timeout", PROBE_S])
        .arg(own)
        .args(["plan", "--probe-program", "--work", work_word(work)])
        .output()
        .map_err(|error| format!("it was not measured: unshare: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let why = errors.lines().last().unwrap_or("no reason given");
        let why = why.strip_prefix("vigie-forward: ").unwrap_or(why);
        return Err(format!("no program could be measured here: {why}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let points = numbers.next().zip(numbers.next()).zip(numbers.next().zip(numbers.next()));
    let ((small, small_ns), (large, large_ns)) =
        points.ok_or("its measurement was not readable")?;
    let (small_time, large_time) = (Duration::from_nanos(small_ns), Duration::from_nanos(large_ns));
    let frames = Cost::through((small, small_time), (large, large_time));
    let frames = frames.map_err(|error| error.to_string())?;
    // It reads headers alone, so that longer packets cost no more; a test run takes no longer ones.
    Ok(PacketCosts { frames, segments: Cost::fixed(large_time) })
}

/// Shows the cost of packets of three sizes.
fn three(costs: PacketCosts) -> String {
    let PacketCosts { frames, segments } = costs;
    let [small, large, segments] =
        [frames.at(64), frames.at(PACKET_BYTES), segments.at(SEGMENTS_BYTES)];
    format!(
        "{small:?} for 64 B, {large:?} for {PACKET_BYTES} B, {segments:?} for segments of {SEGMENTS_BYTES} B"
    )
}

fn as_text(machine: &Machine, plans: &[PlannedMessage], present: &[(String, String)]) -> String {
    let mut text = String::new();
    let program = match &machine.program {
        Ok(cost) => format!("{}, measured", three(*cost)),
        Err(because) => format!("none: {because}"),
    };
    // Writing to a string does not fail.
    let _ =
        writeln!(text, "links      {} Mb/s, {}", machine.rate_mbit.value, machine.rate_mbit.source);
    let _ = writeln!(
        text,
        "T_pci      {}, measured: {}",
        three(machine.hand_over.value),
        machine.hand_over.source
    );
    let _ = writeln!(text, "T_algoH    {}, measured", three(machine.host));
    let _ = writeln!(text, "T_algoN    {program}");
    for PlannedMessage { bytes, in_segments, plan } in plans {
        let prediction = plan.prediction();
        let how = if *in_segments { ", in segments" } else { "" };
        let _ = writeln!(text, "\nmessages of {bytes} B{how}: {}", plan.path());
        let _ = writeln!(text, "  {}, {:?} each", prediction.bandwidth, prediction.time);
        let _ = writeln!(text, "  {}", plan.reason());
        let _ = writeln!(text, "  so: {}", advice(plan));
    }
    if !present.is_empty() {
        let _ = writeln!(text, "\npresent flows:");
    }
    for (_, sentence) in present {
        let _ = writeln!(text, "  {sentence}");
    }
    text
}

/// The command to type.
fn advice(plan: &Plan) -> &'static str {
    match plan.path().placement {
        vigie::forward::Placement::Nic => "--path auto (or xdp-native, where the driver has it)",
        vigie::forward::Placement::Host => "--path af-packet",
    }
}

fn as_json(machine: &Machine, plans: &[PlannedMessage], present: &[(String, String)]) -> String {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let cost = |costs: PacketCosts| {
        let PacketCosts { frames, segments } = costs;
        json!({
            "64": nanos(frames.at(64)),
            "1500": nanos(frames.at(PACKET_BYTES)),
            "65000": nanos(segments.at(SEGMENTS_BYTES)),
        })
    };
    let present: Vec<_> =
        present.iter().map(|(name, because)| json!({ "flow": name, "because": because })).collect();
    let plans: Vec<_> = plans
        .iter()
        .map(|PlannedMessage { bytes, in_segments, plan }| {
            json!({
                "message_bytes": bytes,
                "in_segments": in_segments,
                "placement": plan.path().placement.to_string(),
                "mode": plan.path().mode.to_string(),
                "bandwidth_bytes_per_s": plan.prediction().bandwidth.bytes_per_s(),
                "time_ns": nanos(plan.prediction().time),
                "reason": plan.reason(),
            })
        })
        .collect();
    let program = match &machine.program {
        Ok(one) => cost(*one),
        Err(because) => json!({ "none": because }),
    };

    let whole = json!({
        "rate_mbit": machine.rate_mbit.value,
        "rate_source": machine.rate_mbit.source,
        "t_pci_ns": cost(machine.hand_over.value),
        "t_pci_source": machine.hand_over.source,
        "t_algo_host_ns": cost(machine.host),
        "t_algo_nic_ns": program,
        "plans": plans,
        "flows": present,
    });

    format!("{whole}\n")
}
