//! The state of an instance, and what others ask of it.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::OwnedFd,
    process,
    rc::{Rc, Weak},
    time::Duration,
};

use vigie::{Instant, detect::clock::monotonic_now, time::sleep};

use super::InstanceEvent;
use crate::{
    access_log,
    cli::FlowSide,
    config::{EndpointUri, LogTarget},
    flow::Running,
    journal::{keep, log},
    kernel::{NetlinkCache, NetlinkMonitor},
    mailbox::Mailbox,
    metrics::ServedMetrics,
    privileges::Right,
    service_manager::ServiceManager,
    stats::{
        Answers, DRAINING, FORMAT_VERSION, FlowReport, InstanceReport, RUNNING, ReloadReport,
        RoutesReport,
    },
    takeover::HandedListener,
};

/// The interval of flows' periodic work.
const TICK: Duration = Duration::from_millis(100);
/// The number of ticks between two looks at the log.
const LOG_TICKS: u32 = 10;

/// A named flow.
pub(super) struct NamedFlow {
    pub(super) name: String,
    /// Its endpoint, as it was configured.
    pub(super) listen: Option<EndpointUri>,
    /// The kernel's routing table that it follows.
    pub(super) table: Option<u32>,
    pub(super) flow: Box<dyn Running>,
}

/// A flow that drains.
pub(super) struct DrainingFlow {
    /// Held by the task that waits for its end.
    pub(super) drains: Weak<()>,
    pub(super) report: Box<dyn Fn() -> FlowReport>,
}

/// The state that requests read, and tasks change.
pub(super) struct InstanceState {
    pub(super) begin: Instant,
    pub(super) rights: Vec<Right>,
    pub(super) flows: RefCell<Vec<NamedFlow>>,
    /// Flows that have not ended since the drain began.
    pub(super) draining_flows: RefCell<Vec<DrainingFlow>>,
    /// The routing tables that flows follow.
    pub(super) routes: RefCell<BTreeMap<u32, (NetlinkCache, RoutesReport)>>,
    pub(super) metrics: RefCell<Option<(EndpointUri, ServedMetrics)>>,
    pub(super) is_draining: Cell<bool>,
    /// The last reload.
    pub(super) reload: RefCell<ReloadReport>,
    /// The names of flows that should forward, and do not.
    pub(super) down: RefCell<BTreeSet<String>>,
    /// Those of them that wait to be tried again.
    pub(super) retrying: RefCell<BTreeSet<String>>,
}

/// A question of the stats socket's clients.
pub(super) struct StatsAnswers {
    pub(super) shared: Rc<InstanceState>,
    pub(super) mailbox: Rc<Mailbox<InstanceEvent>>,
    pub(super) manager: Rc<ServiceManager>,
}

/// Follows a routing table of the kernel for the flows that route by it.
pub(super) async fn follow(
    shared: Rc<InstanceState>,
    table: u32,
    mut monitor: NetlinkMonitor,
    mailbox: Rc<Mailbox<InstanceEvent>>,
) {
    loop {
        match monitor.changes().await {
            Ok(changes) => shared.follow(table, &monitor, &changes),
            Err(error) => {
                let flow = "routes".to_owned();
                return mailbox.post(InstanceEvent::Failed { flow, problem: error.to_string() });
            }
        }
    }
}

pub(super) async fn tick(shared: Rc<InstanceState>, mailbox: Rc<Mailbox<InstanceEvent>>) {
    for count in 1_u32.. {
        sleep(TICK).await;
        if count % LOG_TICKS == 0 {
            access_log::news(|news, place| match place {
                // It is what may not be read.
                LogTarget::Stderr => keep(news),
                _ => log(news),
            });
        }
        let routes = shared.routes.borrow();
        for NamedFlow { name, table, flow, .. } in shared.flows.borrow_mut().iter_mut() {
            let cache = table.and_then(|table| routes.get(&table)).map(|(cache, _)| cache);
            flow.tick(cache, monotonic_now());
            if let Some(inside) = flow.begins_anew() {
                let flow = name.clone();
                mailbox.post(InstanceEvent::BeginAnew { flow, inside, is_retry: false });
            }
        }
    }
}

