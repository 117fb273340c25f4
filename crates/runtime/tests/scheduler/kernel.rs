//! A model of the kernel: cores, threads that share them, slices, preemption at wake-ups, sleep.
//!
//! Threads have virtual runtimes, as in the kernel's fair scheduler: the least runs first. A thread that
//! wakes up is placed at most [`CREDIT_NS`] before the least of the others, and preempts the thread that has
//! run most if it is before that one. With a tick, only threads with short slices preempt at once.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Poll, Waker},
};

use vigie_detect::{Clock, Handle, Instant, Timers, VirtualClock};

const SLICE_NS: u64 = 3_000_000;
const SHORT_SLICE_NS: u64 = 100_000;
pub(crate) const TICK_NS: u64 = 4_000_000;

/// How far before the others a thread is placed that has slept.
const CREDIT_NS: u64 = 1_500_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Asleep,
    Waking(u64),
    Ready,
    OnCore(usize),
}

struct Thread {
    state: State,
    /// The processor time that it wants before its code goes on.
    left: u64,
    /// Until when `left` and `runtime` are accounted for.
    since: u64,
    runtime: u64,
    /// The processor time that it has used.
    used: u64,
    slice_end: u64,
    has_short_slice: bool,
    is_fresh: bool,
    /// In a sleep inside a poll.
    is_blocked: bool,
    ready_since: u64,
    /// How often it was woken.
    wakes: u64,
    waker: Option<Waker>,
}

struct Inner {
    threads: Vec<Thread>,
    cores: Vec<Option<usize>>,
    /// Threads that wake up or wait for a core.
    waiting: Vec<usize>,
    least: u64,
    driver: Option<Waker>,
    /// Intervals in which threads waited for a core.
    queued: Vec<Queued>,
}

/// A thread has waited for a core.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) thread: usize,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

pub(crate) struct Kernel {
    inner: RefCell<Inner>,
    clock: Arc<VirtualClock>,
    timers: Handle<Timers>,
    /// The cost of waking a thread.
    pub(crate) wake_ns: u64,
    has_tick: bool,
}

impl Kernel {
    pub(crate) fn new(
        (clock, timers): (Arc<VirtualClock>, Handle<Timers>),
        cores: usize,
        thread_count: usize,
        wake_ns: u64,
        has_tick: bool,
    ) -> Self {
        let thread = |_| Thread {
            state: State::Asleep,
            left: 0,
            since: 0,
            runtime: 0,
            used: 0,
            slice_end: 0,
            has_short_slice: false,
            is_fresh: false,
            is_blocked: false,
            ready_since: 0,
            wakes: 0,
            waker: None,
        };
        let inner = Inner {
            threads: (0..thread_count).map(thread).collect(),
            cores: vec![None; cores],
            waiting: Vec::new(),
            least: 0,
            driver: None,
            queued: Vec::new(),
        };
        Self { inner: RefCell::new(inner), clock, timers, wake_ns, has_tick }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    pub(crate) fn core_count(&self) -> usize {
        self.inner.borrow().cores.len()
    }

    /// Waits in virtual time.
    pub(crate) async fn wait_until(&self, nanos: u64) {
        self.timers.wait(Instant::from_nanos(nanos)).await.expect("the server runs");
    }

    pub(crate) fn shorten_slice(&self, thread: usize) {
        self.inner.borrow_mut().threads[thread].has_short_slice = true;
    }

    pub(crate) fn restore_slice(&self, thread: usize) {
        self.inner.borrow_mut().threads[thread].has_short_slice = false;
    }

    /// Returns whether no thread runs, wakes up or waits for a core, and none sleeps inside a poll.
    pub(crate) fn is_everyone_asleep(&self) -> bool {
        let inner = self.inner.borrow();
        inner.waiting.is_empty()
            && inner.cores.iter().all(Option::is_none)
            && !inner.threads.iter().any(|thread| thread.is_blocked)
    }

    /// Returns whether the thread sleeps inside a poll: what /proc tells.
    pub(crate) fn is_blocked(&self, thread: usize) -> bool {
        self.inner.borrow().threads[thread].is_blocked
    }

    /// Returns the processor time that the thread has used.
    pub(crate) fn processor_time(&self, thread: usize) -> u64 {
        let (inner, now) = (self.inner.borrow(), self.now());
        let thread = &inner.threads[thread];
        match thread.state {
            State::OnCore(_) => thread.used + (now - thread.since).min(thread.left),
            _ => thread.used,
        }
    }

    /// The intervals after `begin` in which threads waited for a core, those that still do included.
    pub(crate) fn queued_after(&self, begin: u64) -> Vec<Queued> {
        let inner = self.inner.borrow();
        let past = inner.queued.iter().rev().take_while(|queued| queued.end > begin).copied();
        let is_ready = |&&thread: &&usize| inner.threads[thread].state == State::Ready;
        let present = inner.waiting.iter().filter(is_ready).map(|&thread| Queued {
            thread,
            begin: inner.threads[thread].ready_since,
            end: self.now(),
        });
        past.chain(present).collect()
    }

    /// Uses `nanos` of processor time.
    pub(crate) async fn compute(&self, thread: usize, nanos: u64) {
        {
            let mut inner = self.inner.borrow_mut();
            inner.threads[thread].left += nanos;
            inner.threads[thread].since = self.now();
            inner.kick();
        }
        self.on_core(thread).await;
    }

    /// Sleeps until [`wake`](Self::wake), and then until there is a core.
    pub(crate) async fn sleep(&self, thread: usize) {
        self.leave(thread);
        self.on_core(thread).await;
    }

    /// The same, but no longer than until `until`.
    pub(crate) async fn sleep_until(&self, thread: usize, until: u64) {
        self.leave(thread);
        let mut timer = Some(Box::pin(self.wait_until(until)));
        let mut on_core = pin!(self.on_core(thread));
        poll_fn(|cx| {
            if timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                timer = None;
                self.wake(thread);
            }
            on_core.as_mut().poll(cx)
        })
        .await;
    }

