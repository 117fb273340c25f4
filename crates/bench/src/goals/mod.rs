//! All goals of the project, one entry each.
//!
//! A [`Goal`] compares a figure with a bound. Where possible, the figure is a ratio to a peer or to a
//! limit measured in the same run, so that it means the same on every machine. New measurements add
//! their goals here.

mod barrier_local;
mod barrier_net;
mod barrier_sim;
mod experiment;
mod figures;
mod forward;
mod forward_relay;
mod http;
mod loads;
mod messages;
mod remote;
mod shortfalls;
mod simulation;
mod timers;
mod verdict;
mod waits;

use self::experiment::Experiment;
use self::figures::{
    allocations, case_figure, case_percentile, case_ratio, completion_ratio, growth,
    hogs_p50_ratio, hogs_percentile, idle_figure, largest_mean, least_share, least_work_ratio,
    mean_spread, p50_ratio, system_calls,
};
pub use self::shortfalls::Shortfall;
pub use self::verdict::{Area, Bound, Checked, Goal, UnknownArea, Verdict};
use crate::cases::{container, crowd, echo, periodic, service};
use crate::error::BenchError;
use crate::interrupts;
use crate::reaction;
use crate::report::Outcome;
use crate::report::repetition::THREADS_MAX;
use crate::schedulers::System;
use crate::switches::SwitchKind;

