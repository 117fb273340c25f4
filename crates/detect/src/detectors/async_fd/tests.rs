//! Many waits at one descriptor, some of which are dropped, and the locks that they take. The test drives the server
//! itself.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    task::Wake,
};

use super::*;
use crate::{
    Detected, Driver, Flavor,
    detectors::doorbell::doorbell,
    net::{TcpListener, UdpSocket, UnixDatagram},
    server::cores,
    sync::{AtomicUsize, Ordering, lock_count},
};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Polled = Poll<io::Result<ReadyEvent>>;

/// A wait and its task.
struct Task<'a> {
    woken: Arc<Woken>,
    waiting: Waiting<'a, UnixStream>,
}

impl<'a> Task<'a> {
    /// A task whose first poll was pending.
    fn new(fd: &'a AsyncFd<UnixStream>, direction: Direction) -> Self {
        let mut task = Self { woken: Arc::default(), waiting: fd.waiting(direction) };
        assert!(task.poll().is_pending());
        task
    }

    fn poll(&mut self) -> Polled {
        let waker = Waker::from(Arc::clone(&self.woken));
        Pin::new(&mut self.waiting).poll(&mut Context::from_waker(&waker))
    }

    fn wakes(&self) -> usize {
        self.woken.0.load(Ordering::Relaxed)
    }

    /// Returns whether its waker is no longer registered.
    fn is_unlinked(&self) -> bool {
        Arc::strong_count(&self.woken) == 1
    }
}

/// A server with its host, and a descriptor that is ready for nothing.
struct Stage {
    server: Server,
    driver: Driver,
    near: Arc<AsyncFd<UnixStream>>,
    far: UnixStream,
}

impl Stage {
    fn new() -> Self {
        let server = Server::new(Flavor::UserLevel).expect("an epoll");
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        for end in [&near, &far] {
            end.set_nonblocking(true).expect("non-blocking mode");
        }
        let near = Arc::new(AsyncFd::new_on(&server, near).expect("a watched descriptor"));
        let mut this = Self { driver: server.driver(), server, near, far };
        // Shows that there is room for writes.
        this.driver.detect();
        DIRECTIONS.iter().for_each(|&direction| this.use_up(direction));
        this
    }

    /// Reads all, or writes until there is no room.
    fn use_up(&self, direction: Direction) {
        let operation = |mut near: &UnixStream| match direction {
            Direction::Read => near.read(&mut [0; 64]),
            Direction::Write => near.write(&[0; 4096]),
        };
        while self.near.try_io(direction, operation).is_ok() {}
        assert!(self.near.poll_ready(direction, &noop()).is_pending());
    }

    /// Makes the descriptor ready in `direction` and lets the server see it.
    fn announce(&mut self, direction: Direction) {
        match direction {
            Direction::Read => self.far.write_all(b"x").expect("room for a byte"),
            Direction::Write => {
                let mut bytes = vec![0; 1 << 16];
                while self.far.read(&mut bytes).is_ok() {}
            }
        }
        assert_eq!(self.driver.detect(), Detected::Events(1), "one for the direction");
    }
}

fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn seen_in(polled: Polled) -> ReadyEvent {
    let Poll::Ready(Ok(seen)) = polled else { panic!("{polled:?}") };
    seen
}

const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// Goal: a readiness event wakes each wait in its direction, once, and none in the other. Method: up to nine waits in
/// each direction beside a poll-style one; both directions, twice.
#[test]
fn all_that_wait_in_a_direction_are_woken() {
    for count in [0, 1, 2, 3, 9] {
        let mut stage = Stage::new();
        let near = Arc::clone(&stage.near);
        for direction in [DIRECTIONS, DIRECTIONS].concat() {
            DIRECTIONS.iter().for_each(|&direction| stage.use_up(direction));
            let alone = DIRECTIONS.map(|direction| {
                let woken = Arc::<Woken>::default();
                let waker = Waker::from(Arc::clone(&woken));
                assert!(near.poll_ready(direction, &Context::from_waker(&waker)).is_pending());
                woken
            });
            let mut tasks = DIRECTIONS.map(|direction| {
                (0..count).map(|_| Task::new(&near, direction)).collect::<Vec<_>>()
            });
            stage.announce(direction);
            for (index, its) in DIRECTIONS.into_iter().enumerate() {
                let wakes = usize::from(its == direction);
                assert_eq!(alone[index].0.load(Ordering::Relaxed), wakes, "{count}, {direction:?}");
                for task in &mut tasks[index] {
                    assert_eq!((task.wakes(), task.is_unlinked()), (wakes, wakes == 1));
                    assert_eq!(task.poll().is_ready(), wakes == 1);
                }
            }
        }
    }
}

