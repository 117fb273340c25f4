//! Goals of relays, compared with other relays and with none.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::forward::relay::{added_by_socat, by_best_peer, framed_by_direct, stored_by_planned};

const RELAY: Goal = Goal {
    area: Area::ForwardRelay,
    case: "",
    command: "vigie-bench forward --relay --peers socat,haproxy,nginx,tokio",
    figure: "GB/s / that of the best peer",
    bound: Bound::AtLeast(1.0),
    samples_min: 3,
    experiment: Experiment::ForwardRelay,
    measure: |_| None,
};

/// The relays' goals.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "TCP relay, 1 connection, all on one core",
        measure: |rows| by_best_peer(rows, 1),
        ..RELAY
    },
    Goal {
        case: "TCP relay, 16 connections, all on one core",
        measure: |rows| by_best_peer(rows, 16),
        ..RELAY
    },
    Goal {
        case: "TCP relay, 64 B echoed, all on one core",
        figure: "p50 that it adds / that socat adds",
        bound: Bound::AtMost(1.0),
        samples_min: 1_000,
        measure: added_by_socat,
        ..RELAY
    },
    Goal {
        case: "framed relay, 1 MiB over two links of 1 Gb/s",
        figure: "p50 / that without a relay",
        bound: Bound::AtMost(1.15),
        samples_min: 60,
        measure: framed_by_direct,
        ..RELAY
    },
    Goal {
        case: "framed relay, stream of 1 MiB over loopback",
        figure: "GB/s of store-and-forward / as planned",
        bound: Bound::AtMost(1.05),
        measure: stored_by_planned,
        ..RELAY
    },
];
