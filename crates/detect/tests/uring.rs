//! The io_uring detector over real sockets: exhaustion of buffers, futures dropped in flight, threads
//! that end, servers that end. Nothing sleeps; a loop that drives a server has a guard against
//! hanging.

#![cfg(all(feature = "uring", not(loom)))]

use std::{
    future::Future,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixStream},
    },
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use vigie_detect::{
    ArmOutcome, Detector, Driver, Flavor, Handle, HostThread, Key, Mode, RegisterError,
    Registration, Server, SubmitOutcome, WaitError,
    detectors::uring::{
        Completion, Missing, Operation, Uring, UringBuilder, UringStatistics, UringUnavailable,
    },
};

const HANG: Duration = Duration::from_secs(30);

/// A builder with few, small buffers.
fn small() -> UringBuilder {
    Uring::builder().buffer_count(4).buffer_size_bytes(64)
}

/// Builds the detector; prints a message if this machine has no io_uring.
fn build(builder: UringBuilder) -> Option<Uring> {
    match builder.build() {
        Ok(uring) => Some(uring),
        Err(UringUnavailable { missing, source, .. }) => {
            eprintln!("SKIPPED: io_uring cannot be used: {missing} ({source})");
            None
        }
    }
}

fn register(server: &Server, uring: Uring) -> Handle<Uring> {
    server.register(uring, Registration::named("uring")).expect("registers")
}

fn hosted(builder: UringBuilder) -> Option<(HostThread, Handle<Uring>)> {
    let uring = build(builder)?;
    let host = Server::spawn_thread().expect("a host thread");
    let handle = register(host.server(), uring);
    Some((host, handle))
}

fn statistics(handle: &Handle<Uring>) -> UringStatistics {
    handle.with_detector(|uring| uring.statistics()).expect("the server is open")
}

fn pair() -> (Arc<OwnedFd>, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    far.set_read_timeout(Some(HANG)).expect("set");
    far.set_write_timeout(Some(HANG)).expect("set");
    (Arc::new(near.into()), far)
}

/// The byte at `position` of every stream here: a lost, doubled or swapped piece shows.
fn byte_at(position: usize) -> u8 {
    let [low, high, ..] = (position % 251 * 257 + position / 251).to_le_bytes();
    low ^ high
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(byte_at).collect()
}

fn in_tokio<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(HANG, future).await.expect("the test hangs") })
}

/// A server that is driven only when the test says so.
struct Hand {
    server: Server,
    driver: Driver,
}

impl Hand {
    fn new() -> Self {
        let server = Server::new(Flavor::UserLevel).expect("a server");
        let driver = server.driver();
        Self { server, driver }
    }

    fn until(&mut self, mut is_done: impl FnMut() -> bool) {
        let start = self.server.now();
        while !is_done() {
            self.driver.detect();
            thread::yield_now();
            assert!(self.server.now().saturating_duration_since(start) < HANG, "the test hangs");
        }
    }

