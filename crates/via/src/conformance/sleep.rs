//! Sleep: an armed NIC must be woken.

use std::{io::IoSlice, os::fd::AsFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vigie_detect::ArmOutcome;

use super::{
    Clause, Fixture, Violation,
    testbed::{ConformanceCase, Party, Testbed, descriptor},
};
use crate::vi::{
    Data, DisconnectReason, NicEvent, Operation, Provider, Queue, SendDescriptor, Status,
};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    vec![("an armed NIC is woken", woken), ("a disconnect wakes", woken_by_a_disconnect)]
}

use super::violation::CaseResult;

impl<F: Fixture> Testbed<'_, F> {
    fn arm(&mut self, nic: usize) -> Result<ArmOutcome, Violation> {
        let armed = self.nics[nic].arm();
        self.call(Clause::Wakeup, "arm", armed.map_err(Into::into))
    }

    /// Arms a NIC that has nothing left to do.
    fn fall_asleep(&mut self, nic: usize) -> CaseResult {
        for _ in 0..100 {
            self.calm();
            if self.arm(nic)? == ArmOutcome::Armed {
                return Ok(());
            }
        }
        Err(self.broken(Clause::Wakeup, "with nothing to do, `arm` says that something is there"))
    }

    /// Returns whether a sleeper's descriptor, or a deadline, wakes it.
    fn is_woken(&mut self, nic: usize) -> bool {
        let timeout = self.profile.timeout.as_secs().try_into().unwrap_or(i64::MAX);
        let Some(descriptor) = self.nics[nic].descriptor() else {
            return self.nics[nic].next_deadline().is_some() || self.has_news(nic);
        };
        let mut watched = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
        let timeout = Timespec { tv_sec: timeout, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&timeout)), Ok(1..))
    }

    /// Returns whether `arm` of a NIC in virtual time refuses to sleep.
    fn has_news(&mut self, nic: usize) -> bool {
        matches!(self.nics[nic].arm(), Ok(ArmOutcome::Ready))
    }

    /// Lets all NICs work except the sleeper.
    fn work_beside(&mut self, sleeper: usize) {
        let now = self.fixture.now();
        for (index, nic) in self.nics.iter_mut().enumerate() {
            if index != sleeper {
                nic.progress(now);
            }
        }
    }
}

fn woken<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    for round in 0..20 {
        testbed.post_receive(&other, round, &[])?;
        testbed.fall_asleep(other.nic)?;
        tell(testbed, &one, &other, round)?;
        testbed.work_beside(other.nic);
        if !testbed.is_woken(other.nic) {
            let saw = "an armed NIC was not told of a completion";
            return Err(testbed.broken(Clause::Wakeup, saw));
        }
        testbed.nics[other.nic].quiet();
        testbed.expect_end(&other, Queue::Receive, round, Status::Done)?;
        testbed.expect_end(&one, Queue::Send, round, Status::Done)?;
        // An earlier completion must not be slept through.
        testbed.post_receive(&other, round, &[])?;
        testbed.calm();
        tell(testbed, &one, &other, round)?;
        testbed.work_beside(other.nic);
        let is_ready = testbed.arm(other.nic)? == ArmOutcome::Ready;
        if !is_ready && !testbed.is_woken(other.nic) {
            let saw = "a NIC was armed over a completion, and not told";
            return Err(testbed.broken(Clause::Wakeup, saw));
        }
        testbed.nics[other.nic].quiet();
        testbed.expect_end(&other, Queue::Receive, round, Status::Done)?;
        testbed.expect_end(&one, Queue::Send, round, Status::Done)?;
    }

    // Once everything was taken, it sleeps again.
    testbed.fall_asleep(other.nic)
}

fn tell<F: Fixture>(
    testbed: &mut Testbed<'_, F>,
    one: &Party,
    other: &Party,
    cookie: u64,
) -> CaseResult {
    let pieces = [IoSlice::new(b"wake up!")];
    let place = Some(other.place(0));
    let write = descriptor(Operation::RdmaWrite, cookie, place, Data::Inline(&pieces));
    testbed.post(one, &SendDescriptor { immediate: Some(1), ..write })
}

fn woken_by_a_disconnect<F: Fixture>(testbed: &mut Testbed<'_, F>) -> CaseResult {
    let (one, other) = testbed.pair()?;
    testbed.fall_asleep(other.nic)?;
    let result = testbed.nics[one.nic].disconnect(one.vi);
    testbed.call(Clause::State, "disconnect", result)?;
    testbed.work_beside(other.nic);
    if !testbed.is_woken(other.nic) {
        return Err(testbed.broken(Clause::Wakeup, "an armed NIC was not told of a disconnect"));
    }
    testbed.nics[other.nic].quiet();
    let expected = NicEvent::Broken { vi: other.vi, reason: DisconnectReason::Disconnected };
    testbed.expect_event(other.nic, &expected)
}
