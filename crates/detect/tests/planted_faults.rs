//! The conformance suite detects what it tests for: each of these detectors has one planted fault,
//! and is reported under the rule that it breaks; without the fault it conforms.
//!
//! Three detectors carry the faults: a mailbox (shared events, armed before each sleep), a device that
//! writes into memory of its requests (addressed events, cancellation in flight), and an alarm (time).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use vigie_detect::{
    ArmOutcome, Arming, CancelOutcome, Detector, DriverHandle, EmitOutcome, Handle, Instant, Key,
    Methods, Mode, Notifier, PollContext, Registration, SubmitOutcome, VirtualClock,
    conformance::{
        EventIdentity, Harness, HostKinds, Memory, Profile, Rule, SetupError, SuiteConfig, Trigger,
        Unclaimed, Violation, World, check_with,
    },
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Eight seeds, and a short guard for lost events.
fn options() -> SuiteConfig {
    SuiteConfig::from_env().seeds(0..8).guard(Duration::from_secs(2)).stress_waits(200)
}

fn seen<H: Harness>(mut factory: impl FnMut(&World) -> Result<H, SetupError>) -> Violation {
    let violation = check_with(&options(), &mut factory).expect_err("the fault was not seen");
    // Every violation says where it was seen and how to reproduce it.
    assert!(violation.to_string().contains("SIM_SEED="), "{violation}");
    violation
}

mod mailbox {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fault {
        None,
        /// The poll that follows arming disarms again.
        LosesBetweenArmAndSleep,
        /// Arming does nothing.
        NeverArms,
        /// Arming always says that an event has happened.
        IsAlwaysReady,
        /// An event that `submit` reports stays in the queue.
        ReportsTwice,
        /// Events that arrived without a waiter are ignored.
        ForgetsWhatWasBefore,
        /// A cancelled request stays in the queue of requests to serve.
        ServesTheCancelled,
        /// Events left by a waiter are lost.
        DropsTheUnclaimed,
        /// A poll with nothing pending empties the queue.
        IsHarmedByIdlePolls,
        /// The newest event comes first.
        HasTheWrongOrder,
        /// Events that do not fit are lost.
        DropsWhenFull,
        /// The third poll that finds something panics.
        Panics,
        /// A stream ends with its first event.
        EndsStreams,
    }

    #[derive(Debug, Default)]
    pub(crate) struct Letters {
        queue: VecDeque<usize>,
        is_armed: bool,
        waiting: usize,
        notifier: Option<Notifier>,
    }

    pub(crate) struct Mailbox {
        letters: Arc<Mutex<Letters>>,
        fault: Fault,
        /// Oldest first.
        waiters: VecDeque<Key>,
        finds: usize,
    }

    impl Mailbox {
        fn take(&mut self) -> Option<usize> {
            let mut letters = lock(&self.letters);
            match self.fault {
                Fault::HasTheWrongOrder => letters.queue.pop_back(),
                _ => letters.queue.pop_front(),
            }
        }

        fn put_back(&mut self, letter: usize) {
            lock(&self.letters).queue.push_front(letter);
        }
    }

    impl Detector for Mailbox {
        type Request = ();
        type Event = usize;

        fn methods(&self) -> Methods {
            Methods::GROUP | Methods::NOTIFY
        }

        fn arming(&self) -> Arming {
            Arming::BeforeSleep
        }

        fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
            lock(&self.letters).notifier = Some(driver.notifier());
            Ok(())
        }

        fn submit(&mut self, key: Key, (): &mut (), mode: Mode) -> SubmitOutcome<usize> {
            let mut letters = lock(&self.letters);
            let first = match self.fault {
                Fault::ForgetsWhatWasBefore if letters.waiting == 0 => {
                    letters.queue.clear();
                    None
                }
                Fault::ReportsTwice => letters.queue.front().copied(),
                Fault::HasTheWrongOrder => letters.queue.pop_back(),
                _ => letters.queue.pop_front(),
            };
            if mode == Mode::Stream || first.is_none() {
                letters.waiting += 1;
                self.waiters.push_back(key);
            }
            first.map_or(SubmitOutcome::Pending, SubmitOutcome::Ready)
        }

