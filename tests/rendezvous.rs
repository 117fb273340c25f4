//! The rendezvous over TCP with real processes: `vigie-run --listen` serves it, and the ranks are this test binary
//! again, started by hand or by `vigie-run --meet`.

use std::{
    env,
    fs::{self, OpenOptions, Permissions},
    future::Future,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use vigie::{
    Flavor, Instant, Runtime,
    via::{
        message::Endpoint,
        world::{JoinRefusal, Rank, World, WorldError, WorldEvent, tcp::handshake::Challenger},
    },
};

/// Nothing here takes as long, unless it hangs.
const BOUND: Duration = Duration::from_secs(60);
/// Says to this binary, as a rank, which test it is a rank of.
const ROLE: &str = "VIGIE_TEST_ROLE";
const SECRET: &str = "00112233445566778899aabbccddeeff";

/// A process that is killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("it starts"))
    }

    /// Waits until it has so many children, which it has reaped if they have ended.
    fn wait_for_children(&self, count: usize) {
        let end = Instant::now() + BOUND;
        let id = self.0.id();
        let path = format!("/proc/{id}/task/{id}/children");
        while fs::read_to_string(&path).expect("it runs").split_whitespace().count() != count {
            assert!(Instant::now() < end, "the children of a process are others than expected");
            thread::yield_now();
        }
    }

    fn ask_to_end(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("it is not reaped yet");
    }

    /// Waits for its end and returns its exit code.
    fn code(&mut self) -> Option<i32> {
        let pidfd = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).expect("a pidfd");
        let bound = Timespec { tv_sec: BOUND.as_secs().cast_signed(), tv_nsec: 0 };
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&bound)), Ok(1), "a process has not ended in time");
        self.0.wait().expect("it is ours").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A launcher that serves a rendezvous.
struct Server {
    process: Process,
    stderr: BufReader<ChildStderr>,
    address: SocketAddr,
    secret_file: PathBuf,
}

impl Server {
    /// Starts one for the ranks of `test`.
    fn start(test: &str, flags: &[&str]) -> Self {
        Self::start_program(test, flags, &[])
    }

    /// Starts one that also runs `program` as its own ranks.
    fn start_program(test: &str, flags: &[&str], program: &[&str]) -> Self {
        let name = format!("secret-{test}-{}", std::process::id());
        let secret_file = env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&secret_file).expect("a file");
        writeln!(file, "{SECRET}").expect("it is written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vigie-run"));
        command.args(flags).args(["--listen", "127.0.0.1:0", "--secret-file"]).arg(&secret_file);
        command.args(program);
        let mut process = Process::start(command.stderr(Stdio::piped()));
        let mut stderr = BufReader::new(process.0.stderr.take().expect("piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("it says where");
        let (_, address) = line.trim_end().split_once("tcp://").expect("an address");
        let address = address.parse().expect("an address");
        Self { process, stderr, address, secret_file }
    }

    /// Prepares this binary as rank `rank` of `size`.
    fn rank(&self, test: &str, rank: u32, size: u32) -> Command {
        let mut command = Command::new(env::current_exe().expect("this binary has a path"));
        command
            .args(arguments(test))
            .env(ROLE, test)
            .env("VIGIE_RENDEZVOUS", format!("tcp://{}", self.address))
            .env("VIGIE_RANK", rank.to_string())
            .env("VIGIE_SIZE", size.to_string())
            .env("VIGIE_SECRET_FILE", &self.secret_file);
        command
    }

    /// Waits for its end, and returns its code and what it has said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let code = self.process.code();
        self.stderr.read_to_string(&mut said).expect("it can be read");
        (code, said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.secret_file));
    }
}

fn arguments(test: &str) -> [&str; 4] {
    [test, "--exact", "--nocapture", "--test-threads=1"]
}

fn is_rank_of(test: &str) -> bool {
    env::var(ROLE).as_deref() == Ok(test)
}

fn run<F: Future<Output = ()>>(body: impl FnOnce(Instant) -> F) -> ! {
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.block_on(body(Instant::now() + BOUND));
    std::process::exit(0)
}

/// If this process is a rank of `test`, runs `body` as that and ends the process.
fn be_rank_of<F: Future<Output = ()>>(test: &str, body: impl FnOnce(World, Instant) -> F) {
    if is_rank_of(test) {
        run(async |deadline| {
            let world = World::join(deadline).await.expect("the rendezvous is there");
            body(world, deadline).await;
        });
    }
}

