//! The work: tasks that yield, send, ask, sleep, spawn, and misbehave. Each goes on until the life of its
//! runtime is over, and checks what it gets.

use std::future::{pending, poll_fn};
use std::io;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use vigie_detect::clock::monotonic_now;
use vigie_detect::detectors::channel::channel;
use vigie_detect::detectors::doorbell::doorbell;
use vigie_detect::net::{TcpListener, TcpStream, UnixStream};
use vigie_runtime::{JoinHandle, time, yield_now};

use super::tally::{ActorContext, Expected, Fault};
use crate::{clock, compute};

/// The actors that are waited for.
#[derive(Default)]
pub(super) struct ActorHandles {
    pub(super) tasks: Vec<JoinHandle<()>>,
    pub(super) threads: Vec<thread::JoinHandle<()>>,
}

/// The actors under which a runtime may be dropped: none depends on anything outside it.
pub(super) fn enter_alone(
    context: &ActorContext,
    random: &mut fastrand::Rng,
) -> io::Result<ActorHandles> {
    let mut handles = ActorHandles::default();
    for _ in 0..2 {
        handles.tasks.push(context.act("yield", yield_often(context.clone())));
    }
    for _ in 0..2 {
        pair(context, &mut handles, None)?;
        handles.tasks.push(context.act("sleep", sleep_often(context.clone(), random.fork())));
    }
    pair(context, &mut handles, Some(Duration::from_micros(random.u64(200..2000))))?;
    handles.tasks.push(context.act("storm", storm(context.clone(), random.fork())));
    handles.tasks.push(context.act("panic", panic_often(context.clone())));
    handles.tasks.push(context.act("hog", hog(context.clone(), random.fork())));
    handles.tasks.push(context.act("block", block(context.clone(), random.fork())));
    Ok(handles)
}

/// All actors.
pub(super) fn enter_all(
    context: &ActorContext,
    random: &mut fastrand::Rng,
) -> io::Result<ActorHandles> {
    let mut handles = enter_alone(context, random)?;
    for _ in 0..2 {
        // As many handlers that hog as there are workers, and more.
        pair(context, &mut handles, Some(Duration::from_micros(random.u64(200..2000))))?;
    }
    exchange(context, &mut handles, random)?;
    serve(context, &mut handles, random)?;
    ring(context, &mut handles)?;
    wake(context, &mut handles);
    handles.tasks.push(context.act("exec", exec(context.clone())));
    Ok(handles)
}

async fn yield_often(context: ActorContext) {
    while !context.is_over() {
        for _ in 0..1000 {
            yield_now().await;
        }
    }
}

async fn sleep_often(context: ActorContext, mut random: fastrand::Rng) {
    let timers = context.tally.count("timers");
    while !context.is_over() {
        let wait = Duration::from_micros(random.u64(0..1000));
        let begin = monotonic_now();
        time::sleep(wait).await;
        if monotonic_now() - begin < wait {
            context.tally.violate(format!("a timer of {wait:?} was early"));
        }
        timers.fetch_add(1, Ordering::Relaxed);
    }
}

async fn echo<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    context: ActorContext,
    hog: Option<Duration>,
) -> io::Result<()> {
    loop {
        let number = stream.read_u64().await?;
        if let Some(time) = hog {
            // In the poll that the event has woken.
            context.tally.fault(Fault::HogReacts);
            compute::busy(time);
        }
        stream.write_u64(number).await?;
    }
}

/// Asks once, and checks the answer.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    context: &ActorContext,
    number: u64,
) -> io::Result<()> {
    stream.write_u64(number).await?;
    let answer = stream.read_u64().await?;
    if answer != number {
        context.tally.violate(format!("asked {number}, and {answer} was answered"));
    }
    Ok(())
}