        fn poll(&mut self, context: &mut PollContext<'_, Self>) {
            if self.fault == Fault::LosesBetweenArmAndSleep {
                lock(&self.letters).is_armed = false;
            }
            if self.fault == Fault::IsHarmedByIdlePolls && self.waiters.is_empty() {
                lock(&self.letters).queue.clear();
            }
            while let Some(&key) = self.waiters.front() {
                if context.is_full() {
                    context.more();
                    return;
                }
                let Some(letter) = self.take() else { return };
                self.finds += 1;
                assert!(self.fault != Fault::Panics || self.finds < 3, "the third letter");
                let emitted = if self.fault == Fault::EndsStreams {
                    context.complete(key, letter);
                    EmitOutcome::Ended
                } else {
                    context.emit(key, letter)
                };
                match emitted {
                    EmitOutcome::Kept => {}
                    EmitOutcome::Ended => {
                        self.waiters.pop_front();
                        lock(&self.letters).waiting -= 1;
                    }
                    EmitOutcome::Full(letter) => {
                        if self.fault != Fault::DropsWhenFull {
                            self.put_back(letter);
                        }
                        return;
                    }
                    // A fault: no one reads the cancelled request's event.
                    EmitOutcome::Gone(_) => {
                        self.waiters.pop_front();
                    }
                }
            }
        }

        fn arm(&mut self) -> io::Result<ArmOutcome> {
            let mut letters = lock(&self.letters);
            letters.is_armed = self.fault != Fault::NeverArms;
            Ok(ArmOutcome::ready_if(self.fault == Fault::IsAlwaysReady))
        }

        fn cancel(&mut self, key: Key, (): &mut ()) -> CancelOutcome {
            if self.fault != Fault::ServesTheCancelled {
                self.waiters.retain(|&waiter| waiter != key);
            }
            lock(&self.letters).waiting -= 1;
            CancelOutcome::Released
        }

        fn unclaimed(&mut self, letter: usize) -> Option<usize> {
            if self.fault != Fault::DropsTheUnclaimed {
                let mut letters = lock(&self.letters);
                // By number: several may come back, oldest first.
                let place = letters.queue.partition_point(|&queued| queued < letter);
                letters.queue.insert(place, letter);
            }
            None
        }
    }

    pub(crate) struct MailboxHarness {
        handle: Handle<Mailbox>,
        letters: Arc<Mutex<Letters>>,
    }

    impl MailboxHarness {
        pub(crate) fn new(world: &World, fault: Fault) -> Result<Self, SetupError> {
            let letters = Arc::default();
            let mailbox = Mailbox {
                letters: Arc::clone(&letters),
                fault,
                waiters: VecDeque::new(),
                finds: 0,
            };
            let registration = Registration::named("mailbox").stream_capacity(8);
            Ok(Self { handle: world.server().register(mailbox, registration)?, letters })
        }
    }

    /// The same, only on a real host.
    pub(crate) struct OnRealHost(pub(crate) MailboxHarness);

    impl Harness for OnRealHost {
        type Detector = Mailbox;
        const HOST_KINDS: HostKinds = HostKinds::Real;

        fn handle(&self) -> &Handle<Mailbox> {
            self.0.handle()
        }

        fn request(&mut self, index: usize) {
            self.0.request(index);
        }

        fn trigger(&mut self, index: usize) -> Trigger {
            self.0.trigger(index)
        }

        fn identify(&mut self, request: usize, letter: usize) -> EventIdentity {
            self.0.identify(request, letter)
        }

        fn profile(&self) -> Profile {
            self.0.profile()
        }
    }

    impl Harness for MailboxHarness {
        type Detector = Mailbox;

        fn handle(&self) -> &Handle<Mailbox> {
            &self.handle
        }

        fn request(&mut self, _: usize) {}

        fn trigger(&mut self, index: usize) -> Trigger {
            let letters = Arc::clone(&self.letters);
            Box::new(move || {
                let notifier = {
                    let mut letters = lock(&letters);
                    letters.queue.push_back(index);
                    if mem::take(&mut letters.is_armed) { letters.notifier.clone() } else { None }
                };
                if let Some(notifier) = notifier {
                    notifier.notify();
                }
            })
        }

        fn identify(&mut self, _: usize, letter: usize) -> EventIdentity {
            EventIdentity::Events(vec![letter])
        }

        fn profile(&self) -> Profile {
            Profile::shared(Unclaimed::Returned).stream_capacity(8)
        }

        fn stream_request(&mut self) -> Option<()> {
            Some(())
        }
    }
}

