//! The reserve threads' slots: a called thread serves, also while its keep-alive ends, and everybody
//! ends at the shutdown. `reserve.rs` runs as it stands, over locks and threads of loom.

use std::{env, process::Command, time::Duration};

use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use super::hybrid::reserve::{Activated, Reserves};

/// Stubs for what `reserve.rs` imports.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) thread_name: String,
}

pub(crate) struct HybridShared {
    pub(crate) options: Options,
    reserves: Reserves,
    fault: Fault,
    work: Mutex<Work>,
    served: Condvar,
}

#[derive(Default)]
struct Work {
    threads: usize,
    calls: usize,
}

impl HybridShared {
    /// No model reaches the bound.
    pub(crate) fn caught_in(
        &self,
    ) -> Vec<(&'static std::panic::Location<'static>, Option<String>)> {
        Vec::new()
    }

    /// No thread of a model sleeps in the kernel inside a poll.
    pub(crate) fn blocked_count(&self) -> usize {
        0
    }

    pub(crate) fn begin_thread(&self) {
        self.work.lock().expect("no panic").threads += 1;
    }

    pub(crate) fn end_thread(&self) {
        self.work.lock().expect("no panic").threads -= 1;
    }
}

pub(crate) mod worker {
    use super::{Arc, Fault, HybridShared};

    /// As the real one: serves what it was called for, and rests.
    pub(crate) fn run_reserve(shared: Arc<HybridShared>, slot: usize) {
        loop {
            shared.work.lock().expect("no panic").calls = 0;
            shared.served.notify_one();
            if !shared.reserves.rest(slot, 0) || shared.fault == Fault::Deaf {
                break;
            }
        }
        shared.reserves.leave(slot);
        shared.end_thread();
    }
}

/// Locks and threads of loom in the form of std's.
pub(crate) mod blocking {
    use std::{
        cell::Cell,
        ops::{Deref, DerefMut},
        sync::LockResult,
        time::Duration,
    };

    use loom::sync::{Mutex, MutexGuard};

    pub(crate) struct RealMutex<T>(Mutex<T>);

    impl<T> RealMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<RealGuard<'_, T>> {
            Ok(RealGuard { mutex: &self.0, guard: self.0.lock().ok() })
        }
    }

    pub(crate) struct RealGuard<'a, T> {
        mutex: &'a Mutex<T>,
        guard: Option<MutexGuard<'a, T>>,
    }

    impl<T> Deref for RealGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.guard.as_ref().expect("locked")
        }
    }

    impl<T> DerefMut for RealGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("locked")
        }
    }

    std::thread_local! {
        /// A fault: a sleeper does not ask whether it still should sleep.
        pub(crate) static IS_HASTY: Cell<bool> = const { Cell::new(false) };
        /// Whether threads run at all. Loom has five at most.
        pub(crate) static RUNS_THREADS: Cell<bool> = const { Cell::new(true) };
        /// A fault: no thread is notified of a single event.
        pub(crate) static IS_MUTE: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn notify_one(&self) {
            if !IS_MUTE.get() {
                self.0.notify_one();
            }
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// As [`wait_timeout_while`](Self::wait_timeout_while), without a condition.
        pub(crate) fn wait_timeout<'a, T>(
            &self,
            mut guard: RealGuard<'a, T>,
            time: Duration,
        ) -> LockResult<(RealGuard<'a, T>, Timeout)> {
            let inner = guard.guard.take().expect("locked");
            if time.is_zero() {
                drop(inner);
                guard.guard = guard.mutex.lock().ok();
            } else {
                guard.guard = self.0.wait(inner).ok();
            }
            Ok((guard, Timeout(time.is_zero())))
        }

        /// A time of zero is over at any moment, another one never.
        pub(crate) fn wait_timeout_while<'a, T>(
            &self,
            mut guard: RealGuard<'a, T>,
            time: Duration,
            mut goes_on: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(RealGuard<'a, T>, ())> {
            if time.is_zero() {
                if goes_on(&mut guard) {
                    drop(guard.guard.take());
                    guard.guard = guard.mutex.lock().ok();
                }
                return Ok((guard, ()));
            }
            let mut is_hasty = IS_HASTY.get();
            while is_hasty || goes_on(&mut guard) {
                is_hasty = false;
                let inner = guard.guard.take().expect("locked");
                guard.guard = self.0.wait(inner).ok();
            }
            Ok((guard, ()))
        }
    }

    /// Whether the time was over.
    pub(crate) struct Timeout(bool);

    impl Timeout {
        pub(crate) fn timed_out(&self) -> bool {
            self.0
        }
    }

    pub(crate) mod thread {
        use std::{io, time::Duration};

        /// No model gets there.
        pub(crate) fn park_timeout(_: Duration) {}

        #[derive(Default)]
        pub(crate) struct Builder;

        impl Builder {
            pub(crate) fn new() -> Self {
                Self
            }

            pub(crate) fn name(self, _: String) -> Self {
                self
            }

            pub(crate) fn spawn(self, body: impl FnOnce() + 'static) -> io::Result<JoinHandle<()>> {
                let runs = super::RUNS_THREADS.get();
                Ok(JoinHandle(runs.then(|| loom::thread::spawn(body))))
            }
        }

        pub(crate) struct JoinHandle<T>(Option<loom::thread::JoinHandle<T>>);

        impl JoinHandle<()> {
            /// No thread may rely on it: it is updated late.
            pub(crate) fn is_finished(&self) -> bool {
                false
            }

            pub(crate) fn join(self) -> std::thread::Result<()> {
                self.0.map_or(Ok(()), loom::thread::JoinHandle::join)
            }
        }

        pub(crate) fn sleep(_: Duration) {
            unreachable!("timers of the models do not fail");
        }
    }
}