    fn drive<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut output = None;
        self.until(|| {
            if let Poll::Ready(ready) = poll_once(future.as_mut()) {
                output = Some(ready);
            }
            output.is_some()
        });
        output.expect("driven until it was there")
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn few_buffers_carry_a_long_stream() {
    // Goal: multishot receive continues after it ran out of buffers, in order, exactly, to the end
    // of the stream. Method: the reader keeps all four buffers until it has them, then drops them.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, mut far) = pair();
    let sent = pattern(100_000);
    let expected = sent.clone();
    let sender = thread::spawn(move || far.write_all(&sent));
    let received = in_tokio(async {
        let mut stream = handle.stream(Operation::recv_provided(near)).expect("a stream");
        let mut kept = Vec::new();
        let mut bytes = Vec::new();
        while let Some(event) = stream.next().await {
            let buffer = event.expect("received").into_received().expect("bytes");
            bytes.extend_from_slice(&buffer);
            kept.push(buffer);
            if kept.len() == 4 {
                kept.clear();
            }
        }
        bytes
    });
    sender.join().expect("no panic").expect("sent");
    assert!(received == expected, "the bytes differ");
    let counted = statistics(&handle);
    assert!(counted.starvations > 0, "the buffers did not run out: {counted:?}");
    assert!(counted.restarts >= counted.starvations, "{counted:?}");
    assert_eq!((counted.operations, counted.in_flight, counted.lent_buffers), (0, 0, 0));
}

#[test]
fn datagrams_keep_their_bounds_and_order() {
    // Goal: one event for each message. Method: numbered datagrams of different lengths.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, far) = UnixDatagram::pair().expect("a pair of sockets");
    let sender = thread::spawn(move || {
        for number in 0..2000u32 {
            let mut message = number.to_le_bytes().to_vec();
            message.resize(4 + number as usize % 60, 7);
            far.send(&message).expect("sent");
        }
        far
    });
    in_tokio(async {
        let mut stream =
            handle.stream(Operation::recv_provided(Arc::new(near.into()))).expect("a stream");
        for number in 0..2000u32 {
            let event = stream.next().await.expect("not at its end").expect("received");
            let message = event.into_received().expect("bytes");
            assert_eq!(message[..4], number.to_le_bytes());
            assert_eq!(message.len(), 4 + number as usize % 60);
        }
    });
    sender.join().expect("no panic");
}

#[test]
fn a_reader_that_lags_pauses_its_stream() {
    // Goal: events that a full queue refuses are held, and delivered when the reader comes back.
    // Method: a queue of two, a hundred datagrams, no reading before all buffers are taken.
    let Some(uring) = build(Uring::builder().buffer_count(64).buffer_size_bytes(64)) else {
        return;
    };
    let mut hand = Hand::new();
    let registration = Registration::named("uring").stream_capacity(2);
    let handle = hand.server.register(uring, registration).expect("registers");
    let (near, far) = UnixDatagram::pair().expect("a pair of sockets");
    far.set_nonblocking(true).expect("set");
    let mut stream =
        handle.stream(Operation::recv_provided(Arc::new(near.into()))).expect("a stream");
    let mut sent = 0u8;
    let mut send = |limit: u8| {
        while sent < limit && far.send(&[sent]).is_ok() {
            sent += 1;
        }
        sent
    };
    // In flight first, so that the messages come in one by one; then the pause takes effect.
    hand.until(|| statistics(&handle).in_flight == 1);
    assert!(send(5) >= 3);
    hand.until(|| statistics(&handle).in_flight == 0);
    assert!(statistics(&handle).lent_buffers >= 3, "two events wait, and one is held");
    for number in 0..100u8 {
        send(100);
        let event = hand.drive(stream.next()).expect("not at its end").expect("received");
        assert_eq!(event.into_received().expect("bytes")[..], [number]);
    }
    drop(stream);
    hand.until(|| statistics(&handle).operations == 0);
    assert_eq!(statistics(&handle).lent_buffers, 0);
}

#[test]
fn a_sleeping_server_learns_that_its_reader_is_back() {
    // Goal: held events reach a reader although only its reading happens. Method: a queue of two at a
    // server on its own thread, which sleeps once the stream is paused.
    let Some(uring) = build(Uring::builder().buffer_count(64).buffer_size_bytes(64)) else {
        return;
    };
    let host = Server::spawn_thread().expect("a host thread");
    let registration = Registration::named("uring").stream_capacity(2);
    let handle = host.server().register(uring, registration).expect("registers");
    let (near, far) = UnixDatagram::pair().expect("a pair of sockets");
    let mut stream =
        handle.stream(Operation::recv_provided(Arc::new(near.into()))).expect("a stream");
    let sender = thread::spawn(move || (0..50u8).all(|number| far.send(&[number]).is_ok()));
    in_tokio(async {
        while statistics(&handle).lent_buffers < 3 || statistics(&handle).in_flight > 0 {
            tokio::task::yield_now().await;
        }
        for number in 0..50u8 {
            let event = stream.next().await.expect("not at its end").expect("received");
            assert_eq!(event.into_received().expect("bytes")[..], [number]);
        }
    });
    assert!(sender.join().expect("no panic"), "the peer is gone");
}

#[test]
fn a_non_blocking_descriptor_is_waited_for() {
    // Goal: sockets of other runtimes, which are non-blocking, can be used. Method: wait, then write.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("set");
    let near = Arc::new(OwnedFd::from(near));
    let (mut recv, mut read) = (Vec::new(), Vec::new());
    in_tokio(async {
        for (into, make) in [
            (&mut recv, &(|fd, room| Operation::recv(fd, room)) as &dyn Fn(_, _) -> _),
            (&mut read, &|fd, room| Operation::read(fd, room, None)),
        ] {
            let mut wait = Box::pin(handle.wait(make(Arc::clone(&near), Vec::with_capacity(8))));
            assert!(poll_once(wait.as_mut()).is_pending());
            while statistics(&handle).in_flight == 0 {
                tokio::task::yield_now().await;
            }
            far.write_all(b"now").expect("written");
            let event = wait.await.expect("an event");
            into.extend(event.into_transfer().expect("a transfer").buffer);
        }
    });
    assert_eq!((&recv[..], &read[..]), (&b"now"[..], &b"now"[..]));
}

#[test]
fn a_single_receive_takes_one_buffer() {
    // Goal: `wait` on a receive gives one event and then the end. Method: three bytes, then close.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, mut far) = pair();
    in_tokio(async {
        let mut wait = pin!(handle.wait(Operation::recv_provided(Arc::clone(&near))));
        assert!(poll_once(wait.as_mut()).is_pending());
        far.write_all(b"abc").expect("written");
        let event = wait.await.expect("an event");
        assert_eq!(&event.into_received().expect("bytes")[..], b"abc");
        drop(far);
        let event = handle.wait(Operation::recv_provided(near)).await.expect("an event");
        assert!(matches!(event, Completion::End));
    });
}

#[test]
fn owned_buffers_go_and_come_back() {
    // Goal: each kind of transfer moves the right bytes and gives the buffer back. Method: sockets
    // both ways with a message far larger than their buffers, and a file at offsets.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, far) = pair();
    let far = Arc::new(OwnedFd::from(far));
    let sent = pattern(3_000_000);
    in_tokio(async {
        let mut bytes = Vec::new();
        let mut sending = pin!(handle.wait(Operation::send_all(near, sent.clone())));
        let mut sending_is_over = false;
        while bytes.len() < sent.len() {
            if !sending_is_over && let Poll::Ready(event) = poll_once(sending.as_mut()) {
                let transfer = event.expect("an event").into_transfer().expect("a transfer");
                let (result, buffer) = transfer.into_parts();
                assert_eq!(result.expect("sent"), sent.len());
                assert!(buffer == sent, "the buffer came back as it was");
                sending_is_over = true;
            }
            let room = Vec::with_capacity(10_000);
            let event = handle.wait(Operation::recv(Arc::clone(&far), room)).await;
            let transfer = event.expect("an event").into_transfer().expect("a transfer");
            assert!(transfer.error.is_none() && transfer.count == transfer.buffer.len());
            bytes.extend(transfer.buffer);
        }
        assert!(bytes == sent, "the bytes differ");
    });

    let file = rustix::fs::memfd_create("vigie-test", rustix::fs::MemfdFlags::CLOEXEC);
    let file = Arc::new(file.expect("a file in memory"));
    in_tokio(async {
        let write = Operation::write_all(Arc::clone(&file), b"0123456789".to_vec(), Some(100));
        let transfer = handle.wait(write).await.expect("an event").into_transfer();
        assert_eq!(transfer.expect("a transfer").count, 10);
        let mut buffer = Vec::with_capacity(64);
        buffer.extend_from_slice(b"> ");
        let read = Operation::read(Arc::clone(&file), buffer, Some(105));
        let transfer = handle.wait(read).await.expect("an event").into_transfer();
        let transfer = transfer.expect("a transfer");
        assert_eq!((transfer.count, &transfer.buffer[..]), (5, &b"> 56789"[..]));
        // A part, at the file's own position.
        let write = Operation::write(file, b"start".to_vec(), None);
        let transfer = handle.wait(write).await.expect("an event").into_transfer();
        assert_eq!(transfer.expect("a transfer").count, 5);
    });
}

#[test]
fn a_write_dropped_in_flight_keeps_its_memory() {
    // Goal: after the future is gone, the kernel still reads the future's buffer, until the
    // completion has arrived. Method: nothing drives the server between the drop and the peer's
    // reading, so the cancellation is not submitted and the kernel sends everything; allocations of
    // the same size are overwritten meanwhile, and would show if the memory had been freed.
    let Some(uring) = build(small()) else { return };
    let mut hand = Hand::new();
    let handle = register(&hand.server, uring);
    let (near, mut far) = pair();
    let sent = pattern(2_000_000);
    let mut write = Box::pin(handle.wait(Operation::send_all(near, sent.clone())));
    assert!(poll_once(write.as_mut()).is_pending());
    hand.until(|| statistics(&handle).in_flight == 1);
    drop(write);
    assert_eq!(handle.pending_count(), 0);
    let scribbles: Vec<Vec<u8>> = (0..8).map(|_| vec![0xFF; sent.len()]).collect();
    let counted = statistics(&handle);
    assert_eq!((counted.operations, counted.in_flight), (1, 1));
    assert_eq!(counted.in_flight_bytes, sent.len());

    let mut received = vec![0; 1_000_000];
    far.read_exact(&mut received).expect("read");
    assert!(received == sent[..received.len()], "the bytes differ");
    assert_eq!(scribbles.iter().map(Vec::len).sum::<usize>(), 8 * sent.len());
    assert_eq!(statistics(&handle).in_flight, 1, "the completion was not taken yet");

    // From here on the cancellation and the rest of the write race; either result is right.
    let reader = thread::spawn(move || {
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).map(|_| rest)
    });
    hand.until(|| statistics(&handle).operations == 0);
    let counted = statistics(&handle);
    assert_eq!((counted.in_flight, counted.in_flight_bytes), (0, 0));
    let rest = reader.join().expect("no panic").expect("read");
    assert!(rest == sent[1_000_000..][..rest.len()], "the bytes differ");
}

