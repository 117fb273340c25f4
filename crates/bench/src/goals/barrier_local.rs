//! Goals of barriers of members on one host.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::barrier::{
    CASE, CPU_CORES, FLOOR, HYBRID, LATE, SHM, SHM_BLOCKING, THREADS, figure, ratio,
    ratio_to_best_of_open_mpi, ratio_to_best_of_threads,
};

const MEMBERS: Goal = Goal {
    area: Area::BarrierLocal,
    case: "",
    command: "vigie-bench barrier --dummy 0",
    figure: "p50 (µs)",
    bound: Bound::AtMost(3.0),
    samples_min: 1_000,
    experiment: Experiment::BarrierLocal,
    measure: |_| None,
};

const WAITING: Goal = Goal {
    command: "vigie-bench barrier --dummy 0 --members 32 --late 100ms --budget 3s --peers std",
    figure: "processor time of all members (cores)",
    bound: Bound::AtMost(0.02),
    samples_min: 10,
    experiment: Experiment::BarrierLate,
    ..MEMBERS
};

/// The goals within one host.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "32 tasks on 2 workers, hybrid",
        measure: |rows| figure(rows, HYBRID, (CASE, 32), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "32 tasks on 2 workers, hybrid",
        figure: "floor of kernel threads / p50",
        bound: Bound::AtLeast(8.0),
        measure: |rows| ratio(rows, [FLOOR, HYBRID], 32),
        ..MEMBERS
    },
    Goal {
        case: "2 threads",
        bound: Bound::AtMost(0.6),
        measure: |rows| figure(rows, THREADS, (CASE, 2), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "8 threads",
        bound: Bound::AtMost(8.0),
        measure: |rows| figure(rows, THREADS, (CASE, 8), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "32 threads",
        bound: Bound::AtMost(40.0),
        measure: |rows| figure(rows, THREADS, (CASE, 32), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "2 threads",
        figure: "p50 / best of std's, pthread's, hurdles'",
        bound: Bound::AtMost(1.1),
        measure: |rows| ratio_to_best_of_threads(rows, 2),
        ..MEMBERS
    },
    Goal {
        case: "8 threads",
        figure: "p50 / best of std's, pthread's, hurdles'",
        bound: Bound::AtMost(1.1),
        measure: |rows| ratio_to_best_of_threads(rows, 8),
        ..MEMBERS
    },
    Goal {
        case: "32 threads",
        figure: "p50 / best of std's, pthread's, hurdles'",
        bound: Bound::AtMost(1.1),
        // The slowest of the peers take milliseconds.
        samples_min: 100,
        measure: |rows| ratio_to_best_of_threads(rows, 32),
        ..MEMBERS
    },
    Goal {
        case: "32 processes over shared memory, awaited",
        bound: Bound::AtMost(45.0),
        measure: |rows| figure(rows, SHM, (CASE, 32), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "32 processes over shared memory, awaited",
        figure: "p50 / Open MPI's, its best algorithm",
        bound: Bound::Below(1.0),
        samples_min: 100,
        measure: |rows| ratio_to_best_of_open_mpi(rows, SHM, 32),
        ..MEMBERS
    },
    Goal {
        case: "31 tasks wait, one is late by 100 ms",
        measure: |rows| figure(rows, HYBRID, (LATE, 32), CPU_CORES),
        ..WAITING
    },
    Goal {
        case: "31 threads wait, one is late by 100 ms",
        measure: |rows| figure(rows, THREADS, (LATE, 32), CPU_CORES),
        ..WAITING
    },
    Goal {
        case: "31 processes wait, one is late by 100 ms, awaited",
        measure: |rows| figure(rows, SHM, (LATE, 32), CPU_CORES),
        ..WAITING
    },
    Goal {
        case: "31 processes wait, one is late by 100 ms, blocking",
        measure: |rows| figure(rows, SHM_BLOCKING, (LATE, 32), CPU_CORES),
        ..WAITING
    },
];
