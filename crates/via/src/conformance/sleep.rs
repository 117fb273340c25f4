//! Sleep: whoever armed a NIC is told.

use std::{io::IoSlice, os::fd::AsFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vigie_detect::Armed;

use super::{
    Case, Clause, Fixture, Violation,
    stage::{Party, Stage, descriptor},
};
use crate::vi::{Data, NicEvent, Operation, Provider, Queue, Reason, SendDescriptor, Status};

pub(super) fn cases<F: Fixture>() -> Vec<(&'static str, Case<F>)> {
    vec![("an armed NIC is woken", woken), ("a disconnect wakes", woken_by_a_disconnect)]
}

type Judged = Result<(), Violation>;

impl<F: Fixture> Stage<'_, F> {
    fn arm(&mut self, nic: usize) -> Result<Armed, Violation> {
        let armed = self.nics[nic].arm();
        self.call(Clause::Wakeup, "arm", armed.map_err(Into::into))
    }

    /// Arms a NIC at which nothing is left to do.
    fn fall_asleep(&mut self, nic: usize) -> Judged {
        for _ in 0..100 {
            self.calm();
            if self.arm(nic)? == Armed::Armed {
                return Ok(());
            }
        }
        Err(self.broken(Clause::Wakeup, "with nothing to do, `arm` says that something is there"))
    }

    /// Whether what a sleeper waits for tells it to wake up: a descriptor, or a time.
    fn is_woken(&mut self, nic: usize) -> bool {
        let patience = self.profile.patience.as_secs().try_into().unwrap_or(i64::MAX);
        let Some(descriptor) = self.nics[nic].descriptor() else {
            return self.nics[nic].next_deadline().is_some() || self.has_news(nic);
        };
        let mut watched = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
        let patience = Timespec { tv_sec: patience, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&patience)), Ok(1..))
    }

    /// Whether `arm` of a NIC in virtual time refuses to sleep.
    fn has_news(&mut self, nic: usize) -> bool {
        matches!(self.nics[nic].arm(), Ok(Armed::Ready))
    }

    /// Lets all other NICs work, but not the one that sleeps.
    fn work_beside(&mut self, sleeper: usize) {
        let now = self.fixture.now();
        for (index, nic) in self.nics.iter_mut().enumerate() {
            if index != sleeper {
                nic.progress(now);
            }
        }
    }
}

fn woken<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let (one, other) = stage.pair()?;
    for round in 0..20 {
        stage.post_receive(&other, round, &[])?;
        stage.fall_asleep(other.nic)?;
        tell(stage, &one, &other, round)?;
        stage.work_beside(other.nic);
        if !stage.is_woken(other.nic) {
            let saw = "an armed NIC was not told of a completion";
            return Err(stage.broken(Clause::Wakeup, saw));
        }
        stage.nics[other.nic].quiet();
        stage.expect_end(&other, Queue::Receive, round, Status::Done)?;
        stage.expect_end(&one, Queue::Send, round, Status::Done)?;
        // What came before is not slept over.
        stage.post_receive(&other, round, &[])?;
        stage.calm();
        tell(stage, &one, &other, round)?;
        stage.work_beside(other.nic);
        let is_ready = stage.arm(other.nic)? == Armed::Ready;
        if !is_ready && !stage.is_woken(other.nic) {
            let saw = "a NIC was armed over a completion, and not told";
            return Err(stage.broken(Clause::Wakeup, saw));
        }
        stage.nics[other.nic].quiet();
        stage.expect_end(&other, Queue::Receive, round, Status::Done)?;
        stage.expect_end(&one, Queue::Send, round, Status::Done)?;
    }
    // Once everything was taken, it sleeps again.
    stage.fall_asleep(other.nic)
}

fn tell<F: Fixture>(stage: &mut Stage<'_, F>, one: &Party, other: &Party, cookie: u64) -> Judged {
    let pieces = [IoSlice::new(b"wake up!")];
    let place = Some(other.place(0));
    let write = descriptor(Operation::RdmaWrite, cookie, place, Data::Inline(&pieces));
    stage.post(one, &SendDescriptor { immediate: Some(1), ..write })
}

fn woken_by_a_disconnect<F: Fixture>(stage: &mut Stage<'_, F>) -> Judged {
    let (one, other) = stage.pair()?;
    stage.fall_asleep(other.nic)?;
    let result = stage.nics[one.nic].disconnect(one.vi);
    stage.call(Clause::State, "disconnect", result)?;
    stage.work_beside(other.nic);
    if !stage.is_woken(other.nic) {
        return Err(stage.broken(Clause::Wakeup, "an armed NIC was not told of a disconnect"));
    }
    stage.nics[other.nic].quiet();
    let expected = NicEvent::Broken { vi: other.vi, reason: Reason::Disconnected };
    stage.expect_event(other.nic, &expected)
}
