//! `vigie-run` with real processes. Ranks are shells, or this test binary again where they need a
//! `World`.

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use vigie::{
    Flavor, Instant, Runtime,
    via::world::{Rank, RankExit, World, WorldError, WorldEvent},
};

/// Nothing here takes as long, unless it hangs.
const BOUND: Duration = Duration::from_secs(60);
/// Says to this binary, as a rank, which test it is a rank of.
const ROLE: &str = "VIGIE_TEST_ROLE";

/// Returns the command of the launcher. A script that starts the tests by `&` ignores SIGINT, and all children with it: `env` gives
/// the launcher and its ranks a terminal's signals.
fn launcher() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", env!("CARGO_BIN_EXE_vigie-run")]);
    command
}

/// A launcher that runs. Killed when it is dropped.
struct Job {
    child: Child,
    exit: OwnedFd,
    /// Lines of standard output.
    stdout: Receiver<Vec<u8>>,
    stderr: Option<thread::JoinHandle<String>>,
}

struct Ended {
    status: ExitStatus,
    /// What had not been read before.
    stdout: Vec<Vec<u8>>,
    stderr: String,
}

impl Job {
    fn start(arguments: &[&str]) -> Self {
        Self::of(launcher().args(arguments))
    }

    fn of(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the launcher starts");
        let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("a pidfd");
        let mut from = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, stdout) = channel();
        thread::spawn(move || {
            let mut line = Vec::new();
            while let Ok(1..) = from.read_until(b'\n', &mut line) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let mut from = child.stderr.take().expect("piped");
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            from.read_to_end(&mut text).expect("it can be read");
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { child, exit, stdout, stderr: Some(stderr) }
    }

    /// Starts this binary as the ranks of `test`.
    fn of_world(test: &str, flags: &[&str]) -> Self {
        let mut arguments = flags.to_vec();
        let role = format!("{ROLE}={test}");
        let exe = env::current_exe().expect("this binary has a path");
        let exe = exe.to_str().expect("of characters");
        arguments.extend(["--env", &role, exe, test, "--exact", "--nocapture"]);
        arguments.push("--test-threads=1");
        Self::start(&arguments)
    }

    /// Returns the next line with an `@`, from there on: ranks of this binary write other lines too.
    fn marked(&self) -> String {
        loop {
            let line = self.stdout.recv_timeout(BOUND).expect("a line, before the end");
            if let Some(at) = line.iter().position(|&byte| byte == b'@') {
                return String::from_utf8_lossy(&line[at + 1..]).trim_end().to_owned();
            }
        }
    }

    fn marked_lines(&self, count: usize) -> BTreeSet<String> {
        (0..count).map(|_| self.marked()).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the launcher lives");
    }

    fn tell(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin.write_all(text.as_bytes()).expect("somebody reads");
    }

    fn wait(mut self) -> Ended {
        drop(self.child.stdin.take());
        wait_for(&self.exit);
        let status = self.child.wait().expect("it is ours");
        let mut stdout = Vec::new();
        while let Ok(line) = self.stdout.recv_timeout(BOUND) {
            stdout.push(line);
        }
        let stderr = self.stderr.take().expect("taken once").join().expect("it does not panic");
        Ended { status, stdout, stderr }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Ended {
    fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{:?}\n{}", self.status, self.stderr))
    }

    fn sorted(mut self) -> Vec<Vec<u8>> {
        self.stdout.sort();
        self.stdout
    }
}

fn run(arguments: &[&str]) -> Ended {
    Job::start(arguments).wait()
}

/// Waits for the end of the process of a pidfd.
fn wait_for(pidfd: &OwnedFd) {
    let bound = Timespec { tv_sec: BOUND.as_secs().cast_signed(), tv_nsec: 0 };
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&bound)), Ok(1), "a process has not ended in time");
}

