//! SIGHUP, and what an instance does at its start for its operator.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::{self, ScopedJoinHandle},
};

use rustix::process::Signal;

use crate::{
    instance::{BOUND, Folder, Instance, PROGRAM, counter, report},
    logging::until,
    metrics::get,
    network::{SERVER, call, calls_through, with_network},
    paths::{forward, has_programs},
};

/// Sends back what comes, behind one byte of its own, on each connection until the process ends.
pub(crate) fn marked_echo(mark: u8) -> SocketAddr {
    marked_echo_at("127.0.0.1:0", mark)
}

pub(crate) fn marked_echo_at(at: &str, mark: u8) -> SocketAddr {
    let listener = TcpListener::bind(at).expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() {
                    drop(stream.write_all(&[mark, byte[0]]));
                }
            });
        }
    });
    address
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, BOUND).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a socket");
    stream
}

/// Returns the mark of the target behind a connection.
#[track_caller]
pub(crate) fn mark(stream: &mut TcpStream) -> u8 {
    stream.write_all(b"x").expect("it is connected");
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[1], b'x');
    answer[0]
}

/// Goal: SIGHUP ends nothing that is the same: connections and listeners go on; flows that are new begin, those that are gone
/// end, one that has changed does both on its port; and a wrong file changes nothing. Method: connections over each change.
#[test]
fn a_reload_keeps_what_is_the_same() {
    let folder = Folder::new();
    let targets = [1, 2, 3].map(marked_echo);
    let flow = |name: &str, listen: SocketAddr, to: usize| {
        let to = targets[to - 1];
        format!("[[relay]]\nname = '{name}'\nlisten = 'tcp://{listen}'\nto = 'tcp://{to}'\n")
    };
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let process = "[process]\ndrain = '60s'\n";
    let first = format!("{process}{}{}", flow("kept", any, 1), flow("gone", any, 2));
    let file = folder.write("config.toml", &first);
    let mut instance =
        Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready();
    let (kept, gone) = (instance.address("kept"), instance.address("gone"));
    let (mut on_kept, mut on_gone) = (connect(kept), connect(gone));
    assert_eq!((mark(&mut on_kept), mark(&mut on_gone)), (1, 2));

    folder
        .write("config.toml", &format!("{process}{}{}", flow("new", any, 3), flow("kept", any, 1)));
    instance.signal(Signal::HUP);
    instance.until("SIGHUP: flows: 1 unchanged, 1 ended, 1 new, 0 failed (new: new; ended: gone)");
    let new = instance.address("new");
    assert_eq!((mark(&mut on_kept), mark(&mut connect(kept)), mark(&mut connect(new))), (1, 1, 3));
    // Its connection may go on until the end of the drain; there is no new one.
    assert_eq!(mark(&mut on_gone), 2);
    assert!(TcpStream::connect(gone).is_err());

    folder.write("config.toml", &format!("{process}{}nonsense\n", flow("kept", any, 1)));
    instance.signal(Signal::HUP);
    instance.until("all flows go on as before");
    assert_eq!((mark(&mut on_kept), mark(&mut connect(new))), (1, 3));

    // Of a relay that is to take over a listener, too, and of one that is new.
    let tls = "tls = { certificate = '/nowhere', key = '/nowhere' }\n";
    for flows in [flow("new", new, 2), flow("new", new, 3) + &flow("newer", any, 1)] {
        let text = format!("{process}{flows}{tls}{}", flow("kept", any, 1));
        folder.write("config.toml", &text);
        instance.said.clear();
        instance.signal(Signal::HUP);
        let line = instance.until("all flows go on as before");
        assert!(line.contains("/nowhere"), "{line}");
        assert_eq!((mark(&mut on_kept), mark(&mut connect(new))), (1, 3));
    }

    // The same port, another target, again and again.
    for to in [2, 3, 1, 2] {
        folder.write(
            "config.toml",
            &format!("{process}{}{}", flow("new", new, to), flow("kept", any, 1)),
        );
        instance.said.clear();
        instance.signal(Signal::HUP);
        instance.until("SIGHUP: flows: 1 unchanged, 1 ended, 1 new, 0 failed (changed: new)");
        assert_eq!(mark(&mut connect(new)), u8::try_from(to).expect("small"));
        assert_eq!(mark(&mut on_kept), 1);
    }
    drop((on_kept, on_gone));
    assert_eq!(instance.end().code(), 0);
}