mod device {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fault {
        None,
        /// A cancelled request counts as forgotten while the device still writes.
        FreesInFlight,
        /// The same, but only when the server ends.
        FreesAtTheEnd,
        /// The completion of a cancelled request is dropped.
        ForgetsTheCancelled,
        /// Completions are identified by their place alone, which another request has taken.
        TakesStaleKeys,
        /// Every completion goes to the oldest request.
        CompletesTheOldest,
        /// A completion that is there already waits for the next poll, whenever that is.
        AsksForNoPoll,
    }

    /// Memory that the device may write to, by request: the registry of canaries.
    #[derive(Debug, Default)]
    pub(crate) struct Canaries {
        alive: BTreeSet<usize>,
        in_flight: BTreeSet<usize>,
        freed_in_flight: usize,
    }

    /// The memory of one request.
    #[derive(Debug)]
    pub(crate) struct Canary {
        index: usize,
        canaries: Arc<Mutex<Canaries>>,
    }

    impl Canary {
        fn new(index: usize, canaries: &Arc<Mutex<Canaries>>) -> Self {
            lock(canaries).alive.insert(index);
            Self { index, canaries: Arc::clone(canaries) }
        }
    }

    impl Drop for Canary {
        fn drop(&mut self) {
            let mut canaries = lock(&self.canaries);
            canaries.alive.remove(&self.index);
            if canaries.in_flight.contains(&self.index) {
                canaries.freed_in_flight += 1;
            }
        }
    }

    /// The device: it holds addresses of requests and writes to them when their events happen.
    #[derive(Debug, Default)]
    pub(crate) struct Queues {
        /// By the request's number.
        posted: BTreeMap<usize, Key>,
        happened: BTreeSet<usize>,
        completions: VecDeque<(usize, Key)>,
        notifier: Option<Notifier>,
    }

    pub(crate) struct Device {
        queues: Arc<Mutex<Queues>>,
        canaries: Arc<Mutex<Canaries>>,
        fault: Fault,
        /// By the key's index: the key that is there now.
        places: BTreeMap<usize, Key>,
        cancelled: BTreeSet<Key>,
    }

    impl Detector for Device {
        type Request = Canary;
        type Event = usize;

        fn methods(&self) -> Methods {
            Methods::GROUP | Methods::NOTIFY
        }

        fn arming(&self) -> Arming {
            Arming::Permanent
        }

        fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
            lock(&self.queues).notifier = Some(driver.notifier());
            Ok(())
        }

        fn submit(&mut self, key: Key, canary: &mut Canary, _: Mode) -> SubmitOutcome<usize> {
            lock(&self.canaries).in_flight.insert(canary.index);
            self.places.insert(key.index(), key);
            let mut queues = lock(&self.queues);
            queues.posted.insert(canary.index, key);
            if queues.happened.contains(&canary.index) {
                complete(&mut queues, &self.canaries, canary.index);
                if self.fault != Fault::AsksForNoPoll {
                    return SubmitOutcome::Queued;
                }
            }
            SubmitOutcome::Pending
        }

        fn poll(&mut self, context: &mut PollContext<'_, Self>) {
            loop {
                if context.is_full() {
                    context.more();
                    return;
                }
                let completion = lock(&self.queues).completions.pop_front();
                let Some((index, key)) = completion else { return };
                let was_cancelled = self.cancelled.remove(&key);
                match self.fault {
                    Fault::ForgetsTheCancelled if was_cancelled => {}
                    Fault::TakesStaleKeys => {
                        if let Some(&key) = self.places.get(&key.index()) {
                            context.complete(key, index);
                        }
                    }
                    Fault::CompletesTheOldest => {
                        if let Some(oldest) = context.oldest() {
                            context.complete(oldest, index);
                        }
                    }
                    _ => {
                        context.complete(key, index);
                    }
                }
            }
        }