/// Goal: a wait that is dropped leaves nothing behind and takes no other wait's wake-up with it, before it is woken or
/// after.
/// Method: of five waits, each subset is dropped before a readiness event and each after it; newcomers take the places,
/// and the next readiness event wakes them.
#[test]
fn dropped_waits_take_nothing_with_them() {
    const COUNT: usize = 5;
    let mut stage = Stage::new();
    let near = Arc::clone(&stage.near);
    for subset in 0..1 << (COUNT + 1) {
        let is_dropped_late = subset >> COUNT == 1;
        let is_dropped = |index: &usize| subset >> index & 1 == 1;
        let mut tasks: Vec<_> =
            (0..COUNT).map(|_| Some(Task::new(&near, Direction::Read))).collect();
        let counts: Vec<_> = tasks.iter().flatten().map(|task| Arc::clone(&task.woken)).collect();
        if !is_dropped_late {
            (0..COUNT).filter(is_dropped).for_each(|index| tasks[index] = None);
        }
        stage.announce(Direction::Read);
        // The woken waits have outdated places; the new ones are not theirs to give up.
        stage.use_up(Direction::Read);
        let newcomers: Vec<_> = (0..COUNT).map(|_| Task::new(&near, Direction::Read)).collect();
        (0..COUNT).filter(is_dropped).for_each(|index| tasks[index] = None);
        for (index, task) in tasks.iter_mut().enumerate() {
            let wakes = usize::from(is_dropped_late || !is_dropped(&index));
            assert_eq!(counts[index].0.load(Ordering::Relaxed), wakes, "{subset:b}, {index}");
            // It was too late.
            assert!(task.as_mut().is_none_or(|task| task.poll().is_pending()));
        }
        stage.announce(Direction::Read);
        assert!(newcomers.iter().all(|task| task.wakes() == 1), "{subset:b}");
        assert!(tasks.iter_mut().flatten().all(|task| task.poll().is_ready() && task.wakes() == 2));
        drop((tasks, newcomers));
        assert!(counts.iter().all(|woken| Arc::strong_count(woken) == 1), "{subset:b}");
        stage.use_up(Direction::Read);
    }
}

/// Goal: a wait that moves to another task wakes that one. Method: poll one under two wakers, alone and beside another.
#[test]
fn a_wait_that_moves_takes_its_place_along() {
    let mut stage = Stage::new();
    let near = Arc::clone(&stage.near);
    let mut tasks: [_; 2] = std::array::from_fn(|_| Task::new(&near, Direction::Read));
    let before = tasks.each_mut().map(|task| {
        let before = std::mem::take(&mut task.woken);
        assert!(task.poll().is_pending() && task.poll().is_pending());
        before
    });
    stage.announce(Direction::Read);
    assert!(tasks.iter().all(|task| task.wakes() == 1));
    assert!(
        before
            .iter()
            .all(|woken| { woken.0.load(Ordering::Relaxed) == 0 && Arc::strong_count(woken) == 1 })
    );
}

/// Goal: what one refused waiter clears hides no later readiness event from the others, and they may clear what they
/// saw too. Method: two waits see one readiness event; a second one comes before the first is cleared.
#[test]
fn a_cleared_readiness_hides_no_later_one() {
    let mut stage = Stage::new();
    let near = Arc::clone(&stage.near);
    let mut tasks: [_; 2] = std::array::from_fn(|_| Task::new(&near, Direction::Read));
    stage.announce(Direction::Read);
    let [first, second] = tasks.each_mut().map(|task| seen_in(task.poll()));
    assert_eq!(first, second);
    stage.announce(Direction::Read);
    near.clear_ready(first);
    for task in &mut tasks {
        assert!(seen_in(task.poll()).tick > first.tick, "the second announcement stays");
    }
    near.clear_ready(second);
    let newer = seen_in(tasks[1].poll());
    near.clear_ready(newer);
    assert!(tasks.iter_mut().all(|task| task.poll().is_pending()));
    // A byte is there, but what is announced is the next one.
    stage.announce(Direction::Read);
    assert!(tasks.iter_mut().all(|task| task.wakes() == 2 && task.poll().is_ready()));
}

/// Goal: a readiness event between a check and the registration is seen by the second check, also if its event went to
/// another waiter before. Method: a registration that announces, and lets another wait see it.
#[test]
fn an_announcement_before_the_registration_is_seen() {
    let mut stage = Stage::new();
    let near = Arc::clone(&stage.near);
    let mut other = Task::new(&near, Direction::Read);
    let polled: Poll<Result<ReadyEvent, ()>> =
        near.source.poll_ready(Direction::Read, &noop(), || {
            stage.announce(Direction::Read);
            assert!(other.poll().is_ready());
            Ok(())
        });
    assert!(matches!(polled, Poll::Ready(Ok(seen)) if !seen.ready.is_empty()));
}

