//! The end of a budget delays what is ready, and loses nothing.

use std::{
    future::Future,
    io::Write,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::io::{AsyncRead, ReadBuf};
use vigie_detect::{
    HostThread, Instant, Server, budget, clock::monotonic_now, detectors::channel::channel,
    detectors::doorbell::doorbell, detectors::readiness::Direction, net,
};

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn counting_waker() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count(AtomicUsize::new(0)));
    (Arc::clone(&count), Waker::from(count))
}

/// Opens a budget that is over, and for longer than any test takes: half of the time since the
/// machine's start began half of that time ago.
fn begin_ended() {
    let half = monotonic_now().as_nanos() / 2;
    budget::begin_with(Instant::from_nanos(half), Duration::from_nanos(half));
    let cx = Context::from_waker(Waker::noop());
    while budget::poll_proceed(&cx).is_ready() {}
}

fn host() -> HostThread {
    Server::spawn_thread().expect("a thread can be made")
}

/// Goal: a channel yields with the value left in it, in order, and wakes the task. Method: three
/// values, each wait polled with an ended budget and then without one.
#[test]
fn a_channel_keeps_its_values_while_its_receiver_gives_way() {
    let host = host();
    let (sender, receiver) = channel(host.server(), 8).expect("registered");
    for value in 0..3 {
        sender.try_send(value).expect("there is room");
    }
    for value in 0..3 {
        let (wakes, waker) = counting_waker();
        let cx = &mut Context::from_waker(&waker);
        let mut wait = pin!(receiver.recv());
        begin_ended();
        assert!(wait.as_mut().poll(cx).is_pending());
        assert_eq!(wakes.get(), 1, "woken at once");
        assert!(wait.as_mut().poll(cx).is_pending(), "the budget is still over");
        budget::end();
        let Poll::Ready(received) = wait.as_mut().poll(cx) else { panic!("the value was there") };
        assert_eq!(received.expect("no error"), Some(value));
    }
}

/// Goal: a wait that yielded and is dropped, as in a `select`, gives its value back. Method: drop
/// one after it yielded; the next receives the value, before the one sent after it.
#[test]
fn a_dropped_wait_gives_its_value_back() {
    let host = host();
    let (sender, receiver) = channel(host.server(), 8).expect("registered");
    sender.try_send(1).expect("there is room");
    sender.try_send(2).expect("there is room");
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let mut wait = pin!(receiver.recv());
        begin_ended();
        assert!(wait.as_mut().poll(cx).is_pending());
        budget::end();
    }
    assert_eq!(receiver.pending_count(), 0);
    for value in [1, 2] {
        let Poll::Ready(received) = pin!(receiver.recv()).poll(cx) else { panic!("it was there") };
        assert_eq!(received.expect("no error"), Some(value));
    }
}

/// Goal: a request is made even if its first poll yields, so that events between two polls are seen.
/// Method: poll a doorbell's wait with an ended budget, press, and wait without one.
#[test]
fn a_wait_that_finds_nothing_is_submitted_whatever_the_budget() {
    let host = host();
    let (button, bell) = doorbell(host.server()).expect("registered");
    let (wakes, waker) = counting_waker();
    let cx = &mut Context::from_waker(&waker);
    let mut wait = pin!(bell.rung());
    begin_ended();
    assert!(wait.as_mut().poll(cx).is_pending());
    assert_eq!(wakes.get(), 0, "nothing is there: no reason to poll again");
    assert_eq!(bell.pending_count(), 1);
    button.press();
    // The host's thread delivers it.
    while wakes.get() == 0 {
        std::thread::yield_now();
    }
    assert!(wait.as_mut().poll(cx).is_pending(), "the event waits for the next budget");
    assert_eq!(wakes.get(), 2);
    budget::end();
    assert!(wait.as_mut().poll(cx).is_ready());
}

