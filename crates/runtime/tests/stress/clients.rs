//! Sockets: servers that echo, clients that check what comes back, connections that are cut off.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::{TcpListener, TcpStream};
use vigie_runtime::{Runtime, spawn, spawn_blocking, time, yield_now};

use super::{Tasks, World};

/// Starts a server and its clients; the last client ends the server.
pub(crate) fn come(
    runtime: &Runtime,
    world: &World,
    random: &mut fastrand::Rng,
    tasks: &mut Tasks,
) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = TcpListener::bind_on(runtime.server(), any).expect("a port");
    let address = listener.local_addr().expect("bound");
    let (open, mut all_gone) = tokio::sync::mpsc::channel::<()>(1);
    for _ in 0..random.usize(10..30) {
        let (world, open, random) = (world.clone(), open.clone(), random.fork());
        tasks.push(runtime.spawn(async move {
            visit(address, world, random).await;
            drop(open);
        }));
    }
    drop(open);
    let world = world.clone();
    tasks.push(runtime.spawn(async move {
        let _witness = world.census.witness();
        let serving = spawn(serve(listener, world.clone()));
        assert!(all_gone.recv().await.is_none());
        serving.abort();
        assert!(serving.await.expect_err("aborted").is_cancelled());
    }));
}

async fn serve(listener: TcpListener, world: World) {
    let _witness = world.census.witness();
    loop {
        let (stream, _) = listener.accept().await.expect("there are descriptors");
        let witness = world.census.witness();
        spawn(async move {
            let _witness = witness;
            // Clients may be cut off: then the connection ends in an error.
            let _ = echo(stream).await;
        })
        .detach();
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let length = stream.read_u16().await?;
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await?;
        stream.write_u16(length).await?;
        stream.write_all(&bytes).await?;
    }
}

async fn visit(address: SocketAddr, world: World, mut random: fastrand::Rng) {
    let _witness = world.census.witness();
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let is_cut_off = random.u8(..4) == 0;
    let patience = Duration::from_micros(random.u64(100..3000));
    let talk = spawn(talk(stream, world.clone(), random));
    if is_cut_off {
        // Cut off in the middle of anything.
        match time::timeout(patience, async {
            while !talk.is_finished() {
                yield_now().await;
            }
        })
        .await
        {
            Ok(()) => talk.await.expect("it ended well"),
            Err(_elapsed) => {
                talk.abort();
                let _ = talk.await;
            }
        }
    } else {
        talk.await.expect("it ended well");
    }
}

async fn talk(mut stream: TcpStream, world: World, mut random: fastrand::Rng) {
    let _witness = world.census.witness();
    for _ in 0..random.usize(1..12) {
        let length = if random.u8(..10) == 0 { random.u16(..) } else { random.u16(..64) };
        let sent: Arc<[u8]> = (0..length).map(|_| random.u8(..)).collect();
        // Both at once, since neither end may wait for the other's buffers.
        let (mut read, mut write) = stream.into_split();
        let outgoing = Arc::clone(&sent);
        let writing = spawn(async move {
            write.write_u16(length).await?;
            write.write_all(&outgoing).await?;
            io::Result::Ok(write)
        });
        assert_eq!(read.read_u16().await.expect("the echo"), length);
        let mut received = vec![0; usize::from(length)];
        read.read_exact(&mut received).await.expect("the echo");
        assert_eq!(received, *sent);
        let write = writing.await.expect("no panic").expect("the connection lives");
        stream = read.reunite(write).expect("two halves of one");
        if random.u8(..16) == 0 {
            let witness = world.census.witness();
            spawn_blocking(move || drop(witness)).await.expect("no panic");
        }
    }
}