/// Goal: a shutdown wakes all waits, each of which gets its error, as do later ones; what is ready can still be used by
/// an operation that need not wait. Method: three waits and a poll-style one in each direction.
#[test]
fn a_shutdown_ends_all_waits() {
    let mut stage = Stage::new();
    let near = Arc::clone(&stage.near);
    let mut tasks: Vec<_> = DIRECTIONS
        .into_iter()
        .flat_map(|direction| [(); 3].map(|()| direction))
        .map(|direction| Task::new(&near, direction))
        .collect();
    stage.server.shutdown();
    stage.driver.detect();
    let is_closed = |polled: Polled| matches!(polled, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected);
    for task in &mut tasks {
        assert_eq!(task.wakes(), 1);
        assert!(is_closed(task.poll()) && is_closed(task.poll()));
    }
    for direction in DIRECTIONS {
        assert!(is_closed(near.poll_ready(direction, &noop())));
        assert!(is_closed(near.poll_ready(direction, &noop())), "as often as it is asked");
    }
    near.source.assume_ready();
    let mut late = Box::pin(near.ready(Direction::Read));
    assert!(is_closed(late.as_mut().poll(&mut noop())));
    assert!(near.poll_ready(Direction::Read, &noop()).is_ready());
}

/// Goal: a wait takes its descriptor's own lock, once when it begins and once when it ends, and no lock that sockets
/// share. Method: count both kinds for waits of all kinds of sockets, each polled until it waits and then dropped; that
/// the count counts is seen at a wait of a handle.
#[test]
fn a_wait_takes_no_lock_that_sockets_share() {
    let stage = Stage::new();
    let _entered = stage.server.enter();
    let any_port = "127.0.0.1:0".parse().expect("an address");
    let tcp = TcpListener::bind_on(&stage.server, any_port).expect("a port is free");
    let udp = UdpSocket::bind_on(&stage.server, any_port).expect("a port is free");
    let (unix, _peer) = UnixDatagram::pair().expect("a pair of sockets");
    let near = &*stage.near;
    let (one, two) = (&mut [0; 8], &mut [0; 8]);
    let (mut accepts, mut receives) = (Box::pin(tcp.accept()), Box::pin(udp.recv_from(one)));
    let mut unix_receives = Box::pin(unix.recv(two));
    let (mut reads, mut writes) =
        (Box::pin(near.ready(Direction::Read)), Box::pin(near.ready(Direction::Write)));
    let mut operates = Box::pin(near.async_io(Direction::Read, |_| Ok(())));

    let (all_before, shared_before) = (lock_count(), cores());
    assert!(accepts.as_mut().poll(&mut noop()).is_pending());
    assert!(receives.as_mut().poll(&mut noop()).is_pending());
    assert!(unix_receives.as_mut().poll(&mut noop()).is_pending());
    assert!(reads.as_mut().poll(&mut noop()).is_pending());
    assert!(writes.as_mut().poll(&mut noop()).is_pending());
    assert!(operates.as_mut().poll(&mut noop()).is_pending());
    let waiting = lock_count();
    drop((accepts, receives, unix_receives, reads, writes, operates));
    let dropped = lock_count();
    assert!(near.poll_ready(Direction::Read, &noop()).is_pending());
    let polled = lock_count();
    assert_eq!((waiting - all_before, dropped - waiting, polled - dropped), (6, 6, 1));
    assert_eq!(cores() - shared_before, 0);

    let (_button, bell) = doorbell(&stage.server).expect("registered");
    let shared_before = cores();
    let mut wait = bell.wait(());
    assert!(Pin::new(&mut wait).poll(&mut noop()).is_pending());
    drop(wait);
    assert_eq!(cores() - shared_before, 2, "a wait of a handle takes it twice");
}

/// Goal: waits go on while another thread holds the lock that sockets share. Method: the test holds it while waits
/// begin and are dropped; a wait that took it would hang.
#[test]
fn a_wait_begins_and_ends_while_the_shared_lock_is_held() {
    let stage = Stage::new();
    let near = &*stage.near;
    let waited = stage.server.readiness().with_detector(|_| {
        DIRECTIONS.map(|direction| drop([(); 3].map(|()| Task::new(near, direction))))
    });
    assert!(waited.is_some());
}