/// Answers datagrams with a mark, until the process ends.
pub(crate) fn marked_datagrams(mark: u8) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("bound");
    thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 9]) {
            drop(socket.send_to(&[mark], from));
        }
    });
    address
}

/// The mark that a new client gets.
pub(crate) type Ask = Box<dyn Fn() -> io::Result<u8> + Send + Sync>;

/// Asks over connections to `connect`.
pub(crate) fn ask_over<S: Read + Write>(
    connect: impl Fn() -> io::Result<S> + Send + Sync + 'static,
) -> Ask {
    Box::new(move || {
        let mut stream = connect()?;
        stream.write_all(b"x")?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    })
}

/// Asks by datagrams, of a socket that learns of a port that is closed.
pub(crate) fn ask_by_datagram(to: SocketAddr) -> Ask {
    Box::new(move || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(BOUND))?;
        socket.connect(to)?;
        socket.send(b"x")?;
        let mut answer = [0];
        // With a timeout, the call is not made again after this process was stopped for a while.
        while let Err(error) = socket.recv(&mut answer) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(answer[0])
    })
}

/// Ends the clients.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients that ask without a pause, two of each kind. A client that is refused or reset ends.
pub(crate) struct Clients<'a> {
    running: Vec<ScopedJoinHandle<'a, ()>>,
    served: &'a [AtomicU64; 3],
}

impl Clients<'_> {
    /// Runs `body` beside clients of three kinds, and ends them.
    pub(crate) fn run_beside(asks: &[Ask; 3], body: impl FnOnce(&Clients<'_>)) {
        let served = [0; 3].map(AtomicU64::new);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also if an assertion fails.
            let _stop = Stop(&is_over);
            let mut running = Vec::new();
            for (ask, served) in asks.iter().zip(&served).chain(asks.iter().zip(&served)) {
                let is_over = &is_over;
                running.push(scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        assert!(ask().expect("it is served") < 2);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }));
            }
            body(&Clients { running, served: &served });
        });
    }

    /// Makes sure that none has ended.
    pub(crate) fn check(&self) {
        assert!(self.running.iter().all(|client| !client.is_finished()));
    }

    /// Waits until 50 more of each kind were served.
    pub(crate) fn wait(&self) {
        let before = self.served.each_ref().map(|served| served.load(Ordering::Relaxed));
        for (served, before) in self.served.iter().zip(before) {
            while served.load(Ordering::Relaxed) < before + 50 {
                self.check();
                thread::yield_now();
            }
        }
    }
}

/// Goal: while a relay gets other targets or settings by SIGHUP, no client is refused or reset, each is answered by the target of before
/// or after, and by that of after alone once it is said; connections that are open go on. Method: clients that connect without a pause, to
/// TCP, to a Unix socket and by datagrams, over 20 reloads, between each of which 50 of each kind are served.
#[test]
fn a_reload_refuses_no_client() {
    const RELOADS: u8 = 20;
    let folder = Folder::new();
    let (targets, datagrams) = ([0, 1].map(marked_echo), [0, 1].map(marked_datagrams));
    let door = folder.path("door");
    let write = |number: u8| {
        let at = usize::from(number % 2);
        let (to, udp_to) = (targets[at], datagrams[at]);
        // Every other change is of the settings, too.
        let check = ["", "check = { every = '1s' }\n"][at];
        let text = format!(
            "[process]\ndrain = '60s'\n[[relay]]\nname = 'tcp'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://{to}'\n{check}\
             [[relay]]\nname = 'unix'\nlisten = 'unix:{}'\nto = 'tcp://{to}'\n{check}\
             [[relay]]\nname = 'udp'\nlisten = 'udp://127.0.0.1:0'\nto = 'udp://{udp_to}'\nidle = '500ms'\n",
            door.display()
        );
        folder.write("config.toml", &text)
    };
    let file = write(0);
    let mut instance =
        Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready();
    let (tcp, udp) = (instance.address("tcp"), instance.address("udp"));
    let path = door.clone();
    let asks = [
        ask_over(move || TcpStream::connect(tcp)),
        ask_over(move || UnixStream::connect(&path)),
        ask_by_datagram(udp),
    ];
    let mut open = connect(tcp);
    assert_eq!(mark(&mut open), 0);
    Clients::run_beside(&asks, |clients| {
        for number in 1..=RELOADS {
            write(number);
            instance.said.clear();
            instance.signal(Signal::HUP);
            instance.until("SIGHUP: flows: 0 unchanged, 3 ended, 3 new");
            for ask in &asks {
                assert_eq!(ask().expect("it listens"), number % 2, "after reload {number}");
            }
            clients.wait();
            assert_eq!(mark(&mut open), 0);
        }
    });
    drop(open);
    assert_eq!(instance.end().code(), 0);
    assert!(!door.exists());
}

