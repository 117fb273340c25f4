//! Goals of messages between processes of one host.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::messages::plan::{CPU_CORES_FOLLOWER, CPU_PER_MESSAGE_US, LOANED, MESSAGE_US};
use crate::messages::row_selector::{
    RowSelector, figure, largest_ratio_from, message, rate, ratio, ratio_to_best,
};
use crate::messages::{VIGIE, VIGIE_VI};

const MESSAGES: Goal = Goal {
    area: Area::Messages,
    case: "",
    command: "vigie-bench pingpong",
    figure: "",
    bound: Bound::AtMost(1.0),
    samples_min: 1,
    experiment: Experiment::Messages,
    measure: |_| None,
};

/// Processor time of a rank that waits and to which nothing comes: it wakes up for nothing, but the
/// measure begins and ends with a message.
const QUIET_CORES: f64 = 0.001;

/// Goals whose bounds are limits and peers of the same run.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "message, 8 B one way",
        command: "vigie-bench pingpong --cases latency --sizes 8",
        figure: "p50 (µs)",
        bound: Bound::AtMost(0.09),
        samples_min: 1000,
        measure: |rows| message(rows, VIGIE, RowSelector::latency(8)),
        ..MESSAGES
    },
    Goal {
        case: "message, 8 B one way",
        command: "vigie-bench pingpong --cases latency --sizes 8",
        figure: "p50 / best peer's p50",
        bound: Bound::AtMost(0.9),
        samples_min: 1000,
        measure: |rows| ratio_to_best(rows, VIGIE, RowSelector::latency(8)),
        ..MESSAGES
    },
    Goal {
        case: "VI layer, 8 B RDMA write with immediate",
        command: "vigie-bench pingpong --cases latency --sizes 8",
        figure: "p50 (µs)",
        bound: Bound::AtMost(0.07),
        samples_min: 1000,
        measure: |rows| message(rows, VIGIE_VI, RowSelector::latency(8)),
        ..MESSAGES
    },
    Goal {
        case: "VI layer, 8 B RDMA write with immediate",
        command: "vigie-bench pingpong --cases latency --sizes 8",
        figure: "p50 / bare ring's p50",
        bound: Bound::AtMost(1.4),
        samples_min: 1000,
        measure: |rows| ratio(rows, [VIGIE_VI, "ring"], RowSelector::latency(8), MESSAGE_US),
        ..MESSAGES
    },
    Goal {
        case: "message, 4 KiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 4096",
        figure: "p50 (µs)",
        bound: Bound::AtMost(0.3),
        samples_min: 50,
        measure: |rows| message(rows, VIGIE, RowSelector::latency(4_096)),
        ..MESSAGES
    },
    Goal {
        case: "message, 4 KiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 4096",
        figure: "p50 / MPICH's p50",
        bound: Bound::AtMost(0.91),
        samples_min: 50,
        measure: |rows| ratio(rows, [VIGIE, "mpich"], RowSelector::latency(4_096), MESSAGE_US),
        ..MESSAGES
    },
    Goal {
        case: "message, 32 KiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 32768",
        figure: "p50 (µs)",
        bound: Bound::AtMost(1.0),
        samples_min: 50,
        measure: |rows| message(rows, VIGIE, RowSelector::latency(32_768)),
        ..MESSAGES
    },
    Goal {
        case: "message, 32 KiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 32768",
        figure: "p50 / Open MPI's without CMA p50",
        bound: Bound::AtMost(0.83),
        samples_min: 50,
        measure: |rows| {
            ratio(rows, [VIGIE, "openmpi-copy"], RowSelector::latency(32_768), MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "message, 256 KiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 262144",
        figure: "p50 (µs)",
        bound: Bound::AtMost(5.5),
        samples_min: 50,
        measure: |rows| message(rows, VIGIE, RowSelector::latency(262_144)),
        ..MESSAGES
    },
    Goal {
        case: "message, 256 KiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 262144",
        figure: "p50 / iceoryx2's p50",
        bound: Bound::AtMost(0.71),
        samples_min: 50,
        measure: |rows| ratio(rows, [VIGIE, "iceoryx2"], RowSelector::latency(262_144), MESSAGE_US),
        ..MESSAGES
    },
    Goal {
        case: "message, 4 MiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 4194304",
        figure: "p50 (µs)",
        bound: Bound::AtMost(110.0),
        samples_min: 50,
        measure: |rows| message(rows, VIGIE, RowSelector::latency(4_194_304)),
        ..MESSAGES
    },
    Goal {
        case: "message, 4 MiB copied",
        command: "vigie-bench pingpong --cases latency --sizes 4194304",
        figure: "p50 / Open MPI's without CMA p50",
        bound: Bound::AtMost(0.94),
        samples_min: 50,
        measure: |rows| {
            ratio(rows, [VIGIE, "openmpi-copy"], RowSelector::latency(4_194_304), MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "loaned buffer, 32 KiB",
        command: "vigie-bench pingpong --cases loaned",
        figure: "p50 (µs)",
        bound: Bound::AtMost(0.29),
        samples_min: 1000,
        measure: |rows| message(rows, VIGIE, RowSelector::of_bytes("loaned", LOANED)),
        ..MESSAGES
    },
    Goal {
        case: "loaned buffer, 32 KiB",
        command: "vigie-bench pingpong --cases loaned",
        figure: "p50 / iceoryx2's p50",
        bound: Bound::AtMost(1.0),
        samples_min: 1000,
        measure: |rows| {
            ratio(
                rows,
                [VIGIE, "iceoryx2-zero-copy"],
                RowSelector::of_bytes("loaned", LOANED),
                MESSAGE_US,
            )
        },
        ..MESSAGES
    },
    Goal {
        case: "synchronous send, 8 B",
        command: "vigie-bench pingpong --cases synchronous",
        figure: "p50 (µs)",
        bound: Bound::AtMost(0.5),
        samples_min: 1000,
        measure: |rows| message(rows, VIGIE, RowSelector::of_bytes("synchronous", 8)),
        ..MESSAGES
    },
    Goal {
        case: "synchronous send, 8 B",
        command: "vigie-bench pingpong --cases synchronous",
        figure: "p50 / MPICH's p50",
        bound: Bound::AtMost(0.54),
        samples_min: 1000,
        measure: |rows| {
            ratio(rows, [VIGIE, "mpich"], RowSelector::of_bytes("synchronous", 8), MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "messages of 8 B, window 64",
        command: "vigie-bench pingpong --cases window",
        figure: "10⁶ messages/s",
        bound: Bound::AtLeast(30.0),
        samples_min: 50,
        measure: |rows| rate(rows, VIGIE, RowSelector::of_bytes("window", 8)),
        ..MESSAGES
    },
    Goal {
        case: "messages of 8 B, window 64",
        command: "vigie-bench pingpong --cases window",
        figure: "time / Open MPI's",
        bound: Bound::AtMost(0.8),
        samples_min: 50,
        measure: |rows| {
            ratio(rows, [VIGIE, "openmpi"], RowSelector::of_bytes("window", 8), MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "a message every 2 ms, sleep allowed",
        command: "vigie-bench pingpong --cases waiting,quiet",
        figure: "p50 / futex mailbox's p50",
        bound: Bound::AtMost(1.2),
        samples_min: 100,
        measure: |rows| {
            ratio(rows, [VIGIE, "futex-mailbox"], RowSelector::of_bytes("waiting", 8), MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "a message every 2 ms, sleep allowed",
        command: "vigie-bench pingpong --cases waiting,quiet",
        figure: "processor time / futex mailbox's",
        bound: Bound::AtMost(1.5),
        samples_min: 1,
        measure: |rows| {
            ratio(
                rows,
                [VIGIE, "futex-mailbox"],
                RowSelector::of_bytes("waiting", 8),
                CPU_PER_MESSAGE_US,
            )
        },
        ..MESSAGES
    },
    Goal {
        case: "a rank that waits, nothing comes",
        command: "vigie-bench pingpong --cases waiting,quiet",
        figure: "cores in use",
        bound: Bound::AtMost(QUIET_CORES),
        samples_min: 1,
        measure: |rows| figure(rows, VIGIE, RowSelector::of_bytes("quiet", 8), CPU_CORES_FOLLOWER),
        ..MESSAGES
    },
    Goal {
        case: "ring of 8 ranks on 2 cores",
        command: "vigie-bench pingpong --cases ring --ranks 8",
        figure: "time per hop / sched_yield ring's",
        bound: Bound::AtMost(2.5),
        samples_min: 1,
        measure: |rows| ratio(rows, [VIGIE, "yield-ring"], RowSelector::ring(8), MESSAGE_US),
        ..MESSAGES
    },
    Goal {
        case: "ring of 8 ranks on 2 cores",
        command: "vigie-bench pingpong --cases ring --ranks 8",
        figure: "processor time per hop / sched_yield ring's",
        bound: Bound::Below(1.0),
        samples_min: 1,
        measure: |rows| {
            ratio(rows, [VIGIE, "yield-ring"], RowSelector::ring(8), CPU_PER_MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "ring of 32 ranks on 2 cores",
        command: "vigie-bench pingpong --cases ring --ranks 32",
        figure: "time per hop / sched_yield ring's",
        bound: Bound::AtMost(2.5),
        samples_min: 1,
        measure: |rows| ratio(rows, [VIGIE, "yield-ring"], RowSelector::ring(32), MESSAGE_US),
        ..MESSAGES
    },
    Goal {
        case: "ring of 32 ranks on 2 cores",
        command: "vigie-bench pingpong --cases ring --ranks 32",
        figure: "processor time per hop / sched_yield ring's",
        bound: Bound::Below(1.0),
        samples_min: 1,
        measure: |rows| {
            ratio(rows, [VIGIE, "yield-ring"], RowSelector::ring(32), CPU_PER_MESSAGE_US)
        },
        ..MESSAGES
    },
    Goal {
        case: "message, 1 B: the paper's ratio was 6.3",
        command: "vigie-bench pingpong --cases latency --sizes 1",
        figure: "polling TCP's p50 / p50",
        bound: Bound::AtLeast(40.0),
        samples_min: 1000,
        measure: |rows| ratio(rows, ["tcp", VIGIE], RowSelector::latency(1), MESSAGE_US),
        ..MESSAGES
    },
    Goal {
        case: "messages of 16 KiB to 64 MiB: the paper's crossover",
        command: "vigie-bench pingpong --cases latency --sizes 16384,65536,1048576,16777216,67108864",
        figure: "largest p50 / polling TCP's",
        bound: Bound::Below(1.0),
        samples_min: 3,
        measure: |rows| largest_ratio_from(rows, [VIGIE, "tcp"], 16_384),
        ..MESSAGES
    },
];