/// The omitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A thread that is called while it rests ends anyway.
    Deaf,
    /// A thread sleeps without asking whether it was called, or all is over.
    Hasty,
}

/// The supervisor calls a thread twice, waits each time until that has served, and ends all.
fn call_and_end(keep_alive: Duration, fault: Fault) {
    blocking::IS_HASTY.set(fault == Fault::Hasty);
    blocking::RUNS_THREADS.set(true);
    let shared = Arc::new(HybridShared {
        options: Options::default(),
        reserves: Reserves::new(1, keep_alive),
        fault,
        work: Mutex::new(Work::default()),
        served: Condvar::new(),
    });
    for _ in 0..2 {
        shared.work.lock().expect("no panic").calls = 1;
        // A thread that still serves, or that is about to leave its slot, is not called.
        if shared.reserves.activate(&shared) == Activated::Refused {
            continue;
        }
        let mut work = shared.work.lock().expect("no panic");
        while work.calls > 0 {
            work = shared.served.wait(work).expect("no panic");
        }
    }
    shared.reserves.shutdown();
    assert_eq!(shared.reserves.activate(&shared), Activated::Refused);
    for thread in shared.reserves.take_threads() {
        thread.join().expect("no panic");
    }
    assert!(!shared.reserves.is_serving(), "a slot serves without a thread");
    assert_eq!(shared.work.lock().expect("no panic").threads, 0);
}

const LONG: Duration = Duration::from_secs(1);

/// Goal: each call is served, and the shutdown ends everybody. Method: threads that are kept, and
/// threads whose time is over at once.
#[test]
fn calls_are_served() {
    for keep_alive in [LONG, Duration::ZERO] {
        loom::model(move || call_and_end(keep_alive, Fault::None));
    }
}

/// Goal: each slot has a bit of its own, in every word of the set. Method: more slots than two words have
/// bits, called and left by hand, without threads.
#[test]
fn slots_are_told_apart() {
    const COUNT: usize = 130;
    const EDGES: [usize; 5] = [0, 63, 64, 127, 128];
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.check(|| {
        blocking::RUNS_THREADS.set(false);
        let shared = Arc::new(HybridShared {
            options: Options::default(),
            reserves: Reserves::new(COUNT, LONG),
            fault: Fault::None,
            work: Mutex::new(Work::default()),
            served: Condvar::new(),
        });
        let reserves = &shared.reserves;
        let serving = || reserves.serving().collect::<Vec<_>>();
        assert!(!reserves.is_serving() && serving().is_empty());
        for slot in 0..COUNT {
            assert_eq!(reserves.activate(&shared), Activated::NewThread);
            assert!(serving().into_iter().eq(0..=slot));
        }
        assert_eq!(reserves.activate(&shared), Activated::Refused, "all of them serve");
        for slot in EDGES {
            reserves.leave(slot);
            assert!(!serving().contains(&slot));
        }
        assert_eq!(serving().len(), COUNT - EDGES.len());
        assert!(EDGES.iter().all(|_| reserves.activate(&shared) == Activated::NewThread));
        assert!(serving().into_iter().eq(0..COUNT));
        // A slot that is left twice counts once.
        (0..COUNT).for_each(|slot| reserves.leave(slot));
        reserves.leave(0);
        assert!(!reserves.is_serving() && serving().is_empty());
        assert_eq!(reserves.activate(&shared), Activated::NewThread);
        assert!(reserves.is_serving() && serving() == [0]);
    });
}

/// Goal: the model can fail. Method: each fault; in processes of their own, since loom cannot unwind
/// out of a deadlock.
#[test]
fn faults_are_found() {
    const VARIABLE: &str = "VIGIE_LOOM_RESERVES_FAULT";
    const FAULTS: [(&str, Duration, Fault); 2] =
        [("deaf", LONG, Fault::Deaf), ("hasty", LONG, Fault::Hasty)];
    if let Ok(name) = env::var(VARIABLE) {
        let found = FAULTS.into_iter().find(|fault| fault.0 == name);
        let (_, keep_alive, fault) = found.expect("one of them");
        loom::model(move || call_and_end(keep_alive, fault));
        return;
    }
    for (name, _, _) in FAULTS {
        let this = env::current_exe().expect("this binary has a path");
        let mut child = Command::new(this);
        child.args(["reserves::faults_are_found", "--exact"]).env(VARIABLE, name);
        let output = child.output().expect("it starts");
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let is_found = text.concat().contains("deadlock; threads");
        assert!(is_found, "{name} was not found: the model shows nothing\n{}", text.concat());
    }
}
