//! SIGHUP: the flows of the new file are set up while those of before still run, and if one of them cannot start, nothing changes.

use std::{io, mem, slice, time::Duration};

use vigie::{
    Instant,
    detect::clock::monotonic_now,
    spawn_blocking,
    time::{sleep, timeout_at},
};

use super::{
    AGAIN_EVERY, GRACE, Instance, InstanceError, check_addresses, check_interfaces, streams_runtime,
};
use crate::{
    access_log,
    config::{self, FlowConfig, FlowKind, Process},
    flow::{self, Earlier, EarlierRelay, FlowError, Prepared},
    journal::log,
    reload::{NewFlow, ReloadPlan, ReloadSummary, excludes, fixed_changes, plan},
    stats::ReloadReport,
};

/// The number of attempts to begin a flow whose listener is still closing, and the time between them.
const ATTEMPTS: u32 = 50;
const ATTEMPT_EVERY: Duration = Duration::from_millis(20);

/// The flows that begin.
#[derive(Default)]
struct NextFlows {
    /// Those that are set up.
    ready: Vec<ReadyFlow>,
    /// Those that need what a flow has that ends, and are checked as far as that allows.
    waiting: Vec<(NewFlow, Option<EarlierRelay>)>,
}

struct ReadyFlow {
    new: NewFlow,
    /// Whether it takes over the listener of another flow.
    is_successor: bool,
    prepared: Box<dyn Prepared>,
}

impl Instance {
    /// Reads the file again, and changes what has changed in it.
    pub(super) async fn reload(&mut self) {
        if let Err(error) = access_log::reopen() {
            log(format!("SIGHUP: {error}; lines go on to the old file"));
        }
        let Some(file) = &self.source.file else {
            let (problems, failed) = self.shared.reload_files(&[]);
            self.report_reload(problems, failed);
            return log("SIGHUP: there is no file to read again; all goes on");
        };
        // Wrong certificates of flows that go on change nothing; those that begin read theirs.
        let mut config = match config::read(file, |_| Vec::new()) {
            Ok(config) => config,
            Err(error) => return self.refuse(error.problems(), 0),
        };
        let ReloadPlan { ends, begins, kept } = plan(&self.source.config.flows, &config.flows);
        let mut begun: Vec<_> = begins.iter().map(|one| one.flow.name.clone()).collect();
        let next = match self.set_up(begins).await {
            Ok(next) => next,
            Err(problems) => {
                let failed = problems.len();
                return self.refuse(problems, failed);
            }
        };
        // Its place cannot change any more once it is open.
        if config.has_log()
            && let Err(error) = access_log::open(&config.process.log_file)
        {
            return self.refuse(vec![error.to_string()], 0);
        }
        self.note_fixed(&config.process);
        let (mut problems, unreadable) = self.shared.reload_files(&ends);
        let deadline = monotonic_now() + config.process.drain.0;
        self.hand_over(&next.ready, deadline).await;
        // New connections wait from here on, until the successors have begun.
        let freed = self.end_named(&ends, deadline);
        config.forget_places();
        let before = mem::replace(&mut self.source.config, config).flows;
        let is_same = |name: &String| {
            self.source.config.flows.iter().any(|one| one.name == *name) && !ends.contains(name)
        };
        self.shared.down.borrow_mut().retain(is_same);

        let mut failed = Vec::new();
        for ReadyFlow { new, prepared, .. } in next.ready {
            if let Err(error) = self.start_beside(&new.flow, prepared) {
                failed.push((new, error));
            }
        }
        for task in freed {
            let _ = task.await;
        }
        for (new, relay) in next.waiting {
            let earlier = Earlier { listener: None, relay };
            if let Err(error) = self.begin(&new.flow, earlier, ATTEMPTS).await {
                failed.push((new, error));
            }
        }
        let failed_count = failed.len() + unreadable;
        begun.retain(|name| failed.iter().all(|(new, _)| new.flow.name != *name));
        let (of_flows, restored) = self.restore_all(failed, &before).await;
        problems.extend(of_flows);
        self.leave_tables();
        let ended = ends.into_iter().filter(|name| !restored.contains(name)).collect();
        log(format!("SIGHUP: {}", ReloadSummary { kept, ended, begun, failed: failed_count }));
        self.report_reload(problems, failed_count);
    }