        fn cancel(&mut self, key: Key, canary: &mut Canary) -> CancelOutcome {
            let queues = lock(&self.queues);
            let is_in_flight = queues.posted.contains_key(&canary.index)
                || queues.completions.iter().any(|&(_, completed)| completed == key);
            self.cancelled.insert(key);
            let is_end = self.fault == Fault::FreesAtTheEnd && self.cancelled.len() > 2;
            match self.fault {
                Fault::FreesInFlight | Fault::TakesStaleKeys => CancelOutcome::Released,
                _ if is_end || !is_in_flight => CancelOutcome::Released,
                _ => CancelOutcome::InFlight,
            }
        }
    }

    /// The device writes to the memory of request `index` and reports it.
    fn complete(queues: &mut Queues, canaries: &Mutex<Canaries>, index: usize) {
        let Some(key) = queues.posted.remove(&index) else { return };
        lock(canaries).in_flight.remove(&index);
        queues.completions.push_back((index, key));
    }

    pub(crate) struct DeviceHarness {
        handle: Handle<Device>,
        queues: Arc<Mutex<Queues>>,
        canaries: Arc<Mutex<Canaries>>,
        fault: Fault,
    }

    impl DeviceHarness {
        pub(crate) fn new(world: &World, fault: Fault) -> Result<Self, SetupError> {
            let (queues, canaries) = (Arc::default(), Arc::default());
            let device = Device {
                queues: Arc::clone(&queues),
                canaries: Arc::clone(&canaries),
                fault,
                places: BTreeMap::new(),
                cancelled: BTreeSet::new(),
            };
            let handle = world.server().register(device, Registration::named("device"))?;
            Ok(Self { handle, queues, canaries, fault })
        }
    }

    impl Harness for DeviceHarness {
        type Detector = Device;

        fn handle(&self) -> &Handle<Device> {
            &self.handle
        }

        fn request(&mut self, index: usize) -> Canary {
            Canary::new(index, &self.canaries)
        }

        fn trigger(&mut self, index: usize) -> Trigger {
            let (queues, canaries) = (Arc::clone(&self.queues), Arc::clone(&self.canaries));
            Box::new(move || {
                let notifier = {
                    let mut queues = lock(&queues);
                    queues.happened.insert(index);
                    complete(&mut queues, &canaries, index);
                    queues.notifier.clone()
                };
                if let Some(notifier) = notifier {
                    notifier.notify();
                }
            })
        }

        fn identify(&mut self, _: usize, event: usize) -> EventIdentity {
            EventIdentity::Events(vec![event])
        }

        fn memory(&self) -> Option<Memory> {
            let canaries = lock(&self.canaries);
            Some(Memory {
                live: canaries.alive.len(),
                in_flight: canaries.in_flight.len(),
                // These end requests that the device still has; they are not inspected for that.
                freed_in_flight: match self.fault {
                    Fault::TakesStaleKeys | Fault::CompletesTheOldest => 0,
                    _ => canaries.freed_in_flight,
                },
            })
        }
    }
}

mod alarm {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fault {
        None,
        /// No deadline is reported.
        TellsNoDeadline,
        /// The reported deadline is late.
        TellsALateDeadline,
        /// The latest deadline is reported, not the earliest.
        TellsTheLatestDeadline,
        /// An alarm goes off early.
        RingsEarly,
    }

    pub(crate) struct Alarm {
        due: BTreeSet<(Instant, Key)>,
        fault: Fault,
    }

    const LATE: Duration = Duration::from_millis(1);

    impl Detector for Alarm {
        type Request = Instant;
        type Event = ();

        fn methods(&self) -> Methods {
            Methods::GROUP | Methods::NOTIFY
        }

        fn arming(&self) -> Arming {
            Arming::Permanent
        }

        fn submit(&mut self, key: Key, due: &mut Instant, _: Mode) -> SubmitOutcome<()> {
            self.due.insert((*due, key));
            SubmitOutcome::Queued
        }

        fn poll(&mut self, context: &mut PollContext<'_, Self>) {
            while let Some(&(due, key)) = self.due.first() {
                let is_early = self.fault == Fault::RingsEarly && self.due.len() > 1;
                if due > context.now() && !is_early {
                    return;
                }
                if context.is_full() {
                    context.more();
                    return;
                }
                self.due.pop_first();
                context.complete(key, ());
            }
        }

        fn cancel(&mut self, key: Key, due: &mut Instant) -> CancelOutcome {
            self.due.remove(&(*due, key));
            CancelOutcome::Released
        }

        fn next_deadline(&self) -> Option<Instant> {
            let earliest = self.due.first().map(|&(due, _)| due);
            match self.fault {
                Fault::TellsNoDeadline => None,
                Fault::TellsALateDeadline => earliest.map(|due| due + LATE),
                Fault::TellsTheLatestDeadline => self.due.last().map(|&(due, _)| due),
                _ => earliest,
            }
        }
    }

