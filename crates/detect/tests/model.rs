//! The server against a model of it: random sequences of requests, orders to the detector, polls and
//! drops, compared step by step with the expected results.

#[expect(dead_code, reason = "these tests use a part of it")]
mod scripted;

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;
use scripted::{Ask, Author, Order, Script, Scripted, Woken, register};
use vigie_detect::{
    CancelOutcome, Driver, EventStream, Handle, Mode, Registration, Simulation, Wait, WaitError,
};

/// The bound on the events of a stream, and on requests.
const CAPACITY: usize = 3;
const PENDING_MAX: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request for one event; its event is there already, or not.
    Wait {
        is_ready: bool,
    },
    Stream {
        is_ready: bool,
    },
    /// The same, of request number `.0` of those that were ever made.
    Complete(usize),
    Emit(usize),
    Finish(usize),
    Fail(usize),
    /// One poll.
    Round,
    /// A poll of one of the live requests.
    Take(usize),
    Drop(usize),
    /// From now on, `cancel` says so.
    Cancelling(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0usize..64;
    prop_oneof![
        4 => any::<bool>().prop_map(|is_ready| Step::Wait { is_ready }),
        2 => any::<bool>().prop_map(|is_ready| Step::Stream { is_ready }),
        3 => number.clone().prop_map(Step::Complete),
        6 => number.clone().prop_map(Step::Emit),
        1 => number.clone().prop_map(Step::Finish),
        1 => number.clone().prop_map(Step::Fail),
        6 => Just(Step::Round),
        6 => number.clone().prop_map(Step::Take),
        3 => number.prop_map(Step::Drop),
        1 => any::<bool>().prop_map(Step::Cancelling),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Failed,
    Closed,
}

/// The expected state of a request.
#[derive(Debug)]
struct Model {
    mode: Mode,
    events: VecDeque<u64>,
    end: Option<End>,
    /// The detector knows it.
    is_known: bool,
    /// Its waiter is there.
    is_live: bool,
    /// Its waiter left a waker.
    is_waiting: bool,
    wakes: usize,
}

impl Model {
    fn tell(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.wakes += 1;
        }
    }
}

enum Waiting {
    Wait(Wait<Scripted>),
    Stream(EventStream<Scripted>),
}

struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct World {
    simulation: Simulation,
    driver: Driver,
    author: Author,
    handle: Handle<Scripted>,
    live: BTreeMap<u64, (Waiting, Arc<Woken>)>,
    models: BTreeMap<u64, Model>,
    orders: VecDeque<Order>,
    refused: Vec<(u64, u64)>,
    unclaimed: Vec<u64>,
    cancel: CancelOutcome,
    drops: Arc<AtomicUsize>,
    made: usize,
    next_value: u64,
}

