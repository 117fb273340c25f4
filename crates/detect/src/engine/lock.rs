//! A lock that one thread can take repeatedly without an atomic read-modify-write.
//!
//! On x86 every such instruction waits until all earlier stores have reached the cache, including those into a
//! peer's ring. A message then costs its sender the whole transfer of a cache line, and sends cannot overlap
//! (measured: half of a sender's time). So the lock is biased to a thread that has taken it often: that thread
//! enters by a plain store and a load.
//!
//! # Invariants
//! - lock-1: the value is accessed either with the mutex held and no bias, or by the thread to which the lock
//!   is biased while `is_inside` is set. A bias begins with the mutex held. To end it, a thread holds the
//!   mutex, sets `is_revoked`, makes every thread of the process execute a full fence (`membarrier`), and
//!   waits until `is_inside` is clear. The owner sets `is_inside` before it reads `is_revoked`, in program
//!   order: if it read `is_revoked` before the fence, its mark is visible after the fence; otherwise it reads
//!   that the bias is revoked.
//! - lock-2: a thread that is inside does not enter again: it panics instead. It detects this by `is_inside` if it
//!   entered by the bias, otherwise by `holder`, which contains its own number exactly if it has written it and not
//!   cleared it since.
//!
//! - lock-3: a lock is biased once in its life, to one thread: no other thread ever writes
//!   `is_inside`.
//!
//! `tests/loom.rs` checks all three, with mutants that lack one step each; [`crate::sync`] explains why
//! `membarrier` can be modelled.
//!
//! Once the bias is revoked, which costs microseconds, this is a mutex; without `membarrier` in the kernel it is
//! a mutex from the start, as in a simulation. A single-threaded runtime keeps its bias for good. Support for `membarrier` is
//! checked whenever a lock is about to be biased; if it is refused between then and the end of the bias, by a
//! seccomp filter installed late, the process aborts with a message.

#![expect(unsafe_code, reason = "a lock hands out its value: lock-1, lock-2")]

use std::{
    fmt, io,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::PoisonError,
};

use crate::{
    server::Server,
    sync::{
        AtomicBool, AtomicU64, Mutex, MutexGuard, NOBODY, Ordering, UnsafeCell, light_fence,
        thread_number, yield_now,
    },
};

/// The number of consecutive acquisitions by one thread after which the lock is biased to it.
const STREAK: u32 = if cfg!(loom) { 1 } else { 256 };

/// A lock that is biased to the thread that takes it most: see the module's documentation.
pub(crate) struct BiasedLock<T> {
    /// The thread to which the lock is biased: written once, with the mutex held.
    owner: AtomicU64,
    /// The owner has entered without the mutex. Written by the owner only.
    is_inside: AtomicBool,
    /// The owner must take the mutex like any thread. Changed with the mutex held.
    is_revoked: AtomicBool,
    mutex: Mutex<Streak>,
    /// The thread that holds the mutex; zero if none. Written with the mutex held.
    holder: AtomicU64,
    /// The registered name of the engine, for the panic of lock-2.
    name: &'static str,
    value: UnsafeCell<T>,
}

/// The recent acquisitions of the mutex.
#[derive(Debug)]
struct Streak {
    thread: u64,
    length: u32,
    /// The lock may be biased to a thread.
    may_be_biased: bool,
}

// SAFETY: the value is accessed by one thread at a time (lock-1).
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Access to the value while the lock is held.
pub(crate) struct BiasedLockGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// `None` if entered by the bias.
    mutex: Option<MutexGuard<'a, Streak>>,
    /// The lock is biased from now on.
    is_biased: bool,
    /// A guard is a borrow of the value: it may be shared between threads only if the value may.
    value: PhantomData<&'a mut T>,
}

/// Makes every running thread of the process execute a full fence.
///
/// # Errors
/// The kernel's error: it has no `membarrier`, or refuses it.
#[cfg(not(loom))]
fn fence_all() -> io::Result<()> {
    use rustix::thread::{MembarrierCommand, membarrier};

    Ok(membarrier(MembarrierCommand::PrivateExpedited)?)
}