/// Interrupts a launcher each 50 ms: it takes two signals within 0.2 s for one.
fn interrupt_until_ended(launcher: Pid, exit: &OwnedFd) {
    let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let begin = Instant::now();
    while poll(&mut [PollFd::new(exit, PollFlags::IN)], Some(&pause)) == Ok(0) {
        assert!(begin.elapsed() < BOUND, "the launcher has not ended in time");
        kill_process(launcher, Signal::INT).expect("it is ours");
    }
}

fn pidfd_of(number: &str) -> OwnedFd {
    let number = number.parse().expect("a number");
    let pid = Pid::from_raw(number).expect("of a process");
    pidfd_open(pid, PidfdFlags::empty()).expect("that lives")
}

/// Is the rank, if this process is one of `test`; and then ends.
fn be_rank_of<F: Future<Output = ()>>(test: &str, body: impl FnOnce(World, Instant) -> F) {
    if env::var_os(ROLE).is_none_or(|role| role != test) {
        return;
    }
    let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
    runtime.block_on(async {
        let deadline = Instant::now() + BOUND;
        body(World::join(deadline).await.expect("a launcher"), deadline).await;
    });
    std::process::exit(0);
}

/// A shell script that tells who it is, and then waits to be ended.
const IDLE: &str = "echo @$$; sleep 1000 & wait";

/// Goal: lines come whole, after their rank, from each stream to its own, with no byte changed and the
/// partial last line. Method: ranks that print all of these.
#[test]
fn output_by_line() {
    let script = r"printf 'one\n\nt\377wo\nlast'; printf 'err' >&2";
    let ended = run(&["-n", "2", "sh", "-c", script]);
    assert_eq!(ended.code(), 0);
    let mut errors = ended.stderr.lines().collect::<Vec<_>>();
    errors.sort_unstable();
    assert_eq!(errors, ["[0] err", "[1] err"]);
    let of = |rank: u8| {
        [&b"[R] \n"[..], b"[R] last\n", b"[R] one\n", b"[R] t\xffwo\n"]
            .map(|line| line.iter().map(|&b| if b == b'R' { rank } else { b }).collect::<Vec<_>>())
    };
    assert_eq!(ended.sorted(), [of(b'0'), of(b'1')].concat());
}

/// Goal: `--no-prefix` touches nothing. Method: one rank's bytes.
#[test]
fn raw_output() {
    let ended = run(&["-n", "1", "--no-prefix", "sh", "-c", r"printf 'a\nb\377'; printf e >&2"]);
    assert_eq!((ended.code(), ended.stderr.as_str()), (0, "e"));
    assert_eq!(ended.stdout.concat(), b"a\nb\xff");
}

/// Goal: much output loses nothing and mixes no lines. Method: four ranks with many numbered lines.
#[test]
fn much_output() {
    let script = "i=0; while [ $i -lt 2000 ]; do echo $VIGIE_RANK $i; i=$((i+1)); done";
    let ended = run(&["-n", "4", "--tag-output", "sh", "-c", script]);
    assert_eq!(ended.code(), 0);
    for rank in 0..4 {
        let expected = (0..2000).map(|i| format!("[{rank}] {rank} {i}\n").into_bytes());
        let prefix = format!("[{rank}]").into_bytes();
        let of_rank = ended.stdout.iter().filter(|line| line.starts_with(&prefix)).cloned();
        assert!(of_rank.eq(expected), "rank {rank}");
    }
}

/// Goal: a reader that goes away ends the job as it ends a pipeline. Method: one that reads a line.
#[test]
fn reader_goes_away() {
    let vigie_run = env!("CARGO_BIN_EXE_vigie-run");
    let script = format!("{{ {vigie_run} -n 2 yes; echo @$? >&2; }} | head -1");
    let ended = Job::of(Command::new("sh").args(["-c", &script])).wait();
    assert!(ended.stderr.contains("@141"), "{}", ended.stderr);
}