/// Goal: ranks that were started in different ways meet, know the same secret, and exchange messages. Method: two by
/// hand, one of them before the others; two by another launcher.
#[test]
fn ranks_meet() {
    const TEST: &str = "ranks_meet";
    be_rank_of(TEST, async |world, deadline| {
        let own = world.identity().secret;
        assert!(own.iter().any(|byte| *byte != 0));
        let secrets = world.all_gather("secret", &own, deadline).await.expect("all");
        assert_eq!(secrets, vec![Some(own.to_vec()); 4]);
        let endpoint = Endpoint::join(&world, deadline).await.expect("all connect");
        let (all, rank) = (endpoint.communicator(), world.rank().0);
        for to in (0..4).filter(|to| *to != rank) {
            all.send(to, 0, &rank.to_le_bytes()).await.expect("it is sent");
        }
        for from in (0..4).filter(|from| *from != rank) {
            let mut message = [0; 4];
            all.recv_into(from, 0, &mut message[..]).await.expect("it comes");
            assert_eq!(message, from.to_le_bytes());
        }
        world.barrier(deadline).await.expect("all come");
        world.leave(deadline).await.expect("it hears");
    });
    let server = Server::start(TEST, &["-n", "4"]);
    let mut by_hand = [0, 1].map(|rank| Process::start(&mut server.rank(TEST, rank, 4)));
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_vigie-run"));
    launcher.args(["-n", "4", "--here", "2-3", "--meet", &server.address.to_string()]);
    launcher.arg("--secret-file").arg(&server.secret_file);
    launcher.arg(env::current_exe().expect("this binary has a path")).args(arguments(TEST));
    let mut launcher = Process::start(launcher.env(ROLE, TEST));
    assert_eq!(launcher.code(), Some(0));
    assert_eq!(by_hand.each_mut().map(Process::code), [Some(0); 2]);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("not let in"), "the other launcher is no stranger: {said}");
}

/// Goal: a launcher says at once that no rendezvous answers, says when one does, and names the address when it ends without. Method: a
/// port at which nobody listens; in one case the test then answers there as a rendezvous.
#[test]
fn nothing_answers() {
    for answers in [false, true] {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let socket = socket.expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        bind(&socket, &any).expect("a port");
        let address = SocketAddr::try_from(getsockname(&socket).expect("it has one")).expect("IP");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vigie-run"));
        command.args(["-n", "2", "--here", "1", "--meet", &address.to_string(), "sleep", "60"]);
        command.env("VIGIE_SECRET", SECRET).stderr(Stdio::piped());
        let mut launcher = Process::start(&mut command);
        let mut stderr = BufReader::new(launcher.0.stderr.take().expect("piped"));
        let mut next = || {
            let mut line = String::new();
            stderr.read_line(&mut line).expect("it can be read");
            line
        };

        let first = next();
        let awaited = format!("waiting for the rendezvous at tcp://{address}, where nothing");
        assert!(first.contains(&awaited) && first.contains("refused"), "{first}");
        if answers {
            listen(&socket, 1).expect("a listener");
            let (mut caller, _) = TcpListener::from(socket).accept().expect("it calls again");
            caller.write_all(&Challenger::new([7; 16]).challenge()).expect("it reads");
            let line = next();
            assert!(line.contains("the rendezvous answers"), "{line}");
        }
        launcher.wait_for_children(1);
        launcher.ask_to_end();
        assert_eq!(launcher.code(), Some(143));
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).expect("it can be read");
        let is_named = rest.contains(&format!("nothing has answered at tcp://{address}: "));
        assert_eq!(is_named, !answers, "{rest}");
    }
}

/// Goal: ranks that never arrive are named to those that wait for them, and to the user. Method: two of four.
#[test]
fn ranks_that_never_arrive() {
    const TEST: &str = "ranks_that_never_arrive";
    be_rank_of(TEST, async |world, deadline| {
        let error = world.barrier(deadline).await.expect_err("two are missing");
        let WorldError::Missing { count, ranks, .. } = &error else { panic!("{error}") };
        assert_eq!((*count, &ranks[..]), (2, &[Rank(1), Rank(3)][..]));
        assert!(error.to_string().contains("1, 3") && error.is_final(), "{error}");
    });
    let server = Server::start(TEST, &["-n", "4", "--arrival", "3"]);
    let mut ranks = [0, 2].map(|rank| Process::start(&mut server.rank(TEST, rank, 4)));
    assert_eq!(ranks.each_mut().map(Process::code), [Some(0); 2]);
    let (code, said) = server.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not arrived in 3s: ranks 1, 3"), "{said}");
    assert!(!said.contains("lost"), "nobody was: {said}");
}