/// Every goal within one host; [`all_goals`] has those between hosts, of simulations and of models too.
pub static GOALS: &[Goal] = &[
    Goal {
        area: Area::Reaction,
        case: "enhanced polling, yield every 10 ms, N = 1, 2, 5, 10",
        command: "vigie-bench reaction --only vigie-enhanced --compute 1,2,5,10",
        figure: "largest mean / smallest mean",
        bound: Bound::AtMost(1.3),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: |rows| mean_spread(rows, System::VigieEnhanced),
    },
    Goal {
        area: Area::Reaction,
        case: "user-level by default, yield every 10 ms, N = 1, 2, 5, 10",
        command: "vigie-bench reaction --only vigie-user-level --compute 1,2,5,10",
        figure: "largest mean / smallest mean",
        bound: Bound::AtMost(1.3),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: |rows| mean_spread(rows, System::VigieUserLevel),
    },
    Goal {
        area: Area::Reaction,
        case: "naive polling, yield every 10 ms: grows with N",
        command: "vigie-bench reaction --only vigie-naive --compute 1,10",
        figure: "mean at N = 10 / mean at N = 1",
        bound: Bound::AtLeast(5.0),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: |rows| growth(rows, System::VigieNaive),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 2",
        command: "vigie-bench reaction --only vigie,tokio --compute 2 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Tokio], 2),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 5",
        command: "vigie-bench reaction --only vigie,tokio --compute 5 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Tokio], 5),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 10",
        command: "vigie-bench reaction --only vigie,tokio --compute 10 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Tokio], 10),
    },
    Goal {
        area: Area::Reaction,
        case: "user-level by default, yield every 10 ms, N = 1, 2, 5, 10: the worst",
        command: "vigie-bench reaction --only vigie-user-level --compute 1,2,5,10",
        figure: "mean (µs)",
        bound: Bound::AtMost(6_000.0),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: |rows| largest_mean(rows, System::VigieUserLevel),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, one task that never yields for 1 s",
        command: "vigie-bench reaction --only vigie,threads --compute 1 --yield-every 1s --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 / threads' p50",
        bound: Bound::AtMost(1.2),
        samples_min: 1_000,
        experiment: Experiment::SeldomYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Threads], 1),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that never yield for 1 s: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 1s --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 / threads' p50",
        bound: Bound::AtMost(1.2),
        samples_min: 1_000,
        experiment: Experiment::SeldomYields,
        measure: |rows| hogs_p50_ratio(rows, [System::Vigie, System::Threads]),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that never yield for 1 s: the worst",
        command: "vigie-bench reaction --only vigie,epoll-thread --compute 2,5,10 --yield-every 1s --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 / p50 of a bare epoll thread",
        bound: Bound::AtMost(1.2),
        samples_min: 1_000,
        experiment: Experiment::SeldomYields,
        measure: |rows| hogs_p50_ratio(rows, [System::Vigie, System::EpollThread]),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that never yield for 1 s: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 1s --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 (µs)",
        bound: Bound::AtMost(40.0),
        samples_min: 1_000,
        experiment: Experiment::SeldomYields,
        measure: |rows| hogs_percentile(rows, System::Vigie, "p50_us"),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that never yield for 1 s: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 1s --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p99 (µs)",
        bound: Bound::AtMost(200.0),
        samples_min: 1_000,
        experiment: Experiment::SeldomYields,
        measure: |rows| hogs_percentile(rows, System::Vigie, "p99_us"),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that never yield for 1 s: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 1s --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p99.9 (µs)",
        bound: Bound::AtMost(2_000.0),
        samples_min: 10_000,
        experiment: Experiment::SeldomYields,
        measure: |rows| hogs_percentile(rows, System::Vigie, "p99.9_us"),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, one task that yields every 10 ms",
        command: "vigie-bench reaction --only vigie,threads --compute 1 --yield-every 10ms --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 / threads' p50",
        bound: Bound::AtMost(1.2),
        samples_min: 1_000,
        experiment: Experiment::PaperYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Threads], 1),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that yield every 10 ms: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 10ms --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 / threads' p50",
        bound: Bound::AtMost(1.2),
        samples_min: 1_000,
        experiment: Experiment::PaperYields,
        measure: |rows| hogs_p50_ratio(rows, [System::Vigie, System::Threads]),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that yield every 10 ms: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 10ms --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p50 (µs)",
        bound: Bound::AtMost(40.0),
        samples_min: 1_000,
        experiment: Experiment::PaperYields,
        measure: |rows| hogs_percentile(rows, System::Vigie, "p50_us"),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that yield every 10 ms: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 10ms --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p99 (µs)",
        bound: Bound::AtMost(200.0),
        samples_min: 1_000,
        experiment: Experiment::PaperYields,
        measure: |rows| hogs_percentile(rows, System::Vigie, "p99_us"),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 5, 10 tasks that yield every 10 ms: the worst",
        command: "vigie-bench reaction --only vigie,threads --compute 2,5,10 --yield-every 10ms --samples 10000 --budget 14s --pause 400us --spread 1.2ms",
        figure: "p99.9 (µs)",
        bound: Bound::AtMost(2_000.0),
        samples_min: 10_000,
        experiment: Experiment::PaperYields,
        measure: |rows| hogs_percentile(rows, System::Vigie, "p99.9_us"),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 10 tasks that yield every 10 ms",
        command: "vigie-bench goals hogs",
        figure: "tokio's p50 / p50",
        bound: Bound::AtLeast(300.0),
        samples_min: 50,
        experiment: Experiment::PaperYields,
        measure: |rows| p50_ratio(rows, [System::Tokio, System::Vigie], 10),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, N = 2, 10 tasks that yield every 10 ms: the worst",
        command: "vigie-bench reaction --only vigie,tokio --compute 2,10 --pause 50ms --budget 12s --rounds 4",
        figure: "work / tokio's work",
        bound: Bound::AtLeast(0.97),
        samples_min: 1,
        experiment: Experiment::Throughput,
        measure: |rows| least_work_ratio(rows, [System::Vigie, System::Tokio]),
    },
    Goal {
        area: Area::Hogs,
        case: "kernel-level, N = 2, 5, 10 tasks that yield every 10 ms: the worst",
        command: "vigie-bench reaction --only vigie-kernel-level,threads --compute 2,5,10 --samples 2000 --budget 6s --spread 3ms",
        figure: "p50 / threads' p50",
        bound: Bound::AtMost(1.3),
        samples_min: 1_000,
        experiment: Experiment::KernelLevel,
        measure: |rows| hogs_p50_ratio(rows, [System::VigieKernelLevel, System::Threads]),
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, one task that sleeps 20 ms and computes 200 ms",
        command: "vigie-bench periodic",
        figure: "p99 (µs)",
        bound: Bound::AtMost(300.0),
        samples_min: 1_000,
        experiment: Experiment::Periodic,
        measure: |rows| case_percentile(rows, (System::Vigie, periodic::CASE), "", "p99_us"),
    },
    Goal {
        area: Area::Service,
        case: "hybrid, 8 clients compute 200 ms per request; old connections",
        command: "vigie-bench service --budget 16s",
        figure: "p50 (µs)",
        bound: Bound::AtMost(100.0),
        samples_min: 1_000,
        experiment: Experiment::Service,
        measure: |rows| case_percentile(rows, (System::Vigie, service::CASE), "", "p50_us"),
    },
    Goal {
        area: Area::Service,
        case: "hybrid, 8 clients compute 200 ms per request; old connections",
        command: "vigie-bench service --budget 16s",
        figure: "p99 (µs)",
        bound: Bound::AtMost(1_000.0),
        samples_min: 1_000,
        experiment: Experiment::Service,
        measure: |rows| case_percentile(rows, (System::Vigie, service::CASE), "", "p99_us"),
    },
    Goal {
        area: Area::Service,
        case: "hybrid, 8 clients compute 200 ms per request; new connections",
        command: "vigie-bench service --budget 16s",
        figure: "p50 (µs)",
        bound: Bound::AtMost(100.0),
        samples_min: 1_000,
        experiment: Experiment::Service,
        measure: |rows| case_percentile(rows, (System::Vigie, service::CASE), "new_", "p50_us"),
    },
    Goal {
        area: Area::Service,
        case: "hybrid, 8 clients compute 200 ms per request; new connections",
        command: "vigie-bench service --budget 16s",
        figure: "p99 (µs)",
        bound: Bound::AtMost(1_000.0),
        samples_min: 1_000,
        experiment: Experiment::Service,
        measure: |rows| case_percentile(rows, (System::Vigie, service::CASE), "new_", "p99_us"),
    },
    Goal {
        area: Area::Service,
        case: "hybrid, 8 clients compute 200 ms per request",
        command: "vigie-bench service --budget 16s",
        figure: "threads, at most",
        bound: Bound::AtMost(SERVICE_THREADS),
        samples_min: 1,
        experiment: Experiment::Service,
        measure: |rows| case_figure(rows, (System::Vigie, service::CASE), THREADS_MAX),
    },
    Goal {
        area: Area::Service,
        case: "hybrid, 1000 connections, a message per 100 ms each, two hogs",
        command: "vigie-bench crowd",
        figure: "p99 (µs)",
        bound: Bound::AtMost(2_000.0),
        samples_min: 10_000,
        experiment: Experiment::Crowd,
        measure: |rows| case_percentile(rows, (System::Vigie, crowd::CASE), "", "p99_us"),
    },
    Goal {
        area: Area::Fairness,
        case: "hybrid, two hogs beside 1 and 3 processes of others: the worst",
        command: "vigie-bench fairness --budget 12s",
        figure: "work / fair share",
        bound: Bound::AtLeast(0.95),
        samples_min: 1,
        experiment: Experiment::Fairness,
        measure: |rows| least_share(rows, System::Vigie),
    },
    Goal {
        area: Area::Fairness,
        case: "hybrid, two hogs, quota of one core",
        command: "vigie-bench container",
        figure: "p99 (µs)",
        bound: Bound::AtMost(container::PERIOD_US),
        samples_min: 1_000,
        experiment: Experiment::Container,
        measure: |rows| case_percentile(rows, (System::Vigie, container::CASE), "", "p99_us"),
    },
    Goal {
        area: Area::Fairness,
        case: "hybrid, ten hogs, quota of half a core",
        command: "vigie-bench container --quota 0.5 --compute 10",
        figure: "p99 / threads' p99",
        bound: Bound::AtMost(1.2),
        samples_min: 1_000,
        experiment: Experiment::HalfCore,
        measure: |rows| {
            case_ratio(rows, [System::Vigie, System::Threads], container::CASE, "p99_us")
        },
    },
    Goal {
        area: Area::Hogs,
        case: "hybrid, foreign calls beside two hogs",
        command: "vigie-bench interrupts --runtime 1000000",
        figure: "calls that a signal ended",
        bound: Bound::AtMost(0.0),
        samples_min: 1_000_000,
        experiment: Experiment::ForeignCalls,
        measure: |rows| case_figure(rows, (System::Vigie, interrupts::CASE), interrupts::ENDED),
    },
    Goal {
        area: Area::Echo,
        case: "hybrid, nothing else runs",
        command: "vigie-bench echo",
        figure: "tokio's p50 / p50",
        bound: Bound::AtLeast(1.5),
        samples_min: 10_000,
        experiment: Experiment::Echo,
        measure: |rows| case_ratio(rows, [System::Tokio, System::Vigie], echo::CASE, "p50_us"),
    },
    Goal {
        area: Area::Echo,
        case: "hybrid, low latency, nothing else runs",
        command: "vigie-bench echo --only vigie-low-latency,busy-poll",
        figure: "p50 / busy-poll's p50",
        bound: Bound::AtMost(1.3),
        samples_min: 10_000,
        experiment: Experiment::Echo,
        measure: |rows| {
            let systems = [System::VigieLowLatency, System::BusyPoll];
            case_ratio(rows, systems, echo::CASE, "p50_us")
        },
    },
    Goal {
        area: Area::Echo,
        case: "hybrid, low CPU, nothing else runs",
        command: "vigie-bench echo --only vigie-low-cpu,tokio",
        figure: "processor time per message / tokio's",
        bound: Bound::AtMost(1.0),
        samples_min: 10_000,
        experiment: Experiment::Echo,
        measure: |rows| {
            let systems = [System::VigieLowCpu, System::Tokio];
            case_ratio(rows, systems, echo::CASE, echo::CPU_PER_MESSAGE)
        },
    },
    Goal {
        area: Area::Hogs,
        case: "user-level, checkpoint every 10 µs, N = 10",
        command: "vigie-bench reaction --only vigie-checkpoint --compute 10 --yield-every 10us \
                  --samples 2000 --budget 8s --spread 3ms",
        figure: "p50 (µs)",
        bound: Bound::AtMost(60.0),
        samples_min: 1_000,
        experiment: Experiment::Checkpoints,
        measure: |rows| {
            case_percentile(rows, (System::VigieCheckpoint, reaction::CASE), "", "p50_us")
        },
    },
    Goal {
        area: Area::Pending,
        case: "enhanced polling, K = 8",
        command: "vigie-bench pending --only vigie-enhanced --waiting 1,8",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.05),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieEnhanced, 8),
    },
    Goal {
        area: Area::Pending,
        case: "enhanced polling, K = 10000",
        command: "vigie-bench pending --only vigie-enhanced --waiting 1,10000",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.2),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieEnhanced, 10_000),
    },
    Goal {
        area: Area::Pending,
        case: "user-level by default, K = 8",
        command: "vigie-bench pending --only vigie-user-level --waiting 1,8",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.05),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieUserLevel, 8),
    },
    Goal {
        area: Area::Pending,
        case: "user-level by default, K = 10000",
        command: "vigie-bench pending --only vigie-user-level --waiting 1,10000",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.2),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieUserLevel, 10_000),
    },
    Goal {
        area: Area::Pending,
        case: "hybrid, K = 8",
        command: "vigie-bench pending --only vigie --waiting 1,8",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.05),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::Vigie, 8),
    },
    Goal {
        area: Area::Pending,
        case: "hybrid, K = 10000",
        command: "vigie-bench pending --only vigie --waiting 1,10000",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.2),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::Vigie, 10_000),
    },
    Goal {
        area: Area::Idle,
        case: "user-level, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "context switches",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::VigieUserLevel, "context_switches"),
    },
    Goal {
        area: Area::Idle,
        case: "user-level, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "system calls",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::VigieUserLevel, "system_calls"),
    },
    Goal {
        area: Area::Idle,
        case: "hybrid, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "context switches",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::Vigie, "context_switches"),
    },
    Goal {
        area: Area::Idle,
        case: "hybrid, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "system calls",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::Vigie, "system_calls"),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "allocations / switch",
        bound: Bound::AtMost(0.0),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::VigieUserLevel, SwitchKind::Yield),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, a task that waits for a socket",
        command: "vigie-bench goals costs",
        figure: "allocations / wait",
        bound: Bound::AtMost(0.0),
        samples_min: 20_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::VigieUserLevel, SwitchKind::Wait),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "system calls / switch",
        bound: Bound::AtMost(CALLS_PER_SWITCH),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| system_calls(rows, System::VigieUserLevel, SwitchKind::Yield),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "allocations / switch",
        bound: Bound::AtMost(0.0),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::Vigie, SwitchKind::Yield),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, a task that waits for a socket",
        command: "vigie-bench goals costs",
        figure: "allocations / wait",
        bound: Bound::AtMost(0.0),
        samples_min: 20_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::Vigie, SwitchKind::Wait),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "system calls / switch",
        bound: Bound::AtMost(CALLS_PER_SWITCH),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| system_calls(rows, System::Vigie, SwitchKind::Yield),
    },
];

