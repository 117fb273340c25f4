//! Sessions between simulated streams, in virtual time: all orders and times come from a seed.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{pending, poll_fn},
    io,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use vigie_detect::{Instant, Server, Simulation};

use super::Session;
use crate::{
    model::SwitchingMode,
    relay::{
        FrameMode, Framing, LengthFormat, Peer, RelayError, Transfer, resources::RelayResources,
        stream::RelayStream, wait::timeout_at,
    },
};

/// One direction of a simulated stream.
#[derive(Debug, Default)]
struct Half {
    bytes: VecDeque<u8>,
    capacity: usize,
    has_ended: bool,
    is_reset: bool,
    /// The reader sees nothing until this many bytes are available.
    low_water: usize,
    waiting: Vec<Waker>,
}

impl Half {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    fn set_low_water(&mut self, bytes: usize) {
        self.low_water = bytes;
        self.wake();
    }
}

/// One end of a simulated stream.
#[derive(Clone, Debug)]
struct End {
    incoming: Rc<RefCell<Half>>,
    outgoing: Rc<RefCell<Half>>,
}

fn stream(capacity: usize) -> (End, End) {
    let half = || Rc::new(RefCell::new(Half { capacity, ..Half::default() }));
    let (one, other) = (half(), half());
    let near = End { incoming: Rc::clone(&one), outgoing: Rc::clone(&other) };
    (near, End { incoming: other, outgoing: one })
}

impl RelayStream for End {
    fn poll_read(&self, cx: &Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let half = &mut *self.incoming.borrow_mut();
        if half.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let is_low = half.bytes.len() < half.low_water.clamp(1, half.capacity);
        let count = half.bytes.len().min(room.len());
        if is_low && !half.has_ended {
            half.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        for (place, byte) in room.iter_mut().zip(half.bytes.drain(..count)) {
            *place = byte;
        }
        half.wake();
        Poll::Ready(Ok(count))
    }

    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let half = &mut *self.outgoing.borrow_mut();
        if half.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let count = bytes.len().min(half.capacity - half.bytes.len());
        if count == 0 {
            half.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        half.bytes.extend(&bytes[..count]);
        half.wake();
        Poll::Ready(Ok(count))
    }

    fn wake_at(&self, bytes: usize) {
        self.incoming.borrow_mut().set_low_water(bytes);
    }

    fn poll_finish(&self, _: &Context<'_>) -> Poll<io::Result<()>> {
        self.finish_writing();
        Poll::Ready(Ok(()))
    }

    fn unsent_bytes(&self) -> usize {
        self.outgoing.borrow().bytes.len()
    }

    fn reset(&self) {
        for half in [&self.incoming, &self.outgoing] {
            let half = &mut *half.borrow_mut();
            half.is_reset = true;
            half.wake();
        }
    }
}

impl End {
    fn finish_writing(&self) {
        let half = &mut *self.outgoing.borrow_mut();
        half.has_ended = true;
        half.wake();
    }

    async fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, room)).await
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Reads until the end; returns the bytes before an error, and whether there was one.
    async fn read_exact(&self, length: usize) -> Vec<u8> {
        let mut heard = vec![0; length];
        let mut at = 0;
        while at < length {
            let count = self.read(&mut heard[at..]).await.expect("open");
            assert_ne!(count, 0, "an end after {at} of {length} bytes");
            at += count;
        }
        heard
    }

    async fn read_all(&self, piece: usize) -> (Vec<u8>, bool) {
        let (mut heard, mut room) = (Vec::new(), vec![0; piece]);
        loop {
            match self.read(&mut room).await {
                Ok(0) => return (heard, false),
                Ok(count) => heard.extend_from_slice(&room[..count]),
                Err(_) => return (heard, true),
            }
        }
    }
}

fn resources(server: &Server) -> RelayResources {
    RelayResources::new(server.clone(), 1 << 20, 0, Transfer::Copy)
}

async fn sleep(server: &Server, time: Duration) {
    server.timers().wait(server.now() + time).await.expect("the simulation's timers");
}

const SECOND: Duration = Duration::from_secs(1);

