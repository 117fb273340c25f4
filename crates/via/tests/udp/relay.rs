//! A forwarder between two UDP sockets that loses, repeats, reorders and changes what it forwards.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use fastrand::Rng;

/// The planned faults, each in parts of a thousand packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) late: u32,
    pub(crate) changed: u32,
    /// Longer packets are lost silently; 0: no limit.
    pub(crate) longest: usize,
}

/// How many packets a late one is overtaken by.
const LATE_BY: usize = 5;

/// A late packet waits for no more than this many polls.
const POLLS_MAX: u32 = 200;

#[derive(Default)]
struct Shared {
    stops: AtomicBool,
    /// Whether forwarding is cut, from the client or to it.
    cut: [AtomicBool; 2],
    lost: AtomicU64,
}

/// A relay that a client calls in place of its server.
pub(crate) struct Relay {
    /// Where the client sends.
    pub(crate) front: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn new(server: SocketAddr, seed: u64, faults: Faults) -> Self {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket.set_nonblocking(true).expect("a socket");
            socket
        };
        let sockets = [socket(), socket()];
        let front = sockets[0].local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || forward(&sockets, server, seed, faults, &shared)
        });
        Self { front, shared, thread: Some(thread) }
    }

    /// Stops forwarding: from the client, to it.
    pub(crate) fn cut(&self, from_client: bool, to_client: bool) {
        self.shared.cut[0].store(from_client, Ordering::Relaxed);
        self.shared.cut[1].store(to_client, Ordering::Relaxed);
    }

    /// Returns how many packets were lost here.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn forward(
    sockets: &[UdpSocket; 2],
    server: SocketAddr,
    seed: u64,
    faults: Faults,
    shared: &Shared,
) {
    let mut random = Rng::with_seed(seed);
    let mut client = None;
    let mut late: VecDeque<(usize, usize, Vec<u8>)> = VecDeque::new();
    let (mut number, mut polls) = (0, 0);
    let mut buffer = vec![0; 1 << 16];
    let mut chance = move |per_thousand: u32| random.u32(..1000) < per_thousand;
    while !shared.stops.load(Ordering::Relaxed) {
        polls += 1;
        for side in 0..2 {
            let Ok((count, from)) = sockets[side].recv_from(&mut buffer) else { continue };
            if side == 0 {
                client = Some(from);
            }
            (number, polls) = (number + 1, 0);
            let is_too_long = faults.longest > 0 && count > faults.longest;
            let is_cut = shared.cut[side].load(Ordering::Relaxed);
            if is_cut || is_too_long || chance(faults.lost) {
                shared.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut packet = buffer[..count].to_vec();
            if chance(faults.changed) {
                packet[count / 2] ^= 1;
            }
            if chance(faults.doubled) {
                send(&sockets[1 - side], &packet, if side == 0 { Some(server) } else { client });
            }
            let delay = if chance(faults.late) { LATE_BY } else { 0 };
            late.push_back((number + delay, side, packet));
        }
        let mut at = 0;
        while at < late.len() {
            if late[at].0 > number && polls < POLLS_MAX {
                at += 1;
                continue;
            }
            let Some((_, side, packet)) = late.remove(at) else { break };
            send(&sockets[1 - side], &packet, if side == 0 { Some(server) } else { client });
        }
        thread::yield_now();
    }
}

fn send(socket: &UdpSocket, packet: &[u8], to: Option<SocketAddr>) {
    let Some(to) = to else { return };
    // A full buffer loses the packet, as networks do.
    let sent = socket.send_to(packet, to);
    let is_lost = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    assert!(sent.is_ok() || sent.as_ref().is_err_and(is_lost), "{sent:?}");
}