#[test]
fn a_write_that_is_cancelled_frees_its_memory_and_the_handle_goes_on() {
    // Goal: the peer need not read for a dropped write to end. Method: a peer that does not read.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, mut far) = pair();
    let sent = pattern(2_000_000);
    in_tokio(async {
        for _ in 0..3 {
            let (blocked, mut idle) = pair();
            let mut write = Box::pin(handle.wait(Operation::send_all(blocked, sent.clone())));
            assert!(poll_once(write.as_mut()).is_pending());
            while statistics(&handle).in_flight == 0 {
                tokio::task::yield_now().await;
            }
            drop(write);
            while statistics(&handle).operations > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(statistics(&handle).in_flight_bytes, 0);
            // The socket was the request's: its end is the end of the stream, after a true prefix.
            let mut prefix = Vec::new();
            idle.read_to_end(&mut prefix).expect("read");
            assert!(!prefix.is_empty() && prefix == sent[..prefix.len()]);
        }
        let event = handle.wait(Operation::send(near, b"still there".to_vec())).await;
        assert_eq!(event.expect("an event").into_transfer().expect("a transfer").count, 11);
    });
    let mut bytes = [0; 11];
    far.read_exact(&mut bytes).expect("read");
    assert_eq!(&bytes, b"still there");
}