impl World {
    fn new() -> Self {
        let simulation = Simulation::new(0);
        let registration =
            Registration::named("model").stream_capacity(CAPACITY).max_pending(PENDING_MAX);
        let script = Script { keeps_unclaimed: true, ..Script::default() };
        let (author, handle) =
            register(simulation.server(), script, registration).expect("a handle");
        Self {
            driver: simulation.server().driver(),
            simulation,
            author,
            handle,
            live: BTreeMap::new(),
            models: BTreeMap::new(),
            orders: VecDeque::new(),
            refused: Vec::new(),
            unclaimed: Vec::new(),
            cancel: CancelOutcome::Released,
            drops: Arc::default(),
            made: 0,
            next_value: 1000,
        }
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Wait { is_ready } => self.ask(Mode::Once, is_ready),
            Step::Stream { is_ready } => self.ask(Mode::Stream, is_ready),
            Step::Complete(pick) => self.order(pick, Order::Complete),
            Step::Emit(pick) => self.order(pick, Order::Emit),
            Step::Finish(pick) => self.order(pick, |id, _| Order::Finish(id)),
            Step::Fail(pick) => self.order(pick, |id, _| Order::Fail(id)),
            Step::Round => self.round(),
            Step::Take(pick) => {
                if let Some(id) = self.pick_live(pick) {
                    self.take(id);
                }
            }
            Step::Drop(pick) => {
                if let Some(id) = self.pick_live(pick) {
                    self.leave(id);
                }
            }
            Step::Cancelling(is_in_flight) => {
                self.cancel =
                    if is_in_flight { CancelOutcome::InFlight } else { CancelOutcome::Released };
                self.author.script().cancel = self.cancel;
            }
        }
        self.compare();
    }

    fn pick_live(&self, pick: usize) -> Option<u64> {
        let count = self.live.len();
        (count > 0).then(|| *self.live.keys().nth(pick % count).expect("below the count"))
    }

    fn ask(&mut self, mode: Mode, is_ready: bool) {
        let id = self.models.len() as u64;
        let value = self.value();
        if is_ready {
            self.author.script().ready.insert(id, value);
        }
        self.made += 1;
        let ask = Ask::owning(id, Dropped(Arc::clone(&self.drops)));
        let known = self.models.values().filter(|model| model.is_known).count();
        let mut model = Model {
            mode,
            events: VecDeque::new(),
            end: None,
            is_known: false,
            is_live: false,
            is_waiting: false,
            wakes: 0,
        };
        let is_refused = known >= PENDING_MAX;
        let woken = Arc::<Woken>::default();
        match mode {
            Mode::Once => {
                let mut wait = self.handle.wait_owned(ask);
                let waker = Waker::from(Arc::clone(&woken));
                let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
                match polled {
                    Poll::Ready(Err(WaitError::TooManyPending { limit: PENDING_MAX })) => {
                        assert!(is_refused);
                    }
                    Poll::Ready(Ok(told)) => {
                        assert!(is_ready && !is_refused);
                        assert_eq!(told.value, value);
                    }
                    Poll::Pending => {
                        assert!(!is_ready && !is_refused);
                        (model.is_known, model.is_live, model.is_waiting) = (true, true, true);
                        self.live.insert(id, (Waiting::Wait(wait), woken));
                    }
                    Poll::Ready(Err(error)) => panic!("{error}"),
                }
            }
            Mode::Stream => match self.handle.stream(ask) {
                Ok(stream) => {
                    assert!(!is_refused);
                    model.events.extend(is_ready.then_some(value));
                    (model.is_known, model.is_live) = (true, true);
                    self.live.insert(id, (Waiting::Stream(stream), woken));
                }
                Err(WaitError::TooManyPending { .. }) => assert!(is_refused),
                Err(error) => panic!("{error}"),
            },
        }
        self.author.script().ready.clear();
        self.models.insert(id, model);
    }

    fn order(&mut self, pick: usize, make: impl FnOnce(u64, u64) -> Order) {
        if self.models.is_empty() {
            return;
        }
        let id = (pick % self.models.len()) as u64;
        let value = self.value();
        let order = make(id, value);
        self.orders.push_back(order);
        self.author.order(order);
    }

    fn round(&mut self) {
        self.driver.detect();
        while let Some(order) = self.orders.pop_front() {
            let (Order::Complete(id, _) | Order::Emit(id, _) | Order::Finish(id) | Order::Fail(id)) =
                order;
            let model = self.models.get_mut(&id).expect("it was made");
            if !model.is_known {
                continue;
            }
            match order {
                Order::Emit(_, value) if !model.is_live => self.refused.push((id, value)),
                Order::Emit(_, value) if model.mode == Mode::Stream => {
                    if model.events.len() < CAPACITY {
                        model.events.push_back(value);
                        model.tell();
                    } else {
                        self.refused.push((id, value));
                    }
                }
                Order::Complete(_, value) | Order::Emit(_, value) => {
                    model.is_known = false;
                    if model.is_live {
                        model.events.push_back(value);
                        model.end = Some(End::Finished);
                        model.tell();
                    }
                }
                Order::Finish(_) | Order::Fail(_) => {
                    model.is_known = false;
                    let is_failed = matches!(order, Order::Fail(_));
                    model.end = Some(if is_failed { End::Failed } else { End::Finished });
                    if model.is_live {
                        model.tell();
                    }
                }
            }
        }
    }

    fn take(&mut self, id: u64) {
        let (future, woken) = self.live.get_mut(&id).expect("it is live");
        let model = self.models.get_mut(&id).expect("it was made");
        let waker = Waker::from(Arc::clone(woken));
        let mut cx = Context::from_waker(&waker);
        let event = model.events.pop_front();
        match future {
            Waiting::Wait(wait) => match (Pin::new(wait).poll(&mut cx), event, model.end) {
                (Poll::Pending, None, None) => {
                    model.is_waiting = true;
                    return;
                }
                (Poll::Ready(Ok(told)), Some(event), _) => assert_eq!(told.value, event),
                (Poll::Ready(Err(WaitError::Ended)), None, Some(End::Finished))
                | (Poll::Ready(Err(WaitError::Failed(_))), None, Some(End::Failed))
                | (Poll::Ready(Err(WaitError::ServerClosed)), None, Some(End::Closed)) => {}
                (polled, event, end) => panic!("{polled:?}, not {event:?} {end:?}"),
            },
            Waiting::Stream(stream) => {
                match (stream.poll_event(&cx), event, model.end) {
                    (Poll::Pending, None, None) => model.is_waiting = true,
                    (Poll::Ready(Some(Ok(told))), Some(event), _) => {
                        assert_eq!(told.value, event);
                    }
                    (Poll::Ready(None), None, Some(End::Finished)) => {}
                    (Poll::Ready(Some(Err(WaitError::Failed(_)))), None, Some(End::Failed))
                    | (Poll::Ready(Some(Err(WaitError::ServerClosed))), None, Some(End::Closed)) => {
                        model.end = Some(End::Finished);
                    }
                    (polled, event, end) => panic!("{polled:?}, not {event:?} {end:?}"),
                }
                return;
            }
        }
        // A wait that has returned is over; its contents are gone with it.
        model.is_live = false;
        self.live.remove(&id);
    }

    fn leave(&mut self, id: u64) {
        let cancel = self.cancel;
        let model = self.models.get_mut(&id).expect("it was made");
        // Newest first.
        self.unclaimed.extend(model.events.drain(..).rev());
        model.is_live = false;
        model.is_waiting = false;
        if model.is_known && cancel == CancelOutcome::Released {
            model.is_known = false;
        }
        self.live.remove(&id);
    }

    /// Everything that can be seen from outside.
    fn compare(&self) {
        let pending = self.models.values().filter(|model| model.is_known && model.is_live);
        assert_eq!(self.handle.pending_count(), pending.count());
        for (id, (_, woken)) in &self.live {
            assert_eq!(woken.count(), self.models[id].wakes, "wake-ups of request {id}");
        }
        let script = self.author.script();
        assert_eq!(script.refused, self.refused);
        assert_eq!(script.unclaimed, self.unclaimed);
        let held = self.models.values().filter(|model| model.is_known || model.is_live).count();
        // The waiter holds what is over and was not released; nothing else is held.
        drop(script);
        assert_eq!(self.made - self.drops.load(Ordering::SeqCst), held, "requests in memory");
    }

    /// The end: by its completions, or by the server's.
    fn end(mut self, is_shut_down: bool) {
        if is_shut_down {
            self.round();
            self.author.script().cancel = CancelOutcome::Released;
            self.author.script().orders.clear();
            // Requests already in flight complete now, or would be leaked.
            let cancelling: Vec<u64> = self
                .models
                .iter()
                .filter(|(_, model)| model.is_known && !model.is_live)
                .map(|(&id, _)| id)
                .collect();
            for &id in &cancelling {
                self.author.script().orders.push_back(Order::Finish(id));
            }
            self.simulation.server().shutdown();
            for (id, model) in &mut self.models {
                if model.is_known && !cancelling.contains(id) {
                    model.end = Some(End::Closed);
                    model.tell();
                }
                model.is_known = false;
            }
        } else {
            for id in 0..self.models.len() as u64 {
                self.orders.push_back(Order::Fail(id));
                self.author.order(Order::Fail(id));
            }
            self.round();
        }
        self.compare();
        for id in self.live.keys().copied().collect::<Vec<_>>() {
            let mut polls = 0;
            while self.live.contains_key(&id) && polls < CAPACITY + 3 {
                self.take(id);
                polls += 1;
            }
            if self.live.contains_key(&id) {
                self.leave(id);
            }
        }
        assert_eq!(self.drops.load(Ordering::SeqCst), self.made, "requests are left");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_server_agrees_with_the_model(
        steps in prop::collection::vec(step(), 1..120),
        is_shut_down in any::<bool>(),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.end(is_shut_down);
    }
}
