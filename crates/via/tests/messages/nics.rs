//! NICs as futures.

use std::{io::IoSlice, time::Duration};

use fastrand::Rng;
use tokio::join;
use vigie_detect::Instant;
use vigie_via::{
    ConnectError, Nic,
    shm::Shm,
    vi::{
        Address, Connect, CqId, Data, DisconnectReason, MemoryAttributes, NicEvent, Operation,
        Provider, Queue, ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment,
        SendDescriptor, Status, ViAttributes, ViId,
    },
};

use super::hosts::{Host, on_each_host, poll_once};

const PATIENCE: Duration = Duration::from_secs(60);
const DESCRIPTORS: u64 = 64;

/// A NIC with a VI that lets peers write, and a completion queue for each of its queues.
struct End {
    nic: Nic<Shm>,
    vi: ViId,
    sends: CqId,
    receives: CqId,
    region: Region,
    address: Address,
}

impl End {
    fn new(host: &Host, rank: usize) -> Self {
        let nic = Nic::new(host.server(rank), Shm::open().expect("a NIC")).expect("registered");
        let (vi, sends, receives, region, address) = nic.with(|nic| {
            let tag = nic.create_tag();
            let sends = nic.create_cq().expect("a queue");
            let receives = nic.create_cq().expect("a queue");
            let vi = nic.create_vi(attributes(tag, sends, receives)).expect("a VI");
            let rights = MemoryAttributes { tag, allows_write: true, allows_read: false };
            let region = nic.allocate(4096, rights).expect("memory");
            for cookie in 0..DESCRIPTORS {
                let descriptor = ReceiveDescriptor { cookie, segments: &[] };
                nic.post_receive(vi, &descriptor).expect("room");
            }
            (vi, sends, receives, region, nic.address())
        });
        Self { nic, vi, sends, receives, region, address }
    }

    fn greeting(&self) -> [u8; 8] {
        self.region.key.0.to_le_bytes()
    }

    /// Writes a word into the peer's memory, and notifies it.
    fn write(&self, key: RemoteKey, offset: u64, number: i32) {
        let bytes = i64::from(number).to_le_bytes();
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: u64::from(number.unsigned_abs()),
            immediate: Some(number),
            is_signaled: true,
            remote: Some(RemoteSegment { key, offset }),
            data: Data::Inline(&[IoSlice::new(&bytes)]),
        };
        self.nic.post(|nic| nic.post_send(self.vi, &descriptor)).expect("room");
    }

    fn repost(&self) {
        let descriptor = ReceiveDescriptor { cookie: 0, segments: &[] };
        self.nic.post(|nic| nic.post_receive(self.vi, &descriptor)).expect("room");
    }
}

fn attributes(tag: vigie_via::vi::ProtectionTag, sends: CqId, receives: CqId) -> ViAttributes {
    ViAttributes {
        reliability: Reliability::ReliableDelivery,
        tag,
        send_cq: Some(sends),
        receive_cq: Some(receives),
        allows_write: true,
        allows_read: false,
    }
}

fn key_of(greeting: &[u8]) -> RemoteKey {
    RemoteKey(u64::from_le_bytes(greeting.try_into().expect("8 bytes")))
}

/// Returns two connected ends, and the keys to each other's memory.
async fn pair(host: &Host) -> (End, End, [RemoteKey; 2]) {
    let (a, b) = (End::new(host, 0), End::new(host, 1));
    b.nic.with(|nic| nic.listen(b"test")).expect("listens");
    let deadline = Instant::now() + PATIENCE;
    let (from_a, from_b) = (a.greeting(), b.greeting());
    let accept = async {
        let event = b.nic.next_event().await.expect("an event");
        let NicEvent::Requested { request, greeting, .. } = event else {
            panic!("{event:?}");
        };
        b.nic.accept(request, b.vi, &from_b).await.expect("accepted");
        key_of(&greeting)
    };
    let connect =
        a.nic.connect(Connect::new(a.vi, &b.address, b"test", deadline).greeting(&from_a));
    let (key_of_a, greeting) = join!(accept, connect);
    let key_of_b = key_of(&greeting.expect("connected"));
    (a, b, [key_of_a, key_of_b])
}