#[test]
fn a_request_that_the_kernel_never_saw_is_dropped_at_once() {
    // Goal: before the host has polled, there is nothing to wait for. Method: a server that no
    // thread drives.
    let Some(uring) = build(small()) else { return };
    let hand = Hand::new();
    let handle = register(&hand.server, uring);
    let (near, _far) = pair();
    let shared = Arc::downgrade(&near);
    let mut wait = Box::pin(handle.wait(Operation::recv(Arc::clone(&near), vec![0; 64])));
    assert!(poll_once(wait.as_mut()).is_pending());
    let stream = handle.stream(Operation::recv_provided(near)).expect("a stream");
    assert_eq!(statistics(&handle).operations, 2);
    drop((wait, stream));
    assert_eq!(statistics(&handle).operations, 0);
    assert!(shared.upgrade().is_none(), "the descriptor is free too");
}

#[test]
fn a_closing_server_ends_what_is_in_flight() {
    // Goal: no hang, typed errors, owned buffers come back. Method: one request of each kind on
    // sockets where nothing happens; the server is shut down by a thread that is not its host.
    let Some((host, handle)) = hosted(small()) else { return };
    let (quiet, _far) = pair();
    let (full, _idle) = pair();
    let event_and_error = in_tokio(async {
        let mut stream =
            handle.stream(Operation::recv_provided(Arc::clone(&quiet))).expect("a stream");
        let mut once = Box::pin(handle.wait_owned(Operation::recv_provided(Arc::clone(&quiet))));
        let mut recv =
            Box::pin(handle.wait_owned(Operation::recv(quiet, Vec::with_capacity(1000))));
        let mut send = Box::pin(handle.wait_owned(Operation::send_all(full, pattern(2_000_000))));
        assert!(poll_once(once.as_mut()).is_pending());
        assert!(poll_once(recv.as_mut()).is_pending());
        assert!(poll_once(send.as_mut()).is_pending());
        while statistics(&handle).in_flight < 4 {
            tokio::task::yield_now().await;
        }
        drop(host);
        (stream.next().await, once.await, recv.await, send.await)
    });
    let (stream, once, recv, send) = event_and_error;
    assert!(matches!(stream, Some(Err(WaitError::ServerClosed))), "{stream:?}");
    assert!(matches!(once, Err(WaitError::ServerClosed)), "{once:?}");
    for (event, capacity) in [(recv, 1000), (send, 2_000_000)] {
        let Ok(event) = event else {
            // The server waits for completions for 100 ms, and this machine was busier than that.
            assert!(matches!(event, Err(WaitError::ServerClosed)), "{event:?}");
            continue;
        };
        let transfer = event.into_transfer().expect("a transfer");
        assert!(transfer.buffer.capacity() >= capacity);
        let error = transfer.error.expect("it was cut off");
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{error}");
    }
    assert!(matches!(
        handle.stream(Operation::recv_provided(pair().0)),
        Err(WaitError::ServerClosed)
    ));
}

