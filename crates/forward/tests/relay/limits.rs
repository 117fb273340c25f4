//! Limits: connections, descriptors, slow receivers.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with},
    process::Uid,
    thread::set_thread_res_uid,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::TcpListener;
use vigie_forward::relay::Transfer;
use vigie_runtime::time;

use crate::{
    Serving, echo, exchange,
    kit::{
        child::{command_in, role},
        skip::skip,
        speaker::Speaker,
    },
    local, pattern, run, tcp,
};

/// Goal: connections beyond the limit wait, and all are served. Method: thirty connections of a relay for two.
#[test]
fn connections_beyond_the_bound_wait() {
    run(async {
        let relay = Serving::start(tcp(echo().await?).connections_max(2));
        let mut streams = Vec::new();
        for _ in 0..30 {
            streams.push(relay.connect().await?);
        }
        for (index, stream) in (0..).zip(streams) {
            let bytes = pattern(index, 10_000);
            assert!(exchange(stream, bytes.clone()).await? == bytes);
            assert!(relay.handle.stats().active <= 2);
        }
        relay.until(|stats| stats.finished == 30).await;
        assert_eq!(relay.handle.stats().pauses, 0);
        Ok(())
    });
}

/// Goal: a slow receiver stops its sender, and no other client. Method: a client that writes to an upstream that does
/// not read, until nothing moves; meanwhile others are served; then the upstream reads everything.
#[test]
fn a_slow_receiver_stops_its_sender() {
    run(async {
        let slow = TcpListener::bind(local()).await?;
        let relay = Serving::start(tcp(slow.local_addr()?));
        let mut client = relay.connect().await?;
        let (mut served, _) = slow.accept().await?;
        let block = vec![3; 64 << 10];
        let mut sent = 0_usize;
        // Nothing moved for a while: the kernel's queues on both sides of the relay are full.
        while let Ok(written) =
            time::timeout(Duration::from_millis(300), client.write(&block)).await
        {
            sent += written?;
            assert!(sent < 256 << 20, "nothing bounds what is under way");
        }
        let other = Serving::start(tcp(echo().await?));
        let bytes = pattern(12, 100_000);
        assert!(exchange(other.connect().await?, bytes.clone()).await? == bytes);
        client.shutdown().await?;
        let mut heard = 0;
        let mut buffer = vec![0; 256 << 10];
        loop {
            match served.read(&mut buffer).await? {
                0 => break,
                bytes => heard += bytes,
            }
        }
        assert_eq!(heard, sent);
        io::Result::Ok(())
    });
}

/// The test that is a relay in a child; its role is the upstream's address.
const FEW_DESCRIPTORS: &str = "limits::few_descriptors";

/// Descriptors of that process.
const FEW: u64 = 96;

/// A relay with few descriptors, in a process of its own, for the test below. Prints its address, serves until its
/// standard input ends, and prints its counters.
#[test]
#[ignore = "a part of ten_thousand_connections_and_few_descriptors, which runs it"]
fn few_descriptors() {
    let upstream = role(FEW_DESCRIPTORS).expect("run by the test below");
    let limit = rustix::process::Rlimit { current: Some(FEW), maximum: Some(FEW) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)
        .expect("lower than it was");
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let read = io::copy(&mut io::stdin(), &mut io::sink());
        ended.send(read).expect("the test waits");
    });
    run(async {
        // More than there are descriptors for, so that the kernel sets the limit.
        let builder = tcp(upstream.parse().expect("an address"));
        let builder = builder.connections_max(10_000).setup_timeout(crate::PATIENCE);
        let relay = Serving::start(builder);
        println!("\nlistening {}", relay.endpoint.address().expect("it listens on TCP"));
        vigie_runtime::spawn_blocking(move || end.recv())
            .await
            .expect("no panic")
            .expect("an end")?;
        let stats = relay.handle.stats();
        println!(
            "\ncounted {} {} {} {}",
            stats.accepted, stats.finished, stats.refused, stats.pauses
        );
        Ok(())
    });
}