/// Goal: a relay whose new port is taken goes on at the old one, another that the file adds does not begin either, and `stats`, metrics and the log
/// say so, until a reload works. Method: a port of this test; then one that is free.
#[test]
fn a_reload_that_cannot_be_done_changes_nothing() {
    let folder = Folder::new();
    let targets = [1, 2].map(marked_echo);
    let [first, holder] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [web, taken] = [&first, &holder].map(|listener| listener.local_addr().expect("bound"));
    drop(first);
    let metrics = folder.path("metrics");
    let write = |listen: SocketAddr, to: usize, more: &str| {
        let text = format!(
            "[process]\nmetrics = 'unix:{}'\nstats_socket = '{}'\n[[relay]]\nname = 'web'\nlisten = 'tcp://{listen}'\n\
             to = 'tcp://{}'\n{more}",
            metrics.display(),
            folder.path("stats").display(),
            targets[to - 1]
        );
        folder.write("config.toml", &text)
    };
    let file = write(web, 1, "");
    let mut instance =
        Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready();
    let mut open = connect(web);
    let ask = |path: &str| {
        let stream = UnixStream::connect(&metrics).expect("it listens");
        get(stream, &format!("GET {path}")).1
    };
    assert!(ask("/metrics").contains("vigie_forward_last_reload_successful 1\n"));

    let more = format!(
        "[[relay]]\nname = 'more'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://{}'\n",
        targets[1]
    );
    write(taken, 2, &more);
    instance.signal(Signal::HUP);
    let line = instance.until("SIGHUP: all flows go on as before: ");
    assert!(line.contains(&format!("cannot listen on tcp://{taken}")), "{line}");
    assert_eq!((mark(&mut open), mark(&mut connect(web))), (1, 1));
    let text = ask("/metrics");
    assert!(text.contains("vigie_forward_last_reload_successful 0\n"), "{text}");
    assert!(text.contains("vigie_forward_reload_failed_flows 1\n"), "{text}");
    assert_eq!(ask("/health"), "ready\n");
    let report = report(&folder.path("stats"));
    assert_eq!(report["flows"].as_array().map(Vec::len), Some(1), "{report}");
    assert!(report["reload"]["problems"][0].as_str().is_some_and(|text| text.contains("web")));

    drop(holder);
    instance.signal(Signal::HUP);
    instance.until("SIGHUP: flows: 0 unchanged, 1 ended, 2 new, 0 failed");
    let times = |words: &str| instance.said.iter().filter(|line| line.contains(words)).count();
    assert_eq!((times("SIGHUP: "), times("`more` listens at")), (2, 1), "{:?}", instance.said);
    assert_eq!((mark(&mut open), mark(&mut connect(taken))), (1, 2));
    assert!(TcpStream::connect(web).is_err());
    let text = ask("/metrics");
    assert!(text.contains("vigie_forward_last_reload_successful 1\n"), "{text}");
    assert!(text.contains("vigie_forward_reload_failed_flows 0\n"), "{text}");
    drop(open);
    assert_eq!(instance.end().code(), 0);
}