#[test]
fn buffers_outlive_the_detector() {
    // Goal: lent bytes stay readable after handle and server are gone. Method: keep one.
    let Some((host, handle)) = hosted(small()) else { return };
    let (near, mut far) = pair();
    far.write_all(b"kept").expect("written");
    let kept = in_tokio(async {
        let event = handle.wait(Operation::recv_provided(near)).await.expect("an event");
        event.into_received().expect("bytes")
    });
    drop(handle);
    drop(host);
    assert_eq!(&kept[..], b"kept");
    // Returned on another thread, after its owner is gone.
    thread::spawn(move || drop(kept)).join().expect("no panic");
}

#[test]
fn a_waiter_thread_may_go() {
    // Goal: a request belongs to the server, not to the thread that made it. Method: a thread polls a
    // wait once and ends.
    let Some((_host, handle)) = hosted(small()) else { return };
    let (near, mut far) = pair();
    let made = thread::spawn(move || {
        let mut wait = Box::pin(handle.wait_owned(Operation::recv(near, Vec::with_capacity(16))));
        assert!(poll_once(wait.as_mut()).is_pending());
        while statistics(&handle).in_flight == 0 {
            thread::yield_now();
        }
        wait
    });
    let wait = made.join().expect("no panic");
    far.write_all(b"late").expect("written");
    let event = in_tokio(wait).expect("an event");
    assert_eq!(event.into_transfer().expect("a transfer").buffer, b"late");
}