/// Goal: with far fewer descriptors than connections, all are served, and the relay does not spin while it waits.
/// Method: 10 000 connections, 250 concurrently, through a process that may have 96 descriptors; a pause ends with a
/// connection or after 100 ms, which bounds the number of pauses.
#[test]
fn ten_thousand_connections_and_few_descriptors() {
    const AT_A_TIME: u64 = 250;
    const EACH: u64 = 40;
    run(async {
        let upstream = echo().await?;
        let mut child = Speaker::start(command_in(&upstream.to_string(), &[], FEW_DESCRIPTORS));
        let address: std::net::SocketAddr = child.line("listening ").parse().expect("an address");
        let mut tasks = Vec::new();
        for index in 0..AT_A_TIME {
            tasks.push(vigie_runtime::spawn(async move {
                for number in 0..EACH {
                    let stream = vigie_detect::net::TcpStream::connect(address).await?;
                    let bytes = pattern(index * EACH + number, 200);
                    assert!(exchange(stream, bytes.clone()).await? == bytes, "{index}, {number}");
                }
                io::Result::Ok(())
            }));
        }
        for task in tasks {
            task.await.expect("no connection is lost")?;
        }
        child.close();
        let counted = child.line("counted ");
        let counted: Vec<u64> = counted.split(' ').filter_map(|text| text.parse().ok()).collect();
        let [accepted, finished, refused, pauses] = counted[..] else { panic!("{counted:?}") };
        assert_eq!((accepted, refused), (AT_A_TIME * EACH, 0));
        // The last ones may not have been counted when the counters were read.
        assert!(accepted - finished <= FEW, "{counted:?}");
        assert!(pauses > 0, "the limit was never met: {counted:?}");
        let ticks = u64::try_from(crate::PATIENCE.as_millis() / 100).unwrap_or(u64::MAX);
        assert!(pauses <= accepted + ticks, "it ran in circles: {counted:?}");
        assert!(child.finish().success());
        Ok(())
    });
}

/// Pipes of a user whose limit is used up: further ones are of 8 KiB. `None` if descriptors run out before.
fn fill_pipe_limit() -> Option<Vec<(OwnedFd, OwnedFd)>> {
    let mut pipes = Vec::new();
    loop {
        let (outlet, inlet) = match pipe_with(PipeFlags::CLOEXEC) {
            Err(Errno::MFILE | Errno::NFILE) => return None,
            made => made.expect("a pipe"),
        };
        if fcntl_getpipe_size(&inlet).expect("a pipe") < 64 << 10 {
            return Some(pipes);
        }
        // The last ones stay as they are.
        let _ = fcntl_setpipe_size(&inlet, 1 << 20);
        pipes.push((outlet, inlet));
    }
}

/// Goal: a stream is copied, byte for byte, while the kernel gives only pipes through which splicing would cost more, and spliced as soon as it gives
/// others. Method: a user without rights whose pages for pipes are used up, and then freed.
#[test]
fn small_pipes_are_not_used() {
    if !rustix::process::geteuid().is_root() {
        return skip("small_pipes_are_not_used", "root, to be another user");
    }
    let pages = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").expect("a number");
    if pages.trim() == "0" {
        return skip("small_pipes_are_not_used", "a limit in /proc/sys/fs/pipe-user-pages-soft");
    }
    // Of this user alone, whose pipes count together. The runtime's threads are made by this one, and are the user's, too.
    let user = Uid::from_raw(1_000_000 + std::process::id());
    let tested = std::thread::spawn(move || {
        set_thread_res_uid(user, user, user).expect("this is root");
        let Some(mut hoard) = fill_pipe_limit() else {
            return skip("small_pipes_are_not_used", "more descriptors (`ulimit -n`)");
        };
        run(async {
            let upstream = echo().await?;
            let relayed = async || {
                let relay = Serving::start(tcp(upstream).transfer(Transfer::Splice));
                let bytes = pattern(3, 4 << 20);
                assert!(exchange(relay.connect().await?, bytes.clone()).await? == bytes);
                relay.until(|stats| stats.finished == 1).await;
                let stats = relay.handle.stats();
                assert_eq!(stats.bytes_copied + stats.bytes_spliced, 8 << 20);
                io::Result::Ok(stats)
            };
            let stats = relayed().await?;
            assert!(stats.bytes_spliced == 0 && stats.pipes_missing > 0, "{stats:?}");
            hoard.clear();
            // A process that another test starts may have copies for a moment.
            while relayed().await?.bytes_spliced == 0 {}
            Ok(())
        });
    });
    tested.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
}