    /// Notes that nothing changes.
    fn refuse(&self, problems: Vec<String>, failed_flows: usize) {
        log(format!("SIGHUP: all flows go on as before: {}", problems.join("; ")));
        self.report_reload(problems, failed_flows);
    }

    fn report_reload(&self, problems: Vec<String>, failed_flows: usize) {
        let failed_flows = u64::try_from(failed_flows).unwrap_or(u64::MAX);
        let has_succeeded = problems.is_empty();
        self.shared.reload.replace(ReloadReport { has_succeeded, problems, failed_flows });
    }

    /// Says which settings of the process change only with the next start.
    fn note_fixed(&self, after: &Process) {
        // The log may have been opened by a later file than the first.
        let log_file = access_log::target().unwrap_or(&after.log_file).clone();
        let changes = fixed_changes(&Process { log_file, ..self.source.started.clone() }, after);
        if !changes.is_empty() {
            log(format!("SIGHUP: changes with the next start: {}", changes.join("; ")));
        }
    }

    fn runs(&self, name: &str) -> bool {
        self.shared.flows.borrow().iter().any(|one| one.name == name)
    }

    /// Sets up the flows that begin, or says of each that cannot what is wrong.
    async fn set_up(&self, begins: Vec<NewFlow>) -> Result<NextFlows, Vec<String>> {
        let (mut next, mut problems) = (NextFlows::default(), self.taken_addresses(&begins).await);
        for mut new in begins {
            if let Err(InstanceError::Network(mistakes)) =
                check_interfaces(slice::from_ref(&new.flow))
            {
                let of_flow: Vec<_> = mistakes.list().iter().map(|one| one.text.as_str()).collect();
                problems.push(of_flow.join("; "));
                continue;
            }
            new.waits_for.retain(|name| self.runs(name));
            let earlier = self.earlier(&new);
            let is_successor = earlier.listener.is_some();
            if is_successor || new.waits_for.is_empty() {
                match self.prepare_beside(&new.flow, earlier, ATTEMPTS).await {
                    Ok(prepared) => next.ready.push(ReadyFlow { new, is_successor, prepared }),
                    Err(error) => problems.push(error.to_string()),
                }
                continue;
            }
            let holders = &self.source.config.flows;
            let holders = holders.iter().filter(|one| new.waits_for.contains(&one.name));
            let held: Vec<_> = holders.flat_map(|one| one.kind.interfaces()).collect();
            match flow::check(&new.flow, &held) {
                Ok(()) => next.waiting.push((new, earlier.relay)),
                Err(error) => problems.push(InstanceError::of_flow(&new.flow, error).to_string()),
            }
        }
        if problems.is_empty() { Ok(next) } else { Err(problems) }
    }