#[test]
fn a_host_thread_may_go() {
    // Goal: the kernel cancels an exiting thread's submissions, at the latest when the event comes;
    // the next host submits them again, and the event is not lost. Method: one thread drives the
    // server until all is in flight and ends, another one continues.
    let Some(uring) = build(small()) else { return };
    let mut hand = Hand::new();
    let handle = register(&hand.server, uring);
    let (near, mut far) = pair();
    let mut stream = handle.stream(Operation::recv_provided(Arc::clone(&near))).expect("a stream");
    let (other, mut peer) = pair();
    let mut recv = Box::pin(handle.wait(Operation::recv(other, Vec::with_capacity(16))));
    assert!(poll_once(recv.as_mut()).is_pending());
    thread::scope(|scope| {
        // Joined, so that the kernel is done with the thread.
        let host = scope.spawn(|| hand.until(|| statistics(&handle).in_flight == 2));
        host.join().expect("no panic");
    });
    assert_eq!(statistics(&handle).restarts, 0);
    far.write_all(b"one").expect("written");
    peer.write_all(b"two").expect("written");
    let event = hand.drive(stream.next()).expect("not at its end").expect("received");
    assert_eq!(&event.into_received().expect("bytes")[..], b"one");
    let event = hand.drive(recv).expect("an event");
    assert_eq!(event.into_transfer().expect("a transfer").buffer, b"two");
    assert!(statistics(&handle).restarts >= 2);
}

#[test]
fn short_rings_hold_back_and_overflow_without_loss() {
    // Goal: a submission queue of one entry and a completion queue of four serve any number of
    // requests. Method: forty streams; all peers write before the server polls.
    let Some(uring) = build(Uring::builder().entries(1).buffer_count(256).buffer_size_bytes(16))
    else {
        return;
    };
    let mut hand = Hand::new();
    let handle = register(&hand.server, uring);
    let (streams, mut peers): (Vec<_>, Vec<_>) = (0..40)
        .map(|_| {
            let (near, far) = pair();
            (handle.stream(Operation::recv_provided(near)).expect("a stream"), far)
        })
        .unzip();
    hand.until(|| statistics(&handle).in_flight == 40);
    for episode in 0..3u8 {
        for (peer, number) in peers.iter_mut().zip(0..) {
            peer.write_all(&[number, episode]).expect("written");
        }
        for (stream, number) in streams.iter().zip(0u8..) {
            let next = std::future::poll_fn(|cx| stream.poll_event(cx));
            let event = hand.drive(next).expect("not at its end").expect("received");
            assert_eq!(event.into_received().expect("bytes")[..], [number, episode]);
        }
    }
    assert!(statistics(&handle).overflows > 0, "{:?}", statistics(&handle));
}