    /// Sleeps inside a poll.
    pub(crate) async fn block(&self, thread: usize, nanos: u64) {
        self.leave(thread);
        self.inner.borrow_mut().threads[thread].is_blocked = true;
        self.wait_until(self.now() + nanos).await;
        self.inner.borrow_mut().threads[thread].is_blocked = false;
        self.wake(thread);
        self.on_core(thread).await;
    }

    fn leave(&self, thread: usize) {
        let mut inner = self.inner.borrow_mut();
        if let State::OnCore(core) = inner.threads[thread].state {
            inner.cores[core] = None;
        }
        inner.waiting.retain(|&other| other != thread);
        inner.threads[thread].state = State::Asleep;
        inner.kick();
    }

    async fn on_core(&self, thread: usize) {
        poll_fn(|cx| {
            let this = &mut self.inner.borrow_mut().threads[thread];
            if this.left == 0 && matches!(this.state, State::OnCore(_)) {
                return Poll::Ready(());
            }
            this.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Wakes a thread that sleeps.
    pub(crate) fn wake(&self, thread: usize) {
        let mut inner = self.inner.borrow_mut();
        if inner.threads[thread].state == State::Asleep {
            inner.threads[thread].state = State::Waking(self.now() + self.wake_ns);
            inner.threads[thread].wakes += 1;
            inner.waiting.push(thread);
            inner.kick();
        }
    }

    /// Returns how often the first `count` threads were woken together.
    pub(crate) fn wakes(&self, count: usize) -> u64 {
        self.inner.borrow().threads[..count].iter().map(|thread| thread.wakes).sum()
    }

    /// Moves threads between cores for ever.
    pub(crate) async fn run(self: Rc<Self>) {
        type Armed = (u64, Pin<Box<dyn Future<Output = ()>>>);
        let mut armed: Option<Armed> = None;
        poll_fn(move |cx| {
            loop {
                let now = self.now();
                let next = self.inner.borrow_mut().step(now, self.has_tick);
                self.inner.borrow_mut().driver = Some(cx.waker().clone());
                if armed.as_ref().map(|&(at, _)| at) != next {
                    armed = next.map(|at| {
                        let timers = self.timers.clone();
                        let wait = async move {
                            let ended = timers.wait(Instant::from_nanos(at)).await;
                            ended.expect("the server runs");
                        };
                        (at, Box::pin(wait) as Pin<Box<dyn Future<Output = ()>>>)
                    });
                }
                let Some((_, wait)) = &mut armed else { return Poll::<()>::Pending };
                if wait.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                armed = None;
            }
        })
        .await;
    }
}

impl Inner {
    fn kick(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Does what is due at `now`. Returns when the next thing is.
    fn step(&mut self, now: u64, has_tick: bool) -> Option<u64> {
        self.account(now);
        for index in 0..self.waiting.len() {
            let least = self.least;
            let thread = &mut self.threads[self.waiting[index]];
            if matches!(thread.state, State::Waking(at) if at <= now) {
                thread.state = State::Ready;
                thread.ready_since = now;
                thread.is_fresh = true;
                thread.runtime = thread.runtime.max(least.saturating_sub(CREDIT_NS));
            }
        }
        for core in 0..self.cores.len() {
            self.end_slice(core, now, has_tick);
            if self.cores[core].is_none()
                && let Some(next) = self.first_ready()
            {
                self.put(next, core, now, has_tick);
            }
        }
        self.preempt(now, has_tick);
        self.next_step()
    }

    fn account(&mut self, now: u64) {
        let mut least = u64::MAX;
        for thread in self.cores.iter().flatten() {
            let thread = &mut self.threads[*thread];
            let used = now - thread.since;
            thread.since = now;
            thread.runtime += used.min(thread.left);
            thread.used += used.min(thread.left);
            let was_busy = thread.left > 0;
            thread.left = thread.left.saturating_sub(used);
            least = least.min(thread.runtime);
            if thread.left == 0
                && (was_busy || thread.waker.is_some())
                && let Some(waker) = thread.waker.take()
            {
                waker.wake();
            }
        }
        if least < u64::MAX {
            self.least = self.least.max(least);
        }
    }

    fn first_ready(&self) -> Option<usize> {
        let is_ready = |thread: &usize| self.threads[*thread].state == State::Ready;
        let ready = self.waiting.iter().copied().filter(is_ready);
        ready.min_by_key(|&thread| (self.threads[thread].runtime, thread))
    }

    fn put(&mut self, thread: usize, core: usize, now: u64, has_tick: bool) {
        if let Some(before) = self.cores[core].replace(thread) {
            let before_thread = &mut self.threads[before];
            before_thread.state = State::Ready;
            before_thread.ready_since = now;
            before_thread.is_fresh = false;
            self.waiting.push(before);
        }
        self.waiting.retain(|&other| other != thread);
        let this = &mut self.threads[thread];
        if this.ready_since < now {
            self.queued.push(Queued { thread, begin: this.ready_since, end: now });
        }
        this.state = State::OnCore(core);
        this.since = now;
        this.slice_end = slice_end(this.has_short_slice, now, has_tick);
        if this.left == 0
            && let Some(waker) = this.waker.take()
        {
            waker.wake();
        }
    }

    fn end_slice(&mut self, core: usize, now: u64, has_tick: bool) {
        let Some(running) = self.cores[core] else { return };
        if self.threads[running].slice_end > now {
            return;
        }
        let runtime = self.threads[running].runtime;
        match self.first_ready() {
            Some(next) if self.threads[next].runtime < runtime => {
                self.put(next, core, now, has_tick);
            }
            _ => {
                let running = &mut self.threads[running];
                running.slice_end = slice_end(running.has_short_slice, now, has_tick);
            }
        }
    }

    fn preempt(&mut self, now: u64, has_tick: bool) {
        while let Some(&fresh) = self.waiting.iter().find(|&&thread| {
            let thread = &self.threads[thread];
            thread.is_fresh && thread.state == State::Ready
        }) {
            self.threads[fresh].is_fresh = false;
            if has_tick && !self.threads[fresh].has_short_slice {
                continue;
            }
            let most = (0..self.cores.len())
                .max_by_key(|&core| self.cores[core].map(|thread| self.threads[thread].runtime));
            if let Some(core) = most
                && let Some(running) = self.cores[core]
                && self.threads[running].runtime > self.threads[fresh].runtime
            {
                self.put(fresh, core, now, has_tick);
            }
        }
    }

    fn next_step(&self) -> Option<u64> {
        let has_ready =
            self.waiting.iter().any(|&thread| self.threads[thread].state == State::Ready);
        let on_cores = self.cores.iter().flatten().filter_map(|&thread| {
            let thread = &self.threads[thread];
            let ends = (thread.left > 0).then_some(thread.since + thread.left);
            let slice = has_ready.then_some(thread.slice_end);
            ends.into_iter().chain(slice).min()
        });
        let wakes = self.waiting.iter().filter_map(|&thread| match self.threads[thread].state {
            State::Waking(at) => Some(at),
            _ => None,
        });
        on_cores.chain(wakes).min()
    }
}

fn slice_end(is_short: bool, now: u64, has_tick: bool) -> u64 {
    let end = now + if is_short { SHORT_SLICE_NS } else { SLICE_NS };
    if has_tick { end.next_multiple_of(TICK_NS) } else { end }
}
