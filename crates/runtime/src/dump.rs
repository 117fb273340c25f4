//! All tasks of a runtime, and what each does: to see inside a program that hangs or is slow.

use std::{collections::BTreeMap, fmt, panic::Location, time::Duration};

use vigie_detect::{Server, WaitReport, WaiterId, clock::monotonic_now};

use crate::{
    json::{self, FORMAT_VERSION, Object},
    stack::{self, NoStack, Stack},
    sync::Arc,
    task_cell::{Id, LiveTasks, TaskState},
};

/// All tasks of a runtime at a moment: see [`Handle::dump`](crate::Handle::dump). Its `Display` is a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The tasks: those that have been in their state for longest first, then those of which that is not known.
    pub tasks: Vec<TaskReport>,
}

/// A task, and what it does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskReport {
    /// Its number.
    pub id: Id,
    /// Its name, if it has one.
    pub name: Option<Arc<str>>,
    /// The place at which it was spawned.
    pub site: &'static Location<'static>,
    /// The state of the task.
    pub state: TaskState,
    /// The time for which it has been in that state. `None` if its scheduler does not measure it: for a task that another one woke,
    /// mostly, and on the kernel-level flavor.
    pub since: Option<Duration>,
    /// The events that it waits for, as far as the detection server knows its waits: all of its own `await`s of sockets, timers
    /// and other detectors, but not those inside of `select!` in foreign crates, which have wakers of their own. Empty for a
    /// task that waits for another one: a lock, a channel, a `JoinHandle`.
    pub waits_for: Vec<String>,
    /// The stack of the thread that polls it, if it is inside a poll: see [`Handle::dump`](crate::Handle::dump). `None` for any
    /// other task, and without the feature `stacks`.
    pub stack: Option<Result<Stack, NoStack>>,
}

impl Dump {
    pub(crate) fn new(live: &LiveTasks, server: &Server) -> Self {
        let now = monotonic_now();
        let mut tasks = Vec::new();
        live.for_each(|waker, info| {
            let (state, since) = info.state();
            let report = TaskReport {
                id: info.id(),
                name: None,
                site: info.site,
                state,
                since: since.map(|since| now - since),
                waits_for: Vec::new(),
                stack: None,
            };
            tasks.push((report, info.name_key, WaiterId::of(waker), info.polled_by()));
        });

        // Without a lock of ours: threads are asked, and files are read.
        for (task, .., thread) in &mut tasks {
            task.stack = thread.and_then(|thread| stack::of_task(thread, task.id));
        }

        let mut waits: BTreeMap<WaiterId, Vec<String>> = BTreeMap::new();
        for WaitReport { handle, what, waiter, .. } in server.waits() {
            let text =
                if what.is_empty() { handle.to_owned() } else { format!("{handle}: {what}") };
            waits.entry(waiter).or_default().push(text);
        }
        let mut tasks: Vec<_> = tasks
            .into_iter()
            .map(|(task, name_key, waiter, _)| TaskReport {
                name: live.name(name_key),
                waits_for: waits.remove(&waiter).unwrap_or_default(),
                ..task
            })
            .collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.since));
        Self { tasks }
    }

    /// Returns the tasks as one line of JSON without a line feed: `{"vigie_tasks":2,"tasks":[{"id":"…","name":null,"site":"…",
    /// "state":"waiting","since_ns":…,"waits_for":["…"]}]}`. A task inside a poll also has `"stack":["…"]`, innermost first, and
    /// `"stack_is_complete"`, or `"no_stack"` with a reason, with the feature `stacks`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut object = Object::new();
        object.number("vigie_tasks", u64::from(FORMAT_VERSION));
        object.number("pid", u64::from(std::process::id()));
        object.raw(
            "tasks",
            &json::list(&self.tasks, |task| {
                let mut object = json::task(task.name.as_ref(), task.site);
                object.string("id", &task.id.to_string());
                object.string("state", &task.state.to_string());
                match task.since {
                    Some(since) => object.nanos("since_ns", since),
                    None => object.raw("since_ns", "null"),
                }
                object.raw("waits_for", &json::list(&task.waits_for, |what| json::text(what)));
                match &task.stack {
                    Some(Ok(Stack { frames, is_complete })) => {
                        let frames = json::list(frames, |frame| json::text(&frame.to_string()));
                        object.raw("stack", &frames);
                        object.raw("stack_is_complete", &is_complete.to_string());
                    }
                    Some(Err(reason)) => object.string("no_stack", &reason.to_string()),
                    None => {}
                }
                object.end()
            }),
        );
        object.end()
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} tasks", self.tasks.len())?;
        self.tasks.iter().try_for_each(|task| writeln!(f, "{task}"))
    }
}

impl fmt::Display for TaskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, site, state, since, waits_for, stack } = self;
        let since = since.map_or_else(String::new, |since| format!("{since:.1?}"));
        let name = name.as_ref().map_or_else(String::new, |name| format!("{name} "));
        write!(f, "{id:>6}  {state:<8}{since:>10}  {name}({site})")?;
        if !waits_for.is_empty() {
            write!(f, "  for {}", waits_for.join("; "))?;
        }
        match stack {
            Some(Ok(stack)) => {
                stack.to_string().lines().try_for_each(|line| write!(f, "\n            {line}"))
            }
            Some(Err(reason)) => write!(f, "\n            stack: not available: {reason}"),
            None => Ok(()),
        }
    }
}
