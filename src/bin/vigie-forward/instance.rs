//! A forwarding process, from its configuration to its end.

use std::{
    cell::{Cell, RefCell},
    io,
    os::unix::net::UnixListener as StdUnixListener,
    panic, process,
    rc::Rc,
    thread,
    time::Duration,
};

use thiserror::Error;
use vigie::{
    BuildError, Flavor, Instant, Runtime,
    detect::{Server, clock::monotonic_now},
    net::UnixListener,
    spawn_local,
    time::{sleep, timeout_at},
};

use crate::{
    cli::FlowSide,
    config::{Config, FlowConfig},
    flow::{self, Drained, Draining, FlowError, Prepared, Running, StartContext},
    journal::log,
    kernel::{MonitorError, NetlinkCache, NetlinkMonitor},
    mailbox::Mailbox,
    privileges::{self, DropError, Right, listed},
    signals, stats,
    stats::{FORMAT_VERSION, FlowReport, InstanceReport, RoutesReport},
};

/// The interval of flows' periodic work.
const TICK: Duration = Duration::from_millis(100);
/// How long a flow may take to end after the drain, since its threads must be joined.
const GRACE: Duration = Duration::from_secs(2);

/// Exit codes; the help lists them.
pub(crate) const CODE_FAILED: u8 = 1;
pub(crate) const CODE_USAGE: u8 = 2;
const CODE_RIGHTS: u8 = 3;
const CODE_CUT: u8 = 4;

/// An event.
#[derive(Debug)]
pub(crate) enum InstanceEvent {
    /// A signal that ends the process.
    Signal { name: &'static str, number: u8 },
    /// A flow has ended unexpectedly.
    Failed { flow: String, problem: String },
}

/// Why forwarding did not start.
#[derive(Debug, Error)]
pub(crate) enum InstanceError {
    #[error("flow `{flow}`{}: {source}", at(*line))]
    Flow { flow: String, line: Option<usize>, source: FlowError },
    #[error(transparent)]
    Stats(#[from] stats::RendezvousError),
    #[error(transparent)]
    Rights(#[from] DropError),
    #[error(transparent)]
    Routes(#[from] MonitorError),
    #[error("the runtime cannot be built: {0}")]
    Runtime(#[from] BuildError),
    #[error("the process cannot be set up: {0}")]
    Io(#[from] io::Error),
}

fn at(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" (line {line})"))
}

impl InstanceError {
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Flow { source: FlowError::Setting(_), .. } | Self::Stats(_) => CODE_USAGE,
            Self::Flow { source: FlowError::Rights(_), .. } => CODE_RIGHTS,
            _ => CODE_FAILED,
        }
    }
}

/// Forwards until a signal ends it. Returns the exit code.
pub(crate) fn run(config: &Config) -> Result<u8, InstanceError> {
    let begin = monotonic_now();
    for path in stats::sweep() {
        log(format!("removed {}, left by a killed instance", path.display()));
    }

    let (listener, bound, was_left) = stats::bind(config.process.stats_socket.as_deref())?;
    if was_left {
        log(format!("replaced {}, left by a dead instance", bound.path.display()));
    }

    let streams = streams_runtime(&config.flows)?;
    let mut prepared = Vec::new();
    for flow in &config.flows {
        let one = flow::prepare(flow, streams.as_ref()).map_err(|source| InstanceError::Flow {
            flow: flow.name.clone(),
            line: flow.line,
            source,
        })?;
        prepared.push((flow.name.clone(), one));
    }

    let rights = give_up_rights(config.process.drop_all_rights, &prepared)?;
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).blocking_threads(2).build()?;
    let code = runtime.block_on(async {
        let instance = Instance::start(begin, rights, prepared, listener)?;
        log(format!("forwards; `vigie-forward stats --socket {}` shows it", bound.path.display()));
        Ok::<_, InstanceError>(instance.serve(config.process.drain.0).await)
    })?;

    drop(bound);
    Ok(code)
}

/// Builds the runtime for streams, if there are any; its threads have no capabilities.
fn streams_runtime(flows: &[FlowConfig]) -> Result<Option<Runtime>, InstanceError> {
    if !flows.iter().any(|flow| flow.kind.frames().is_none()) {
        return Ok(None);
    }
    // Threads inherit the capabilities of the thread that creates them. This one, which may still have to bind
    // privileged ports, keeps its own until then.
    let builder = thread::spawn(|| {
        privileges::give_up_all_of_thread()?;
        Ok::<_, InstanceError>(Runtime::builder().thread_name("streams").build()?)
    });
    let runtime = builder.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))?;
    Ok(Some(runtime))
}