/// Goal: a connection ends when nothing has moved for the idle time-out, exact to the nanosecond. Method: a byte at 10
/// s one way and at 25 s the other, with a time-out of 20 s.
#[test]
fn idle_connections_end_on_time() {
    let mut simulation = Simulation::new(1);
    let server = simulation.server().clone();
    let ((client, near), (far, upstream)) = (stream(64), stream(64));
    let timed = server.clone();
    let talk = simulation.spawn(async move {
        sleep(&timed, 10 * SECOND).await;
        client.write_all(b"x").await.expect("open");
        upstream.read(&mut [0; 8]).await.expect("open");
        sleep(&timed, 15 * SECOND).await;
        upstream.write_all(b"y").await.expect("open");
        client.read(&mut [0; 8]).await.expect("open");
    });
    let resources = resources(&server);
    let mut session = Session::new((near, far), None, Some(20 * SECOND), &resources);
    let ended = simulation.block_on(async {
        let ended = session.run(&resources).await;
        talk.await;
        ended
    });
    assert!(
        matches!(ended, Ok(Err(RelayError::Idle { after })) if after == 20 * SECOND),
        "{ended:?}"
    );
    assert_eq!(simulation.now(), Instant::from_nanos(45_000_000_000));
}

/// Goal: a wait ends at its deadline, and an event at the same time wins. Method: one that never comes, and one at the
/// same instant.
#[test]
fn waits_end_at_their_deadline() {
    let mut simulation = Simulation::new(2);
    let server = simulation.server().clone();
    let deadline = server.now() + SECOND;
    let late = simulation.block_on(timeout_at(&server, deadline, pending::<()>()));
    assert!(matches!(late, Ok(Ok(None))));
    assert_eq!(simulation.now(), deadline);
    let now = simulation.now();
    let both = simulation.block_on(timeout_at(&server, now, async { 5 }));
    assert!(matches!(both, Ok(Ok(Some(5)))));
}

/// Goal: every byte arrives in order in both directions, whatever the order of events and the sizes of queues; and a
/// run is a function of its seed. Method: 64 seeds; pieces, pauses and queues are random, and one side ends long before
/// the other. One run in eight is made twice.
#[test]
fn every_byte_arrives_in_every_order() {
    for seed in 0..64 {
        let first = exchange(seed);
        if seed % 8 == 0 {
            assert_eq!(exchange(seed), first, "seed {seed} is not reproducible");
        }
    }
}

fn exchange(seed: u64) -> u64 {
    let mut simulation = Simulation::new(seed);
    let server = simulation.server().clone();
    let sizes = [1, 7, 100, 5000, 70_000];
    let mut capacity = || *simulation.random().choice(&sizes).unwrap_or(&1);
    let ((client, near), (far, upstream)) = (stream(capacity()), stream(capacity()));
    let mut heard = Vec::new();
    for (end, salt) in [(client, 1_u8), (upstream, 2)] {
        let bytes = simulation.random().usize(..40_000);
        let said: Vec<u8> = (0..bytes).map(|index| index.to_le_bytes()[0] ^ salt).collect();
        let mut random = simulation.random().fork();
        let (server, writer, text) = (server.clone(), end.clone(), said.clone());
        drop(simulation.spawn(async move {
            let mut rest = &text[..];
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(random.usize(1..=rest.len()));
                sleep(&server, Duration::from_micros(random.u64(..50))).await;
                writer.write_all(piece).await.expect("open");
                rest = later;
            }
            writer.finish_writing();
        }));
        let piece = simulation.random().usize(1..10_000);
        heard.push((said, simulation.spawn(async move { end.read_all(piece).await })));
    }
    let resources = resources(&server);
    let mut session = Session::new((near, far), None, None, &resources);
    let ended = simulation.block_on(session.run(&resources));
    assert!(matches!(ended, Ok(Ok(()))), "seed {seed}: {ended:?}");
    let (_, from_client) = heard.pop().expect("two sides");
    let (said_by_client, from_upstream) = heard.pop().expect("two sides");
    let at_upstream = simulation.block_on(from_client).expect("it ends");
    let at_client = simulation.block_on(from_upstream).expect("it ends");
    assert!(at_upstream == (said_by_client, false), "seed {seed}");
    assert!(!at_client.1, "seed {seed}");
    let stats = resources.counters.snapshot();
    assert_eq!(stats.bytes_up, at_upstream.0.len() as u64, "seed {seed}");
    assert_eq!(stats.bytes_down, at_client.0.len() as u64, "seed {seed}");
    simulation.trace_hash()
}

