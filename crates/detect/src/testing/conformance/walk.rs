//! Random walks: one seed draws requests, events, polls, sleeps and cancellations; the ledger knows
//! the expected result.

use super::{
    At, Harness, Rule, SetupError, Suite, Violation, World,
    stage::{CaseRunner, Host, Slept, TestWaiter},
};

/// Requests and events of one walk. Below the minimum `index_count_max`.
const COUNT: usize = 36;
/// Steps before the walk lets everything come to its end.
const STEPS: usize = 220;

impl<H, F> Suite<'_, F>
where
    H: Harness,
    F: FnMut(&World) -> Result<H, SetupError>,
{
    pub(super) fn walks(&mut self, host: Host) -> Result<(), Violation> {
        const NAME: &str = "random walk";
        for seed in self.options.seeds.clone() {
            let at = At { case: NAME, host: host.name(), seed };
            let stage = CaseRunner::new(self.factory, host, self.options.guard, at)?;
            let mut walk = Walk { live: Vec::new(), unasked: (0..COUNT).collect(), stage };
            for _ in 0..STEPS {
                walk.step()?;
            }
            walk.end()?;
            self.close(&walk.stage);
        }
        self.report.cases.push((host.name(), NAME));
        Ok(())
    }
}

struct Walk<H: Harness> {
    stage: CaseRunner<H>,
    /// Oldest first.
    live: Vec<TestWaiter<H::Detector>>,
    /// Requests that have not been made yet.
    unasked: Vec<usize>,
}

impl<H: Harness> Walk<H> {
    fn step(&mut self) -> Result<(), Violation> {
        match self.stage.random.u32(..12) {
            0..=3 => self.ask(),
            4..=5 if self.stage.ledger.happened < COUNT => self.stage.happen(),
            6 if self.stage.ledger.happened < COUNT => self.happen_before_sleep(),
            7 if !self.live.is_empty() => {
                let place = self.stage.random.usize(..self.live.len());
                let waiter = self.live.remove(place);
                self.stage.cancel(waiter)
            }
            8..=9 => self.take(),
            10 => self.stage.poll_idly(),
            _ => self.stage.poll_pass(),
        }
    }

    /// Makes the next event happen between preparation and sleep, if a request waits for it: a host
    /// with no one to wake would correctly sleep for ever.
    fn happen_before_sleep(&mut self) -> Result<(), Violation> {
        let ledger = &self.stage.ledger;
        let (is_shared, next) = (ledger.is_shared(), ledger.happened);
        let unserved = |live: &[TestWaiter<H::Detector>]| {
            let waiter = live.iter().find(|w| !w.is_woken() && (is_shared || w.index == next));
            waiter.map(|waiter| waiter.index)
        };
        if unserved(&self.live).is_none() {
            return Ok(());
        }
        let until_next = self.stage.harness.happens_at(next + 1);
        let trigger = self.stage.next_trigger();
        let live = &self.live;
        let between = || {
            trigger();
            // The poll before the sleep may have served the last of them with an earlier event.
            unserved(live).is_none()
        };
        if self.stage.sleep(Some(Box::new(between)), until_next)? == Slept::ForEver
            && let Some(index) = unserved(&self.live)
        {
            return Err(self.stage.lost(Rule::Announced, index, "the host slept for ever"));
        }
        Ok(())
    }

    /// Makes one of the next few requests.
    fn ask(&mut self) -> Result<(), Violation> {
        if self.unasked.is_empty() {
            return Ok(());
        }
        let place = self.stage.random.usize(..self.unasked.len().min(8));
        let index = self.unasked.remove(place);
        if self.stage.random.u32(..16) == 0 {
            // Made, never polled, dropped.
            let waiter = self.stage.request(index);
            return self.stage.cancel(waiter);
        }
        self.live.extend(self.stage.wait(index)?);
        Ok(())
    }

    /// Polls one wait, woken or not.
    fn take(&mut self) -> Result<(), Violation> {
        if self.live.is_empty() {
            return Ok(());
        }
        let place = self.stage.random.usize(..self.live.len());
        if self.stage.take(&mut self.live[place])? {
            self.live.remove(place);
        }
        Ok(())
    }

    /// All events happen, all requests that are owed one receive it, and the others do not.
    fn end(&mut self) -> Result<(), Violation> {
        while self.stage.ledger.happened < COUNT {
            self.stage.happen()?;
        }
        while !self.unasked.is_empty() {
            self.ask()?;
        }
        if self.stage.ledger.is_shared() {
            // Those that are ready already, in any order.
            for mut waiter in std::mem::take(&mut self.live) {
                if !waiter.is_woken() || !self.stage.take(&mut waiter)? {
                    self.live.push(waiter);
                }
            }
            // Events without a waiter.
            while self.stage.ledger.outstanding() > self.live.len() {
                self.live.extend(self.stage.wait(COUNT)?);
            }
        }
        let mut unowed = Vec::new();
        let mut older = 0;
        for mut waiter in std::mem::take(&mut self.live) {
            if self.stage.ledger.is_wakeup_deferred(waiter.index, older) {
                self.stage.expect_event(waiter, Rule::Once)?;
            } else if !self.stage.take(&mut waiter)? {
                older += 1;
                unowed.push(waiter);
            }
        }
        for mut waiter in unowed {
            self.stage.expect_pending(&mut waiter)?;
            self.stage.cancel(waiter)?;
        }
        self.stage.expect_nothing_left()
    }
}