/// Two tasks at the ends of a pair of Unix sockets; the one that answers may hog before it does.
fn pair(
    context: &ActorContext,
    handles: &mut ActorHandles,
    hog: Option<Duration>,
) -> io::Result<()> {
    let (mut near, far) = UnixStream::pair_on(context.handle.server())?;
    let answering = echo(far, context.clone(), hog);
    handles.tasks.push(context.act("answer", async move {
        // Ends with the other one's stream.
        let _ = answering.await;
    }));
    let asking = context.clone();
    handles.tasks.push(context.act("ask", async move {
        let pings = asking.tally.count("pings, Unix");
        let mut number = 0;
        while !asking.is_over() {
            number += 1;
            if let Err(error) = ask(&mut near, &asking, number).await {
                asking.tally.violate(format!("a pair of sockets broke: {error}"));
                return;
            }
            pings.fetch_add(1, Ordering::Relaxed);
            if hog.is_some() {
                time::sleep(Duration::from_millis(5)).await;
            }
        }
    }));
    Ok(())
}

/// Some tasks and a foreign thread send through one channel: each message arrives once, in its order.
fn exchange(
    context: &ActorContext,
    handles: &mut ActorHandles,
    random: &mut fastrand::Rng,
) -> io::Result<()> {
    const SENDERS: usize = 3;
    let (sender, receiver) = channel::<(usize, u64)>(context.handle.server(), random.usize(1..64))
        .map_err(io::Error::other)?;
    let sent: Arc<[AtomicU64; SENDERS]> = Arc::default();
    for index in 1..SENDERS {
        let (sender, sent, context_) = (sender.clone(), Arc::clone(&sent), context.clone());
        handles.tasks.push(context.act("send", async move {
            while !context_.is_over() {
                let number = sent[index].load(Ordering::Relaxed);
                match sender.try_send((index, number)) {
                    Ok(()) => sent[index].store(number + 1, Ordering::Relaxed),
                    Err(TrySendError::Full(_)) => {}
                    Err(_) => return context_.tally.violate("a channel closed early"),
                }
                yield_now().await;
            }
        }));
    }
    let (foreign, entered) = (context.clone(), Arc::clone(&sent));
    handles.threads.push(thread::spawn(move || {
        while !foreign.is_over() {
            let number = entered[0].fetch_add(1, Ordering::Relaxed);
            if sender.send_blocking((0, number)).is_err() {
                return foreign.tally.violate("a channel closed early");
            }
            foreign.tally.fault(Fault::Bell);
            if number % 64 == 0 {
                clock::sleep(Duration::from_micros(200));
            }
        }
    }));
    let context_ = context.clone();
    handles.tasks.push(context.act("receive", async move {
        let messages = context_.tally.count("messages");
        let mut expected = [0; SENDERS];
        loop {
            match receiver.recv().await {
                Ok(Some((index, number))) => {
                    if number != expected[index] {
                        let expected = expected[index];
                        context_.tally.violate(format!("message {number} instead of {expected}"));
                    }
                    expected[index] = number + 1;
                    messages.fetch_add(1, Ordering::Relaxed);
                }
                Ok(None) => break,
                Err(error) => return context_.tally.violate(format!("a channel: {error}")),
            }
        }
        let sent = sent.each_ref().map(|count| count.load(Ordering::SeqCst));
        if sent != expected {
            context_.tally.violate(format!("sent {sent:?}, received {expected:?}"));
        }
    }));
    Ok(())
}

