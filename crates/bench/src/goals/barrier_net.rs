//! Goals of barriers over a network, between namespaces on a bridge. Open MPI's members meet on the loopback
//! interface, so vigie is measured there too, to compare like with like.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::barrier::{
    CASE, CPU_CORES, ETHER, LATE, LOOPBACK, OPEN_MPI_TCP, UDP, figure, ratio,
    ratio_of_best_over_tcp,
};

const MEMBERS: Goal = Goal {
    area: Area::BarrierNet,
    case: "",
    command: "vigie-bench barrier --over udp,ether --dummy 0",
    figure: "p50 (µs)",
    bound: Bound::AtMost(50.0),
    samples_min: 500,
    experiment: Experiment::BarrierNet,
    measure: |_| None,
};

const WAITING: Goal = Goal {
    command: "vigie-bench barrier --over udp,ether --dummy 0 --members 32 --late 100ms --budget 3s",
    figure: "processor time of all members (cores)",
    bound: Bound::AtMost(0.02),
    samples_min: 10,
    experiment: Experiment::BarrierNetLate,
    ..MEMBERS
};

/// The goals over networks.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "8 members, UDP multicast",
        measure: |rows| figure(rows, UDP, (CASE, 8), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "32 members, UDP multicast",
        bound: Bound::AtMost(240.0),
        measure: |rows| figure(rows, UDP, (CASE, 32), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "32 members, UDP multicast over the bridge",
        figure: "p50 of Open MPI over TCP on loopback, its best algorithm / p50",
        bound: Bound::AtLeast(2.0),
        samples_min: 100,
        measure: |rows| ratio_of_best_over_tcp(rows, UDP, 32),
        ..MEMBERS
    },
    Goal {
        case: "32 members, UDP multicast over the bridge",
        figure: "p50 of Open MPI over TCP on loopback, its choice / p50",
        bound: Bound::AtLeast(8.0),
        samples_min: 100,
        measure: |rows| ratio(rows, [OPEN_MPI_TCP, UDP], 32),
        ..MEMBERS
    },
    Goal {
        case: "32 members, UDP multicast on loopback",
        figure: "p50 of Open MPI over TCP on loopback, its best algorithm / p50",
        bound: Bound::AtLeast(2.0),
        samples_min: 100,
        measure: |rows| ratio_of_best_over_tcp(rows, LOOPBACK, 32),
        ..MEMBERS
    },
    Goal {
        case: "32 members, UDP multicast on loopback",
        figure: "p50 of Open MPI over TCP on loopback, its choice / p50",
        bound: Bound::AtLeast(8.0),
        samples_min: 100,
        measure: |rows| ratio(rows, [OPEN_MPI_TCP, LOOPBACK], 32),
        ..MEMBERS
    },
    Goal {
        case: "8 members, raw Ethernet",
        bound: Bound::AtMost(35.0),
        measure: |rows| figure(rows, ETHER, (CASE, 8), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "32 members, raw Ethernet",
        bound: Bound::AtMost(165.0),
        measure: |rows| figure(rows, ETHER, (CASE, 32), "p50_us"),
        ..MEMBERS
    },
    Goal {
        case: "31 members wait, one is late by 100 ms, UDP",
        measure: |rows| figure(rows, UDP, (LATE, 32), CPU_CORES),
        ..WAITING
    },
    Goal {
        case: "31 members wait, one is late by 100 ms, Ethernet",
        measure: |rows| figure(rows, ETHER, (LATE, 32), CPU_CORES),
        ..WAITING
    },
];