/// Goal: rank 0 has the standard input and the others have none; the environment is as promised; ranks
/// are bound. Method: ranks that print it.
#[test]
fn input_environment_and_binding() {
    let script = "echo $VIGIE_RANK/$VIGIE_SIZE $A `cat` `nproc`";
    let mut job =
        Job::start(&["-n", "2", "--env", "A=b=c", "--bind-to", "core", "sh", "-c", script]);
    job.tell("input");
    let ended = job.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert_eq!(ended.sorted(), [&b"[0] 0/2 b=c input 1\n"[..], b"[1] 1/2 b=c 1\n"]);
}

/// Goal: ranks that share a processor although each was to have one are told of. Method: one rank more than processors.
#[test]
fn ranks_share_processors() {
    let processors = rustix::thread::sched_getaffinity(None).unwrap().count();
    for (ranks, is_told) in [(processors, false), (processors + 1, true)] {
        let ended = run(&["-n", &ranks.to_string(), "--bind-to", "core", "true"]);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("share a processor"), is_told, "{}", ended.stderr);
    }
}

/// Goal: the exit code is the first failing rank's, as shells have it, and the rank is named. Method:
/// each way to end.
#[test]
fn exit_codes() {
    for (how, code, message) in [
        ("exit 0", 0, ""),
        ("exit 3", 3, "rank 1 exited with code 3"),
        ("exit 255", 255, "rank 1 exited with code 255"),
        ("kill -9 $$", 137, "rank 1 was killed by signal 9 (SIGKILL)"),
        ("kill -15 $$", 143, "rank 1 was killed by signal 15 (SIGTERM)"),
    ] {
        let script = format!("[ $VIGIE_RANK = 1 ] || exit 0; {how}");
        let ended = run(&["-n", "3", "sh", "-c", &script]);
        assert_eq!(ended.code(), code, "{how}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{how}: {}", ended.stderr);
    }
}

/// Goal: bad input ends with the codes that shells have, and says what to do. Method: each kind.
#[test]
fn bad_input() {
    for (arguments, code, message) in [
        (&["-n", "0", "true"][..], 2, "1..=1024"),
        (&["-n", "1025", "true"], 2, "1..=1024"),
        (&["-n", "1", "--env", "A", "true"], 2, "KEY=VALUE"),
        (&["-n", "1", "--env", "VIGIE_RANK=7", "true"], 2, "vigie-run sets VIGIE_RANK"),
        (&["-n", "1"], 2, "PROGRAM"),
        (&["-n", "2", "/nonexistent/program"], 127, "/nonexistent/program"),
        (&["-n", "2", "no-such-program-anywhere"], 127, "no-such-program-anywhere"),
        (&["-n", "2", "/"], 126, "Permission denied"),
        (&["-n", "2", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], 126, "Cargo.toml"),
    ] {
        // A folder of PATH that this user may not enter would be what is reported.
        let ended = Job::of(launcher().env("PATH", "/usr/bin:/bin").args(arguments)).wait();
        assert_eq!(ended.code(), code, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{arguments:?}");
    }
    let folder = Path::new(env!("CARGO_BIN_EXE_vigie-run")).parent().expect("a folder");
    let mut command = launcher();
    let job = Job::of(command.current_dir(folder).env("PATH", "/usr/bin:/bin").args([
        "-n",
        "1",
        "vigie-run",
    ]));
    let ended = job.wait();
    assert_eq!(ended.code(), 127, "{}", ended.stderr);
    assert!(ended.stderr.contains("is `./vigie-run`"), "{}", ended.stderr);
    let script = format!("ulimit -n 64; exec {} -n 100 true", env!("CARGO_BIN_EXE_vigie-run"));
    let ended = Job::of(Command::new("sh").args(["-c", &script])).wait();
    assert_eq!(ended.code(), 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("ulimit -n"), "{}", ended.stderr);
}

/// Goal: when a rank dies, the others get SIGTERM, those that do not end SIGKILL, and nothing of their
/// groups is left. Method: ranks that heed and that ignore it, each with a child; the death comes when
/// all are there.
#[test]
fn all_end_when_one_dies() {
    let script = "case $VIGIE_RANK in
        0) read line; exit 5;;
        1) sleep 1000 & echo @$!; trap 'echo @told; exit 0' TERM; echo @$$; wait;;
        2) trap '' TERM; sleep 1000 & echo @$!; echo @$$; wait; sleep 1000;;
    esac";
    let mut job = Job::start(&["-n", "3", "--timeout-end", "0.2", "sh", "-c", script]);
    let processes = job.marked_lines(4).iter().map(|pid| pidfd_of(pid)).collect::<Vec<_>>();
    job.tell("\n");
    assert_eq!(job.marked(), "told");
    let ended = job.wait();
    assert_eq!(ended.code(), 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("rank 0 exited with code 5; ending the others"));
    processes.iter().for_each(wait_for);
}