/// Goal: who keeps going does so without ranks that never arrive, and without ranks that die. Method: one of four
/// never comes, one kills itself, the others are told of both and pass barriers.
#[test]
fn survivors_go_on() {
    const TEST: &str = "survivors_go_on";
    be_rank_of(TEST, async |world, deadline| {
        let mut events = world.events();
        let missing = events.next().await.expect("the launcher tells");
        assert_eq!(missing, WorldEvent::Expelled { rank: Rank(3) });
        world.barrier(deadline).await.expect("all others come");
        if world.rank() == Rank(1) {
            std::process::abort();
        }
        let dead = events.next().await.expect("the launcher tells");
        assert_eq!(dead, WorldEvent::Expelled { rank: Rank(1) });
        assert_eq!(world.get(Rank(1), "key", deadline).await.expect("it tells"), None);
        world.barrier(deadline).await.expect("all others come");
        world.leave(deadline).await.expect("it hears");
    });
    let server = Server::start(TEST, &["-n", "4", "--arrival", "3", "--keep-going"]);
    let mut ranks = [0, 1, 2].map(|rank| Process::start(&mut server.rank(TEST, rank, 4)));
    assert_eq!(ranks.each_mut().map(Process::code), [Some(0), None, Some(0)]);
    let (code, said) = server.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not arrived in 3s: rank 3\n"), "{said}");
    assert!(said.contains("lost: rank 1\n"), "{said}");
}

/// Goal: whoever must not come in stays outside, is counted, and disturbs nobody. Method: callers with rubbish, with
/// nothing, with a part of an answer, more of them than are heard at once; a rank with a wrong secret, one of another
/// size, and a rank twice.
#[test]
fn strangers() {
    const TEST: &str = "strangers";
    const REFUSED: &str = "VIGIE_TEST_REFUSED";
    const JOINED: &str = "VIGIE_TEST_JOINED";
    if is_rank_of(TEST) {
        run(async |deadline| {
            let joined = World::join(deadline).await;
            let Ok(expected) = env::var(REFUSED) else {
                let world = joined.expect("the rendezvous is there");
                if let Some(path) = env::var_os(JOINED) {
                    fs::write(path, "").expect("a file");
                }
                world.put("here", b"", deadline).await.expect("it hears");
                world.barrier(deadline).await.expect("all come");
                world.leave(deadline).await.expect("it hears");
                return;
            };
            let error = joined.expect_err("it is not let in");
            let WorldError::Refused { why, .. } = error else { panic!("{error}") };
            assert_eq!(format!("{why:?}"), expected);
            assert!(!error.to_string().contains(SECRET), "{error}");
        });
    }
    let server = Server::start(TEST, &["-n", "2"]);
    let joined = server.secret_file.with_extension("joined");
    let mut first = Process::start(server.rank(TEST, 0, 2).env(JOINED, &joined));
    let mut callers = Vec::new();
    for index in 0..200 {
        let mut caller = TcpStream::connect(server.address).expect("somebody listens");
        let said: &[u8] = match index % 3 {
            0 => &[0xff; 4096],
            1 => b"vigieRV\x01part",
            _ => b"",
        };
        // It may have hung up.
        drop(caller.write_all(said));
        callers.push(caller);
    }
    let refused = |command: &mut Command, why: JoinRefusal| {
        let code = Process::start(command.env(REFUSED, format!("{why:?}"))).code();
        assert_eq!(code, Some(0), "{why:?}");
    };
    let wrong = "ff112233445566778899aabbccddeeff";
    let mut stranger = server.rank(TEST, 1, 2);
    refused(stranger.env("VIGIE_SECRET", wrong), JoinRefusal::WrongSecret);
    refused(&mut server.rank(TEST, 1, 3), JoinRefusal::WrongSize);
    let end = Instant::now() + BOUND;
    while !joined.exists() {
        assert!(Instant::now() < end, "the first rank does not join");
        thread::yield_now();
    }
    fs::remove_file(&joined).expect("it is there");
    refused(&mut server.rank(TEST, 0, 2), JoinRefusal::Taken);
    let mut second = Process::start(&mut server.rank(TEST, 1, 2));
    assert_eq!([first.code(), second.code()], [Some(0); 2]);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    for reason in ["it has another secret", "its world has another size", "has joined as this rank"]
    {
        assert!(said.contains(reason), "{said}");
    }
    let counted = said.split_once("not let in: ").expect(&said).1.trim_end();
    assert!(counted.parse::<u32>().expect(&said) >= 3, "{said}");
    drop(callers);
}

