//! In traffic of short polls, the supervisor and the reserve threads do hardly anything.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    thread,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vigie_detect::net::TcpListener;
use vigie_runtime::{Runtime, spawn};

use crate::kit::{
    child::{command, is_child, run},
    guard::against_hang,
};

const CLIENTS: usize = 2;
const MESSAGES: usize = 10_000;

/// On a machine with other work, polls are long now and then; but not in each of this many spans.
const SPANS: usize = 8;

/// Beside others that use more than this part of what is used, threads wait for a processor in each span: nothing is judged.
const OTHERS_PERCENT_MAX: u64 = 25;

/// The most wake-ups in a span of 10 000 messages. Some 3 are usual. If no thread put the watchdog off, it would ring once in
/// 0.2 to 0.4 ms: 100 to 400 times.
const WAKE_UPS_MAX: u64 = 50;

/// The kernel keeps fifteen bytes of a thread's name.
const NAME: &str = "echo";
const SUPERVISOR: &str = "echo-supervisor";

/// Returns how often the supervisor has slept so far, and reserve threads were called.
fn wake_ups(runtime: &Runtime) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("mounted").flatten();
    let is_supervisor = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == SUPERVISOR)
    };
    let supervisor = tasks.map(|task| task.path()).find(is_supervisor).expect("it lives");
    let status = fs::read_to_string(supervisor.join("status")).expect("it lives");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let sleeps: u64 = count.expect("a line").trim().parse().expect("a number");
    sleeps + runtime.handle().metrics().reserve.map_or(0, |reserve| reserve.calls)
}

/// Returns how long the processors have been busy so far, and with this process, in ticks.
fn busy_ticks() -> [u64; 2] {
    let numbers = |text: &str, skipped: usize, count: usize| -> Vec<u64> {
        let words = text.split_whitespace().skip(skipped).take(count);
        words.map(|word| word.parse().expect("a number")).collect()
    };
    let all = fs::read_to_string("/proc/stat").expect("mounted");
    // User, nice, system, idle, waiting for a device, interrupts of both kinds, stolen.
    let all = numbers(all.lines().next().expect("a line"), 1, 8);
    let own = fs::read_to_string("/proc/self/stat").expect("mounted");
    // The name, in parentheses, may hold spaces.
    let (_, own) = own.rsplit_once(')').expect("a name");
    [all.iter().sum::<u64>() - all[3] - all[4], numbers(own, 11, 2).iter().sum()]
}

/// Each client sends its part of the messages, one after the other is answered.
fn exchange(clients: &mut [TcpStream]) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| {
                for _ in 0..MESSAGES / CLIENTS {
                    client.write_all(&[7; 64]).expect("open");
                    client.read_exact(&mut [0; 64]).expect("echoed");
                }
            });
        }
    });
}

fn echo() {
    let runtime = Runtime::builder().workers(2).thread_name(NAME).build().expect("a runtime");
    let address = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let accepting = async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("no limit is reached");
                stream.set_nodelay(true).expect("open");
                let serving = async move {
                    let mut message = [0; 64];
                    while stream.read_exact(&mut message).await.is_ok() {
                        stream.write_all(&message).await.expect("open");
                    }
                };
                spawn(serving).detach();
            }
        };
        spawn(accepting).detach();
        address
    });
    let connect = |_| {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("open");
        stream
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(connect).collect();
    // The time of first polls is not known yet.
    exchange(&mut clients);
    let mut spans = Vec::new();
    let busy_before = busy_ticks();
    while spans.len() < SPANS && spans.iter().all(|&count| count > WAKE_UPS_MAX) {
        let before = wake_ups(&runtime);
        exchange(&mut clients);
        spans.push(wake_ups(&runtime).saturating_sub(before));
    }
    println!("wake-ups of supervisor and reserve threads for {MESSAGES} messages: {spans:?}");
    let busy = busy_ticks();
    let [all, own] = [0, 1].map(|which| busy[which] - busy_before[which]);
    let others_percent = 100 * all.saturating_sub(own) / all.max(1);
    let least = spans.iter().min().expect("some");
    if *least > WAKE_UPS_MAX && others_percent > OTHERS_PERCENT_MAX {
        eprintln!(
            "SKIPPED: other programs use {others_percent} % of what is used of the processors"
        );
        return;
    }
    assert!(*least <= WAKE_UPS_MAX, "{spans:?} wake-ups for {MESSAGES} messages each");
}

/// Goal: in plain traffic neither the supervisor nor a reserve thread is woken, but for rare moments. Method: clients echo
/// over loopback TCP with two workers; the sleeps of the one and the calls of the others are counted, in a process of its own.
#[test]
fn plain_traffic_wakes_nobody_else() {
    let test = "supervision::plain_traffic_wakes_nobody_else";
    if is_child(test) {
        against_hang(echo);
    } else {
        run(command(&[], test), test);
    }
}
