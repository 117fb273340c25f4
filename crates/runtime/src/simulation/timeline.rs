//! A run as a page to read.

use std::{env, ffi::OsString, fs, io, path::PathBuf};

use vigie_detect::{TaskEnd, TraceDetail, TraceEvent, TraceEventKind};

use super::failure;
use crate::{
    flavor::simulated::SimulatedWorld,
    json::{self, Object},
    sync::Arc,
};

/// The placeholder in the page that the run replaces.
const RUN: &str = "/*RUN*/";

const TEMPLATE: &str = include_str!("timeline.html");

/// The number of events of a run that are recorded for its page.
const EVENTS_MAX: usize = 1 << 16;

/// Returns the folder of the pages, if the environment names one.
pub(super) fn folder() -> Option<OsString> {
    env::var_os("VIGIE_TIMELINE").filter(|folder| !folder.is_empty())
}

/// Records what a page shows.
pub(super) fn record(world: &SimulatedWorld) {
    world.recorder.log.start_recording(TraceDetail::Events, EVENTS_MAX);
}

/// Writes a page of a world's run into the folder, if there is one and events are recorded, and says where.
pub(super) fn keep(world: &Arc<SimulatedWorld>) {
    if let Some(folder) = folder()
        && world.recorder.log.is_recording(TraceDetail::Events)
    {
        match write(world, folder) {
            Ok(path) => eprintln!("timeline of seed {}: {}", world.seed, path.display()),
            Err(error) => eprintln!("the timeline of seed {} is not written: {error}", world.seed),
        }
    }
}

fn write(world: &SimulatedWorld, folder: OsString) -> io::Result<PathBuf> {
    let folder = PathBuf::from(folder);
    fs::create_dir_all(&folder)?;
    let name = failure::test_name().unwrap_or_else(failure::program_name).replace("::", "-");
    let path = folder.join(format!("{name}-seed-{}.html", world.seed));
    fs::write(&path, page(world))?;
    path.canonicalize()
}

/// Returns the page.
pub(super) fn page(world: &SimulatedWorld) -> String {
    let log = &world.recorder.log;
    let mut run = Object::new();
    run.string("title", &failure::test_name().unwrap_or_else(failure::program_name));
    run.number("seed", world.seed);
    run.string("command", &failure::command(world.seed));
    run.string("commit", &failure::commit().unwrap_or_default());
    run.raw("nodes", &json::list(&world.network.names(), |name| json::text(name)));
    run.number("lost", log.lost());
    run.raw("events", &json::list(&log.events(), event));
    // A text of the run must not end the script.
    TEMPLATE.replacen(RUN, &run.end().replace('<', "\\u003c"), 1)
}

fn event(TraceEvent { at, node, kind, .. }: &TraceEvent) -> String {
    let mut object = Object::new();
    object.number("at", at.as_nanos());
    object.number("node", node.index() as u64);
    let name = match kind {
        TraceEventKind::Node(_) => "node",
        TraceEventKind::Fault { .. } | TraceEventKind::Escaped { .. } => "fault",
        TraceEventKind::Healed { .. } | TraceEventKind::FaultEnded { .. } => "healed",
        TraceEventKind::Sent { packet, to, .. } => {
            object.number("packet", *packet);
            object.number("to", to.index() as u64);
            "sent"
        }
        TraceEventKind::Delivered { packet } => {
            object.number("packet", *packet);
            "delivered"
        }
        TraceEventKind::Dropped { packet, to, .. } => {
            if let Some(packet) = packet {
                object.number("packet", *packet);
            }
            object.number("to", to.index() as u64);
            "dropped"
        }
        TraceEventKind::TaskSpawned(task) => {
            object.number("task", task.number.map_or(0, u64::from));
            "spawned"
        }
        TraceEventKind::TaskEnded { task, end } => {
            object.number("task", task.number.map_or(0, u64::from));
            if *end == TaskEnd::Panicked {
                object.string("end", end.name());
            }
            "ended"
        }
        TraceEventKind::Failed { .. } => "failed",
        _ => "other",
    };
    object.string("kind", name);
    object.string("text", &kind.to_string());
    object.end()
}
