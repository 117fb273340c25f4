//! A host thread that sleeps, a thread that makes events happen, and the suite's own thread that
//! waits, in any order that the machine finds.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Wake, Waker},
};

use super::{
    At, Harness, Profile, Rule, SetupError, Suite, Trigger, Violation, World, ledger::Ledger,
    stage::failed,
};
use crate::{
    clock::{Instant, monotonic_now},
    server::{Server, Wait},
    sync::{
        Arc,
        mpsc::{self, Sender},
        thread,
    },
};

/// The longest time that a thread spins before it makes an event happen: from "at once" to "the host
/// has gone to sleep meanwhile".
const SPINS_MAX: u32 = 20_000;
/// The most waits pending at once.
const PENDING_MAX: usize = 6;

struct ThreadWaker(thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<H, F> Suite<'_, F>
where
    H: Harness,
    F: FnMut(&World) -> Result<H, SetupError>,
{
    pub(super) fn stress(&mut self) -> Result<(), Violation> {
        const NAME: &str = "two threads";
        let mut seed = self.options.seeds.start;
        let mut left = self.options.stress_waits;
        while left > 0 {
            let at = At { case: NAME, host: "thread", seed };
            left -= self.episode(at, left)?;
            seed = seed.wrapping_add(1);
        }
        self.report.cases.push(("thread", NAME));
        Ok(())
    }

    /// Uses one harness up. Returns how many waits that took.
    fn episode(&mut self, at: At, waits_max: usize) -> Result<usize, Violation> {
        let host =
            Server::spawn_thread().map_err(|error| Violation::Setup { error: error.into(), at })?;
        let world = World::new(host.server().clone(), None, at.seed);
        let harness = (self.factory)(&world).map_err(|error| Violation::Setup { error, at })?;
        let profile = harness.profile();
        let count = waits_max.min(profile.index_count_max).max(1);
        let (sender, triggers) = mpsc::channel::<(u32, Trigger)>();
        let thread = thread::Builder::new().name("events".to_owned()).spawn(move || {
            for (spins, trigger) in triggers {
                for _ in 0..spins {
                    std::hint::spin_loop();
                }
                trigger();
            }
        });
        let thread = thread.map_err(|error| Violation::Setup { error: error.into(), at })?;
        let mut episode = Episode {
            harness,
            ledger: Ledger::new(profile),
            random: fastrand::Rng::with_seed(at.seed),
            at,
            pending: VecDeque::new(),
            waker: Waker::from(Arc::new(ThreadWaker(thread::current()))),
            cancelled: 0,
        };
        let outcome = episode.run(count, profile, &sender, self.options.guard);
        drop(sender);
        let is_dead = thread.join().is_err();
        outcome?;
        if is_dead {
            let error = "a trigger panicked".into();
            return Err(Violation::Setup { error, at });
        }
        self.report.waits += count as u64;
        self.report.cancelled += episode.cancelled;
        self.report.events += episode.ledger.delivered_count() as u64;
        Ok(count)
    }
}

struct Episode<H: Harness> {
    harness: H,
    ledger: Ledger,
    random: fastrand::Rng,
    at: At,
    pending: VecDeque<(usize, Wait<H::Detector>)>,
    waker: Waker,
    cancelled: u64,
}

impl<H: Harness> Episode<H> {
    fn run(
        &mut self,
        count: usize,
        profile: Profile,
        sender: &Sender<(u32, Trigger)>,
        guard: std::time::Duration,
    ) -> Result<(), Violation> {
        for index in 0..count {
            let request = self.harness.request(index);
            let wait = self.harness.handle().wait_owned(request);
            let trigger = self.harness.trigger(index);
            let spins = self.random.u32(..SPINS_MAX) * self.random.u32(..2);
            // Counted when it may happen; the other thread decides when it does.
            self.ledger.happened += 1;
            let is_early = self.random.bool();
            if is_early {
                drop(sender.send((spins, trigger)));
                self.pending.push_back((index, wait));
            } else {
                self.pending.push_back((index, wait));
                self.poll_all()?;
                drop(sender.send((spins, trigger)));
            }
            // Cancellation, if no other request's event can be lost with it.
            if self.random.u32(..6) == 0 && profile.addressing == super::Addressing::Addressed {
                let place = self.random.usize(..self.pending.len());
                self.pending.remove(place);
                self.cancelled += 1;
            }
            let keep = self.random.usize(..PENDING_MAX);
            self.wait_until(keep, guard)?;
        }
        self.wait_until(0, guard)
    }

    fn poll_all(&mut self) -> Result<(), Violation> {
        let mut cx = Context::from_waker(&self.waker);
        for _ in 0..self.pending.len() {
            let Some((index, mut wait)) = self.pending.pop_front() else { break };
            match Pin::new(&mut wait).poll(&mut cx) {
                Poll::Pending => self.pending.push_back((index, wait)),
                Poll::Ready(Ok(event)) => {
                    let identity = self.harness.identify(index, event);
                    self.ledger.deliver(index, identity, self.at)?;
                }
                Poll::Ready(Err(error)) => return Err(failed(index, error, self.at)),
            }
        }
        Ok(())
    }

    /// Waits until at most `count` requests are pending.
    fn wait_until(&mut self, count: usize, guard: std::time::Duration) -> Result<(), Violation> {
        let end: Instant = monotonic_now() + guard;
        loop {
            self.poll_all()?;
            if let Some(memory) = self.harness.memory()
                && memory.freed_in_flight > 0
            {
                let count = memory.freed_in_flight;
                return Err(Violation::FreedInFlight { count, at: self.at });
            }
            if self.pending.len() <= count {
                return Ok(());
            }
            let left = end - monotonic_now();
            if left.is_zero() {
                let request = self.pending.front().map_or(0, |&(index, _)| index);
                let saw = format!("it was still pending after {guard:?}");
                let rule = Rule::Announced;
                return Err(Violation::EventLost { rule, request, saw, at: self.at });
            }
            thread::park_timeout(left);
        }
    }
}