/// Aborts the process with a message: the kernel fenced when the lock was biased and now refuses. The owner
/// may be inside without being seen, so no other thread may enter, nor wait for the owner to return, which
/// it may never do.
#[cold]
fn abort_without_fence(error: &io::Error) -> ! {
    tracing::error!(%error, "membarrier(2) is refused after it was allowed: aborting");
    // Also for processes without a tracing subscriber.
    eprintln!(
        "vigie: membarrier(2) is refused after it was allowed ({error}). A lock that relies on it cannot be \
         handed to another thread safely, so the process ends. A seccomp filter must allow membarrier, or be \
         installed before the first engine, NIC or communicator is made: without it a plain mutex is used"
    );
    std::process::abort()
}

/// As above, in a model: see [`crate::sync`].
#[cfg(loom)]
fn fence_all() -> io::Result<()> {
    light_fence();
    Ok(())
}

/// Returns whether the kernel can fence all threads for us, and registers the process for that.
#[cfg(not(loom))]
fn has_fence() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

    static HAS_FENCE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS_FENCE.get_or_init(|| {
        membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && fence_all().is_ok()
    })
}

#[cfg(loom)]
const fn has_fence() -> bool {
    true
}

impl<T> BiasedLock<T> {
    /// Returns a lock that is not biased yet.
    #[must_use]
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        // The first question takes the kernel milliseconds: a task of a simulation would seem to wait for something there.
        let is_simulated = Server::current().is_ok_and(|server| server.is_virtual());
        let may_be_biased = !is_simulated && has_fence();
        Self {
            owner: AtomicU64::new(NOBODY),
            is_inside: AtomicBool::new(false),
            is_revoked: AtomicBool::new(true),
            mutex: Mutex::new(Streak { thread: NOBODY, length: 0, may_be_biased }),
            holder: AtomicU64::new(NOBODY),
            name,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, whether or not a thread panicked while it held it.
    ///
    /// # Panics
    /// If the calling thread holds it.
    #[inline]
    pub(crate) fn lock(&self) -> BiasedLockGuard<'_, T> {
        if self.owner.load(Ordering::Relaxed) == thread_number() {
            if self.is_inside.load(Ordering::Relaxed) {
                self.panic_re_entered();
            }
            self.is_inside.store(true, Ordering::Relaxed);
            // The processor is fenced by the revoking thread (lock-1).
            light_fence();
            if !self.is_revoked.load(Ordering::Relaxed) {
                return BiasedLockGuard {
                    lock: self,
                    mutex: None,
                    is_biased: false,
                    value: PhantomData,
                };
            }
            self.is_inside.store(false, Ordering::Release);
        }
        self.lock_mutex()
    }

    #[cold]
    #[inline(never)]
    fn lock_mutex(&self) -> BiasedLockGuard<'_, T> {
        let number = thread_number();
        // Either this thread itself wrote it last, or another one did.
        if self.holder.load(Ordering::Relaxed) == number {
            self.panic_re_entered();
        }
        let mut streak = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.store(number, Ordering::Relaxed);
        if !self.is_revoked.load(Ordering::Relaxed) {
            self.revoke();
        }
        if streak.thread != number {
            (streak.thread, streak.length) = (number, 0);
        }
        streak.length = streak.length.saturating_add(1);
        let mut is_biased = streak.may_be_biased && streak.length > STREAK;
        if is_biased {
            streak.may_be_biased = false;
            // A seccomp filter may have been installed since `has_fence` was called. A model needs no
            // such fence.
            is_biased = cfg!(loom) || fence_all().is_ok();
        }
        if is_biased {
            self.owner.store(number, Ordering::Relaxed);
        }
        BiasedLockGuard { lock: self, mutex: Some(streak), is_biased, value: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn panic_re_entered(&self) -> ! {
        panic!(
            "`{}` is used again by the thread that is inside it: a closure that was called with this engine, endpoint or NIC, and the \
             engine's own callbacks, must not use the `EngineHost` or its clones, which are locked meanwhile. Use the `&mut` reference \
             that they were given, or do it after they have returned",
            self.name
        )
    }

    /// Ends the bias, with the mutex held.
    fn revoke(&self) {
        self.is_revoked.store(true, Ordering::SeqCst);
        if let Err(error) = fence_all() {
            abort_without_fence(&error);
        }
        while self.is_inside.load(Ordering::Acquire) {
            yield_now();
        }
    }
}

#[cfg(loom)]
impl<T> BiasedLockGuard<'_, T> {
    /// Returns whether the thread entered without the mutex.
    pub(crate) const fn is_by_bias(&self) -> bool {
        self.mutex.is_none()
    }
}

