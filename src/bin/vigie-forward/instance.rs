//! A process that forwards: from its configuration to its end.

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
    cli::Side,
    config::{Config, Flow},
    flow::{self, Drained, Draining, FlowError, Place, Prepared, Running},
    journal::say,
    kernel::{FollowError, Follower, Picture},
    mailbox::{Event, Mailbox},
    privileges::{self, DropError, Right, listed},
    signals, stats,
    stats::{FORMAT_VERSION, FlowReport, Report, RoutesReport},
};

/// How often flows look after themselves.
const TICK: Duration = Duration::from_millis(100);
/// How long the end of a flow may take beyond the drain, since its threads must be joined.
const GRACE: Duration = Duration::from_secs(2);

/// What the process ends with; the help lists the codes.
pub(crate) const CODE_FAILED: u8 = 1;
pub(crate) const CODE_USAGE: u8 = 2;
const CODE_RIGHTS: u8 = 3;
const CODE_CUT: u8 = 4;

/// Why nothing is forwarded.
#[derive(Debug, Error)]
pub(crate) enum InstanceError {
    #[error("flow `{flow}`{}: {source}", at(*line))]
    Flow { flow: String, line: Option<usize>, source: FlowError },
    #[error(transparent)]
    Stats(#[from] stats::RendezvousError),
    #[error(transparent)]
    Rights(#[from] DropError),
    #[error(transparent)]
    Routes(#[from] FollowError),
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

/// Forwards until it is asked to end. Returns the exit code.
pub(crate) fn run(config: &Config) -> Result<u8, InstanceError> {
    let begin = monotonic_now();
    for path in stats::sweep() {
        say(format!("removed {}, which an instance that was killed had left", path.display()));
    }
    let (listener, bound, was_left) = stats::bind(config.process.stats_socket.as_deref())?;
    if was_left {
        say(format!("replaced {}, which nobody served any more", bound.path.display()));
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
        say(format!("forwards; `vigie-forward stats --socket {}` shows it", bound.path.display()));
        Ok::<_, InstanceError>(instance.serve(config.process.drain.0).await)
    })?;
    drop(bound);
    Ok(code)
}

/// Builds the runtime of the streams, if there are any, with threads that have no rights at all.
fn streams_runtime(flows: &[Flow]) -> Result<Option<Runtime>, InstanceError> {
    if !flows.iter().any(|flow| flow.kind.frames().is_none()) {
        return Ok(None);
    }
    // Threads inherit rights from the one that makes them. This one, which may still have to bind to
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
        say(format!(
            "all rights are given up: a flow whose interface is removed does not attach again when it returns \
             (that takes {})",
            listed(&kept)
        ));
        kept.clear();
    } else if !kept.is_empty() {
        say(format!("keeps {}, to attach again when an interface returns", listed(&kept)));
    }
    privileges::give_up_all_but(&kept)?;
    Ok(kept)
}

/// The states of an instance, and of a flow.
const RUNNING: &str = "running";
const DRAINING: &str = "draining";

/// A flow and its name.
struct Named {
    name: String,
    flow: Box<dyn Running>,
}

/// A flow that drains, and its name.
struct Leaving {
    name: String,
    report: Box<dyn Fn() -> FlowReport>,
}

/// What those who ask can see, and the tasks change.
struct Shared {
    begin: Instant,
    rights: Vec<Right>,
    flows: RefCell<Vec<Named>>,
    /// Those that have not ended since all were asked to.
    leaving: RefCell<Vec<Leaving>>,
    routes: RefCell<Option<(Picture, RoutesReport)>>,
    is_draining: Cell<bool>,
}

struct Instance {
    shared: Rc<Shared>,
    mailbox: Rc<Mailbox>,
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
        let mailbox = Rc::new(Mailbox::default());
        signals::listen(&server, &mailbox)?;
        // Those that route follow one table, which was checked.
        let table = prepared.iter().filter_map(|(_, flow)| flow.table()).max();
        let follower = table.map(Follower::open).transpose()?;
        let place = Place { mailbox: &mailbox };
        let mut flows = Vec::new();
        for (name, flow) in prepared {
            let flow = flow.start(&place).map_err(|source| InstanceError::Flow {
                flow: name.clone(),
                line: None,
                source,
            })?;
            flows.push(Named { name, flow });
        }
        let shared = Rc::new(Shared {
            begin,
            rights,
            flows: RefCell::new(flows),
            leaving: RefCell::default(),
            routes: RefCell::new(None),
            is_draining: Cell::new(false),
        });
        if let Some(follower) = follower {
            shared.follow(&follower, &follower.picture().changes());
            let task = follow(Rc::clone(&shared), follower, Rc::clone(&mailbox));
            spawn_local(task).detach();
        }
        spawn_local(tick(Rc::clone(&shared))).detach();
        let answers = Rc::clone(&shared);
        let listener = UnixListener::from_std(listener)?;
        spawn_local(stats::serve(listener, Rc::new(move |line| answers.answer(line)))).detach();
        Ok(Self { shared, mailbox })
    }

    /// Forwards until it is asked to end, and drains. Returns the exit code.
    async fn serve(self, drain: Duration) -> u8 {
        let mut code = 0;
        match self.mailbox.next().await {
            Event::Signal { name, .. } => {
                say(format!("{name}: drains for at most {drain:?}; a second signal ends at once"));
            }
            Event::Failed { flow, problem } => {
                say(format!("flow `{flow}` has failed: {problem}; the others are drained"));
                code = CODE_FAILED;
            }
        }
        self.shared.is_draining.set(true);
        let deadline = monotonic_now() + drain;
        let flows = self.shared.flows.take();
        let drained = Rc::new(Cell::new(Drained::default()));
        let mut tasks = Vec::new();
        for Named { name, flow } in flows {
            let (total, shared) = (Rc::clone(&drained), Rc::clone(&self.shared));
            let Draining { report, ended } = flow.drain(deadline);
            shared.leaving.borrow_mut().push(Leaving { name: name.clone(), report });
            tasks.push(spawn_local(async move {
                let Drained { cut } = ended.await;
                shared.leaving.borrow_mut().retain(|one| one.name != name);
                if cut > 0 {
                    say(format!("flow `{name}`: {cut} connections were cut at the deadline"));
                }
                total.set(Drained { cut: total.get().cut + cut });
            }));
        }
        // A second signal ends the process wherever it is.
        let mailbox = Rc::clone(&self.mailbox);
        let hurry = spawn_local(async move {
            loop {
                if let Event::Signal { name, number } = mailbox.next().await {
                    say(format!("{name} again: ends at once"));
                    process::exit(i32::from(128 + number));
                }
            }
        });
        for task in tasks {
            if timeout_at(deadline + GRACE, task).await.is_err() {
                say("a flow has not ended in time, and is left behind");
                code = CODE_FAILED;
            }
        }
        hurry.abort();
        match code {
            0 if drained.get().cut > 0 => CODE_CUT,
            0 => {
                say("all was drained");
                0
            }
            code => code,
        }
    }
}

/// Follows the kernel's routes for all flows.
async fn follow(shared: Rc<Shared>, mut follower: Follower, mailbox: Rc<Mailbox>) {
    loop {
        match follower.changes().await {
            Ok(changes) => shared.follow(&follower, &changes),
            Err(error) => {
                let flow = "routes".to_owned();
                return mailbox.post(Event::Failed { flow, problem: error.to_string() });
            }
        }
    }
}

async fn tick(shared: Rc<Shared>) {
    loop {
        sleep(TICK).await;
        let routes = shared.routes.borrow();
        let picture = routes.as_ref().map(|(picture, _)| picture);
        for Named { flow, .. } in shared.flows.borrow_mut().iter_mut() {
            flow.tick(picture, monotonic_now());
        }
    }
}

impl Shared {
    fn follow(&self, follower: &Follower, changes: &[crate::kernel::Change]) {
        let picture = follower.picture();
        for Named { flow, .. } in self.flows.borrow_mut().iter_mut() {
            flow.follow(picture, changes);
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let report = RoutesReport {
            routes: count(picture.route_count()),
            neighbours: count(picture.neighbour_count()),
            asked_again: follower.asked,
            unreadable: follower.unreadable,
        };
        self.routes.replace(Some((picture.clone(), report)));
    }

    /// Answers a line of somebody who asks.
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
            "host" => Side::Host,
            "nic" => Side::Nic,
            _ => return Err(format!("`{side}` is neither host nor nic")),
        };
        if self.is_draining.get() {
            return Err("it drains, and nothing is moved any more".to_owned());
        }
        let mut flows = self.flows.borrow_mut();
        let Some(Named { flow, .. }) = flows.iter_mut().find(|one| one.name == name) else {
            let names: Vec<_> = flows.iter().map(|one| one.name.as_str()).collect();
            return Err(format!("there is no flow `{name}`; there are: {}", names.join(", ")));
        };
        flow.move_to(side).map_err(|problem| format!("flow `{name}` stays: {problem}"))?;
        Ok(serde_json::json!({ "moved": name, "to": side.word() }))
    }

    fn report(&self) -> Report {
        let (flows, leaving) = (self.flows.borrow(), self.leaving.borrow());
        let running = flows.iter().map(|one| (one.flow.report(), RUNNING));
        let draining = leaving.iter().map(|one| ((one.report)(), DRAINING));
        let reports = running.chain(draining);
        Report {
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