/// Goal: `--timeout` ends the job with 124, and names the ranks that had not ended. Method: two ranks without end.
#[test]
fn job_takes_too_long() {
    let ended = run(&["-n", "2", "--timeout", "0.05", "sh", "-c", IDLE]);
    assert_eq!(ended.code(), 124, "{}", ended.stderr);
    assert!(ended.stderr.contains("still running: ranks 0, 1"), "{}", ended.stderr);
}

/// Returns whether this process ignores `signal`, as the launcher and its ranks do then.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("it can be read");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a field");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("hexadecimal");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Goal: signals reach every rank, and the job's code is theirs. Method: each signal, with ranks that
/// handle it, and with ranks that die of it.
#[test]
fn signals_are_passed_on() {
    for (name, signal) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        if is_ignored(signal) {
            eprintln!("SIG{name} is skipped: this test was started to ignore it, as under nohup");
            continue;
        }
        let script = format!("trap 'echo @got; exit 0' {name}; echo @ready; sleep 1000 & wait");
        let job = Job::start(&["-n", "2", "sh", "-c", &script]);
        assert_eq!([job.marked(), job.marked()], ["ready", "ready"]);
        job.signal(signal);
        assert_eq!([job.marked(), job.marked()], ["got", "got"], "{name}");
        assert_eq!(job.wait().code(), 0, "{name}");
    }
    for signal in [Signal::TERM, Signal::USR1] {
        let job = Job::start(&["-n", "2", "sh", "-c", "echo @ready; exec sleep 1000"]);
        assert_eq!([job.marked(), job.marked()], ["ready", "ready"]);
        job.signal(signal);
        assert_eq!(job.wait().code(), 128 + signal.as_raw());
    }
}

/// Goal: a second SIGINT kills, unless it comes together with the first, as under `timeout`, which signals its child and then
/// their group. Method: ranks that survive the first and say so; two signals at once, then one each 50 ms until it has ended.
#[test]
fn second_interrupt_kills() {
    let script = "trap 'echo @one' INT; echo @ready; while :; do sleep 1000 & wait; done";
    let job = Job::start(&["-n", "2", "sh", "-c", script]);
    assert_eq!([job.marked(), job.marked()], ["ready", "ready"]);
    job.signal(Signal::INT);
    job.signal(Signal::INT);
    assert_eq!([job.marked(), job.marked()], ["one", "one"]);
    interrupt_until_ended(Pid::from_child(&job.child), &job.exit);
    let ended = job.wait();
    assert_eq!(ended.code(), 130, "{}", ended.stderr);
}

