//! Simulated NICs with their hosts: in virtual time, where every arrival is found at its exact time, and
//! with real clocks.

use std::{
    net::SocketAddr,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use vigie_detect::{Instant, Link, Server, Simulation, net::UdpSocket};
use vigie_via::{
    Nic,
    sim::{FaultPlan, NicId, SimNetwork, SimNic},
    vi::{
        Connect, CqId, Data, DisconnectReason, NicEvent, Operation, Provider, Queue,
        ReceiveDescriptor, Reliability, SendDescriptor, Status, ViAttributes, ViError, ViId,
    },
};

/// A bound for each wait, much longer than it takes.
const BOUND: Duration = Duration::from_secs(60);

const LATENCY: Duration = Duration::from_micros(3);

/// How long a crash goes unnoticed.
const DETECTION: Duration = Duration::from_millis(7);

const PLAN: FaultPlan = FaultPlan::reliable().latency(LATENCY).detection(DETECTION);

/// The travel time of a packet without data: 0.1 ns for each of its 32 bytes.
const TRAVEL: Duration = LATENCY.saturating_add(Duration::from_nanos(3));

/// How much later an answer leaves, since the acknowledgement leaves before it.
const AFTER_ACK: Duration = Duration::from_nanos(3);

/// Makes a VI whose completions all go to one queue, with this many receive descriptors.
fn vi(nic: &mut SimNic, receives: usize) -> (ViId, CqId) {
    let (tag, cq) = (nic.create_tag(), nic.create_cq().expect("a queue"));
    let attributes = ViAttributes {
        reliability: Reliability::ReliableDelivery,
        tag,
        send_cq: Some(cq),
        receive_cq: Some(cq),
        allows_write: false,
        allows_read: false,
    };
    let vi = nic.create_vi(attributes).expect("a VI");
    for _ in 0..receives {
        receive(nic, vi).expect("posted");
    }
    (vi, cq)
}

fn receive(nic: &mut SimNic, vi: ViId) -> Result<(), ViError> {
    nic.post_receive(vi, &ReceiveDescriptor { cookie: 0, segments: &[] })
}

/// Sends a number without data.
fn send(nic: &mut SimNic, vi: ViId) -> Result<(), ViError> {
    nic.post_send(
        vi,
        &SendDescriptor {
            operation: Operation::Send,
            cookie: 0,
            immediate: Some(7),
            is_signaled: true,
            remote: None,
            data: Data::Inline(&[]),
        },
    )
}

/// A NIC with its host and a connected VI.
struct End {
    nic: Nic<SimNic>,
    id: NicId,
    vi: ViId,
    cq: CqId,
}

impl End {
    /// Waits for the next completion, which must be of `queue`.
    async fn completed(&self, queue: Queue) {
        let done = self.nic.next_completion(self.cq).await.expect("a server");
        assert_eq!((done.queue, done.status), (queue, Status::Done));
        if queue == Queue::Receive {
            self.nic.post(|nic| receive(nic, self.vi)).expect("posted");
        }
    }

    fn send(&self) {
        self.nic.post(|nic| send(nic, self.vi)).expect("posted");
    }
}

/// Connects two NICs, each at its own server.
async fn pair(servers: [&Server; 2], network: &SimNetwork, receives: usize) -> [End; 2] {
    let ends = servers.map(|server| {
        let mut nic = network.nic();
        let (vi, cq) = vi(&mut nic, receives);
        let id = nic.id();
        End { nic: Nic::new(server, nic).expect("a host"), id, vi, cq }
    });
    let [one, other] = &ends;
    one.nic.with(|nic| nic.listen(b"pair")).expect("listens");
    let address = one.nic.with(|nic| nic.address());
    let accept = async {
        let event = one.nic.next_event().await.expect("a server");
        let NicEvent::Requested { request, .. } = event else { panic!("{event:?}") };
        one.nic.accept(request, one.vi, b"").await.expect("connected");
    };
    let connect = other.nic.connect(Connect::new(other.vi, &address, b"pair", Instant::MAX));
    let (connected, ()) = tokio::join!(connect, accept);
    connected.expect("connected");
    ends
}

/// Sends there and back after pauses in which the network has nothing to do. Returns when everything was
/// found, counted from the send.
fn found_after(seed: u64) -> (Vec<[Duration; 3]>, u64) {
    let mut simulation = Simulation::new(seed);
    let network = SimNetwork::over(simulation.network(), PLAN);
    let server = simulation.server().clone();
    let mut chance = fastrand::Rng::with_seed(seed);
    let found = simulation.block_on(async {
        let [one, other] = pair([&server; 2], &network, 8).await;
        let mut found = Vec::new();
        for _ in 0..50 {
            let pause = Duration::from_nanos(chance.u64(0..3_000_000));
            server.timers().wait(Instant::now() + pause).await.expect("a server");
            let begun = Instant::now();
            one.send();
            let there = async {
                other.completed(Queue::Receive).await;
                let there = Instant::now() - begun;
                other.send();
                other.completed(Queue::Send).await;
                there
            };
            let here = async {
                one.completed(Queue::Send).await;
                let sent = Instant::now() - begun;
                one.completed(Queue::Receive).await;
                (sent, Instant::now() - begun)
            };
            let (there, (sent, back)) = tokio::join!(there, here);
            found.push([there, sent, back]);
        }
        found
    });
    (found.expect("no deadlock"), simulation.trace_hash() ^ network.trace_hash())
}

/// Goal: an arrival is found at the instant at which it happens, however long the network was idle.
/// Method: sends there and back between two NICs at one simulated server; arrivals and acknowledgements,
/// to the nanosecond; the same seed gives the same run, another seed another.
#[test]
fn what_comes_is_found_when_it_comes() {
    let mut traces = Vec::new();
    for seed in 0..8 {
        let (found, trace) = found_after(seed);
        assert_eq!(found, [[TRAVEL, 2 * TRAVEL, 2 * TRAVEL + AFTER_ACK]; 50], "seed {seed}");
        assert_eq!(found_after(seed), (found, trace), "seed {seed} is not replayed");
        traces.push(trace);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 8);
}

/// Goal: what NICs and what sockets send is in one queue, in one order of time. Method: a datagram to a socket of the simulation, and a send
/// to a NIC that is faster or slower, at the same instant; which arrives first, and when.
#[test]
fn nics_and_sockets_share_a_queue() {
    let datagram_takes = Duration::from_micros(10);
    for latency in [Duration::from_micros(4), Duration::from_micros(40)] {
        let mut simulation = Simulation::new(1);
        let main = simulation.network().node("main").expect("the first node");
        let link = Link::new().delay(datagram_takes).jitter(Duration::ZERO);
        simulation.network().link(main, main, link);
        let network = SimNetwork::over(simulation.network(), PLAN.latency(latency));
        let server = simulation.server().clone();
        let found = simulation.block_on(async {
            let [one, other] = pair([&server; 2], &network, 1).await;
            let [from, to] = [7000, 7001].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
            let sender = UdpSocket::bind(from).await.expect("a free port");
            let receiver = UdpSocket::bind(to).await.expect("a free port");
            let begun = Instant::now();
            assert_eq!(sender.send_to(b"beside", to).await.expect("sent"), 6);
            one.send();
            let by_nic = async {
                other.completed(Queue::Receive).await;
                Instant::now() - begun
            };
            let by_socket = async {
                receiver.recv_from(&mut [0; 8]).await.expect("it arrives");
                Instant::now() - begun
            };
            tokio::join!(by_nic, by_socket)
        });
        let header = TRAVEL - LATENCY;
        assert_eq!(found.expect("no deadlock"), (latency + header, datagram_takes));
        assert_eq!(network.trace_hash(), simulation.network().trace_hash());
    }
}

/// What an end has found.
#[derive(Debug, PartialEq)]
enum Seen {
    Message,
    Event(NicEvent),
}

/// Changes a network, lets time pass, and changes it again. Returns what the second end saw, and how
/// long after that.
fn seen_after(
    receives: usize,
    before: impl Fn(&SimNetwork, &[End; 2]),
    act: impl Fn(&SimNetwork, &[End; 2]),
) -> (Seen, Duration) {
    let mut simulation = Simulation::new(3);
    let network = SimNetwork::over(simulation.network(), PLAN);
    let server = simulation.server().clone();
    let wait = async |time| server.timers().wait(Instant::now() + time).await.expect("a server");
    let found = simulation.block_on(async {
        let ends = pair([&server; 2], &network, receives).await;
        before(&network, &ends);
        let acting = async {
            wait(Duration::from_millis(5)).await;
            act(&network, &ends);
            Instant::now()
        };
        let seeing = async {
            let seen = tokio::select! {
                biased;
                event = ends[1].nic.next_event() => Seen::Event(event.expect("a server")),
                () = ends[1].completed(Queue::Receive) => Seen::Message,
            };
            (seen, Instant::now())
        };
        let (acted, (seen, at)) = tokio::join!(acting, seeing);
        (seen, at - acted)
    });
    found.expect("no deadlock")
}

/// Goal: a sleeping host is told of external changes to the network, and finds them when they happen.
/// Method: while nothing else happens, a frozen NIC resumes, a connection is cut, and the other NIC
/// crashes, later.
#[test]
fn who_sleeps_learns_what_is_done_to_the_network() {
    let broken = |seen: &Seen, why: DisconnectReason| matches!(seen, Seen::Event(NicEvent::Broken { reason, .. }) if *reason == why);
    let send_frozen = |network: &SimNetwork, [one, other]: &[End; 2]| {
        network.freeze(other.id);
        one.send();
    };
    let go_on = |network: &SimNetwork, [_, other]: &[End; 2]| network.unfreeze(other.id);
    let unfrozen = seen_after(8, send_frozen, go_on);
    assert_eq!(unfrozen, (Seen::Message, Duration::ZERO));

    let cut = |network: &SimNetwork, [one, other]: &[End; 2]| network.cut(one.id, other.id);
    let (seen, after) = seen_after(0, |_, _| {}, cut);
    assert!(broken(&seen, DisconnectReason::TransportFailed), "{seen:?}");
    assert_eq!(after, Duration::ZERO);

    let later = Duration::from_millis(2);
    let crash = |network: &SimNetwork, [one, _]: &[End; 2]| {
        network.crash_at(one.id, network.now() + later);
    };
    let (seen, after) = seen_after(0, |_, _| {}, crash);
    assert!(broken(&seen, DisconnectReason::PeerDied), "{seen:?}");
    assert_eq!(after, later + DETECTION);
}

/// Runs a task with a time limit.
fn bounded(task: impl Future<Output = ()> + Send + 'static) {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(task);
        let _: Result<(), _> = sender.send(());
    });
    if receiver.recv_timeout(BOUND) != Err(RecvTimeoutError::Timeout) {
        return thread.join().expect("it went well");
    }
    panic!("it hangs");
}