impl Answers for StatsAnswers {
    fn answer(&self, line: &str) -> String {
        self.shared.answer(line)
    }

    fn listeners(&self) -> Result<Vec<(HandedListener, OwnedFd)>, String> {
        if self.shared.is_draining.get() {
            return Err("it drains".to_owned());
        }
        self.shared.listeners().map_err(|error| error.to_string())
    }

    fn taken(&self, pid: i32, flows: Vec<String>) -> String {
        self.manager.replaced_by(pid);
        self.mailbox.post(InstanceEvent::Taken { pid, flows });
        serde_json::json!({ "taken": pid }).to_string()
    }
}

impl InstanceState {
    pub(super) fn follow(
        &self,
        table: u32,
        monitor: &NetlinkMonitor,
        changes: &[crate::kernel::Change],
    ) {
        let cache = monitor.cache();
        for one in self.flows.borrow_mut().iter_mut().filter(|one| one.table == Some(table)) {
            one.flow.follow(cache, changes);
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let report = RoutesReport {
            routes: count(cache.route_count()),
            neighbours: count(cache.neighbour_count()),
            asked_again: monitor.dump_count,
            unreadable: monitor.unreadable,
        };
        self.routes.borrow_mut().insert(table, (cache.clone(), report));
    }

    /// Reads again what the flows that go on have read, which are all but those that end. Returns what is wrong, and with how many flows.
    pub(super) fn reload_files(&self, ends: &[String]) -> (Vec<String>, usize) {
        let flows = self.flows.borrow();
        let kept = flows.iter().filter(|named| !ends.contains(&named.name));
        let problems: Vec<_> = kept.map(|named| named.flow.reload()).collect();
        let failed = problems.iter().filter(|of_flow| !of_flow.is_empty()).count();
        (problems.concat(), failed)
    }

    /// Returns its listeners, with new descriptors.
    fn listeners(&self) -> io::Result<Vec<(HandedListener, OwnedFd)>> {
        let mut listeners = Vec::new();
        for one in self.flows.borrow().iter() {
            if let (Some(listen), Some(listener)) = (&one.listen, one.flow.listener()) {
                let (flow, listen) = (Some(one.name.clone()), listen.to_string());
                listeners.push((HandedListener { flow, listen }, listener.to_fd()?));
            }
        }
        if let Some((endpoint, ServedMetrics { listener: Some(listener), .. })) =
            &*self.metrics.borrow()
        {
            let listen = endpoint.to_string();
            listeners.push((HandedListener { flow: None, listen }, listener.try_clone()?));
        }
        Ok(listeners)
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
        let moved = flow.move_to(side);
        let deferred = moved.map_err(|problem| format!("flow `{name}` stays: {problem}"))?;
        let to = side.name();
        Ok(match deferred {
            None => serde_json::json!({ "moved": name, "to": to }),
            Some(because) => {
                serde_json::json!({ "deferred": name, "to": to, "because": because })
            }
        })
    }

    pub(super) fn report(&self) -> InstanceReport {
        let (flows, draining_flows) = (self.flows.borrow(), self.draining_flows.borrow());
        let running = flows.iter().map(|one| (one.flow.report(), RUNNING));
        let draining = draining_flows.iter().map(|one| ((one.report)(), DRAINING));
        let reports = running.chain(draining);
        let log_lines = access_log::counts();
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
            routes: RoutesReport::sum(self.routes.borrow().values().map(|(_, report)| report)),
            reload: self.reload.borrow().clone(),
            down: self.down.borrow().iter().cloned().collect(),
            log_lines_written: log_lines.map(|(written, _)| written),
            log_lines_lost: log_lines.map(|(_, lost)| lost),
            journal: crate::journal::last_lines(),
        }
    }
}