/// Goal: a launcher that is killed takes its ranks with it, and those behind a shell learn it over the
/// rendezvous. Method: kill -9, with pidfds of all processes; the second kind of rank ends by itself
/// when its launcher is lost, which this test sees by its end.
#[test]
fn killed_launcher_leaves_nothing() {
    be_rank_of("killed_launcher_leaves_nothing", async |world, _| {
        println!("\n@{}", std::process::id());
        let error = world.events().next().await.expect_err("nothing else happens");
        assert!(matches!(error, WorldError::LauncherLost), "{error}");
    });
    let exe = env::current_exe().expect("this binary has a path");
    let script = format!(
        "echo @$$; {} killed_launcher_leaves_nothing --exact --nocapture --test-threads=1; :",
        exe.display()
    );
    let role = format!("{ROLE}=killed_launcher_leaves_nothing");
    let mut job = Job::start(&["-n", "2", "--env", &role, "sh", "-c", &script]);
    let processes = job.marked_lines(4).iter().map(|pid| pidfd_of(pid)).collect::<Vec<_>>();
    assert_eq!(processes.len(), 4);
    job.child.kill().expect("the launcher lives");
    processes.iter().for_each(wait_for);
    assert_eq!(job.child.wait().expect("it is ours").signal(), Some(9));
}