#[test]
fn what_cannot_be_served_is_refused_with_its_buffer() {
    // Goal: bounds and misuse are errors, not surprises. Method: one of each.
    let Some((_host, handle)) = hosted(small().operations_max(1)) else { return };
    let (near, _far) = pair();
    let refused = handle.stream(Operation::send(Arc::clone(&near), vec![1]));
    let Err(WaitError::Failed(error)) = refused else { panic!("a send is no stream") };
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);

    let stream = handle.stream(Operation::recv_provided(Arc::clone(&near))).expect("a stream");
    let send = handle.wait(Operation::send(Arc::clone(&near), vec![1, 2, 3]));
    let transfer = in_tokio(send).expect("an event").into_transfer().expect("a transfer");
    assert_eq!(transfer.error.expect("refused").kind(), io::ErrorKind::QuotaExceeded);
    assert_eq!(transfer.buffer, [1, 2, 3]);
    drop(stream);

    in_tokio(async {
        while statistics(&handle).operations > 0 {
            tokio::task::yield_now().await;
        }
        let (near, far) = pair();
        drop(far);
        let transfer = handle.wait(Operation::send(near, vec![0])).await.expect("an event");
        let error = transfer.into_transfer().expect("a transfer").error.expect("no peer");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_detector_without_a_server_leaks_rather_than_frees() {
    // Goal: the callbacks are safe to call from anywhere, the request need not live on. Method: call
    // them by hand with an invented key, drop everything in flight; the peer sees no freed memory.
    let Some(mut uring) = build(small()) else { return };
    let (near, mut far) = pair();
    let key = Key::from_bits(7);
    let mut request = Operation::send_all(near, pattern(2_000_000));
    assert!(matches!(uring.submit(key, &mut request, Mode::Once), SubmitOutcome::Queued));
    drop(request);
    let mut again = Operation::send_all(pair().0, vec![1]);
    let refused = uring.submit(key, &mut again, Mode::Once);
    assert!(matches!(refused, SubmitOutcome::Ready(Completion::Transferred(_))));
    assert!(matches!(uring.arm(), Ok(ArmOutcome::Armed | ArmOutcome::Ready)));
    assert_eq!(uring.statistics().in_flight, 1);
    drop(uring);
    let mut prefix = Vec::new();
    far.read_to_end(&mut prefix).expect("read");
    assert!(prefix == pattern(prefix.len()));
}

#[test]
fn a_server_in_virtual_time_refuses() {
    // Goal: a typed error where descriptors cannot be watched. Method: the simulator.
    let Some(uring) = build(small()) else { return };
    let simulation = vigie_detect::Simulation::new(1);
    let refused = simulation.server().register(uring, Registration::named("uring"));
    assert!(matches!(refused, Err(RegisterError::Attach(_))));
}

#[test]
fn a_kernel_without_io_uring_is_told_apart() {
    // Goal: the probe names what is missing. Method: a seccomp filter of one thread, which refuses
    // io_uring_setup as containers do.
    for (errno, missing) in [(libc::ENOSYS, Missing::Calls), (libc::EPERM, Missing::Permission)] {
        let answer = thread::spawn(move || {
            refuse_io_uring(errno);
            Uring::builder().build()
        });
        let error = answer.join().expect("no panic").expect_err("refused");
        assert_eq!(error.source.raw_os_error(), Some(errno));
        assert!(error.missing == missing || matches!(error.missing, Missing::Switch(_)));
        assert!(error.to_string().contains("io_uring_setup"), "{error}");
    }
}

/// Makes io_uring_setup(2) fail with `errno` on this thread, for good.
#[expect(unsafe_code, reason = "seccomp filters have no safe interface")]
fn refuse_io_uring(errno: i32) {
    const RETURN: u16 = 0x06;
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let setup = u32::try_from(libc::SYS_io_uring_setup).expect("a small number");
    let answer = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).expect("positive");
    let mut filter = [
        // Load the number of the call; skip one statement if it is not the one; return.
        statement(0x20, 0),
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: setup },
        statement(RETURN, answer),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is involved.
    let is_set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(is_set, 0, "{}", io::Error::last_os_error());
    // SAFETY: `program` and `filter` outlive the call, which copies them.
    let is_set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(is_set, 0, "{}", io::Error::last_os_error());
}

#[test]
fn futures_may_be_dropped_at_any_point() {
    // Goal: whatever is dropped when, bytes stay in order, nothing is left in flight and no buffer is
    // lost. Method: random operations and drops; one integer, printed, makes them all. Even seeds
    // drive the server between two steps of the tasks, odd ones at the same time, on its own thread.
    let bytes = pattern(600_000);
    let seed = std::env::var("SIM_SEED").ok().and_then(|text| text.parse().ok());
    for seed in seed.map_or(0..32, |seed: u64| seed..seed + 1) {
        eprintln!("SIM_SEED={seed}");
        let Some(uring) = build(small().entries(2)) else { return };
        let mut random = fastrand::Rng::with_seed(seed);
        let mut hand = Hand::new();
        let host = (seed % 2 == 1).then(|| Server::spawn_thread().expect("a host thread"));
        let server = host.as_ref().map_or(&hand.server, HostThread::server);
        let registration = Registration::named("uring").stream_capacity(1 + random.usize(..4));
        let handle = server.register(uring, registration).expect("registers");
        let mut tasks: Vec<_> =
            (0..12).map(|_| Some(Box::pin(chaos(&handle, random.fork(), &bytes)))).collect();
        hand.until(|| {
            for task in &mut tasks {
                if task.as_mut().is_some_and(|task| poll_once(task.as_mut()).is_ready()) {
                    *task = None;
                }
            }
            tasks.iter().all(Option::is_none)
        });
        hand.until(|| statistics(&handle).operations == 0);
        let counted = statistics(&handle);
        assert_eq!((counted.in_flight, counted.in_flight_bytes), (0, 0), "SIM_SEED={seed}");
        assert_eq!(counted.lent_buffers, 0, "SIM_SEED={seed}");
        // The handle is as good as new.
        let (near, mut far) = pair();
        far.write_all(b"fresh").expect("written");
        let event = hand.drive(handle.wait(Operation::recv_provided(near))).expect("an event");
        assert_eq!(&event.into_received().expect("bytes")[..], b"fresh", "SIM_SEED={seed}");
    }
}

/// Polls `future` at most `polls` times, then drops it.
async fn for_polls<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = poll_once(future.as_mut()) {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// One task of the random test: a writer and a reader of one pair of sockets, both cut off at times.
async fn chaos(handle: &Handle<Uring>, mut random: fastrand::Rng, bytes: &[u8]) {
    for _ in 0..8 {
        let (near, far) = pair();
        let far = Arc::new(OwnedFd::from(far));
        let sent = &bytes[..random.usize(..bytes.len())];
        let mut write = Some(Box::pin(handle.wait(Operation::send_all(near, sent.to_vec()))));
        let mut received = Vec::new();
        let mut stream = None;
        for _ in 0..random.usize(..60) {
            if random.u8(..8) == 0
                || write.as_mut().is_some_and(|w| poll_once(w.as_mut()).is_ready())
            {
                write = None;
            }
            match random.u8(..10) {
                0 => {
                    // Loses what the stream had received: no order to check after this.
                    stream = None;
                    break;
                }
                1..7 => {
                    let stream = stream.get_or_insert_with(|| {
                        handle.stream(Operation::recv_provided(Arc::clone(&far))).expect("a stream")
                    });
                    match for_polls(stream.next(), random.usize(..20)).await {
                        Some(Some(event)) => {
                            let bytes = event.expect("received").into_received().expect("bytes");
                            received.extend_from_slice(&bytes);
                        }
                        Some(None) => break,
                        None => {}
                    }
                }
                _ if stream.is_none() && received.is_empty() => {
                    let room = Vec::with_capacity(random.usize(1..5000));
                    let recv = handle.wait(Operation::recv(Arc::clone(&far), room));
                    match for_polls(recv, random.usize(..20)).await {
                        Some(event) => {
                            let transfer = event.expect("an event").into_transfer();
                            received.extend(transfer.expect("a transfer").buffer);
                        }
                        None => break,
                    }
                }
                _ => tokio::task::yield_now().await,
            }
        }
        assert!(received == sent[..received.len()], "the bytes differ");
        drop(stream);
    }
}