    pub(crate) struct AlarmHarness {
        handle: Handle<Alarm>,
        clock: Arc<VirtualClock>,
    }

    impl AlarmHarness {
        pub(crate) fn new(world: &World, fault: Fault) -> Result<Self, SetupError> {
            let alarm = Alarm { due: BTreeSet::new(), fault };
            let handle = world.server().register(alarm, Registration::named("alarm"))?;
            let clock = world.clock().ok_or("alarms are tried in virtual time")?;
            Ok(Self { handle, clock: Arc::clone(clock) })
        }

        fn due(index: usize) -> Instant {
            Instant::from_nanos((index as u64 + 1) * 1_000_000_000)
        }
    }

    impl Harness for AlarmHarness {
        type Detector = Alarm;
        const HOST_KINDS: HostKinds = HostKinds::Virtual;

        fn handle(&self) -> &Handle<Alarm> {
            &self.handle
        }

        fn request(&mut self, index: usize) -> Instant {
            Self::due(index)
        }

        fn trigger(&mut self, index: usize) -> Trigger {
            let clock = Arc::clone(&self.clock);
            Box::new(move || clock.advance_to(Self::due(index)))
        }

        fn identify(&mut self, _: usize, (): ()) -> EventIdentity {
            EventIdentity::Unmarked
        }

        fn happens_at(&self, index: usize) -> Option<Instant> {
            Some(Self::due(index))
        }
    }
}

use alarm::{AlarmHarness, Fault as AlarmFault};
use device::{DeviceHarness, Fault as DeviceFault};
use mailbox::{Fault as MailboxFault, MailboxHarness, OnRealHost};

fn mailbox(fault: MailboxFault) -> Violation {
    seen(|world: &World| MailboxHarness::new(world, fault))
}

fn device(fault: DeviceFault) -> Violation {
    seen(|world: &World| DeviceHarness::new(world, fault))
}

fn alarm(fault: AlarmFault) -> Violation {
    seen(|world: &World| AlarmHarness::new(world, fault))
}

#[test]
fn without_a_fault_all_three_conform() {
    // With the full guard: a slow machine must not look like a fault here.
    let options = options().guard(Duration::from_secs(30));
    let mailbox =
        check_with(&options, &mut |world: &World| MailboxHarness::new(world, MailboxFault::None));
    println!("{}", mailbox.expect("the mailbox has no fault"));
    let device =
        check_with(&options, &mut |world: &World| DeviceHarness::new(world, DeviceFault::None));
    println!("{}", device.expect("the device has no fault"));
    let alarm =
        check_with(&options, &mut |world: &World| AlarmHarness::new(world, AlarmFault::None));
    println!("{}", alarm.expect("the alarm has no fault"));
}

#[test]
fn a_wake_up_lost_between_arm_and_sleep_is_seen() {
    let violation = mailbox(MailboxFault::LosesBetweenArmAndSleep);
    assert!(
        matches!(&violation, Violation::EventLost { rule: Rule::Announced, .. }),
        "{violation}"
    );
}

#[test]
fn a_detector_that_never_arms_is_seen() {
    let violation = mailbox(MailboxFault::NeverArms);
    assert!(
        matches!(&violation, Violation::EventLost { rule: Rule::Announced, .. }),
        "{violation}"
    );
}

#[test]
fn a_detector_that_never_lets_the_host_sleep_is_seen() {
    let violation = mailbox(MailboxFault::IsAlwaysReady);
    assert!(matches!(&violation, Violation::NeverSleeps { .. }), "{violation}");
}

/// Goal: a host that really sleeps really sleeps for ever.
#[test]
fn a_lost_wake_up_is_seen_on_a_real_host() {
    for fault in [MailboxFault::LosesBetweenArmAndSleep, MailboxFault::NeverArms] {
        let violation = seen(|world: &World| MailboxHarness::new(world, fault).map(OnRealHost));
        assert!(
            matches!(&violation, Violation::EventLost { rule: Rule::Announced, at, .. }
                if at.host == "real"),
            "{violation}"
        );
    }
}

#[test]
fn an_event_that_is_delivered_twice_is_seen() {
    let violation = mailbox(MailboxFault::ReportsTwice);
    assert!(matches!(&violation, Violation::Twice { event: 0, .. }), "{violation}");
}

#[test]
fn an_event_from_before_the_request_that_is_lost_is_seen() {
    let violation = mailbox(MailboxFault::ForgetsWhatWasBefore);
    assert!(matches!(&violation, Violation::EventLost { rule: Rule::Before, .. }), "{violation}");
}