fn give_up_rights(
    drops_all: bool,
    prepared: &[(String, Box<dyn Prepared>)],
) -> Result<Vec<Right>, InstanceError> {
    let mut kept: Vec<Right> = prepared.iter().flat_map(|(_, flow)| flow.rights()).collect();
    kept.sort_unstable();
    kept.dedup();
    if drops_all && !kept.is_empty() {
        log(format!(
            "all rights were given up: a flow whose interface is removed does not attach again when it returns \
             (that requires {})",
            listed(&kept)
        ));
        kept.clear();
    } else if !kept.is_empty() {
        log(format!("keeps {}, to attach again when an interface returns", listed(&kept)));
    }
    privileges::give_up_all_but(&kept)?;
    Ok(kept)
}

/// The states of an instance, and of a flow.
const RUNNING: &str = "running";
const DRAINING: &str = "draining";

/// A named flow.
struct NamedFlow {
    name: String,
    flow: Box<dyn Running>,
}

/// A named flow that drains.
struct DrainingFlow {
    name: String,
    report: Box<dyn Fn() -> FlowReport>,
}

/// The state that requests read, and tasks change.
struct InstanceState {
    begin: Instant,
    rights: Vec<Right>,
    flows: RefCell<Vec<NamedFlow>>,
    /// Flows that have not ended since the drain began.
    draining_flows: RefCell<Vec<DrainingFlow>>,
    routes: RefCell<Option<(NetlinkCache, RoutesReport)>>,
    is_draining: Cell<bool>,
}

struct Instance {
    shared: Rc<InstanceState>,
    mailbox: Rc<Mailbox<InstanceEvent>>,
}

impl Instance {
    /// Starts all flows.
    fn start(
        begin: Instant,
        rights: Vec<Right>,
        prepared: Vec<(String, Box<dyn Prepared>)>,
        listener: StdUnixListener,
    ) -> Result<Self, InstanceError> {
        let server = Server::current().map_err(io::Error::from)?;
        let mailbox = Rc::new(Mailbox::new());
        signals::listen(&server, &mailbox)?;

        // Those that route follow the same table, as checked.
        let table = prepared.iter().filter_map(|(_, flow)| flow.table()).max();
        let monitor = table.map(NetlinkMonitor::open).transpose()?;
        let context = StartContext { mailbox: &mailbox };
        let mut flows = Vec::new();
        for (name, flow) in prepared {
            let flow = flow.start(&context).map_err(|source| InstanceError::Flow {
                flow: name.clone(),
                line: None,
                source,
            })?;
            flows.push(NamedFlow { name, flow });
        }

        let shared = Rc::new(InstanceState {
            begin,
            rights,
            flows: RefCell::new(flows),
            draining_flows: RefCell::default(),
            routes: RefCell::new(None),
            is_draining: Cell::new(false),
        });

        if let Some(monitor) = monitor {
            shared.follow(&monitor, &monitor.cache().changes());
            let task = follow(Rc::clone(&shared), monitor, Rc::clone(&mailbox));
            spawn_local(task).detach();
        }

        spawn_local(tick(Rc::clone(&shared))).detach();
        let answers = Rc::clone(&shared);
        let listener = UnixListener::from_std(listener)?;
        spawn_local(stats::serve(listener, Rc::new(move |line| answers.answer(line)))).detach();
        Ok(Self { shared, mailbox })
    }

    /// Forwards until a signal ends it, and drains. Returns the exit code.
    async fn serve(self, drain: Duration) -> u8 {
        let mut code = 0;
        match self.mailbox.next().await {
            InstanceEvent::Signal { name, .. } => {
                log(format!("{name}: drains for at most {drain:?}; a second signal ends at once"));
            }
            InstanceEvent::Failed { flow, problem } => {
                log(format!("flow `{flow}` has failed: {problem}; the others are drained"));
                code = CODE_FAILED;
            }
        }

        self.shared.is_draining.set(true);
        let deadline = monotonic_now() + drain;
        let flows = self.shared.flows.take();
        let drained = Rc::new(Cell::new(Drained::default()));
        let mut tasks = Vec::new();
        for NamedFlow { name, flow } in flows {
            let (total, shared) = (Rc::clone(&drained), Rc::clone(&self.shared));
            let Draining { report, ended } = flow.drain(deadline);
            shared.draining_flows.borrow_mut().push(DrainingFlow { name: name.clone(), report });
            tasks.push(spawn_local(async move {
                let Drained { cut } = ended.await;
                shared.draining_flows.borrow_mut().retain(|one| one.name != name);
                if cut > 0 {
                    log(format!("flow `{name}`: {cut} connections were cut at the deadline"));
                }
                total.set(Drained { cut: total.get().cut + cut });
            }));
        }

        // A second signal ends the process immediately.
        let mailbox = Rc::clone(&self.mailbox);
        let hurry = spawn_local(async move {
            loop {
                if let InstanceEvent::Signal { name, number } = mailbox.next().await {
                    log(format!("{name} again: ends at once"));
                    process::exit(i32::from(128 + number));
                }
            }
        });

        for task in tasks {
            if timeout_at(deadline + GRACE, task).await.is_err() {
                log("a flow has not ended in time, and is left behind");
                code = CODE_FAILED;
            }
        }

        hurry.abort();
        match code {
            0 if drained.get().cut > 0 => CODE_CUT,
            0 => {
                log("all was drained");
                0
            }
            code => code,
        }
    }
}