/// Goal: ranks find each other. Method: every rank gathers what all have put, and passes barriers.
#[test]
fn ranks_find_each_other() {
    be_rank_of("ranks_find_each_other", async |world, deadline| {
        let own = world.rank().0.to_string();
        let all = world.all_gather("address", own.as_bytes(), deadline).await.expect("all put");
        let expected = (0..world.size()).map(|rank| Some(rank.to_string().into_bytes()));
        assert_eq!(all, expected.collect::<Vec<_>>());
        for _ in 0..10 {
            world.barrier(deadline).await.expect("all come");
        }
        let id = u128::from_be_bytes(world.identity().id);
        world.leave(deadline).await.expect("the launcher hears");
        println!("\n@{} of {} in {id}", world.rank(), world.size());
    });
    let job = Job::of_world("ranks_find_each_other", &["-n", "5"]);
    let lines = job.marked_lines(5);
    let worlds = lines.iter().filter_map(|line| line.split(' ').next_back());
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(worlds.collect::<BTreeSet<_>>().len(), 1, "{lines:?}");
    let ended = job.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

/// Goal: under `--keep-going` survivors are told who died and how, and go on without it; the code is
/// still the failure's. Method: rank 1 kills itself before a barrier that the others are in.
#[test]
fn survivors_are_told() {
    be_rank_of("survivors_are_told", async |world, deadline| {
        world.barrier(deadline).await.expect("all come");
        if world.rank() == Rank(1) {
            kill_process(rustix::process::getpid(), Signal::KILL).expect("it is allowed");
        }
        world.barrier(deadline).await.expect("the dead are not waited for");
        let all = world.all_gather("after", b"x", deadline).await.expect("nor here");
        assert_eq!(all, [Some(b"x".to_vec()), None, Some(b"x".to_vec())]);
        let event = world.events().next().await.expect("it was told");
        assert_eq!(event, WorldEvent::Ended { rank: Rank(1), ending: RankExit::Killed(9) });
        println!("\n@{} knows", world.rank());
    });
    let job = Job::of_world("survivors_are_told", &["-n", "3", "--keep-going"]);
    let lines = job.marked_lines(2);
    assert!(lines.iter().eq(["rank 0 knows", "rank 2 knows"]), "{lines:?}");
    let ended = job.wait();
    assert_eq!(ended.code(), 137, "{}", ended.stderr);
    assert!(ended.stderr.contains("rank 1 was killed by signal 9 (SIGKILL); the others go on"));
}

/// Goal: a rank whose barrier is not passed in time says what it knows of the others, and the launcher names the ranks that are missing.
/// Method: of the other three ranks, one has told a value, one nothing, and one has left.
#[test]
fn a_barrier_names_who_is_missing() {
    be_rank_of("a_barrier_names_who_is_missing", async |world, deadline| {
        match world.rank().0 {
            0 => {
                let mut events = world.events();
                let left = events.next().await.expect("it was told");
                assert_eq!(left, WorldEvent::Left { rank: Rank(3) });
                world.get(Rank(1), "key", deadline).await.expect("it is told");
                let early = Instant::now() + Duration::from_millis(10);
                let error = world.barrier(early).await.expect_err("two do not come");
                println!("\n@{error}");
                std::process::exit(7);
            }
            1 => world.put("key", b"value", deadline).await.expect("it is sent"),
            3 => return world.leave(deadline).await.expect("it is told"),
            _ => {}
        }
        std::future::pending().await
    });
    let job = Job::of_world("a_barrier_names_who_is_missing", &["-n", "4"]);
    let known = "only the launcher knows which are missing; values have come from: 1; gone, and not waited for: 3";
    let said = job.marked();
    assert_eq!(said, format!("the deadline passed before all ranks came to barrier 1; {known}"));
    let ended = job.wait();
    let named = "rank 0 exited with code 7 inside a barrier, not entered by ranks 1, 2; ending the others\n";
    assert!(ended.code() == 7 && ended.stderr.contains(named), "{}", ended.stderr);
}

/// Goal: a rank that breaks the protocol is cut off and hurts nobody else; one that never comes lets a
/// barrier end with its deadline. Method: rank 0 is a shell that says nothing, then nonsense.
#[test]
fn broken_rank_hurts_only_itself() {
    be_rank_of("broken_rank_hurts_only_itself", async |world, deadline| {
        let early = Instant::now() + Duration::from_millis(10);
        let error = world.barrier(early).await.expect_err("rank 0 does not come");
        assert!(matches!(error, WorldError::TimedOut { .. }), "{error}");
        println!("\n@waiting");
        world.barrier(deadline).await.expect("rank 0 is not waited for any more");
        let event = world.events().next().await.expect("it was told");
        assert_eq!(event, WorldEvent::Expelled { rank: Rank(0) });
        let all =
            world.all_gather("address", b"x", deadline).await.expect("of those that are left");
        assert_eq!(all, [None, Some(b"x".to_vec()), Some(b"x".to_vec())]);
        println!("\n@done");
    });
    let exe = env::current_exe().expect("this binary has a path");
    let script = format!(
        "if [ $VIGIE_RANK = 0 ]; then
            read line; printf 'GET / HTTP/1.1' >&$VIGIE_RENDEZVOUS; read line; echo @alive
        else
            exec {} broken_rank_hurts_only_itself --exact --nocapture --test-threads=1
        fi",
        exe.display()
    );
    let role = format!("{ROLE}=broken_rank_hurts_only_itself");
    // Not `sh`, which knows descriptors of one digit alone.
    let mut job = Job::start(&["-n", "3", "--env", &role, "bash", "-c", &script]);
    assert_eq!([job.marked(), job.marked()], ["waiting", "waiting"]);
    job.tell("nonsense\n");
    assert_eq!([job.marked(), job.marked()], ["done", "done"]);
    job.tell("end\n");
    assert_eq!(job.marked(), "alive");
    let ended = job.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

/// Goal: a rank that asks and never listens is cut off before the launcher holds much for it. Method: a
/// shell that greets, puts a value, and asks for it again and again; a rank beside it that is told.
#[test]
fn flood_is_bounded() {
    be_rank_of("flood_is_bounded", async |world, deadline| {
        let event = world.events().next().await.expect("it was told");
        assert_eq!(event, WorldEvent::Expelled { rank: Rank(0) });
        world.barrier(deadline).await.expect("nobody else is there");
        println!("\n@told");
    });
    let exe = env::current_exe().expect("this binary has a path");
    let script = format!(
        r"trap '' PIPE
        if [ $VIGIE_RANK = 0 ]; then
            {{
                printf '\3\0\0\0\1\1\0\6\0\0\0\2\1\0k\0\0'
                while printf '\10\0\0\0\3\0\0\0\0\1\0k%.0s' {{1..1000}}; do :; done
            }} >&$VIGIE_RENDEZVOUS 2>&-
            echo @cut
        else
            exec {} flood_is_bounded --exact --nocapture --test-threads=1
        fi",
        exe.display()
    );
    let role = format!("{ROLE}=flood_is_bounded");
    let job = Job::start(&["-n", "2", "--env", &role, "bash", "-c", &script]);
    let lines = job.marked_lines(2);
    assert!(lines.iter().eq(["cut", "told"]), "{lines:?}");
    let ended = job.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

/// Goal: ranks that are stopped end with the others. Method: one that stops itself before another dies.
#[test]
fn stopped_rank_ends() {
    let script = "if [ $VIGIE_RANK = 0 ]; then read line; exit 4; fi; echo @$$; kill -STOP $$";
    let mut job = Job::start(&["-n", "2", "sh", "-c", script]);
    let stopped = pidfd_of(&job.marked());
    job.tell("\n");
    assert_eq!(job.wait().code(), 4);
    wait_for(&stopped);
}

/// Goal: a reader that does not read holds neither a job that is interrupted twice nor one that has
/// taken too long. Method: a pipe that is read from only when the launcher has ended.
#[test]
fn reader_that_does_not_read() {
    for flags in [&["--timeout", "1000"][..], &["--timeout", "0.05"]] {
        let mut command = launcher();
        command.args(["-n", "2"]).args(flags).args(["sh", "-c", "echo @$$ >&2; exec yes"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the launcher starts");
        let launcher = Pid::from_child(&child);
        let exit = pidfd_open(launcher, PidfdFlags::empty()).expect("a pidfd");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("text");
        let code = if flags[1] == "1000" {
            let rank = pidfd_of(line.trim_end().rsplit('@').next().expect("a number"));
            kill_process(launcher, Signal::INT).expect("the launcher lives");
            wait_for(&rank);
            interrupt_until_ended(launcher, &exit);
            130
        } else {
            124
        };
        wait_for(&exit);
        assert_eq!(child.wait().expect("it is ours").code(), Some(code));
    }
}

/// Goal: output that a process outside of the rank's group holds open does not hold the job. Method: a
/// child in a session of its own, and a partial line before.
#[test]
fn foreign_holder_of_output() {
    let script = r#"setsid sh -c 'printf "@%s\npartial" $$; exec sleep 1000' & wait"#;
    let job = Job::start(&["-n", "1", "sh", "-c", script]);
    let line = job.marked();
    let foreign = Pid::from_raw(line.parse().expect("a number")).expect("of a process");
    let exit = pidfd_of(&line);
    job.signal(Signal::TERM);
    let ended = job.wait();
    kill_process(foreign, Signal::KILL).expect("it has outlived the job");
    wait_for(&exit);
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("signal 15 (SIGTERM) received, and passed on"),
        "{}",
        ended.stderr
    );
    assert_eq!(ended.stdout, [b"[0] partial\n"]);
}

/// Goal: a program that a rank starts is no rank, and is told so. Method: a rank that starts this
/// binary, with its own environment.
#[test]
fn a_ranks_child_is_no_rank() {
    const CHILD: &str = "VIGIE_TEST_CHILD";
    if env::var_os(CHILD).is_some() {
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
        let joined = runtime.block_on(World::join(Instant::now() + BOUND));
        let error = joined.expect_err("the descriptor is closed");
        assert!(matches!(error, WorldError::Environment { .. }), "{error}");
        println!("\n@{error}");
        std::process::exit(0);
    }
    be_rank_of("a_ranks_child_is_no_rank", async |world, deadline| {
        let again = World::join(deadline).await.expect_err("it has joined");
        assert!(matches!(again, WorldError::AlreadyJoined), "{again}");
        let arguments = env::args_os().skip(1);
        let mut child = Command::new(env::current_exe().expect("this binary has a path"));
        let status = child.args(arguments).env(CHILD, "1").status().expect("it starts");
        assert!(status.success());
        world.leave(deadline).await.expect("the launcher hears");
    });
    let job = Job::of_world("a_ranks_child_is_no_rank", &["-n", "1"]);
    assert!(job.marked().contains("vigie-run"));
    let ended = job.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}