/// A server and clients, of which most reset their connections.
fn serve(
    context: &ActorContext,
    handles: &mut ActorHandles,
    random: &mut fastrand::Rng,
) -> io::Result<()> {
    let any = ([127, 0, 0, 1], 0).into();
    let listener = TcpListener::bind_on(context.handle.server(), any)?;
    let address = listener.local_addr()?;
    let left = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let (context_, mut random, left) = (context.clone(), random.fork(), Arc::clone(&left));
        left.fetch_add(1, Ordering::SeqCst);
        handles.tasks.push(context.act("client", async move {
            while !context_.is_over() {
                // Without descriptors or ports, later.
                if let Ok(stream) = TcpStream::connect_on(context_.handle.server(), address).await {
                    visit(stream, &context_, &mut random).await;
                }
                time::sleep(Duration::from_millis(10)).await;
            }
            left.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    let context_ = context.clone();
    handles.tasks.push(context.act("server", async move {
        let mut visits = Vec::new();
        while left.load(Ordering::SeqCst) > 0 {
            let accepted = time::timeout(Duration::from_millis(20), listener.accept()).await;
            match accepted {
                Ok(Ok((stream, _))) => {
                    visits.push(context_.spawn(echo(stream, context_.clone(), None)));
                }
                // No descriptors: they come back.
                Ok(Err(_)) => time::sleep(Duration::from_millis(1)).await,
                Err(_elapsed) => {}
            }
            if visits.len() > 64 {
                for visit in visits.drain(..32) {
                    context_.enter("a connection", visit.await, Expected::End);
                }
            }
        }
        for visit in visits {
            context_.enter("a connection", visit.await, Expected::End);
        }
    }));
    Ok(())
}

async fn visit(mut stream: TcpStream, context: &ActorContext, random: &mut fastrand::Rng) {
    let pings = context.tally.count("pings, TCP");
    for number in 0..random.u64(10..100) {
        if ask(&mut stream, context, number).await.is_err() {
            // Allowed if there was no thread to answer, which is checked at the end.
            context.state.broken.fetch_add(1, Ordering::SeqCst);
            return;
        }
        pings.fetch_add(1, Ordering::Relaxed);
    }
    if random.u8(..4) > 0 {
        // In the middle of a message or of its answer.
        let _ = stream.write_u64(random.u64(..)).await;
        if stream.set_linger(Some(Duration::ZERO)).is_ok() {
            context.tally.fault(Fault::Reset);
        }
    }
}

/// Tasks come and go; some are aborted, wherever they are.
async fn storm(context: ActorContext, mut random: fastrand::Rng) {
    while !context.is_over() {
        let mut tasks = Vec::new();
        for _ in 0..random.usize(1..32) {
            let (kind, amount) = (random.u8(..4), random.u64(0..50));
            let task = context.spawn(async move {
                match kind {
                    0 => pending().await,
                    1 => time::sleep(Duration::from_micros(amount * 10)).await,
                    _ => {
                        for _ in 0..amount {
                            yield_now().await;
                        }
                    }
                }
            });
            tasks.push((task, kind == 0 || random.bool(), kind));
        }
        for _ in 0..random.usize(..20) {
            yield_now().await;
        }
        for (task, is_aborted, _) in &tasks {
            if *is_aborted {
                task.abort();
                context.tally.fault(Fault::Abort);
            }
        }
        for (task, is_aborted, kind) in tasks {
            *context.state.awaited.lock().unwrap_or_else(PoisonError::into_inner) =
                format!("a task of kind {kind}, aborted: {is_aborted}, {task:?}");
            let expected = if is_aborted { Expected::EndOrCancel } else { Expected::End };
            context.enter("a task of a storm", task.await, expected);
        }
    }
}

/// The message of planted panics.
pub(super) const PLANTED: &str = "planted";

async fn panic_often(context: ActorContext) {
    while !context.is_over() {
        let task = context.spawn(async {
            yield_now().await;
            std::panic::panic_any(PLANTED);
        });
        context.tally.fault(Fault::Panic);
        let answer: Result<(), _> = task.await;
        context.enter("a task that panics", answer, Expected::Panic);
        time::sleep(Duration::from_millis(2)).await;
    }
}

async fn hog(context: ActorContext, mut random: fastrand::Rng) {
    while !context.is_over() {
        context.tally.fault(Fault::HogComputes);
        compute::busy(Duration::from_micros(random.u64(100..3000)));
        time::sleep(Duration::from_millis(random.u64(1..20))).await;
    }
}

async fn block(context: ActorContext, mut random: fastrand::Rng) {
    while !context.is_over() {
        context.tally.fault(Fault::HogBlocks);
        let tv_nsec = random.i64(100_000..3_000_000);
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec };
        // A signal may end it.
        let _ = rustix::event::poll(&mut [], Some(&time));
        time::sleep(Duration::from_millis(random.u64(1..20))).await;
    }
}

async fn exec(context: ActorContext) {
    while !context.is_over() {
        let null = Stdio::null;
        let ran = Command::new("true").stdin(null()).stdout(null()).stderr(null()).status();
        match ran {
            Ok(status) if status.success() => context.tally.fault(Fault::Exec),
            Ok(status) => context.tally.violate(format!("`true` ended with {status}")),
            // No descriptors or no memory for a while.
            Err(_) => {
                context
                    .tally
                    .count("programs that could not start")
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// A foreign thread rings a doorbell, a task waits: each ring is taken once.
fn ring(context: &ActorContext, handles: &mut ActorHandles) -> io::Result<()> {
    let (button, bell) = doorbell(context.handle.server()).map_err(io::Error::other)?;
    let pressed = Arc::new(AtomicU64::new(0));
    let is_last = Arc::new(AtomicBool::new(false));
    let (foreign, count, last) = (context.clone(), Arc::clone(&pressed), Arc::clone(&is_last));
    handles.threads.push(thread::spawn(move || {
        loop {
            let is_over = foreign.is_over();
            count.fetch_add(1, Ordering::SeqCst);
            last.store(is_over, Ordering::SeqCst);
            button.press();
            foreign.tally.fault(Fault::Bell);
            if is_over {
                return;
            }
            clock::sleep(Duration::from_micros(100));
        }
    }));
    let context_ = context.clone();
    handles.tasks.push(context.act("bell", async move {
        let rings = context_.tally.count("rings");
        let mut taken = 0;
        while !(is_last.load(Ordering::SeqCst) && taken == pressed.load(Ordering::SeqCst)) {
            if let Err(error) = bell.rung().await {
                return context_.tally.violate(format!("a bell: {error}"));
            }
            taken += 1;
            rings.fetch_add(1, Ordering::Relaxed);
        }
    }));
    Ok(())
}

/// Data that a foreign thread leaves for a task: a number, whether it is the last one, and the
/// waker to call.
#[derive(Default)]
struct WakeMessage {
    number: u64,
    is_last: bool,
    waker: Option<Waker>,
}

/// A foreign thread wakes a task by its waker alone, and waits until it was there.
fn wake(context: &ActorContext, handles: &mut ActorHandles) {
    let message: Arc<Mutex<WakeMessage>> = Arc::default();
    let (answer, answers) = std::sync::mpsc::channel();
    let (foreign, of_thread) = (context.clone(), Arc::clone(&message));
    handles.threads.push(thread::spawn(move || {
        let mut number = 0;
        loop {
            number += 1;
            let is_last = foreign.is_over();
            let waker = {
                let mut message = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                message.number = number;
                message.is_last = is_last;
                message.waker.take()
            };
            if let Some(waker) = waker {
                foreign.tally.fault(Fault::ForeignWake);
                waker.wake();
            }
            // A lost wake-up stops here, and the watchdog reports it.
            match answers.recv() {
                Ok(answer) if answer == number => {}
                Ok(answer) => foreign.tally.violate(format!("woken for {number}, saw {answer}")),
                Err(_) if is_last => return,
                Err(_) => return foreign.tally.violate("a woken task went away"),
            }
            if is_last {
                return;
            }
            clock::sleep(Duration::from_micros(100));
        }
    }));
    let context_ = context.clone();
    handles.tasks.push(context.act("letters", async move {
        let letters = context_.tally.count("letters");
        let mut read = 0;
        loop {
            let (number, is_last) = poll_fn(|cx| {
                let mut message = message.lock().unwrap_or_else(PoisonError::into_inner);
                if message.number > read {
                    return Poll::Ready((message.number, message.is_last));
                }
                message.waker = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            read = number;
            letters.fetch_add(1, Ordering::Relaxed);
            let is_gone = answer.send(number).is_err();
            if is_gone || is_last {
                return;
            }
        }
    }));
}