/// Follows the kernel's routes for all flows.
async fn follow(
    shared: Rc<InstanceState>,
    mut monitor: NetlinkMonitor,
    mailbox: Rc<Mailbox<InstanceEvent>>,
) {
    loop {
        match monitor.changes().await {
            Ok(changes) => shared.follow(&monitor, &changes),
            Err(error) => {
                let flow = "routes".to_owned();
                return mailbox.post(InstanceEvent::Failed { flow, problem: error.to_string() });
            }
        }
    }
}

async fn tick(shared: Rc<InstanceState>) {
    loop {
        sleep(TICK).await;
        let routes = shared.routes.borrow();
        let cache = routes.as_ref().map(|(cache, _)| cache);
        for NamedFlow { flow, .. } in shared.flows.borrow_mut().iter_mut() {
            flow.tick(cache, monotonic_now());
        }
    }
}

impl InstanceState {
    fn follow(&self, monitor: &NetlinkMonitor, changes: &[crate::kernel::Change]) {
        let cache = monitor.cache();
        for NamedFlow { flow, .. } in self.flows.borrow_mut().iter_mut() {
            flow.follow(cache, changes);
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let report = RoutesReport {
            routes: count(cache.route_count()),
            neighbours: count(cache.neighbour_count()),
            asked_again: monitor.dump_count,
            unreadable: monitor.unreadable,
        };
        self.routes.replace(Some((cache.clone(), report)));
    }

    /// Answers a request.
    fn answer(&self, line: &str) -> String {
        let mut words = line.split_ascii_whitespace();
        let reply = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("report"), None, ..) => Ok(serde_json::json!(self.report())),
            (Some("move"), Some(flow), Some(side), None) => self.move_flow(flow, side),
            _ => {
                Err(format!("`{line}` is not understood; there are `report` and `move FLOW SIDE`"))
            }
        };
        reply.unwrap_or_else(|error| serde_json::json!({ "error": error })).to_string()
    }

    fn move_flow(&self, name: &str, side: &str) -> Result<serde_json::Value, String> {
        let side = match side {
            "host" => FlowSide::Host,
            "nic" => FlowSide::Nic,
            _ => return Err(format!("`{side}` is neither host nor nic")),
        };
        if self.is_draining.get() {
            return Err("it is draining, so no flow can be moved".to_owned());
        }
        let mut flows = self.flows.borrow_mut();
        let Some(NamedFlow { flow, .. }) = flows.iter_mut().find(|one| one.name == name) else {
            let names: Vec<_> = flows.iter().map(|one| one.name.as_str()).collect();
            return Err(format!("there is no flow `{name}`; there are: {}", names.join(", ")));
        };
        flow.move_to(side).map_err(|problem| format!("flow `{name}` stays: {problem}"))?;
        Ok(serde_json::json!({ "moved": name, "to": side.name() }))
    }

    fn report(&self) -> InstanceReport {
        let (flows, draining_flows) = (self.flows.borrow(), self.draining_flows.borrow());
        let running = flows.iter().map(|one| (one.flow.report(), RUNNING));
        let draining = draining_flows.iter().map(|one| ((one.report)(), DRAINING));
        let reports = running.chain(draining);
        InstanceReport {
            vigie_forward: FORMAT_VERSION,
            pid: process::id(),
            uptime_ms: u64::try_from((monotonic_now() - self.begin).as_millis())
                .unwrap_or(u64::MAX),
            state: if self.is_draining.get() { DRAINING } else { RUNNING }.to_owned(),
            rights: self.rights.iter().map(Right::to_string).collect(),
            flows: reports
                .map(|(report, state)| FlowReport { state: state.to_owned(), ..report })
                .collect(),
            routes: self.routes.borrow().as_ref().map(|(_, report)| report.clone()),
            journal: crate::journal::last_lines(),
        }
    }
}