/// Returns every goal.
pub fn all_goals() -> impl Iterator<Item = &'static Goal> {
    GOALS
        .iter()
        .chain(messages::GOALS)
        .chain(remote::GOALS)
        .chain(barrier_sim::GOALS)
        .chain(barrier_local::GOALS)
        .chain(barrier_net::GOALS)
        .chain(forward::GOALS)
        .chain(forward::LIVE_GOALS)
        .chain(forward::NIC_GOALS)
        .chain(forward_relay::GOALS)
        .chain(loads::GOALS)
        .chain(http::GOALS)
        .chain(timers::GOALS)
        .chain(waits::GOALS)
        .chain(simulation::GOALS)
}

/// Threads that a service may have beside eight requests that compute: two workers, the thread that
/// called `block_on`, the one that holds this process's standard input, one for each request in its
/// long poll, and four to spare for the sentinel and the pool.
const SERVICE_THREADS: f64 = 16.0;

/// "No system call per task switch": a scheduler looks for events now and then, by the clock, so the
/// figure depends on how many switches fit in between; it must only be far below one. (tokio, which
/// looks at every yield, has 0.5.)
const CALLS_PER_SWITCH: f64 = 0.05;

/// Measures what the goals of `area` (of all areas if it is `None`) need, each experiment once,
/// and evaluates them. The outcome holds the rows.
///
/// # Errors
/// Those of the measurements. A goal that is missed is not an error.
pub fn check(area: Option<Area>, seed: u64) -> Result<(Vec<Checked>, Outcome), BenchError> {
    let asked = |goal: &&Goal| area.is_none_or(|area| area == goal.area);
    let mut checked = Vec::new();
    let mut all = Outcome::default();
    for experiment in Experiment::ALL {
        let mut goals =
            all_goals().filter(asked).filter(|goal| goal.experiment == experiment).peekable();
        if goals.peek().is_none() {
            continue;
        }
        let outcome = experiment.run(seed)?;
        checked.extend(goals.map(|goal| Checked { goal, verdict: goal.evaluate(&outcome.rows) }));
        all.rows.extend(outcome.rows);
        all.priority = outcome.priority.or(all.priority);
    }
    Ok((checked, all))
}