/// Goal: the end of the launcher is noticed by all that wait. Method: it is killed while a rank is in a barrier.
#[test]
fn killed_launcher() {
    const TEST: &str = "killed_launcher";
    be_rank_of(TEST, async |world, deadline| {
        println!("@joined");
        let error = world.barrier(deadline).await.expect_err("nobody else comes");
        assert!(matches!(error, WorldError::LauncherLost), "{error}");
    });
    let mut server = Server::start(TEST, &["-n", "2"]);
    let mut rank = Process::start(server.rank(TEST, 0, 2).stdout(Stdio::piped()));
    let stdout = BufReader::new(rank.0.stdout.take().expect("piped"));
    let mut lines = stdout.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("@joined")));
    server.process.0.kill().expect("it lives");
    // What it says is read, so that it does not block.
    let reader = thread::spawn(move || lines.count());
    assert_eq!(rank.code(), Some(0));
    reader.join().expect("it ends");
}

/// Goal: a launcher that is told to end does so, though ranks of other hosts have not arrived: when its own rank
/// has ended by the signal, when that had ended before, and when it has none. Method: no other rank ever comes.
#[test]
fn a_listening_launcher_ends_when_told() {
    let test = "a_listening_launcher_ends_when_told";
    let here: &[&str] = &["-n", "2", "--here", "0"];
    for (flags, program, children) in
        [(here, &["sleep", "60"][..], 1), (here, &["true"], 0), (&["-n", "2"], &[], 0)]
    {
        let server = Server::start_program(test, flags, program);
        server.process.wait_for_children(children);
        server.process.ask_to_end();
        let (code, said) = server.end();
        assert_eq!(code, Some(143), "{program:?}: {said}");
        assert!(said.contains("never joined: ranks 0, 1\n") && !said.contains("lost"), "{said}");
    }
}

/// Goal: the user is warned of a secret that is none. Method: files that others may and may not read.
#[test]
fn a_secret_that_everybody_can_read() {
    let name = format!("secret-public-{}", std::process::id());
    let path = env::temp_dir().join(name);
    fs::write(&path, SECRET).expect("it is written");
    for (mode, is_warned) in [(0o644, true), (0o640, false), (0o600, false)] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vigie-run"));
        command.args(["-n", "1", "--listen", "127.0.0.1:0", "--secret-file"]).arg(&path);
        let output = command.arg("true").stdin(Stdio::null()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("every user can read the secret"), is_warned, "{mode:o}: {said}");
        assert!(!said.contains(SECRET), "{said}");
    }
    fs::remove_file(&path).expect("it is there");
}

/// Goal: a launcher that cannot listen or has no secret says so. Method: a port that is taken, an address of another
/// host, no secret, a file without one.
#[test]
fn launcher_that_cannot_serve() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("it has one").to_string();
    for (arguments, secret, expected) in [
        (&["--listen", &taken][..], SECRET, "cannot listen on"),
        (&["--listen", "192.0.2.1:7000"], SECRET, "cannot listen on"),
        (&["--listen", "127.0.0.1:0"], "", "VIGIE_SECRET"),
        (
            &["--listen", "127.0.0.1:0", "--secret-file", "/dev/null"],
            SECRET,
            "--secret-file: /dev/null: it holds",
        ),
        (&["--listen", "localhost:7000"], SECRET, "host names are not resolved"),
        (&["--meet", "127.0.0.1:1", "true"], "short", "VIGIE_SECRET"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vigie-run"));
        command.args(["-n", "2"]).args(arguments).env("VIGIE_SECRET", secret);
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(!said.contains("does not lead to the launcher"), "it is the launcher: {said}");
        assert!(secret.is_empty() || !said.contains(secret), "{said}");
    }
}
