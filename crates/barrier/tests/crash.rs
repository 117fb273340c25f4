//! `kill -9` of a member, on real processes: this test binary starts itself again as the members of a group.

#![cfg(not(loom))]

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{env, fs, thread, time::Duration};

use vigie_barrier::{
    BarrierError, Group, Rank,
    local::shm::{BootstrapPoint, ShmBootstrap, ShmMember},
};
use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};

use crate::kit::{
    child::{command_in, role},
    speaker::Speaker,
};

const SIZE: u32 = 5;
/// Long past every limit, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// When the victim dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    /// By its own hand, before it enters the barrier of this number.
    Before(u32),
    /// By its own hand, after it has entered the barrier of this number and before it waits.
    Between(u32),
    /// By another process, while it sleeps in the barrier of this number: another member is late.
    Asleep(u32),
    /// By another process, at whatever step it is, this many microseconds after the beginning.
    Anywhere(u64),
}

impl Death {
    fn encode(self) -> String {
        match self {
            Self::Before(epoch) => format!("before {epoch}"),
            Self::Between(epoch) => format!("between {epoch}"),
            Self::Asleep(epoch) => format!("asleep {epoch}"),
            Self::Anywhere(micros) => format!("anywhere {micros}"),
        }
    }

    fn decode(text: &str) -> Self {
        let (kind, number) = text.split_once(' ').expect("two words");
        let number: u64 = number.parse().expect("a number");
        let epoch = u32::try_from(number).expect("small");
        match kind {
            "before" => Self::Before(epoch),
            "between" => Self::Between(epoch),
            "asleep" => Self::Asleep(epoch),
            _ => Self::Anywhere(number),
        }
    }
}

fn kill_self() -> ! {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("our own");
    unreachable!("the signal cannot be caught");
}

/// Enters barriers until one fails.
async fn play(member: &mut ShmMember, victim: Rank, death: Death, blocks: bool) -> BarrierError {
    let is_victim = member.rank() == victim;
    for epoch in 0.. {
        if is_victim && death == Death::Before(epoch) {
            kill_self();
        }
        let token = match member.arrive() {
            Ok(token) => token,
            Err(error) => return error,
        };
        if is_victim && death == Death::Between(epoch) {
            kill_self();
        }
        if is_victim && death == Death::Asleep(epoch) {
            println!("\nnext");
        }
        let passed =
            if blocks { member.depart_blocking(token) } else { member.depart(token).await };
        match passed {
            Ok(passed) => assert_eq!(passed.epoch, epoch),
            Err(error) => return error,
        }
        // The late one enters later: all others sleep, and the victim with them.
        if death == Death::Asleep(epoch + 1) && member.rank() == late(victim) {
            println!("\nlate");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("the word to go on");
        }
    }
    unreachable!("barriers are numbered without end")
}

fn late(victim: Rank) -> Rank {
    Rank((victim.0 + 1) % SIZE)
}

/// A member. Does nothing when it is run as a test.
#[test]
fn in_a_role() {
    let Some(role) = role("in_a_role") else { return };
    let words: Vec<_> = role.split(',').collect();
    let [rank, victim, name, death] = words[..] else { panic!("{role}") };
    let [rank, victim] = [rank, victim].map(|word| Rank(word.parse().expect("a rank")));
    let death = Death::decode(death);
    let group = Group::new(SIZE).expect("small");
    let point = BootstrapPoint::new(name, *b"0123456789abcdef").expect("a name");
    let meeting = ShmBootstrap::new(group, rank, point);
    let deadline = Instant::now() + PATIENCE;
    let fail = |error: &BarrierError| {
        let lost: Vec<_> = error.lost().iter().map(|rank| rank.0.to_string()).collect();
        println!("\nlost {}", lost.join(" "));
        // The others find one member dead, and not two: leave only after all have told.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("the word to end");
    };
    // Every way of waiting, by rank.
    match rank.0 % 4 {
        way @ (0 | 1) => {
            let flavor = if way == 0 { Flavor::UserLevel } else { Flavor::Hybrid };
            let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
            let playing = runtime.spawn(async move {
                let mut member = meeting.join(deadline).await.expect("a group");
                println!("\nready");
                let error = play(&mut member, victim, death, false).await;
                (member, error)
            });
            let (_member, error) = runtime.block_on(playing).expect("no panic");
            fail(&error);
        }
        way => {
            let host = Server::spawn_thread().expect("a thread");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let joining = meeting.join_on(host.server(), deadline);
                let mut member = joining.await.expect("a group");
                println!("\nready");
                let error = play(&mut member, victim, death, way == 2).await;
                fail(&error);
            });
        }
    }
}

