//! Where tasks compute, as a dump from another thread shows it. `tests/stacks_unasked.rs` has the case without such a task.
#![cfg(all(feature = "stacks", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    io::Read,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use vigie_runtime::{
    Flavor, Handle, Runtime,
    metrics::{Frame, NoStack, Stack, TaskReport, TaskState},
    task,
};

use kit::guard::against_hang;

const FLAVORS: [Flavor; 3] = [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel];

fn runtime(flavor: Flavor) -> Runtime {
    Runtime::builder().flavor(flavor).workers(2).build().expect("a runtime")
}

/// Computes until it is told to end.
#[inline(never)]
fn compute_the_answer(is_over: &AtomicBool) -> u64 {
    let mut sum = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        sum = std::hint::black_box(sum.wrapping_mul(31) ^ 7);
    }
    sum
}

/// Calls itself before it computes: each call takes more than 256 bytes of the stack.
#[inline(never)]
fn go_deep(depth: usize, is_over: &AtomicBool) -> u64 {
    let room = std::hint::black_box([depth as u64; 32]);
    let below = if depth == 0 { compute_the_answer(is_over) } else { go_deep(depth - 1, is_over) };
    below ^ std::hint::black_box(room)[depth % 32]
}

/// Blocks in the kernel until the other end is closed.
#[inline(never)]
fn read_until_closed(mut stream: UnixStream) {
    let mut bytes = Vec::new();
    assert_eq!(stream.read_to_end(&mut bytes).expect("not interrupted"), 0);
}

/// Runs a task that calls `work` once, and `check` on a thread outside while it runs.
fn beside(
    runtime: &Runtime,
    work: impl FnOnce() + Send + 'static,
    check: impl FnOnce(&Handle) + Send + 'static,
) {
    let (handle, (begins, has_begun)) = (runtime.handle().clone(), mpsc::channel());
    let checking = thread::spawn(move || {
        has_begun.recv().expect("it begins");
        check(&handle);
    });
    let task = task::Builder::new().name("hog").spawn_on(
        async move {
            begins.send(()).expect("the thread waits");
            work();
        },
        runtime.handle(),
    );
    runtime.block_on(task).expect("no panic");
    checking.join().expect("as it should be");
}

fn hog(handle: &Handle) -> Option<TaskReport> {
    let is_it = |task: &TaskReport| task.name.as_deref() == Some("hog");
    handle.dump().tasks.into_iter().find(is_it)
}

/// Returns the hog's stack with `function` on it. It is asked again while it is on its way there, and if its thread waits for a
/// processor and does not answer in time.
fn stack_of_hog(handle: &Handle, function: &str) -> Stack {
    let mut last = None;
    for _ in 0..1_000 {
        match hog(handle).expect("it runs").stack.expect("it is in a poll") {
            Ok(stack) if is_in(&stack, function) => return stack,
            other => last = Some(other),
        }
    }
    panic!("no {function} in {last:?}")
}

fn is_of(frame: &Frame, function: &str) -> bool {
    frame.function.as_ref().is_some_and(|name| name.contains(function))
}

fn is_in(stack: &Stack, function: &str) -> bool {
    stack.frames.iter().any(|frame| is_of(frame, function))
}

/// Runs `compute` with a flag on each flavor, and `check` beside it; the computation ends when `check` is over.
fn beside_on_each_flavor(compute: fn(&AtomicBool), check: fn(&Handle)) {
    for flavor in FLAVORS {
        against_hang(move || {
            let is_over = Arc::new(AtomicBool::new(false));
            let ends = Arc::clone(&is_over);
            beside(
                &runtime(flavor),
                move || compute(&is_over),
                move |handle| {
                    // Also where `check` fails: the runtime would wait for the task.
                    let _ends = Ends(ends);
                    check(handle);
                },
            );
        });
    }
}

struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Goal: on each flavor, a dump from another thread names the function in which a task computes, with file and line, down to the
/// task's future; its text and its JSON do. Method: a task in a function that is not inlined.
#[test]
fn hogs_are_shown_where_they_compute() {
    let compute = |is_over: &AtomicBool| {
        compute_the_answer(is_over);
    };
    beside_on_each_flavor(compute, |handle| {
        let stack = stack_of_hog(handle, "compute_the_answer");
        let frame = stack.frames.iter().find(|frame| is_of(frame, "compute_the_answer"));
        let frame = frame.unwrap_or_else(|| panic!("{stack:?}"));
        assert!(stack.is_complete, "{stack:?}");
        // Where nothing is inlined, and there is debug information.
        if cfg!(debug_assertions) {
            let file = frame.file.as_deref().unwrap_or_default();
            assert!(file.ends_with("stacks.rs") && frame.line.is_some(), "{frame}");
            assert!(is_in(&stack, "stacks::beside"), "{stack:?}");
        }
        assert!(!is_in(&stack, "vigie_runtime::flavor"), "the task's own part only: {stack:?}");

        let dump = loop {
            let dump = handle.dump();
            if dump.tasks.iter().any(|task| matches!(task.stack, Some(Ok(_)))) {
                break dump;
            }
        };
        let text = dump.to_string();
        let lines = text.lines().filter(|line| line.starts_with("            in "));
        let named = lines.filter(|line| line.contains("compute_the_answer"));
        assert_eq!(named.count(), 1, "{text}");
        let json = dump.to_json();
        assert!(json.contains("\"stack\":[\""), "{json}");
        assert!(json.contains("compute_the_answer"), "{json}");
        assert!(json.contains("\"stack_is_complete\":true"), "{json}");
    });
}