/// Goal: hosts with real clocks are woken, too: by each other, by NICs without a host, and by external
/// changes to the network. Method: two NICs at their own host threads send to each other in turns. Then
/// a sleeping host sees: a send from a NIC without a host, which is never driven again; time advanced by
/// hand; a cut connection.
#[test]
fn hosts_by_the_real_clock_are_woken() {
    bounded(async {
        let hosts = [(); 2].map(|()| Server::spawn_thread().expect("a host thread"));
        let network = SimNetwork::new(1, PLAN);
        let ends = pair(hosts.each_ref().map(|host| host.server()), &network, 8).await;
        for turn in 0..400 {
            let (from, to) = (&ends[turn % 2], &ends[(turn + 1) % 2]);
            from.send();
            to.completed(Queue::Receive).await;
            from.completed(Queue::Send).await;
        }
        let fall_asleep = async || {
            // The other host's descriptor: a timer would wake this host.
            let server = hosts[1].server();
            let soon = server.now() + Duration::from_millis(2);
            server.timers().wait(soon).await.expect("a server");
        };

        let mut bare = network.nic();
        let (bare_vi, _) = vi(&mut bare, 0);
        let [end, other] = &ends;
        let (own, cq) = end.nic.with(|nic| vi(nic, 1));
        let [bare_at, own_at] = [bare.address(), end.nic.with(|nic| nic.address())];
        bare.connect_peer(Connect::new(bare_vi, &own_at, b"bare", Instant::MAX)).expect("begun");
        let connected = end.nic.connect_peer(Connect::new(own, &bare_at, b"bare", Instant::MAX));
        connected.await.expect("connected");
        let sending = async {
            fall_asleep().await;
            send(&mut bare, bare_vi).expect("posted");
        };
        let (found, ()) = tokio::join!(end.nic.next_completion(cq), sending);
        assert_eq!(found.expect("a server").status, Status::Done);

        network.set_plan(PLAN.latency(Duration::from_secs(3600)));
        other.send();
        let move_on = async {
            fall_asleep().await;
            while network.step() {}
        };
        tokio::join!(end.completed(Queue::Receive), move_on);

        // This connection has no descriptors left, so that nothing is flushed.
        let cut = async {
            fall_asleep().await;
            network.cut(end.id, bare.id());
        };
        let (event, ()) = tokio::join!(end.nic.next_event(), cut);
        let event = event.expect("a server");
        let reason = DisconnectReason::TransportFailed;
        assert_eq!(event, NicEvent::Broken { vi: own, reason });
    });
}
