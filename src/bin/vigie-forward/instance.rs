//! A forwarding process, from its configuration to its end.

mod reload;
mod state;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::net::UnixListener as StdUnixListener,
    panic,
    path::{Path, PathBuf},
    process,
    rc::Rc,
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use vigie::{
    BuildError, Flavor, Instant, JoinHandle, Runtime,
    detect::{Server, clock::monotonic_now},
    forward::tables::Prefix,
    net::UnixListener,
    spawn_blocking, spawn_local,
    time::{sleep, timeout_at},
};

use self::state::{DrainingFlow, InstanceState, NamedFlow, StatsAnswers, follow, tick};
use crate::{
    access_log::{self, AccessLogError},
    config::{Config, EndpointUri, FlowConfig, FlowKind, Inside, Located, Mistakes, Process},
    flow::{self, Drained, Draining, Earlier, FlowError, Listener, Prepared, StartContext},
    journal::{counted, log},
    kernel::{MonitorError, NetlinkMonitor},
    mailbox::Mailbox,
    metrics,
    privileges::{self, DropError, HeldRights, Right, listed},
    service_manager::{ServiceManager, keep_alive},
    signals,
    stats::{self, ReloadReport, SocketGuard},
    takeover::{Predecessor, TakeoverError},
};

/// The time that a flow may take to end after the drain, since its threads must be joined.
const GRACE: Duration = Duration::from_secs(2);

/// Exit codes; the help lists them.
pub(crate) const CODE_FAILED: u8 = 1;
pub(crate) const CODE_USAGE: u8 = 2;
const CODE_RIGHTS: u8 = 3;
const CODE_CUT: u8 = 4;

