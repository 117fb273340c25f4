//! Relays in a simulated world: their own code, on nodes that crash and links that lose, and beside targets that become black holes.

mod checks;

use std::{io, net::SocketAddr, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::{
    Server,
    net::{TcpListener, TcpStream, UdpSocket},
};
use vigie_forward::relay::{Relay, RelayHandle, Transfer, UdpRelay};
use vigie_runtime::{
    simulation::{self, Link, Node, World},
    spawn, time,
};

const BYTES: usize = 300_000;

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn port(node: &Node, port: u16) -> SocketAddr {
    SocketAddr::new(node.ip(), port)
}

/// Tells its name on each connection, returns what it hears, and ends when the peer does. Returns datagrams, too.
async fn echo(name: u8) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    let socket = UdpSocket::bind("0.0.0.0:7").await?;
    let _datagrams = spawn(async move {
        let mut room = [0; 2000];
        while let Ok((count, from)) = socket.recv_from(&mut room).await {
            socket.send_to(&room[..count], from).await?;
        }
        io::Result::Ok(())
    });
    loop {
        let (mut stream, _) = listener.accept().await?;
        spawn(async move {
            stream.write_u8(name).await?;
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await?;
            writer.shutdown().await
        })
        .detach();
    }
}

/// Two targets and a relay in front of them, whose handle is sent to the test.
fn relayed(
    world: &mut World,
    transfer: Transfer,
) -> ([Node; 2], Node, std::sync::mpsc::Receiver<RelayHandle>) {
    let targets = [1, 2].map(|name| world.node(&format!("target {name}")).run(move || echo(name)));
    let addresses = targets.each_ref().map(|target| port(target, 7));
    let (sender, receiver) = std::sync::mpsc::channel();
    let relay = world.node("relay").run(move || {
        let sender = sender.clone();
        async move {
            let server = Server::current().map_err(io::Error::other)?;
            let udp = UdpRelay::builder(([0, 0, 0, 0], 7).into(), addresses[1]);
            let udp = udp.expire_after(millis(5000)).bind_on(&server).map_err(io::Error::other)?;
            spawn(udp.serve(|session| spawn(session).detach())).detach();
            let mut relay = Relay::builder(SocketAddr::from(([0, 0, 0, 0], 7)));
            for address in addresses {
                relay = relay.upstream(address);
            }
            relay = relay.transfer(transfer).idle_timeout(Some(millis(20_000)));
            let relay = relay.bind_on(&server).map_err(io::Error::other)?;
            let _ = sender.send(relay.handle());
            relay.serve(|connection| spawn(connection).detach()).await.map(drop)
        }
    });
    (targets, relay, receiver)
}

/// Sends bytes through the relay, ends, and returns the target's name and whether all came back before the end.
async fn call() -> io::Result<(u8, bool)> {
    let mut stream = TcpStream::connect("relay:7").await?;
    let name = stream.read_u8().await?;
    let sent: Vec<u8> =
        (0..BYTES).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13).to_le_bytes()[0]).collect();
    let (mut reader, mut writer) = stream.split();
    let mut heard = Vec::new();
    let write = async {
        writer.write_all(&sent).await?;
        writer.shutdown().await
    };
    let (written, read) = tokio::join!(biased; write, reader.read_to_end(&mut heard));
    written.and(read)?;
    Ok((name, heard == sent))
}

/// Goal: a relay relays in a simulated world: whole streams and their ends over links to the client that lose, by copying where it would splice; and when
/// its target crashes, it resets what it had with it, takes the other target, and comes back. Method: by 16 seeds, of which two are compared with a
/// second run: streams in both directions, one of them across a crash, and the relay's own counters.
#[test]
fn a_relay_survives_its_target() {
    simulation::for_each_seed(16, |world| {
        let transfer = if world.seed() % 2 == 0 { Transfer::Splice } else { Transfer::Adaptive };
        let (targets, relay, handle) = relayed(world, transfer);
        // Not to the targets: the relay takes the other one, too, if a packet of a handshake is lost.
        world.main().link_to(&relay, Link::new().loss(0.01));
        relay.link_to(&world.main(), Link::new().loss(0.01));
        world.block_on(async {
            time::sleep(millis(10)).await;
            let handle = handle.try_recv().expect("it listens");
            assert_eq!(call().await.expect("all is well"), (1, true));

            let mut open = TcpStream::connect("relay:7").await.expect("it listens");
            assert_eq!(open.read_u8().await.expect("the target answers"), 1);
            targets[0].crash();
            open.write_all(b"lost").await.expect("the relay is there");
            assert_eq!(call().await.expect("the other one is up"), (2, true));
            // Idle, since nothing comes: the client learns of it.
            let end = time::timeout(millis(60_000), open.read_u8()).await.expect("it ends");
            end.expect_err("the target has not answered");

            targets[0].restart();
            time::sleep(millis(60_000)).await;
            assert_eq!(call().await.expect("both are up"), (1, true));
            time::sleep(millis(1000)).await;
            let stats = handle.stats();
            assert_eq!((stats.accepted, stats.active, stats.finished), (4, 0, 3), "{stats:?}");
            assert_eq!(
                (stats.bytes_spliced, stats.bytes_up),
                (0, 3 * BYTES as u64 + 4),
                "{stats:?}"
            );
        });
    });
}

/// Goal: datagrams are relayed in a simulated world, and the relay learns that a target's process is gone. Method: datagrams of two clients there and
/// back; the target is killed, and restarted.
#[test]
fn datagrams_are_relayed() {
    let mut world = World::new(1);
    let (targets, relay, _handle) = relayed(&mut world, Transfer::Copy);
    let to = port(&relay, 7);
    let ask = move |number: u8| async move {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.send_to(&[number], to).await?;
        let mut room = [0; 9];
        let (count, from) = socket.recv_from(&mut room).await?;
        io::Result::Ok((room[..count].to_vec(), from))
    };
    world.block_on(async {
        time::sleep(millis(10)).await;
        let (one, other) = tokio::join!(biased; ask(1), ask(2));
        assert_eq!(one.expect("an answer"), (vec![1], to));
        assert_eq!(other.expect("an answer"), (vec![2], to));
        targets[1].kill();
        time::timeout(millis(1000), ask(3)).await.expect_err("no answer");
        targets[1].restart();
        time::sleep(millis(10)).await;
        assert_eq!(ask(4).await.expect("an answer"), (vec![4], to));
    });
}