/// Goal: what is known of a target outlives a change of its relay: that it is down is not said again, and one that was not reached is not
/// presumed to be available; log lines name the flow, and health those without a target. Method: relays to a port that is closed, with checks and without, whose `idle` changes.
#[test]
fn a_reload_keeps_the_health_of_targets() {
    let folder = Folder::new();
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let (socket, metrics) = (folder.path("stats"), folder.path("metrics"));
    let write = |idle: &str| {
        let relay = |name: &str, check: &str| {
            format!(
                "[[relay]]\nname = '{name}'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://{closed}'\nidle = '{idle}'\n{check}\n"
            )
        };
        let text = format!(
            "[process]\nstats_socket = '{}'\nmetrics = 'unix:{}'\n{}{}",
            socket.display(),
            metrics.display(),
            relay("checked", "check = { every = '1h', timeout = '1s' }"),
            relay("met", ""),
        );
        folder.write("config.toml", &text)
    };
    let file = write("1m");
    let mut instance =
        Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready();
    instance.until("flow `checked`: a target is down, since its checks fail; target: tcp://");
    assert_eq!(connect(instance.address("met")).read(&mut [0]).expect("an end"), 0);
    instance.until("flow `met`: a target cannot be reached; target: tcp://");

    let ask = |path: &str| {
        let stream = UnixStream::connect(&metrics).expect("it listens");
        let (head, body) = get(stream, &format!("GET {path}"));
        (head[..12].to_owned(), body)
    };
    let without = "no target is available: checked, met\n";
    assert_eq!(ask("/health"), ("HTTP/1.1 200".to_owned(), format!("ready\n{without}")));
    assert_eq!(ask("/health/targets"), ("HTTP/1.1 503".to_owned(), without.to_owned()));

    write("2m");
    instance.signal(Signal::HUP);
    instance.until("SIGHUP: flows: 0 unchanged, 2 ended, 2 new");
    let met = &report(&socket)["flows"][1];
    assert_eq!(met["name"], "met");
    assert_ne!(met["targets"][0]["state"], "available", "{met}");
    until("the first check of the new relay", || {
        let checked = report(&socket)["flows"][0].clone();
        assert_eq!(
            (&checked["name"], &checked["targets"][0]["state"]),
            (&"checked".into(), &"down".into())
        );
        (checked["targets"][0]["checks_failed"] == 1).then_some(())
    });
    let said = instance.end().said;
    assert_eq!(said.matches("a target is down").count(), 1, "{said}");
}