/// Goal: wherever a stream of messages breaks off, a receiver of stored messages gets complete ones, and a receiver of
/// cut-through messages gets the bytes that arrived, and an error. Method: 200 seeds: random messages, cut at a random
/// byte, by an end or a reset.
#[test]
fn streams_break_off_anywhere() {
    for seed in 0..200 {
        for mode in [FrameMode::StoreAndForward, FrameMode::CutThrough, FrameMode::Planned] {
            break_off(seed, mode);
        }
    }
}

fn break_off(seed: u64, mode: FrameMode) {
    let mut simulation = Simulation::new(seed);
    let server = simulation.server().clone();
    let (mut text, mut ends) = (Vec::new(), vec![0]);
    for _ in 0..simulation.random().usize(1..6) {
        let longest = *simulation.random().choice(&[0, 10, 5000, 90_000]).unwrap_or(&0);
        let body = simulation.random().u32(..=longest);
        text.extend(body.to_be_bytes());
        text.extend((0..body).map(|index| index.to_le_bytes()[0]));
        ends.push(text.len());
    }
    let cut = simulation.random().usize(..=text.len());
    let is_reset = simulation.random().bool();
    let capacity = simulation.random().usize(1..100_000);
    let ((client, near), (far, upstream)) = (stream(capacity), stream(1 << 20));
    let said = text[..cut].to_vec();
    let timed = server.clone();
    drop(simulation.spawn(async move {
        client.write_all(&said).await.expect("open");
        if is_reset {
            // Wait until the written bytes have been read: the kernel delivers them all.
            while !client.outgoing.borrow().bytes.is_empty() {
                client.outgoing.borrow_mut().set_low_water(0);
                sleep(&timed, Duration::from_micros(10)).await;
            }
            client.reset();
        } else {
            client.finish_writing();
        }
    }));
    let reader = upstream.clone();
    let heard = simulation.spawn(async move {
        let heard = reader.read_all(3000).await;
        reader.finish_writing();
        heard
    });
    let resources = resources(&server);
    let framing = Framing::new(LengthFormat::U32Be).mode(mode).message_bytes_max(100_000);
    let mut session = Session::new((near, far), Some(framing), None, &resources);
    let ended = simulation.block_on(session.run(&resources)).expect("no deadlock");
    // Dropping real streams ends them.
    drop(upstream);
    session.upstream.finish_writing();
    let (heard, was_reset) = simulation.block_on(heard).expect("it ends");
    let whole = ends.iter().copied().filter(|end| *end <= cut).max().unwrap_or(0);
    let is_torn = whole < cut;
    assert!(heard == text[..heard.len()], "seed {seed} {mode:?}: bytes differ");
    let stats = resources.counters.snapshot();
    match &ended {
        Err(RelayError::Torn { peer: Peer::Client, received, mode: torn, .. }) => {
            assert!(is_torn, "seed {seed}");
            assert_eq!(*received, (cut - whole) as u64, "seed {seed}");
            assert_eq!(stats.messages_torn + stats.messages_dropped, 1);
            match torn {
                SwitchingMode::StoreAndForward => {
                    assert_eq!(heard.len(), whole, "seed {seed} {mode:?}")
                }
                SwitchingMode::CutThrough => assert_eq!(heard.len(), cut, "seed {seed}"),
            }
        }
        Err(RelayError::Failed { .. }) => assert!(is_reset && !is_torn, "seed {seed} {ended:?}"),
        Ok(()) => assert!(!is_reset && !is_torn, "seed {seed}"),
        Err(other) => panic!("seed {seed}: {other}"),
    }
    assert_eq!(was_reset, is_reset || is_torn, "seed {seed} {mode:?}: only a whole stream ends");
    assert!(heard.len() >= whole, "seed {seed} {mode:?}: {} of {whole}", heard.len());
    if mode == FrameMode::StoreAndForward || !is_torn {
        assert_eq!(heard.len(), whole, "seed {seed} {mode:?}");
    }
}