fn start(rank: Rank, victim: Rank, name: &str, death: Death) -> Speaker {
    let role = format!("{},{},{name},{}", rank.0, victim.0, death.encode());
    Speaker::start(command_in(&role, &[], "in_a_role"))
}

/// Waits until every thread of the process sleeps.
fn expect_sleep(process: &Speaker) {
    let tasks = format!("/proc/{}/task", process.id());
    let sleeps = || {
        fs::read_dir(&tasks).expect("it lives").all(|task| {
            let stat = fs::read_to_string(task.expect("a thread").path().join("stat"));
            let state = stat.ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
            state.is_none_or(|state| state == 'S')
        })
    };
    // Not only for a moment.
    let mut times = 0;
    while times < 50 {
        times = if sleeps() { times + 1 } else { 0 };
        thread::yield_now();
    }
}

/// Lets a group run in which one is killed, and sees that all others name only that one.
fn run(victim: Rank, death: Death) {
    let name =
        format!("vigie-barrier-crash-{}-{}-{}", std::process::id(), victim.0, death.encode());
    let name = name.replace(' ', "-");
    let mut members: Vec<_> =
        (0..SIZE).map(|rank| start(Rank(rank), victim, &name, death)).collect();
    for member in &members {
        member.line("ready");
    }
    match death {
        Death::Before(_) | Death::Between(_) => {}
        Death::Asleep(_) => {
            members[late(victim).index()].line("late");
            let asleep = &mut members[victim.index()];
            asleep.line("next");
            expect_sleep(asleep);
            asleep.kill();
            members[late(victim).index()].tell("");
        }
        Death::Anywhere(micros) => {
            let until = Instant::now() + Duration::from_micros(micros);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            members[victim.index()].kill();
        }
    }
    for (rank, member) in (0..SIZE).map(Rank).zip(&members) {
        if rank != victim {
            assert_eq!(member.line("lost"), victim.0.to_string(), "{rank}, {death:?}");
        }
    }
}

/// Goal: a member that is killed before it enters, or after, is named to all others, in whatever way those wait.
/// Method: each member in turn kills itself, at the first barrier and at a later one.
#[test]
fn killed_around_entering() {
    for victim in (0..SIZE).map(Rank) {
        for epoch in [0, 100] {
            run(victim, Death::Before(epoch));
            run(victim, Death::Between(epoch));
        }
    }
}

/// Goal: one that is killed in its sleep has entered: that barrier is passed, and the next one fails. Method: one is
/// late until the victim sleeps.
#[test]
fn killed_asleep() {
    for victim in (0..SIZE).map(Rank) {
        run(victim, Death::Asleep(3));
    }
}

/// Goal: a member may be killed at any step of a barrier, and no other member hangs. Method: at moments spread over the time of
/// several barriers, more of them with `VIGIE_CRASH_RUNS`.
#[test]
fn killed_anywhere() {
    let runs: u64 =
        env::var("VIGIE_CRASH_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(20);
    for run_number in 0..runs {
        let victim = Rank(u32::try_from(run_number % u64::from(SIZE)).expect("small"));
        // Steps of a fraction of a microsecond would need a clock of their own; drift does that.
        run(victim, Death::Anywhere(1_000 + run_number * 137));
    }
}