    /// Returns of each flow that begins whether another host has its public address, while those that run go on.
    async fn taken_addresses(&self, begins: &[NewFlow]) -> Vec<String> {
        let has_address = |flow: &FlowConfig| matches!(flow.kind, FlowKind::Nat(_));
        let flows = begins.iter().map(|one| one.flow.clone()).filter(has_address);
        let (flows, running) = (flows.collect::<Vec<_>>(), self.source.config.flows.clone());
        if flows.is_empty() {
            return Vec::new();
        }
        match spawn_blocking(move || check_addresses(&flows, &running)).await {
            Ok(Ok(())) => Vec::new(),
            Ok(Err(mistakes)) => mistakes.list().iter().map(|one| one.text.clone()).collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    /// Returns what a flow gets of the one whose listener or name it has.
    fn earlier(&self, new: &NewFlow) -> Earlier {
        let running = self.shared.flows.borrow();
        let named = |name: &String| running.iter().find(|one| one.name == *name);
        let holder = new.takes_from.as_ref().and_then(named);
        Earlier {
            listener: holder.and_then(|one| one.flow.listener()),
            relay: holder.or_else(|| named(&new.flow.name)).and_then(|one| one.flow.relay()),
        }
    }

    /// Waits until the flows that have successors accept no more.
    async fn hand_over(&self, ready: &[ReadyFlow], deadline: Instant) {
        let is_taken = |name: &String| {
            ready.iter().any(|one| one.is_successor && one.new.takes_from.as_ref() == Some(name))
        };
        let stopped: Vec<_> = {
            let running = self.shared.flows.borrow();
            let taken = running.iter().filter(|one| is_taken(&one.name));
            taken.map(|one| one.flow.hand_over(deadline)).collect()
        };
        let until = monotonic_now() + GRACE;
        for stopped in stopped {
            // Late, it would accept beside its successor for a while.
            let _ = timeout_at(until, stopped).await;
        }
    }

    /// Begins the flows again that ended for those that have failed. Returns what has happened, and their names.
    async fn restore_all(
        &mut self,
        failed: Vec<(NewFlow, InstanceError)>,
        before: &[FlowConfig],
    ) -> (Vec<String>, Vec<String>) {
        // They are tried again by the next SIGHUP.
        let has_failed =
            |flow: &FlowConfig| failed.iter().any(|(new, _)| new.flow.name == flow.name);
        self.source.config.flows.retain(|flow| !has_failed(flow));
        let (mut problems, mut restored) = (Vec::new(), Vec::new());
        for (new, error) in failed {
            let (problem, names) = self.restore(&new, &error, before).await;
            log(format!("SIGHUP: {problem}"));
            problems.push(problem);
            restored.extend(names);
        }
        (problems, restored)
    }

    /// Begins the flows again that ended for one that has failed. Returns what has happened, and their names.
    async fn restore(
        &mut self,
        failed: &NewFlow,
        error: &InstanceError,
        before: &[FlowConfig],
    ) -> (String, Vec<String>) {
        let name = &failed.flow.name;
        let (mut said, mut names) = (error.to_string(), Vec::new());
        for old in before {
            let is_needed = old.name == *name
                || failed.waits_for.contains(&old.name)
                || failed.takes_from.as_ref() == Some(&old.name);
            let takes = |one: &FlowConfig| one.name == old.name || excludes(one, old);
            let is_taken = self.source.config.flows.iter().any(takes);
            if !is_needed || is_taken {
                continue;
            }
            names.push(old.name.clone());
            self.source.config.flows.push(old.clone());
            match self.begin_again(old, ATTEMPTS).await {
                Ok(()) => said += &format!("; flow `{}` goes on as before", old.name),
                Err(error) => {
                    said += &format!(
                        "; the settings of before fail, too: {error}; tries them again every {AGAIN_EVERY:?}, and flow `{}` does \
                         not forward",
                        old.name
                    );
                    self.begin_later(old.name.clone(), Vec::new());
                }
            }
        }
        if names.is_empty() {
            self.shared.down.borrow_mut().insert(name.clone());
            said += "; this flow does not forward";
        }
        (said, names)
    }

    /// Begins a flow beside others. A port that is in use is tried for so many times.
    pub(super) async fn begin(
        &mut self,
        flow: &FlowConfig,
        earlier: Earlier,
        attempts: u32,
    ) -> Result<(), InstanceError> {
        let prepared = self.prepare_beside(flow, earlier, attempts).await?;
        self.start_beside(flow, prepared)
    }

    /// Sets a flow up beside others.
    async fn prepare_beside(
        &self,
        flow: &FlowConfig,
        mut earlier: Earlier,
        attempts: u32,
    ) -> Result<Box<dyn Prepared>, InstanceError> {
        let failed = |source| InstanceError::of_flow(flow, source);
        if flow.kind.frames().is_none() && self.source.streams.borrow().is_none() {
            let streams = streams_runtime(slice::from_ref(flow))?;
            self.source.streams.replace(streams);
        }
        let mut attempt = 1;
        loop {
            let relay = earlier.relay.clone();
            let earlier = Earlier { listener: earlier.listener.take(), relay };
            match flow::prepare(flow, self.source.streams.borrow().as_ref(), earlier) {
                Err(FlowError::Io { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse && attempt < attempts => {}
                prepared => return prepared.map_err(failed),
            }
            attempt += 1;
            sleep(ATTEMPT_EVERY).await;
        }
    }
}
