//! Disturbances of the process from outside its runtimes: signals, limits, and runtimes that end in
//! the middle of their work.
#![expect(unsafe_code, reason = "no safe call sends a signal to one thread, or changes the user")]

use std::fs;
use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vigie_runtime::{Flavor, Runtime};

use super::actors;
use super::tally::{ActorContext, Fault, RuntimeState, Tally};
use super::{Phases, RuntimeShape, enter};
use crate::clock;

/// How long a runtime that is dropped may take for its end.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// Harms the process until the life is over; `rounds` counts how often each kind of harm was done.
pub(super) fn harm(
    tally: &Arc<Tally>,
    state: &RuntimeState,
    phases: &Phases,
    rounds: &AtomicU64,
    random: &mut fastrand::Rng,
) {
    for round in 0.. {
        for kind in 0..4 {
            if state.is_over() && round > 0 {
                return;
            }
            match kind {
                0 => send_signals(tally, random),
                1 => exhaust_descriptors(tally, random),
                2 => refuse_threads(tally, random),
                _ => drop_at_work(tally, round, phases, random),
            }
            clock::sleep(Duration::from_millis(random.u64(1..20)));
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sends each of our threads a signal: the one that runtimes use, or one without a handler.
fn send_signals(tally: &Tally, random: &mut fastrand::Rng) {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let name = thread.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<libc::pid_t>().ok()) else {
            continue;
        };
        let signal = if random.bool() { libc::SIGURG } else { libc::SIGWINCH };
        let group = process::id().cast_signed();
        // SAFETY: the call takes only numbers. Both signals are ignored by default.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, group, number, signal) };
        if sent == 0 {
            tally.fault(Fault::Signal);
        }
    }
}

/// A lower limit, until it is dropped.
struct Limited {
    resource: Resource,
    before: Rlimit,
}

impl Limited {
    fn to(resource: Resource, current: u64) -> io::Result<Self> {
        let before = getrlimit(resource);
        setrlimit(resource, Rlimit { current: Some(current), maximum: before.maximum })?;
        Ok(Self { resource, before })
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if let Err(error) = setrlimit(self.resource, self.before) {
            eprintln!("a limit could not be raised again: {error}");
        }
    }
}

fn exhaust_descriptors(tally: &Tally, random: &mut fastrand::Rng) {
    // Fewer than are open: none can be had until some are closed again.
    let Ok(limited) = Limited::to(Resource::Nofile, 16) else { return };
    if fs::File::open("/dev/null").is_err() {
        tally.fault(Fault::Descriptors);
    }
    clock::sleep(Duration::from_millis(random.u64(1..10)));
    drop(limited);
}

/// An unprivileged user, subject to the limit of threads, unlike root: number 65534 on all Unix
/// systems.
const NOBODY: libc::uid_t = 65534;

/// Makes the process of a superuser unprivileged from now on, so that the kernel may refuse it
/// threads. Once, and before there are threads that begin and end: the C library changes them one by
/// one.
pub(super) fn give_up_privilege() {
    // SAFETY: the call takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: the call takes only numbers.
        unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
    }
}

/// Lets the kernel refuse every new thread and process.
fn refuse_threads(tally: &Tally, random: &mut fastrand::Rng) {
    if let Ok(limited) = Limited::to(Resource::Nproc, 1) {
        match thread::Builder::new().spawn(|| ()) {
            Err(_) => tally.fault(Fault::Threads),
            Ok(thread) => drop(thread.join()),
        }
        clock::sleep(Duration::from_millis(random.u64(1..5)));
        drop(limited);
    }
}

/// Lets a runtime work for a moment, and drops it then. Nothing of it is left.
fn drop_at_work(tally: &Arc<Tally>, round: usize, phases: &Phases, random: &mut fastrand::Rng) {
    let begin = clock::now();
    let mut shape = RuntimeShape::random(random);
    shape.flavor = [Flavor::Hybrid, Flavor::KernelLevel, Flavor::UserLevel][round % 3];
    if round == 0 {
        shape.has_help = false;
        shape.is_tiny = true;
    }
    let runtime = match shape.build(tally) {
        Ok(runtime) => runtime,
        Err(error) => return tally.violate(format!("a runtime could not be built: {error}")),
    };
    let state = Arc::new(RuntimeState::doomed());
    let context = ActorContext {
        tally: Arc::clone(tally),
        state: Arc::clone(&state),
        handle: runtime.handle().clone(),
    };
    let handles = actors::enter_alone(&context, random);
    let time = Duration::from_micros(random.u64(0..10_000));
    if shape.flavor == Flavor::UserLevel {
        runtime.block_on(vigie_runtime::time::sleep(time));
    } else {
        clock::sleep(time);
    }
    match handles {
        // Their handles go before or after the runtime.
        Ok(handles) if random.bool() => {
            end(runtime, tally, random);
            drop(handles);
        }
        Ok(handles) => {
            drop(handles);
            end(runtime, tally, random);
        }
        Err(error) => tally.violate(format!("no sockets for a runtime: {error}")),
    }
    if begin.elapsed() > super::SLOW {
        eprintln!("slow: {shape:?} took {:?} for its end", begin.elapsed());
        enter(phases, "a runtime was dropped slowly");
    }
    let (begun, gone) = state.tasks();
    if begun != gone {
        tally.violate(format!("{shape:?} dropped: {begun} tasks made, {gone} gone"));
    }
    tally.fault(Fault::Drop);
}

fn end(runtime: Runtime, tally: &Tally, random: &mut fastrand::Rng) {
    if random.bool() {
        drop(runtime);
    } else if let Err(error) = runtime.shutdown_timeout(SHUTDOWN) {
        tally.violate(format!("a runtime did not end: {error}"));
    }
}