/// Goal: writes travel to and fro, and every wait for a completion ends. Method: thousands of round
/// trips over two queues, with pauses in which the hosts fall asleep; a separate task awaits the
/// completions of sends.
#[test]
fn completions() {
    on_each_host(|host| async move {
        const ROUNDS: i32 = 2000;
        let (a, b, [key_of_a, key_of_b]) = pair(&host).await;
        let sent = |end: &End| {
            let (nic, cq) = (end.nic.clone(), end.sends);
            host.spawn(async move {
                for number in 0..ROUNDS {
                    let completion = nic.next_completion(cq).await.expect("a completion");
                    assert_eq!(completion.queue, Queue::Send);
                    assert_eq!(completion.status, Status::Done);
                    assert_eq!(completion.cookie, u64::from(number.unsigned_abs()));
                }
            })
        };
        let tasks = [sent(&a), sent(&b)];
        let echo = host.spawn(async move {
            for number in 0..ROUNDS {
                let completion = b.nic.next_completion(b.receives).await.expect("a completion");
                assert_eq!(completion.immediate, Some(number));
                b.repost();
                b.write(key_of_a, 8, number);
            }
            b
        });
        let mut rng = Rng::with_seed(5);
        for number in 0..ROUNDS {
            if rng.u32(..20) == 0 {
                host.wait(Duration::from_micros(rng.u64(..500))).await;
            }
            a.write(key_of_b, 16, number);
            let completion = a.nic.next_completion(a.receives).await.expect("a completion");
            assert_eq!(completion.immediate, Some(number));
            a.repost();
            let mut word = [0; 8];
            a.region.memory.read(8, &mut word).expect("inside");
            assert_eq!(i64::from_le_bytes(word), i64::from(number));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        echo.await.expect("no panic");
    });
}

/// Goal: each of several waiters gets its own completion, and a dropped waiter loses none. Method: many
/// tasks wait for one completion each, others are dropped; as many writes arrive as tasks are left.
#[test]
fn several_waiters() {
    on_each_host(|host| async move {
        let (a, b, [_, key_of_b]) = pair(&host).await;
        for _ in 0..20 {
            let waiters: Vec<_> = (0..20)
                .map(|_| {
                    let (nic, cq) = (b.nic.clone(), b.receives);
                    host.spawn(async move {
                        nic.next_completion(cq)
                            .await
                            .expect("a completion")
                            .immediate
                            .expect("a number")
                    })
                })
                .collect();
            let mut dropped: Vec<_> =
                (0..5).map(|_| Box::pin(b.nic.next_completion(b.receives))).collect();
            let mut numbers = Vec::new();
            for wait in &mut dropped {
                assert!(poll_once(wait.as_mut()).is_none(), "nothing was sent");
            }
            for number in 0..20 {
                a.write(key_of_b, 0, number);
                if number == 10 {
                    host.pause().await;
                    dropped.clear();
                }
            }
            for waiter in waiters {
                numbers.push(waiter.await.expect("no panic"));
                b.repost();
            }
            numbers.sort_unstable();
            assert_eq!(numbers, Vec::from_iter(0..20));
        }
    });
}

/// Goal: `connect` reports why there is no connection, `connect_peer` connects two VIs that ask for each
/// other, and breaks are reported as events. Method: connect without a listener, get rejected, meet, and
/// drop one.
#[test]
fn connections() {
    on_each_host(|host| async move {
        let (a, b) = (End::new(&host, 0), End::new(&host, 1));
        let deadline = Instant::now() + PATIENCE;
        let refused = a.nic.connect(Connect::new(a.vi, &b.address, b"unused", deadline)).await;
        let Err(ConnectError::Refused(DisconnectReason::NotListening)) = refused else {
            panic!("{refused:?}");
        };
        b.nic.with(|nic| nic.listen(b"strict")).expect("listens");
        let reject = async {
            let event = b.nic.next_event().await.expect("an event");
            let NicEvent::Requested { request, .. } = event else { panic!("{event:?}") };
            b.nic.with(|nic| nic.reject(request)).expect("rejected");
        };
        let (refused, ()) =
            join!(a.nic.connect(Connect::new(a.vi, &b.address, b"strict", deadline)), reject);
        let Err(ConnectError::Refused(DisconnectReason::Rejected)) = refused else {
            panic!("{refused:?}")
        };
        let soon = Instant::now() + Duration::from_millis(20);
        let refused = a.nic.connect_peer(Connect::new(a.vi, &b.address, b"meet", soon)).await;
        let Err(ConnectError::Refused(DisconnectReason::TimedOut)) = refused else {
            panic!("{refused:?}")
        };

        let (to_b, to_a) = join!(
            a.nic.connect_peer(
                Connect::new(a.vi, &b.address, b"meet", deadline).greeting(b"from a")
            ),
            b.nic.connect_peer(
                Connect::new(b.vi, &a.address, b"meet", deadline).greeting(b"from b")
            )
        );
        assert_eq!(to_b.expect("connected"), b"from b");
        assert_eq!(to_a.expect("connected"), b"from a");
        let waiting = {
            let nic = a.nic.clone();
            host.spawn(async move { nic.next_event().await.expect("an event") })
        };
        host.wait(Duration::from_millis(2)).await;
        let vi = a.vi;
        drop(b);
        let event = waiting.await.expect("no panic");
        assert!(matches!(event, NicEvent::Broken { vi: broken, .. } if broken == vi), "{event:?}");
    });
}

/// Goal: the outcome of a `connect` whose future was dropped is an event for every task, and a later
/// `connect` of the same VI does not take it for its own. Method: drop one that is then refused, and
/// connect again.
#[test]
fn a_dropped_connect_leaves_its_event() {
    on_each_host(|host| async move {
        let (a, b) = (End::new(&host, 0), End::new(&host, 1));
        let deadline = Instant::now() + PATIENCE;
        {
            let connect = a.nic.connect(Connect::new(a.vi, &b.address, b"unused", deadline));
            let mut connect = Box::pin(connect);
            // It may be refused at once; then there is nothing to drop.
            if poll_once(connect.as_mut()).is_none() {
                drop(connect);
                let event = a.nic.next_event().await.expect("an event");
                assert!(matches!(event, NicEvent::Refused { .. }), "{event:?}");
            }
        }
        let (to_b, to_a) = join!(
            a.nic.connect_peer(Connect::new(a.vi, &b.address, b"meet", deadline)),
            b.nic.connect_peer(Connect::new(b.vi, &a.address, b"meet", deadline))
        );
        to_b.expect("connected");
        to_a.expect("connected");
    });
}
