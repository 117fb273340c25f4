//! Goals of messages between hosts.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::messages::plan::MESSAGE_US;
use crate::messages::remote::{
    BULK, TCP, UDP, UDP_BLOCKING, VIGIE_ETHER, VIGIE_UDP, VIGIE_VI_ETHER, VIGIE_VI_UDP,
};
use crate::messages::row_selector::{RowSelector, largest_ratio_from, ratio};

const COMMAND: &str = "vigie-bench pingpong --provider udp,ether";

const WRITE: Goal = Goal {
    area: Area::Remote,
    case: "",
    command: COMMAND,
    figure: "p50 / polling TCP's p50",
    bound: Bound::AtMost(0.55),
    samples_min: 50,
    experiment: Experiment::Remote,
    measure: |_| None,
};

/// Goals whose bounds are the paper's claims [via-lam, §5] and ratios to sockets.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "ether between namespaces, message, 1 B: the paper's 45 %",
        measure: |rows| ratio(rows, [VIGIE_ETHER, TCP], RowSelector::latency(1), MESSAGE_US),
        ..WRITE
    },
    Goal {
        case: "ether between namespaces, write, 1 B: the paper's 45 %",
        measure: |rows| ratio(rows, [VIGIE_VI_ETHER, TCP], RowSelector::latency(1), MESSAGE_US),
        ..WRITE
    },
    Goal {
        case: "ether between namespaces, messages of 1 B to 32 KiB: no crossover",
        figure: "largest p50 / polling TCP's",
        bound: Bound::Below(1.0),
        measure: |rows| largest_ratio_from(rows, [VIGIE_ETHER, TCP], 1),
        ..WRITE
    },
    Goal {
        case: "udp between namespaces, messages of 1 B to 32 KiB: no crossover",
        figure: "largest p50 / polling TCP's",
        bound: Bound::Below(1.0),
        measure: |rows| largest_ratio_from(rows, [VIGIE_UDP, TCP], 1),
        ..WRITE
    },
    Goal {
        case: "udp between namespaces, write, 8 B, polling",
        figure: "p50 / polling UDP socket's p50",
        bound: Bound::AtMost(1.3),
        measure: |rows| ratio(rows, [VIGIE_VI_UDP, UDP], RowSelector::latency(8), MESSAGE_US),
        ..WRITE
    },
    Goal {
        case: "udp between namespaces, write, 8 B every 2 ms, sleep allowed",
        figure: "p50 / blocking UDP socket's p50",
        bound: Bound::AtMost(1.3),
        measure: |rows| {
            ratio(
                rows,
                [VIGIE_VI_UDP, UDP_BLOCKING],
                RowSelector::of_bytes("waiting", 8),
                MESSAGE_US,
            )
        },
        ..WRITE
    },
    Goal {
        case: "udp between namespaces, writes of 256 KiB, window 16",
        figure: "rate / TCP's",
        bound: Bound::AtLeast(1.2),
        samples_min: 20,
        measure: |rows| {
            ratio(rows, [TCP, VIGIE_VI_UDP], RowSelector::of_bytes("window", BULK), MESSAGE_US)
        },
        ..WRITE
    },
    Goal {
        case: "ether between namespaces, write, 8 B",
        figure: "p50 / udp's p50",
        bound: Bound::Below(1.0),
        measure: |rows| {
            ratio(rows, [VIGIE_VI_ETHER, VIGIE_VI_UDP], RowSelector::latency(8), MESSAGE_US)
        },
        ..WRITE
    },
    Goal {
        case: "ether between namespaces, message, 8 B",
        figure: "p50 / udp's p50",
        bound: Bound::Below(1.0),
        measure: |rows| ratio(rows, [VIGIE_ETHER, VIGIE_UDP], RowSelector::latency(8), MESSAGE_US),
        ..WRITE
    },
];