/// Goal: complete messages for a receiver that accepts nothing keep a broken session for a bounded time, and longer
/// while it accepts some. Method: a sender that is reset after messages that are never read, or only now and then.
#[test]
fn whole_messages_wait_for_their_receiver() {
    for reads in [0_u64, 3] {
        let mut simulation = Simulation::new(5);
        let server = simulation.server().clone();
        let ((client, near), (far, upstream)) = (stream(1 << 16), stream(1 << 16));
        let (timed, reader) = (server.clone(), upstream.clone());
        drop(simulation.spawn(async move {
            let message = [&96_u32.to_be_bytes()[..], &[1; 96]].concat();
            client.write_all(&message.repeat(10)).await.expect("open");
            while reader.outgoing.borrow().is_reset || reader.incoming.borrow().bytes.len() < 1000 {
                sleep(&timed, Duration::from_micros(10)).await;
            }
            client.reset();
            for _ in 0..reads {
                sleep(&timed, 8 * SECOND).await;
                reader.read(&mut [0; 100]).await.expect("not reset yet");
            }
        }));
        let resources = resources(&server);
        let framing = Framing::new(LengthFormat::U32Be);
        let mut session = Session::new((near, far), Some(framing), None, &resources);
        let ended = simulation.block_on(session.run(&resources));
        assert!(matches!(ended, Ok(Err(RelayError::Failed { .. }))), "{ended:?}");
        let took = (simulation.now() - Instant::from_nanos(0)).as_secs();
        assert_eq!(took, 8 * reads + 10, "{reads} reads");
        assert!(upstream.incoming.borrow().is_reset);
    }
}