/// Goal: a router goes on if the file names an interface that does not exist; if what is wrong shows only once it has freed its interfaces, it
/// begins again with its old settings. Method: a wrong name, and a file of translations that this test has locked.
#[test]
fn a_router_survives_a_wrong_file() {
    with_network("reload::a_router_survives_a_wrong_file", |network| {
        let folder = Folder::new();
        let socket = folder.path("stats");
        let process = format!("[process]\nstats_socket = '{}'\n", socket.display());
        let l3 = "[[l3]]\nname = 'router'\ninterfaces = ['ra', 'rb']\npath = 'af-packet'\n";
        let file = folder.write("config.toml", &format!("{process}{l3}"));
        let arguments = ["run", "--config", file.to_str().expect("text")];
        let mut instance = network.router.forwarder(&folder, &arguments).ready();
        let (port, caller) = (network.echo(), network.caller());
        caller.set_read_timeout(Some(BOUND)).expect("a socket");
        call(&caller, SERVER, port);

        let before = counter(&socket, "router", "units");
        folder
            .write("config.toml", &format!("{process}{}", l3.replace("'ra', 'rb'", "'rw', 'rx'")));
        instance.signal(Signal::HUP);
        let line = instance.until("SIGHUP: all flows go on as before: ");
        for name in ["rw", "rx"] {
            assert!(line.contains(&format!("there is no interface `{name}`")), "{line}");
        }
        assert!(calls_through(&caller, SERVER, port, "still"));
        assert!(counter(&socket, "router", "units") >= before + 2);

        let state = std::fs::File::create(folder.path("state")).expect("a file");
        rustix::fs::flock(&state, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        let nat = format!(
            "[[nat]]\nname = 'router'\ninside = ['ra']\noutside = 'rb'\naddress = '10.2.0.9'\npath = 'af-packet'\nstate = '{}'\n",
            folder.path("state").display()
        );
        folder.write("config.toml", &format!("{process}{nat}"));
        instance.said.clear();
        instance.signal(Signal::HUP);
        let line = instance.until("keeps the translations of another flow");
        assert!(line.contains("; flow `router` goes on as before"), "{line}");
        instance.until("SIGHUP: flows: 0 unchanged, 0 ended, 0 new, 1 failed");
        assert!(!call(&caller, SERVER, port).starts_with("10.2.0.9"));
        let found = report(&socket);
        assert_eq!((&found["reload"]["failed_flows"], &found["down"]), (&1.into(), &().into()));

        drop(state);
        instance.said.clear();
        instance.signal(Signal::HUP);
        instance.until("SIGHUP: flows: 0 unchanged, 1 ended, 1 new, 0 failed");
        assert!(call(&caller, SERVER, port).starts_with("10.2.0.9"));
        assert_eq!(instance.end().code(), 0);
    });
}

/// Goal: SIGHUP without a file ends nothing, and the limit of descriptors is raised and named. Method: a relay by
/// command line, under a low soft limit.
#[test]
fn a_low_limit_is_raised() {
    let folder = Folder::new();
    let target = format!("tcp://{}", marked_echo(1));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 64; exec \"$@\"", "sh", PROGRAM, "relay"]);
    command.args(["--listen", "tcp://127.0.0.1:0", "--to", &target]);
    let mut instance = Instance::of(&mut command, &folder).ready();
    instance.until("raises its limit of descriptors from 64 to");
    instance.signal(Signal::HUP);
    instance.until("SIGHUP: there is no file");
    let address = instance.address("relay");
    let mut connections: Vec<_> = (0..100).map(|_| connect(address)).collect();
    assert!(connections.iter_mut().all(|stream| mark(stream) == 1));
    drop(connections);
    assert_eq!(instance.end().code(), 0);
}

/// Goal: two instances at one interface are refused, with the reason; the kernel's forwarding that is switched on later is said;
/// a flow of frames goes on over a reload, and one that is new begins. Method: a router that is started twice, and again once
/// the first has ended.
#[test]
fn two_routers_are_refused() {
    with_network("reload::two_routers_are_refused", |network| {
        let folder = Folder::new();
        let l3 = "[[l3]]\nname = 'l3'\ninterfaces = ['ra', 'rb']\npath = 'af-packet'\n";
        let socket = folder.path("stats");
        let process = format!("[process]\nstats_socket = '{}'\n", socket.display());
        let file = folder.write("config.toml", &format!("{process}{l3}"));
        let file = file.to_str().expect("text");
        let mut first = network.router.forwarder(&folder, &["run", "--config", file]).ready();
        network.router.run("ip link add rc type veth peer name rd");
        for arguments in [&["l3", "ra", "rb"][..], &["l2", "rb", "rc"]] {
            let ended = network.router.forwarder(&Folder::new(), arguments).wait();
            assert_eq!(ended.code(), 2, "{}", ended.said);
            assert!(ended.said.contains("another vigie-forward forwards by"), "{}", ended.said);
        }
        let (port, caller) = (network.echo(), network.caller());
        caller.set_read_timeout(Some(BOUND)).expect("a socket");
        call(&caller, SERVER, port);
        for name in ["ra", "rb"] {
            network.router.set(&format!("net/ipv4/conf/{name}/forwarding"), "1");
        }
        first.until("the kernel has begun to forward, too, from `ra`");
        let said = first.until("from `ra` and `rb`");
        let off = "`sysctl -w net.ipv4.conf.ra.forwarding=0 net.ipv4.conf.rb.forwarding=0`";
        assert!(said.contains(off), "{said}");
        for name in ["ra", "rb"] {
            network.router.set(&format!("net/ipv4/conf/{name}/forwarding"), "0");
        }
        first.until("the kernel no longer forwards");
        let relay =
            "[[relay]]\nname = 'relay'\nlisten = 'tcp://10.1.0.1:0'\nto = 'tcp://10.2.0.2:7'\n";
        folder.write("config.toml", &format!("{process}{relay}{l3}"));
        let before = counter(&socket, "l3", "units");
        first.signal(Signal::HUP);
        for number in 0..50 {
            let question = format!("call-{number}");
            assert!(calls_through(&caller, SERVER, port, &question), "{question} was lost");
        }
        first.until("SIGHUP: flows: 1 unchanged, 0 ended, 1 new");
        assert!(counter(&socket, "l3", "units") >= before + 100);
        folder.write("config.toml", &format!("{process}{}", l3.replace("'l3'", "'other'")));
        first.signal(Signal::HUP);
        first.until("SIGHUP: flows: 0 unchanged, 2 ended, 1 new");
        call(&caller, SERVER, port);
        assert_eq!(first.end().code(), 0);
        let again = forward(network, &folder, &["l3", "ra", "rb", "--path", "af-packet"]);
        call(&caller, SERVER, port);
        assert_eq!(again.end().code(), 0);
    });
}