/// An event.
#[derive(Clone, Debug)]
pub(crate) enum InstanceEvent {
    /// The file is to be read again.
    Reload,
    /// A flow begins anew, since this host has changed; not for the first time if that has failed before.
    BeginAnew { flow: String, inside: Vec<Prefix>, is_retry: bool },
    /// A signal that ends the process.
    Signal { name: &'static str, number: u8 },
    /// A flow has ended unexpectedly.
    Failed { flow: String, problem: String },
    /// Another process has taken over the listeners of these flows.
    Taken { pid: i32, flows: Vec<String> },
}

/// The reason why forwarding did not start.
#[derive(Debug, Error)]
pub(crate) enum InstanceError {
    #[error("{}", located.text)]
    Flow { located: Located, source: FlowError },
    /// Interfaces or addresses of flows cannot be used.
    #[error("{0}")]
    Network(Mistakes),
    #[error(transparent)]
    Stats(#[from] stats::RendezvousError),
    #[error(transparent)]
    Log(#[from] AccessLogError),
    #[error(transparent)]
    Metrics(#[from] metrics::MetricsError),
    #[error(transparent)]
    Rights(#[from] DropError),
    #[error(transparent)]
    Routes(#[from] MonitorError),
    #[error("the runtime cannot be built: {0}")]
    Runtime(#[from] BuildError),
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    #[error("the process cannot be set up: {0}")]
    Io(#[from] io::Error),
}

impl InstanceError {
    pub(crate) fn of_flow(flow: &FlowConfig, source: FlowError) -> Self {
        let key = match &source {
            FlowError::InvalidKey { key, .. } => key.as_str(),
            FlowError::Rights { key, .. } => key,
            FlowError::StateInUse { .. } => "state",
            // A relay's sockets are those of its listener.
            FlowError::Io { .. } if flow.kind.listen().is_some() => "listen",
            _ => "",
        };
        Self::Flow { located: flow.origin.describe(key, &source.to_string()), source }
    }

    /// Returns its text, followed by the line of the configuration file that it is about, if there is one.
    pub(crate) fn with_line(&self) -> String {
        match self {
            Self::Flow { located, .. } => located.to_string(),
            other => other.to_string(),
        }
    }

    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Flow {
                source:
                    FlowError::InvalidSetting(_)
                    | FlowError::InvalidKey { .. }
                    | FlowError::StateInUse { .. },
                ..
            }
            | Self::Network(_)
            | Self::Stats(_)
            | Self::Log(AccessLogError::Open { .. }) => CODE_USAGE,
            Self::Flow { source: FlowError::Rights { .. }, .. } => CODE_RIGHTS,
            _ => CODE_FAILED,
        }
    }
}

/// Forwards until a signal ends it. Returns the exit code. `file` is read again at SIGHUP.
pub(crate) fn run(config: Config, file: Option<&Path>) -> Result<u8, InstanceError> {
    let begin = monotonic_now();
    raise_descriptor_limit(&config.flows);
    for path in stats::sweep() {
        log(format!("removed {}, left by a killed instance", path.display()));
    }

    if config.has_log() {
        access_log::open(&config.process.log_file)?;
    }
    let mut predecessor = predecessor(&config.process)?;
    let (listener, mut bound) = bind_stats(&config.process, predecessor.as_ref())?;
    let manager = ServiceManager::from_environment();
    let endpoint = config.process.metrics.clone();
    let bound_metrics = endpoint.as_ref().map(|at| metrics::bind(at, predecessor.as_mut()));
    let bound_metrics = bound_metrics.transpose()?;
    let streams = Rc::new(RefCell::new(streams_runtime(&config.flows)?));
    check_interfaces(&config.flows)?;
    check_addresses(&config.flows, &[]).map_err(InstanceError::Network)?;
    let prepared = prepare_all(&config.flows, streams.borrow().as_ref(), predecessor.as_mut())?;

    let rights = give_up_rights(config.process.drop_all_rights, &prepared)?;
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).blocking_threads(2).build()?;
    let code = runtime.block_on(async {
        let (file, started) = (file.map(Path::to_owned), config.process.clone());
        let source = ConfigSource { file, config, started, streams: Rc::clone(&streams) };
        let instance = Instance::start(begin, rights, prepared, listener, (source, manager))?;
        let state = Rc::clone(&instance.shared);
        let report = Rc::new(move || state.report());
        if let Some((bound, endpoint)) = bound_metrics.zip(endpoint) {
            let served = metrics::serve(bound, report)?;
            instance.shared.metrics.replace(Some((endpoint, served)));
        }
        if let Some(predecessor) = predecessor {
            instance.replace(predecessor, &mut bound).await?;
        }
        // The last reference to the runtime of the streams stays outside of all tasks.
        spawn_local(keep_alive(Rc::clone(&instance.manager), Rc::clone(&streams))).detach();
        instance.manager.ready(&instance.status());
        log(format!("forwards; `vigie-forward stats --socket {}` shows it", bound.path.display()));
        Ok::<_, InstanceError>(instance.serve().await)
    });

    drop(bound);
    if let Some(said) = access_log::finish() {
        log(said);
    }
    code
}

/// Finds the instance that is to be replaced, if it runs.
fn predecessor(process: &Process) -> Result<Option<Predecessor>, TakeoverError> {
    let found = process.takeover.as_deref().map(Predecessor::find).transpose()?.flatten();
    match (&found, &process.takeover) {
        (Some(predecessor), _) => log(format!("takes over from {}", predecessor.describe())),
        (None, Some(path)) => {
            log(format!("no instance at {} to take over from", path.display()));
        }
        (None, None) => {}
    }
    Ok(found)
}

/// Binds the stats socket: at its path, or beside it while a predecessor has the path.
fn bind_stats(
    process: &Process,
    predecessor: Option<&Predecessor>,
) -> Result<(StdUnixListener, SocketGuard), InstanceError> {
    let path = process.stats_socket.as_deref().or(process.takeover.as_deref());
    if let (Some(path), Some(_)) = (path, predecessor) {
        return Ok(stats::bind_beside(path)?);
    }
    let (listener, bound, was_left) = stats::bind(path)?;
    if was_left {
        log(format!("replaced {}, left by a dead instance", bound.path.display()));
    }
    Ok((listener, bound))
}

/// Checks the interfaces of these flows, so that one error names all that cannot be used.
fn check_interfaces(flows: &[FlowConfig]) -> Result<(), InstanceError> {
    let mut mistakes = Mistakes::default();
    for flow in flows {
        let problems = flow::interface_problems(flow)
            .map_err(|source| InstanceError::of_flow(flow, source))?;
        for (key, problem) in problems {
            mistakes.add(&flow.origin, &[&key], problem);
        }
    }
    mistakes.into_result().map_err(InstanceError::Network)
}

/// Checks that no other host has the public addresses of these flows, except where one of the `running` ones has it already. Blocks for up to half a second.
fn check_addresses(flows: &[FlowConfig], running: &[FlowConfig]) -> Result<(), Mistakes> {
    let mut mistakes = Mistakes::default();
    for (at, problem) in flow::taken_addresses(flows, running) {
        mistakes.add(&flows[at].origin, &["address"], problem);
    }
    mistakes.into_result()
}

/// Flows that are set up, by name.
type PreparedFlows = Vec<(String, Box<dyn Prepared>)>;

/// Sets all flows up, with the listeners of a predecessor where it has them.
fn prepare_all(
    flows: &[FlowConfig],
    streams: Option<&Runtime>,
    mut predecessor: Option<&mut Predecessor>,
) -> Result<PreparedFlows, InstanceError> {
    let mut prepared = Vec::new();
    for flow in flows {
        let socket = predecessor.as_mut().and_then(|predecessor| predecessor.listener_of(flow));
        let listener = match (socket, streams, flow.kind.listen()) {
            (Some(socket), Some(streams), Some(listen)) => {
                let what = || format!("taking {listen} over");
                Some(
                    Listener::from_fd(listen, socket, streams)
                        .map_err(|source| FlowError::Io { what: what(), source })
                        .map_err(|source| InstanceError::of_flow(flow, source))?,
                )
            }
            _ => None,
        };
        let one = flow::prepare(flow, streams, Earlier { listener, relay: None })
            .map_err(|source| InstanceError::of_flow(flow, source))?;
        prepared.push((flow.name.clone(), one));
    }
    Ok(prepared)
}

/// Raises the soft limit of descriptors to the hard one, and says so; also if that is too low for the relays' connections.
fn raise_descriptor_limit(flows: &[FlowConfig]) {
    let connections = flows.iter().filter_map(|flow| match &flow.kind {
        FlowKind::Relay(relay) => Some(u64::from(relay.connections_max)),
        _ => None,
    });
    // A connection takes one of the client and one of the target.
    let needed = connections.sum::<u64>().saturating_mul(2);
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if needed == 0 {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if soft < hard && setrlimit(Resource::Nofile, raised).is_ok() {
        log(format!("raises its limit of descriptors from {soft} to {hard}"));
    }
    if needed > hard {
        log(format!(
            "the relays may have {needed} descriptors for `connections_max` connections, but the limit is {hard}: \
             beyond it, connections wait; raise the hard limit (`ulimit -Hn`, LimitNOFILE=), or lower `connections_max`"
        ));
    }
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

struct Instance {
    shared: Rc<InstanceState>,
    mailbox: Rc<Mailbox<InstanceEvent>>,
    source: ConfigSource,
    manager: Rc<ServiceManager>,
    /// The routing tables that are followed, and the tasks that follow them.
    following: BTreeMap<u32, JoinHandle<()>>,
    /// Flows that are ending: the names for messages are theirs.
    ending: Vec<JoinHandle<()>>,
    drained: Rc<Cell<Drained>>,
}

/// The source of the flows.
struct ConfigSource {
    file: Option<PathBuf>,
    config: Config,
    /// The settings of the process that it started with.
    started: Process,
    /// The runtime of the relays. It is dropped outside of all tasks.
    streams: Rc<RefCell<Option<Runtime>>>,
}

/// The interval between attempts to begin a flow anew.
const AGAIN_EVERY: Duration = Duration::from_secs(5);

impl Instance {
    /// Starts all flows.
    fn start(
        begin: Instant,
        rights: Vec<Right>,
        prepared: PreparedFlows,
        listener: StdUnixListener,
        (mut source, manager): (ConfigSource, ServiceManager),
    ) -> Result<Self, InstanceError> {
        let server = Server::current().map_err(io::Error::from)?;
        let mailbox = Rc::new(Mailbox::new());
        signals::listen(&server, &mailbox)?;

        // Before any flow forwards: it would find no routes meanwhile.
        let tables: BTreeSet<u32> = prepared.iter().filter_map(|(_, flow)| flow.table()).collect();
        let monitors: Vec<_> = tables
            .into_iter()
            .map(|table| NetlinkMonitor::open(table).map(|monitor| (table, monitor)))
            .collect::<Result<_, _>>()?;

        let context = StartContext { mailbox: &mailbox };
        let mut flows = Vec::new();
        for (name, flow) in prepared {
            let table = flow.table();
            let of_config = source.config.flows.iter().find(|one| one.name == name);
            let flow = flow.start(&context).map_err(|error| match of_config {
                Some(config) => InstanceError::of_flow(config, error),
                None => InstanceError::Io(io::Error::other(error)),
            })?;
            let listen = of_config.and_then(|one| one.kind.listen()).cloned();
            flows.push(NamedFlow { name, listen, table, flow });
        }

        let shared = Rc::new(InstanceState {
            begin,
            rights,
            flows: RefCell::new(flows),
            draining_flows: RefCell::default(),
            routes: RefCell::default(),
            metrics: RefCell::new(None),
            reload: RefCell::new(ReloadReport::default()),
            down: RefCell::default(),
            retrying: RefCell::default(),
            is_draining: Cell::new(false),
        });

        source.config.forget_places();
        let mut this = Self {
            shared: Rc::clone(&shared),
            mailbox,
            source,
            manager: Rc::new(manager),
            following: BTreeMap::new(),
            ending: Vec::new(),
            drained: Rc::new(Cell::new(Drained::default())),
        };
        for (table, monitor) in monitors {
            this.follow_table(table, monitor);
        }

        spawn_local(tick(Rc::clone(&shared), Rc::clone(&this.mailbox))).detach();
        let (mailbox, manager) = (Rc::clone(&this.mailbox), Rc::clone(&this.manager));
        let answers = Rc::new(StatsAnswers { shared, mailbox, manager });
        let listener = UnixListener::from_std(listener)?;
        spawn_local(stats::serve(listener, answers)).detach();
        Ok(this)
    }

    /// Takes the place of the process whose listeners this one accepts from already: that one accepts no more, drains and ends.
    async fn replace(
        &self,
        predecessor: Predecessor,
        bound: &mut SocketGuard,
    ) -> Result<(), InstanceError> {
        if let Some(path) = &self.source.config.process.takeover {
            bound.place(path)?;
        }
        if let Some((EndpointUri::Unix(path), served)) = &mut *self.shared.metrics.borrow_mut()
            && let Some(guard) = &mut served.guard
        {
            guard.place(path)?;
        }
        for one in self.shared.flows.borrow().iter() {
            if let Some(listener) = one.flow.listener() {
                listener.set_owns_file(true);
            }
        }
        let who = predecessor.describe();
        let ended = spawn_blocking(move || predecessor.end()).await;
        ended.map_err(io::Error::other)??;
        log(format!("has taken over from {who}, which drains"));
        Ok(())
    }

    /// Lets the flows whose listeners another process has accept no more.
    async fn hand_over_to(&self, flows: &[String], deadline: Instant) {
        if let Some((_, served)) = self.shared.metrics.take() {
            served.accepting.abort();
        }
        let mut stopped = Vec::new();
        for one in self.shared.flows.borrow().iter().filter(|one| flows.contains(&one.name)) {
            if let Some(listener) = one.flow.listener() {
                listener.set_owns_file(false);
            }
            stopped.push(one.flow.hand_over(deadline));
        }
        let until = monotonic_now() + GRACE;
        for stopped in stopped {
            let _ = timeout_at(until, stopped).await;
        }
    }

    /// Follows a routing table of the kernel for the flows that route by it.
    fn follow_table(&mut self, table: u32, monitor: NetlinkMonitor) {
        self.shared.follow(table, &monitor, &monitor.cache().changes());
        let task = follow(Rc::clone(&self.shared), table, monitor, Rc::clone(&self.mailbox));
        self.following.insert(table, spawn_local(task));
    }

    /// Stops following the tables by which no flow routes any more.
    fn leave_tables(&mut self) {
        let flows = self.shared.flows.borrow();
        let is_used = |table: &u32| flows.iter().any(|one| one.table == Some(*table));
        for (_, task) in self.following.extract_if(.., |table, _| !is_used(table)) {
            task.abort();
        }
        self.shared.routes.borrow_mut().retain(|table, _| is_used(table));
    }

    /// Its purpose, in a few words.
    fn status(&self) -> String {
        format!("forwards, {}", counted(self.shared.flows.borrow().len() as u64, "flow"))
    }

    /// Ends a flow. Its forwarding may go on until the deadline.
    fn end(&self, NamedFlow { name, flow, .. }: NamedFlow, deadline: Instant) -> JoinHandle<()> {
        let (total, shared) = (Rc::clone(&self.drained), Rc::clone(&self.shared));
        let Draining { report, ended } = flow.drain(deadline);
        let drains = Rc::new(());
        let draining = DrainingFlow { drains: Rc::downgrade(&drains), report };
        shared.draining_flows.borrow_mut().push(draining);
        spawn_local(async move {
            let Drained { cut } = ended.await;
            drop(drains);
            shared.draining_flows.borrow_mut().retain(|one| one.drains.strong_count() > 0);
            if cut > 0 {
                log(format!("flow `{name}`: {} cut at the deadline", counted(cut, "connection")));
            }
            total.set(Drained { cut: total.get().cut + cut });
        })
    }

    /// Ends a flow and begins it with the same settings. If that fails, it is tried again.
    async fn begin_anew(&mut self, name: String, inside: Vec<Prefix>, is_retry: bool) {
        if is_retry {
            self.shared.retrying.borrow_mut().remove(&name);
        }
        let flow = self.source.config.flows.iter().find(|one| one.name == name).cloned();
        let is_running = self.shared.flows.borrow().iter().any(|one| one.name == name);
        // A reload may have come first.
        let Some(mut flow) = flow.filter(|_| is_running != is_retry) else { return };
        if flow.kind.frames().is_some() && !HeldRights::now().has(Right::NetRaw) {
            return log(format!(
                "flow `{name}`: the address that it hides behind has changed, and the rights to begin anew were given up \
                 (`drop_all_rights`): end `vigie-forward` and start it again"
            ));
        }
        let deadline = monotonic_now() + self.source.config.process.drain.0;
        for task in self.end_named(std::slice::from_ref(&name), deadline) {
            let _ = task.await;
        }
        if let FlowKind::Nat(nat) = &mut flow.kind
            && nat.from.is_empty()
        {
            nat.from = inside.iter().copied().map(Inside).collect();
        }
        match self.begin_again(&flow, 1).await {
            Ok(()) if is_retry => log(format!("flow `{name}` forwards again")),
            Ok(()) => log(format!("flow `{name}`: the address that it hides behind has changed")),
            Err(error) => {
                log(format!("{error}; tries again every {AGAIN_EVERY:?}, and does not forward"));
                self.begin_later(name, inside);
            }
        }
    }

    /// Begins a flow that has ended.
    async fn begin_again(&mut self, flow: &FlowConfig, attempts: u32) -> Result<(), InstanceError> {
        if flow.kind.frames().is_none() {
            return self.begin(flow, Earlier::default(), attempts).await;
        }
        let prepared = flow::prepare_anew(flow);
        let prepared = prepared.map_err(|error| InstanceError::of_flow(flow, error))?;
        self.start_beside(flow, prepared)
    }

    fn begin_later(&self, flow: String, inside: Vec<Prefix>) {
        self.shared.down.borrow_mut().insert(flow.clone());
        if !self.shared.retrying.borrow_mut().insert(flow.clone()) {
            return;
        }
        let mailbox = Rc::clone(&self.mailbox);
        spawn_local(async move {
            sleep(AGAIN_EVERY).await;
            mailbox.post(InstanceEvent::BeginAnew { flow, inside, is_retry: true });
        })
        .detach();
    }

    /// Ends flows. Returns the tasks of those that have interfaces, to wait until they have freed them.
    fn end_named(&mut self, names: &[String], deadline: Instant) -> Vec<JoinHandle<()>> {
        let (ends, kept): (Vec<_>, Vec<_>) =
            self.shared.flows.take().into_iter().partition(|one| names.contains(&one.name));
        self.shared.flows.replace(kept);
        self.ending.retain(|task| !task.is_finished());
        let mut freed = Vec::new();
        for one in ends {
            let of_config = self.source.config.flows.iter().find(|flow| flow.name == one.name);
            let has_frames = of_config.is_some_and(|flow| flow.kind.frames().is_some());
            let task = self.end(one, deadline);
            if has_frames { freed.push(task) } else { self.ending.push(task) }
        }
        freed
    }

    /// Starts a flow beside others.
    fn start_beside(
        &mut self,
        flow: &FlowConfig,
        prepared: Box<dyn Prepared>,
    ) -> Result<(), InstanceError> {
        let table = prepared.table();
        let new_table = table.filter(|table| !self.shared.routes.borrow().contains_key(table));
        // Before the flow forwards: it would find no routes meanwhile.
        let monitor =
            new_table.map(|table| NetlinkMonitor::open(table).map(|monitor| (table, monitor)));
        let monitor = monitor.transpose()?;
        let started = prepared
            .start(&StartContext { mailbox: &self.mailbox })
            .map_err(|error| InstanceError::of_flow(flow, error))?;
        let listen = flow.kind.listen().cloned();
        let mut one = NamedFlow { name: flow.name.clone(), listen, table, flow: started };
        let routes = self.shared.routes.borrow();
        if let Some((cache, _)) = table.and_then(|table| routes.get(&table)) {
            one.flow.follow(cache, &cache.changes());
        }
        drop(routes);
        self.shared.down.borrow_mut().remove(&one.name);
        self.shared.flows.borrow_mut().push(one);
        if let Some((table, monitor)) = monitor {
            self.follow_table(table, monitor);
        }
        Ok(())
    }

    /// Forwards until a signal ends it, and drains. Returns the exit code.
    async fn serve(mut self) -> u8 {
        let mut code = 0;
        let mut is_replaced = false;
        loop {
            let drain = self.source.config.process.drain.0;
            match self.mailbox.next().await {
                InstanceEvent::Reload => {
                    self.manager.reloading();
                    self.reload().await;
                    self.manager.ready(&self.status());
                }
                InstanceEvent::BeginAnew { flow, inside, is_retry } => {
                    self.begin_anew(flow, inside, is_retry).await;
                    self.manager.ready(&self.status());
                }
                InstanceEvent::Signal { name, .. } => {
                    log(format!(
                        "{name}: drains for at most {drain:?}; a second signal ends at once"
                    ));
                    break;
                }
                InstanceEvent::Failed { flow, problem } => {
                    log(format!("flow `{flow}` has failed: {problem}; the others are drained"));
                    code = CODE_FAILED;
                    break;
                }
                InstanceEvent::Taken { pid, flows } => {
                    log(format!(
                        "process {pid} has taken over: drains for at most {drain:?}; a signal ends at once"
                    ));
                    self.hand_over_to(&flows, monotonic_now() + drain).await;
                    is_replaced = true;
                    break;
                }
            }
        }

        self.shared.is_draining.set(true);
        if !is_replaced {
            self.manager.stopping();
        }
        let deadline = monotonic_now() + self.source.config.process.drain.0;
        let mut tasks = std::mem::take(&mut self.ending);
        for flow in self.shared.flows.take() {
            tasks.push(self.end(flow, deadline));
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
            0 if self.drained.get().cut > 0 => CODE_CUT,
            0 => {
                log("all was drained");
                0
            }
            code => code,
        }
    }
}