impl<T> Drop for BiasedLockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.mutex.is_none() {
            // With the revoker's load: what was done inside is visible to the revoker.
            self.lock.is_inside.store(false, Ordering::Release);
            return;
        }
        // The mutex is still held, until the fields are dropped.
        self.lock.holder.store(NOBODY, Ordering::Relaxed);
        if self.is_biased {
            self.lock.is_revoked.store(false, Ordering::Release);
        }
    }
}

impl<T> Deref for BiasedLockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (lock-1, lock-2).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one (lock-1, lock-2).
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&**self).finish()
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("owner", &self.owner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt,
        panic::AssertUnwindSafe,
        process::{Command, Output, Stdio},
        sync::Arc,
        thread,
    };

    use super::*;

    const VARIABLE: &str = "VIGIE_TEST_LOCK_CHILD";

    /// Runs the test of this name in its own process, which recognizes itself by [`VARIABLE`].
    fn child(name: &str) -> Output {
        let this = env::current_exe().expect("this binary has a path");
        let mut command = Command::new(this);
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(VARIABLE, name).stdin(Stdio::null()).output().expect("it starts")
    }

    fn is_child(name: &str) -> bool {
        env::var_os(VARIABLE).is_some_and(|value| value == name)
    }

    /// Makes membarrier(2) fail with `EPERM` in this thread and those that it creates, for good.
    fn refuse_membarrier() {
        const RETURN: u16 = 0x06;
        let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
        let call = u32::try_from(libc::SYS_membarrier).expect("a small number");
        let answer = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).expect("positive");
        let mut filter = [
            // Load the number of the call; skip one statement if it is not the one; return.
            statement(0x20, 0),
            libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: call },
            statement(RETURN, answer),
            statement(RETURN, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: no memory is involved.
        let is_set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(is_set, 0, "{}", io::Error::last_os_error());
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `program` and `filter` outlive the call, which copies them.
        let is_set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
        assert_eq!(is_set, 0, "{}", io::Error::last_os_error());
    }

    /// Goal: a lock is not biased when membarrier is refused after it was found to exist. Method: a
    /// seccomp filter between the two, in a process of its own.
    #[test]
    fn a_fence_refused_before_the_bias() {
        const NAME: &str = "engine::lock::tests::a_fence_refused_before_the_bias";
        if !is_child(NAME) {
            let Output { status, stderr, .. } = child(NAME);
            assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
            return;
        }
        assert_eq!(*biased().lock(), u64::from(STREAK) + 1);
        refuse_membarrier();
        let lock = Arc::new(biased());
        assert!(lock.lock().mutex.is_some(), "a plain mutex");
        let other = Arc::clone(&lock);
        thread::spawn(move || *other.lock() += 1).join().expect("no panic");
        assert_eq!(*lock.lock(), u64::from(STREAK) + 2);
    }

    /// Goal: the process reports why it aborts when membarrier is refused while a lock is biased. Method:
    /// a seccomp filter, in its own process, before another thread takes the lock.
    #[test]
    fn a_fence_refused_during_the_bias() {
        const NAME: &str = "engine::lock::tests::a_fence_refused_during_the_bias";
        if !is_child(NAME) {
            if !has_fence() {
                eprintln!("SKIPPED a_fence_refused_during_the_bias: this kernel has no membarrier");
                return;
            }
            let Output { status, stderr, .. } = child(NAME);
            let text = String::from_utf8_lossy(&stderr);
            assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}: {text}");
            assert!(text.contains("membarrier(2) is refused after it was allowed"), "{text}");
            return;
        }
        let lock = Arc::new(biased());
        refuse_membarrier();
        let other = Arc::clone(&lock);
        let _ = thread::spawn(move || *other.lock() += 1).join();
    }

    fn biased() -> BiasedLock<u64> {
        let lock = BiasedLock::new("counter", 0);
        for _ in 0..=STREAK {
            *lock.lock() += 1;
        }
        lock
    }

    /// Goal: a lock that is made in a simulation asks the kernel for nothing. Method: one that is taken repeatedly stays a mutex.
    #[test]
    fn a_simulated_lock_is_not_biased() {
        let clock = Arc::new(crate::clock::VirtualClock::new());
        let server = Server::new_virtual(crate::detector::Flavor::UserLevel, clock).unwrap();
        let _entered = server.enter();
        assert!(biased().lock().mutex.is_some());
    }

    /// Goal: the lock is biased to a thread that takes it repeatedly, and to no other, and the first
    /// other thread ends that for good. Method: inspect the guards.
    #[test]
    fn the_lock_is_biased_once() {
        let lock = biased();
        assert_eq!(
            lock.lock().mutex.is_none(),
            has_fence(),
            "it is biased where the kernel can fence"
        );
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..=2 * STREAK {
                    let mut guard = lock.lock();
                    assert!(guard.mutex.is_some(), "not to this one, nor ever again");
                    *guard += 1;
                }
            });
        });
        let guard = lock.lock();
        assert!(guard.mutex.is_some());
        assert_eq!(*guard, u64::from(STREAK + 1 + 2 * STREAK + 1));
    }

    /// Goal: no increment is lost while the bias ends. Method: the owner and others increment at the same
    /// time, on many biased locks.
    #[test]
    fn nothing_is_lost_at_the_end_of_the_bias() {
        for _ in 0..200 {
            let lock = Arc::new(biased());
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || (0..50).for_each(|_| *lock.lock() += 1))
                })
                .collect();
            for _ in 0..500 {
                // In two steps, so that a second thread inside would be seen.
                let mut guard = lock.lock();
                let before = *guard;
                std::hint::spin_loop();
                *guard = before + 1;
            }
            others.into_iter().for_each(|other| other.join().expect("no panic"));
            assert_eq!(*lock.lock(), u64::from(STREAK) + 1 + 500 + 100);
        }
    }

    /// Goal: entering again panics instead of deadlocking or handing out the value twice, and a panic inside leaves the lock usable.
    /// Method: by the bias, before the lock is biased, in the acquisition that biases it, and after the bias was revoked; in its own
    /// process, which would hang.
    #[test]
    fn entering_again_panics() {
        const NAME: &str = "engine::lock::tests::entering_again_panics";
        if !is_child(NAME) {
            let Output { status, stderr, .. } = child(NAME);
            assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
            return;
        }
        // SAFETY: a process of its own; the signal ends it.
        unsafe { libc::alarm(60) };
        let panics = |lock: &BiasedLock<u64>, is_by_bias: bool| {
            let entered = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let guard = lock.lock();
                assert_eq!(guard.mutex.is_none(), is_by_bias && has_fence());
                drop(lock.lock());
            }));
            let text = *entered.expect_err("it panics").downcast::<String>().expect("a message");
            assert!(text.starts_with("`counter` is used again"), "{text}");
            *lock.lock() += 1;
        };
        panics(&BiasedLock::new("counter", 0), false);
        panics(&biased(), true);
        let begins = BiasedLock::new("counter", 0);
        (0..STREAK).for_each(|_| *begins.lock() += 1);
        panics(&begins, false);
        let revoked = Arc::new(biased());
        let other = Arc::clone(&revoked);
        thread::spawn(move || *other.lock() += 1).join().expect("no panic");
        panics(&revoked, false);
    }

    /// Goal: a guard is shared between threads only if the value may be. Method: a trait implemented once for all types and
    /// once for `Sync` ones, so that its function is unambiguous only for types that are not `Sync`.
    #[test]
    fn guards_of_cells_are_not_shared() {
        trait NotSync<Which> {
            fn is_not() {}
        }
        struct Anything;
        struct Shared;
        impl<T: ?Sized> NotSync<Anything> for T {}
        impl<T: ?Sized + Sync> NotSync<Shared> for T {}
        <BiasedLockGuard<'static, std::cell::Cell<u8>> as NotSync<_>>::is_not();
    }
}