#[test]
fn a_request_that_starves_behind_a_cancelled_one_is_seen() {
    let violation = mailbox(MailboxFault::ServesTheCancelled);
    assert_eq!(violation.rule(), Some(Rule::Cancelled), "{violation}");
    assert!(matches!(&violation, Violation::EventLost { .. }), "{violation}");
}

#[test]
fn an_unclaimed_event_that_is_dropped_is_seen() {
    let violation = mailbox(MailboxFault::DropsTheUnclaimed);
    assert_eq!(violation.rule(), Some(Rule::Cancelled), "{violation}");
}

#[test]
fn a_poll_with_nothing_pending_that_harms_is_seen() {
    let violation = mailbox(MailboxFault::IsHarmedByIdlePolls);
    // The very first case polls between event and wait too.
    assert!(matches!(violation.rule(), Some(Rule::Before | Rule::Idle)), "{violation}");
}

#[test]
fn a_wrong_order_is_seen() {
    let violation = mailbox(MailboxFault::HasTheWrongOrder);
    assert!(matches!(&violation, Violation::OutOfOrder { .. }), "{violation}");
}

#[test]
fn an_event_that_did_not_fit_and_is_dropped_is_seen() {
    let violation = mailbox(MailboxFault::DropsWhenFull);
    assert_eq!(violation.rule(), Some(Rule::Stream), "{violation}");
}

#[test]
fn a_stream_that_ends_too_early_is_seen() {
    let violation = mailbox(MailboxFault::EndsStreams);
    assert!(matches!(&violation, Violation::EventLost { .. }), "{violation}");
}

#[test]
fn a_panic_is_seen() {
    let violation = mailbox(MailboxFault::Panics);
    assert!(
        matches!(&violation, Violation::Panicked { callback: "poll", message, .. }
            if message == "the third letter"),
        "{violation}"
    );
}

#[test]
fn memory_that_is_freed_in_flight_is_seen() {
    let violation = device(DeviceFault::FreesInFlight);
    assert!(matches!(&violation, Violation::FreedInFlight { count: 1, .. }), "{violation}");
}

#[test]
fn memory_that_is_freed_by_the_shutdown_is_seen() {
    let violation = device(DeviceFault::FreesAtTheEnd);
    assert!(matches!(&violation, Violation::FreedInFlight { .. }), "{violation}");
}

#[test]
fn a_cancelled_request_that_lingers_is_seen() {
    let violation = device(DeviceFault::ForgetsTheCancelled);
    assert!(matches!(&violation, Violation::Lingering { .. }), "{violation}");
}

#[test]
fn an_event_under_a_stale_key_is_seen() {
    let violation = device(DeviceFault::TakesStaleKeys);
    assert!(matches!(&violation, Violation::Misdelivered { .. }), "{violation}");
}

#[test]
fn an_event_that_is_there_and_that_nobody_polls_for_is_seen() {
    let violation = device(DeviceFault::AsksForNoPoll);
    assert_eq!(violation.rule(), Some(Rule::Before), "{violation}");
}

#[test]
fn an_event_for_another_request_is_seen() {
    let violation = device(DeviceFault::CompletesTheOldest);
    assert!(matches!(&violation, Violation::Misdelivered { .. }), "{violation}");
}

#[test]
fn a_deadline_that_is_not_told_is_seen() {
    let violation = alarm(AlarmFault::TellsNoDeadline);
    assert!(matches!(violation.rule(), Some(Rule::Deadline | Rule::Announced)), "{violation}");
}

#[test]
fn a_deadline_that_is_told_late_is_seen() {
    let violation = alarm(AlarmFault::TellsALateDeadline);
    assert!(matches!(&violation, Violation::DeadlineMissed { .. }), "{violation}");
}

#[test]
fn a_deadline_that_is_told_for_the_wrong_request_is_seen() {
    let violation = alarm(AlarmFault::TellsTheLatestDeadline);
    assert!(matches!(violation.rule(), Some(Rule::Deadline | Rule::Announced)), "{violation}");
}

#[test]
fn an_alarm_that_rings_early_is_seen() {
    let violation = alarm(AlarmFault::RingsEarly);
    assert!(
        matches!(&violation, Violation::Misdelivered { .. } | Violation::Spurious { .. }),
        "{violation}"
    );
}
