//! Tasks that never yield.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use vigie_runtime::{Handle, Runtime, RuntimeBuilder};

use crate::settle;

/// Runtimes with one worker and with two.
pub(crate) fn each(mut test: impl FnMut(&Runtime)) {
    each_with(|builder| builder, &mut test);
}

/// Like [`each`], with more settings.
pub(crate) fn each_with(
    set: impl Fn(RuntimeBuilder) -> RuntimeBuilder,
    test: &mut impl FnMut(&Runtime),
) {
    for workers in [1, 2] {
        let runtime = set(Runtime::builder().workers(workers)).build().expect("a runtime");
        test(&runtime);
    }
}

/// Tasks that spin until this is dropped.
#[derive(Debug)]
pub(crate) struct Hogs {
    is_over: Arc<AtomicBool>,
    iterations: Arc<AtomicUsize>,
}

impl Hogs {
    /// Starts `count` of them, and waits until as many spin as there are `threads` for.
    pub(crate) fn start(handle: &Handle, count: usize, threads: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let iterations = Arc::new(AtomicUsize::new(0));
        let spinning = Arc::new(AtomicUsize::new(0));
        for _ in 0..count {
            let (is_over, iterations) = (Arc::clone(&is_over), Arc::clone(&iterations));
            let spinning = Arc::clone(&spinning);
            let spin = async move {
                spinning.fetch_add(1, Ordering::SeqCst);
                while !is_over.load(Ordering::SeqCst) {
                    iterations.fetch_add(1, Ordering::Relaxed);
                    std::hint::spin_loop();
                }
            };
            handle.spawn(spin).detach();
        }
        settle::until(|| spinning.load(Ordering::SeqCst) >= threads);
        Self { is_over, iterations }
    }

    /// Hogs for each worker of a runtime of at most two.
    pub(crate) fn everywhere(runtime: &Runtime) -> Self {
        Self::start(runtime.handle(), 4, 2)
    }

    /// How often they went round.
    pub(crate) fn iterations(&self) -> usize {
        self.iterations.load(Ordering::Relaxed)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Counts the threads of this process whose name begins with `prefix`.
pub(crate) fn threads_named(prefix: &str) -> usize {
    // The kernel keeps fifteen bytes.
    let prefix = &prefix[..prefix.len().min(15)];
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let names = tasks.flatten().flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.filter(|name| name.starts_with(prefix)).count()
}

/// Waits until `condition` holds, asking now and then: for what takes milliseconds.
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::park_timeout(std::time::Duration::from_millis(1));
    }
}

/// Goal: tasks that come together begin together, although others of their kind compute for long: what they were spawned
/// for, such as a request, is read. Method: eight at a time, which spin until all of them have begun, three times over.
#[test]
fn tasks_that_come_together_begin_together() {
    each(|runtime| {
        for _ in 0..3 {
            let begun = Arc::new(AtomicUsize::new(0));
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let begun = Arc::clone(&begun);
                    runtime.spawn(async move {
                        begun.fetch_add(1, Ordering::SeqCst);
                        while begun.load(Ordering::SeqCst) < 8 {
                            std::hint::spin_loop();
                        }
                    })
                })
                .collect();
            for task in tasks {
                runtime.block_on(task).expect("no panic");
            }
        }
    });
}