/// Goal: a stream of events yields with its events in it. Method: a full stream of a channel, read
/// with and without a budget.
#[test]
fn a_stream_keeps_its_events() {
    let host = host();
    let (sender, receiver) = channel(host.server(), 8).expect("registered");
    let stream = receiver.stream(()).expect("accepted");
    let (wakes, waker) = counting_waker();
    let cx = Context::from_waker(&waker);
    assert!(stream.poll_event(&cx).is_pending());
    sender.try_send(5).expect("there is room");
    while wakes.get() == 0 {
        std::thread::yield_now();
    }
    begin_ended();
    for wakes_before in 1..4 {
        assert!(stream.poll_event(&cx).is_pending());
        assert_eq!(wakes.get(), wakes_before + 1);
    }
    budget::end();
    let Poll::Ready(Some(Ok(Some(5)))) = stream.poll_event(&cx) else { panic!("the event stays") };
}

fn pair(host: &HostThread) -> (std::os::unix::net::UnixStream, net::UnixStream) {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    (near, net::UnixStream::from_std_on(host.server(), far).expect("watched"))
}

/// Goal: a socket that yielded stays ready and has lost no byte, for every way to read it. Method:
/// bytes are there; each way is polled with an ended budget, then the bytes are read without one.
#[test]
fn a_socket_stays_ready_while_its_reader_gives_way() {
    let host = host();
    let (mut near, mut far) = pair(&host);
    near.write_all(b"abc").expect("there is room");
    let (wakes, waker) = counting_waker();
    let cx = &mut Context::from_waker(&waker);
    let mut bytes = [0; 8];
    begin_ended();
    let mut wakes_before = 0;
    let mut gave_way = |is_pending: bool| {
        assert!(is_pending);
        assert_eq!(wakes.get(), wakes_before + 1, "woken at once, each time");
        wakes_before += 1;
    };
    let mut buffer = ReadBuf::new(&mut bytes);
    gave_way(pin!(&mut far).poll_read(cx, &mut buffer).is_pending());
    gave_way(far.poll_read_ready(cx).is_pending());
    gave_way(pin!(far.readable()).poll(cx).is_pending());
    gave_way(pin!(far.peek(&mut [0; 4])).poll(cx).is_pending());
    gave_way(far.poll_write_ready(cx).is_pending());
    // Woken for each direction.
    assert!(far.as_async_fd().poll_ready(Direction::Read, cx).is_pending());
    // Operations that cannot wait do not yield.
    assert_eq!(far.try_read(&mut [0; 1]).expect("ready"), 1);
    budget::end();
    let mut buffer = ReadBuf::new(&mut bytes);
    let Poll::Ready(read) = pin!(&mut far).poll_read(cx, &mut buffer) else {
        panic!("the readiness stays")
    };
    read.expect("no error");
    assert_eq!(buffer.filled(), b"bc");
}

/// Goal: `accept` yields with the connection still in the queue. Method: one connection.
#[test]
fn a_listener_keeps_its_connections() {
    let host = host();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("bound");
    let listener = net::TcpListener::from_std_on(host.server(), listener).expect("watched");
    let _client = std::net::TcpStream::connect(address).expect("it listens");
    let (wakes, waker) = counting_waker();
    let cx = &mut Context::from_waker(&waker);
    begin_ended();
    assert!(pin!(listener.accept()).poll(cx).is_pending());
    assert!(listener.poll_accept(cx).is_pending());
    assert_eq!(wakes.get(), 2);
    budget::end();
    assert!(matches!(listener.poll_accept(cx), Poll::Ready(Ok(_))));
}

/// Goal: an expired timer yields once and is ready afterwards. Method: a deadline in the past.
#[test]
fn a_timer_stays_over() {
    let host = host();
    let (wakes, waker) = counting_waker();
    let cx = &mut Context::from_waker(&waker);
    let mut wait = pin!(host.server().timers().wait(Instant::from_nanos(1)));
    begin_ended();
    // Its first poll is woken by the host's thread, unless it is ready at once and yields.
    assert!(wait.as_mut().poll(cx).is_pending());
    while wakes.get() == 0 {
        std::thread::yield_now();
    }
    let before = wakes.get();
    assert!(wait.as_mut().poll(cx).is_pending());
    assert_eq!(wakes.get(), before + 1);
    budget::end();
    assert!(matches!(wait.as_mut().poll(cx), Poll::Ready(Ok(()))));
}