/// Goal: a flow that a reload adds and that needs rights which the process has given up is refused with the only remedy, a new process. Method: a relay to
/// which a router is added, and a router without a program to which one is added that has none but a program.
#[test]
fn rights_that_were_given_up_need_a_restart() {
    const TEST: &str = "reload::rights_that_were_given_up_need_a_restart";
    with_network(TEST, |network| {
        if !has_programs(TEST) {
            return;
        }
        network.router.run("ip link add rc type veth peer name rd");
        let relay =
            "[[relay]]\nname = 'relay'\nlisten = 'tcp://10.1.0.1:0'\nto = 'tcp://10.2.0.2:7'\n";
        let by = |interfaces: &str, path: &str| {
            format!("[[l3]]\nname = '{path}'\ninterfaces = {interfaces}\npath = '{path}'\n")
        };
        let sockets = by("['ra', 'rb']", "af-packet");
        let program = by("['rc', 'rd']", "tcx");
        for (before, added, right) in
            [(relay, &sockets, "CAP_NET_RAW"), (&sockets, &program, "CAP_BPF and CAP_NET_ADMIN")]
        {
            let folder = Folder::new();
            let file = folder.write("config.toml", before);
            let arguments = ["run", "--config", file.to_str().expect("text")];
            let mut instance = network.router.forwarder(&folder, &arguments).ready();
            folder.write("config.toml", &format!("{before}{added}"));
            instance.signal(Signal::HUP);
            let said = instance.until("SIGHUP: all flows go on as before");
            let expected =
                format!("{right}, which this process gave up after its start: restart it");
            assert!(said.contains(&expected) && !said.contains("setcap"), "{said}");
            assert_eq!(instance.end().code(), 0);
        }
    });
}

/// Goal: settings that need a restart are compared with those that run. Method: `metrics` changes, and changes back.
#[test]
fn what_needs_a_restart_is_compared_with_what_runs() {
    let folder = Folder::new();
    let target = marked_echo(1);
    let write = |name: &str, flow: &str| {
        let metrics = folder.path(name);
        let text = format!(
            "[process]\nmetrics = 'unix:{}'\n[[relay]]\nname = '{flow}'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://{target}'\n",
            metrics.display()
        );
        folder.write("config.toml", &text)
    };
    let file = write("one", "f0");
    let mut instance =
        Instance::start(&folder, &["run", "--config", file.to_str().expect("text")]).ready();
    for (name, flow, said) in [("two", "f1", 1), ("one", "f2", 1), ("two", "f3", 2)] {
        write(name, flow);
        instance.signal(Signal::HUP);
        instance.until(&format!("(new: {flow};"));
        let lines =
            instance.said.iter().filter(|line| line.contains("changes with the next start"));
        assert_eq!(lines.count(), said, "{name}: {:?}", instance.said);
    }
    assert_eq!(instance.end().code(), 0);
}
