//! Channels: many send, many receive, and receivers come and go.

use std::{
    sync::{Arc, mpsc::TrySendError},
    thread,
};

use vigie_detect::{
    Handle,
    detectors::channel::{Receiver, Sender, channel},
};
use vigie_runtime::{Runtime, spawn, yield_now};

use super::{Tasks, World};

/// Opens one channel with its senders and receivers. Values go on through a second channel, of tokio's.
pub(crate) fn open(
    runtime: &Runtime,
    world: &World,
    random: &mut fastrand::Rng,
    tasks: &mut Tasks,
    threads: &mut Vec<thread::JoinHandle<()>>,
) {
    let capacity = random.usize(1..64);
    let (sender, receiver) = channel(runtime.server(), capacity).expect("a channel");
    for _ in 0..random.usize(1..5) {
        let count = random.usize(100..300);
        let task = send(sender.clone(), world.clone(), count, random.fork());
        tasks.push(runtime.spawn(task));
    }
    for _ in 0..random.usize(0..3) {
        let (sender, ledger) = (sender.clone(), Arc::clone(&world.ledger));
        let count = random.usize(100..300);
        threads.push(thread::spawn(move || {
            for _ in 0..count {
                sender.send_blocking(ledger.send()).expect("a task receives");
            }
        }));
    }
    let (forward, forwarded) = tokio::sync::mpsc::channel(random.usize(1..16));
    tasks.push(runtime.spawn(collect(forwarded, world.clone())));
    // One receiver stays to the end, so that every message is received.
    tasks.push(runtime.spawn(relay(receiver.clone(), forward, world.clone())));
    for _ in 0..random.usize(1..6) {
        let (open, receiver) = (sender.clone(), receiver.clone());
        tasks.push(runtime.spawn(replace_often(open, receiver, world.clone(), random.fork())));
    }
    // The channel ends with the last sender.
    drop(sender);
}

async fn send(sender: Sender<u32>, world: World, count: usize, mut random: fastrand::Rng) {
    let _witness = world.census.witness();
    for _ in 0..count {
        let mut value = world.ledger.send();
        while let Err(refused) = sender.try_send(value) {
            let TrySendError::Full(refused) = refused else { panic!("a task receives") };
            value = refused;
            yield_now().await;
        }
        if random.u8(..8) == 0 {
            yield_now().await;
        }
    }
}

/// Forwards what it receives. Never aborted: it holds messages between two polls.
async fn relay(
    receiver: Handle<Receiver<u32>>,
    forward: tokio::sync::mpsc::Sender<u32>,
    world: World,
) {
    let _witness = world.census.witness();
    while let Some(number) = receiver.recv().await.expect("the server lives") {
        forward.send(number).await.expect("a task collects");
    }
}

async fn collect(mut forwarded: tokio::sync::mpsc::Receiver<u32>, world: World) {
    let _witness = world.census.witness();
    while let Some(number) = forwarded.recv().await {
        world.ledger.receive(number);
    }
}

/// Receives until the channel ends, by single waits or by a stream.
async fn receive(receiver: Handle<Receiver<u32>>, world: World, streams: bool) {
    let _witness = world.census.witness();
    if streams {
        let mut stream = receiver.stream(()).expect("the server lives");
        while let Some(number) = stream.next().await {
            let Some(number) = number.expect("the server lives") else { return };
            world.ledger.receive(number);
        }
    } else {
        while let Some(number) = receiver.recv().await.expect("the server lives") {
            world.ledger.receive(number);
        }
    }
}

/// Lets one receiver after the other work for some switches, and aborts it then, wherever it is. What it
/// has not read yet goes to the others. That needs a receiver that has not been told of the end, which
/// therefore does not come before.
async fn replace_often(
    open: Sender<u32>,
    receiver: Handle<Receiver<u32>>,
    world: World,
    mut random: fastrand::Rng,
) {
    let _witness = world.census.witness();
    let mut aborted = Vec::new();
    for _ in 0..random.usize(5..20) {
        let task = spawn(receive(receiver.clone(), world.clone(), random.bool()));
        for _ in 0..random.usize(..20) {
            yield_now().await;
        }
        task.abort();
        if random.bool() {
            // Otherwise the next one begins while this one ends.
            let _ = task.await;
        } else {
            aborted.push(task);
        }
    }
    for task in aborted {
        let _ = task.await;
    }
    drop(open);
}