/// Goal: a session that is dropped early resets both peers; a finished one resets none. Method: drop it after its first
/// bytes; then let both peers end.
#[test]
fn a_dropped_session_is_no_end() {
    for is_over in [false, true] {
        let mut simulation = Simulation::new(4);
        let server = simulation.server().clone();
        let ((client, near), (far, upstream)) = (stream(64), stream(64));
        let resources = resources(&server);
        let mut session = Session::new((near, far), None, None, &resources);
        let heard = simulation.block_on(async {
            let mut running = std::pin::pin!(session.run(&resources));
            client.write_all(b"half").await.expect("open");
            poll_fn(|cx| {
                assert!(running.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            if is_over {
                client.finish_writing();
                upstream.finish_writing();
                running.await.expect("both have ended");
            }
            let mut room = [0; 8];
            upstream.read(&mut room).await.map(|bytes| room[..bytes].to_vec())
        });
        assert_eq!(heard.expect("no deadlock").expect("not reset yet"), b"half");
        drop(session);
        for end in [client, upstream] {
            assert_eq!(end.outgoing.borrow().is_reset, !is_over);
            assert_eq!(end.incoming.borrow().is_reset, !is_over);
        }
    }
}

/// Goal: cut-through passes on a piece when it comes, store-and-forward when all have come. Method: sixteen pieces
/// of 64 KiB, one every half millisecond, and the instant at which the receiver has its first byte.
#[test]
fn pieces_are_cut_through_as_they_come() {
    for (mode, expected) in
        [(FrameMode::CutThrough, 500_000), (FrameMode::StoreAndForward, 8_000_000)]
    {
        let mut simulation = Simulation::new(9);
        let server = simulation.server().clone();
        let ((client, near), (far, upstream)) = (stream(1 << 20), stream(2 << 20));
        let timed = server.clone();
        drop(simulation.spawn(async move {
            let mut piece = vec![4; 64 << 10];
            piece[..4].copy_from_slice(&((1_u32 << 20) - 4).to_be_bytes());
            for _ in 0..16 {
                sleep(&timed, Duration::from_micros(500)).await;
                client.write_all(&piece).await.expect("open");
            }
            client.finish_writing();
        }));
        let first = Rc::new(Cell::new(None));
        let (seen, timed) = (Rc::clone(&first), server.clone());
        drop(simulation.spawn(async move {
            upstream.read(&mut [0; 1]).await.expect("open");
            seen.set(Some(timed.now()));
            upstream.read_all(1 << 20).await;
            upstream.finish_writing();
        }));
        let resources = resources(&server);
        let resources =
            RelayResources { buffers: crate::relay::buffers::Buffers::new(4 << 20), ..resources };
        let framing = Framing::new(LengthFormat::U32Be).mode(mode);
        let mut session = Session::new((near, far), Some(framing), None, &resources);
        let ended = simulation.block_on(session.run(&resources));
        assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
        assert_eq!(first.get(), Some(Instant::from_nanos(expected)), "{mode:?}");
    }
}

/// Goal: a receiver that accepts nothing costs one buffer, and its sender is not read any more. Method: an endless
/// sender, raw and framed, until nothing moves.
#[test]
fn a_stalled_receiver_costs_one_buffer() {
    let framing = Framing::new(LengthFormat::U32Be).mode(FrameMode::CutThrough);
    for framing in [None, Some(framing)] {
        let mut simulation = Simulation::new(3);
        let server = simulation.server().clone();
        let ((client, near), (far, _upstream)) = (stream(1000), stream(1000));
        let sent = Rc::new(Cell::new(0_usize));
        let count = Rc::clone(&sent);
        drop(simulation.spawn(async move {
            let message = [&996_u32.to_be_bytes()[..], &[1; 996]].concat();
            while client.write_all(&message).await.is_ok() {
                count.set(count.get() + message.len());
            }
        }));
        let resources = resources(&server);
        let mut session = Session::new((near, far), framing, Some(SECOND), &resources);
        let ended = simulation.block_on(session.run(&resources));
        assert!(matches!(ended, Ok(Err(RelayError::Idle { .. }))), "{ended:?}");
        assert!(sent.get() <= 300_000, "{} bytes", sent.get());
    }
}

/// Goal: a direction counts as a stream while it fills its buffers, until its end. Method: a long stream one way, and a byte the other way, before the session
/// is dropped.
#[test]
fn streams_are_counted_until_they_end() {
    let mut simulation = Simulation::new(4);
    let server = simulation.server().clone();
    let ((client, near), (far, upstream)) = (stream(1 << 20), stream(1 << 20));
    drop(simulation.spawn(async move {
        client.write_all(&vec![1; 4 << 20]).await.expect("open");
        client.finish_writing();
    }));
    let resources = resources(&server);
    let (streams, most) = (Arc::clone(&resources.streams), Rc::new(Cell::new(0)));
    let seen = Rc::clone(&most);
    drop(simulation.spawn(async move {
        upstream.write_all(b"x").await.expect("open");
        while upstream.read(&mut vec![0; 64 << 10]).await.expect("open") > 0 {
            seen.set(streams.load(Ordering::Relaxed).max(seen.get()));
        }
        upstream.finish_writing();
    }));
    let mut session = Session::new((near, far), None, None, &resources);
    let ended = simulation.block_on(session.run(&resources));
    assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
    assert_eq!((most.get(), resources.streams()), (1, 0));
    drop(session);
}

/// Goal: no message waits for bytes behind it. Method: requests of random lengths in random pieces, each answered only
/// when complete, and followed by the next only then.
#[test]
fn no_message_waits_for_the_next() {
    for mode in [FrameMode::Planned, FrameMode::StoreAndForward, FrameMode::CutThrough] {
        for seed in 0..20 {
            let mut simulation = Simulation::new(seed);
            let server = simulation.server().clone();
            let ((client, near), (far, upstream)) = (stream(1 << 20), stream(1 << 20));
            let mut messages = Vec::new();
            for _ in 0..8 {
                let random = simulation.random();
                let longest = *random.choice(&[0, 100, 70_000, 300_000]).unwrap_or(&0);
                let body = random.u32(longest / 2..=longest);
                let bytes = (0..body).map(|index| index.to_le_bytes()[0]);
                let message: Vec<u8> = body.to_be_bytes().into_iter().chain(bytes).collect();
                messages.push((message, random.usize(1..80_000)));
            }
            let (timed, said) = (server.clone(), messages.clone());
            let talk = simulation.spawn(async move {
                for (message, piece) in said {
                    for piece in message.chunks(piece) {
                        client.write_all(piece).await.expect("open");
                        sleep(&timed, Duration::from_micros(50)).await;
                    }
                    assert!(client.read_exact(message.len()).await == message, "the answer");
                }
                client.finish_writing();
            });
            drop(simulation.spawn(async move {
                for (message, piece) in messages {
                    let heard = upstream.read_exact(message.len()).await;
                    assert!(heard == message, "the request");
                    for piece in message.chunks(piece) {
                        upstream.write_all(piece).await.expect("open");
                    }
                }
                upstream.finish_writing();
            }));
            let resources = resources(&server);
            let framing = Framing::new(LengthFormat::U32Be).mode(mode);
            let mut session = Session::new((near, far), Some(framing), None, &resources);
            let ended = simulation.block_on(session.run(&resources));
            assert!(matches!(ended, Ok(Ok(()))), "seed {seed} {mode:?}: {ended:?}");
            simulation.block_on(talk).expect("it ends");
        }
    }
}