/// Goal: a stack that is deeper than what is copied is shown as far as it was, and said to be incomplete. Method: a recursion over
/// half a megabyte; the innermost function and some calls must be there.
#[test]
fn deep_stacks_are_shown_in_part() {
    let compute = |is_over: &AtomicBool| {
        go_deep(1_200, is_over);
    };
    beside_on_each_flavor(compute, |handle| {
        let stack = stack_of_hog(handle, "compute_the_answer");
        assert!(is_in(&stack, "go_deep"), "{stack:?}");
        assert!(!stack.is_complete && stack.frames.len() > 100, "{} frames", stack.frames.len());
    });
}

/// Goal: a task that blocks in the kernel is shown where it does, and its call is not interrupted. Method: a read from a socket until
/// its peer closes, which fails if it is interrupted.
#[test]
fn blocked_tasks_are_shown_where_they_block() {
    for flavor in FLAVORS {
        against_hang(move || {
            let (stream, peer) = UnixStream::pair().expect("a pair of sockets");
            beside(
                &runtime(flavor),
                || read_until_closed(stream),
                move |handle| {
                    let stack = stack_of_hog(handle, "read_until_closed");
                    assert!(stack.is_complete, "{stack:?}");
                    drop(peer);
                },
            );
        });
    }
}

/// Goal: threads that dump at the same time all get the hog's stack. Method: four threads, ten dumps each.
#[test]
fn several_dumps_at_once() {
    let compute = |is_over: &AtomicBool| {
        compute_the_answer(is_over);
    };
    beside_on_each_flavor(compute, |handle| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        stack_of_hog(handle, "compute_the_answer");
                    }
                });
            }
        });
    });
}

/// Goal: a stack is never another task's, even where polls end and others begin while a dump asks. Method: tasks of two sorts that
/// compute for some microseconds by turns; each stack must be its own task's, or be said to be missing.
#[test]
fn stacks_are_of_their_own_task() {
    #[inline(never)]
    fn count_odd(rounds: u64) -> u64 {
        (0..rounds).fold(1, |sum, round| std::hint::black_box(sum ^ round))
    }
    #[inline(never)]
    fn count_even(rounds: u64) -> u64 {
        (0..rounds).fold(2, |sum, round| std::hint::black_box(sum ^ round))
    }
    for flavor in FLAVORS {
        against_hang(move || {
            let runtime = runtime(flavor);
            let is_over = Arc::new(AtomicBool::new(false));
            let (seen, handle) = (AtomicU64::new(0), runtime.handle().clone());
            for (name, count) in [("odd", count_odd as fn(u64) -> u64), ("even", count_even)] {
                let is_over = Arc::clone(&is_over);
                let counting = async move {
                    while !is_over.load(Ordering::Relaxed) {
                        count(5_000);
                        vigie_runtime::yield_now().await;
                    }
                };
                task::Builder::new().name(name).spawn_on(counting, &handle).detach();
            }
            let checking = thread::spawn(move || {
                let _ends = Ends(is_over);
                while seen.load(Ordering::Relaxed) < 50 {
                    for task in handle.dump().tasks {
                        let Some(Ok(stack)) = task.stack else { continue };
                        let other =
                            if task.name.as_deref() == Some("odd") { "even" } else { "odd" };
                        assert!(
                            !is_in(&stack, &format!("count_{other}")),
                            "{:?}: {stack:?}",
                            task.name
                        );
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            runtime.block_on(async {
                while !checking.is_finished() {
                    vigie_runtime::yield_now().await;
                }
            });
            checking.join().expect("each stack is its own task's");
        });
    }
}

/// Goal: a task that asks about itself is told that its own thread asks. Method: a dump inside a task.
#[test]
fn a_task_does_not_ask_itself() {
    against_hang(|| {
        let runtime = runtime(Flavor::Hybrid);
        let task = task::Builder::new().name("hog").spawn_on(
            async { hog(&Handle::current()).map(|task| (task.state, task.stack)) },
            runtime.handle(),
        );
        let told = runtime.block_on(task).expect("no panic");
        assert_eq!(told, Some((TaskState::Running, Some(Err(NoStack::Own)))));
    });
}
