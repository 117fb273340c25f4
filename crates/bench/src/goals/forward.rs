//! Goals of the forwarding model.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::forward::live::{ADDED_P50_US, DELIVERED_KPPS, LATENCY, RATE, found};
use crate::forward::via::{choice, prediction_error};
use crate::forward::{BY_HAND, DELIVERED_MPPS, LOST, nic_figure};
use crate::forward::{crossover_distance, gain_distance, simulation_error, table_distance};
use crate::report::Row;
use crate::report::figure::Figure;

const MODEL: Goal = Goal {
    area: Area::ForwardModel,
    case: "",
    command: "vigie-bench forward --model",
    figure: "distance from the measured crossover (µs)",
    bound: Bound::AtMost(0.0),
    samples_min: 1,
    experiment: Experiment::ForwardModel,
    measure: |_| None,
};

const VIA: Goal = Goal {
    area: Area::ForwardVia,
    command: "vigie-bench forward --over udp --messages 300 --rounds 5",
    experiment: Experiment::ForwardVia,
    ..MODEL
};

const LIVE: Goal = Goal {
    area: Area::ForwardLive,
    case: "",
    command: "vigie-bench forward --live --only host-xdp,host-packet,testpmd-xdp",
    figure: "added to one way, p50 (µs)",
    bound: Bound::AtMost(1.0),
    samples_min: 10_000,
    experiment: Experiment::ForwardLive,
    measure: |_| None,
};

/// Goals of forwarding in user space on veth pairs.
pub(super) static LIVE_GOALS: &[Goal] = &[
    Goal {
        case: "AF_XDP, spinning, 64 bytes",
        figure: "delivered / testpmd's, af_xdp",
        bound: Bound::AtLeast(1.0),
        samples_min: 3,
        measure: |rows| {
            let (ours, samples) = found(rows, "host-xdp", RATE, DELIVERED_KPPS)?;
            let (peer, _) = found(rows, "testpmd-xdp", RATE, DELIVERED_KPPS)?;
            Some(Figure::new(ours / peer, samples))
        },
        ..LIVE
    },
    Goal { case: "AF_XDP, spinning, 64 bytes", measure: |rows| added(rows, "host-xdp"), ..LIVE },
    Goal {
        case: "AF_PACKET, spinning, 64 bytes",
        figure: "delivered (kpps)",
        bound: Bound::AtLeast(430.0),
        samples_min: 3,
        measure: |rows| {
            let (rate, samples) = found(rows, "host-packet", RATE, DELIVERED_KPPS)?;
            Some(Figure::new(rate, samples))
        },
        ..LIVE
    },
    Goal {
        case: "AF_PACKET, spinning, 64 bytes",
        bound: Bound::AtMost(2.0),
        measure: |rows| added(rows, "host-packet"),
        ..LIVE
    },
];

const NIC: Goal = Goal {
    area: Area::ForwardNic,
    command: "vigie-bench forward --live --only nic-rewrite,nic-route-changing",
    samples_min: 3,
    experiment: Experiment::ForwardNic,
    ..LIVE
};

/// Goals of programs at the driver, fed with live XDP frames.
pub(super) static NIC_GOALS: &[Goal] = &[
    Goal {
        case: "XDP redirect with rewrite",
        figure: "delivered (million frames per second)",
        bound: Bound::AtLeast(2.3),
        measure: |rows| program(rows, "nic-rewrite", DELIVERED_MPPS),
        ..NIC
    },
    Goal {
        case: "XDP redirect with rewrite",
        figure: "processor time of a frame / by a least program by hand",
        bound: Bound::AtMost(1.05),
        measure: |rows| program(rows, "nic-rewrite", BY_HAND),
        ..NIC
    },
    Goal {
        case: "routes that change at full rate",
        figure: "frames lost",
        bound: Bound::AtMost(0.0),
        measure: |rows| program(rows, "nic-route-changing", LOST),
        ..NIC
    },
];

fn program(rows: &[Row], name: &str, key: &str) -> Option<Figure> {
    let (figure, samples) = nic_figure(rows, name, key)?;
    Some(Figure::new(figure, samples))
}

fn added(rows: &[Row], system: &str) -> Option<Figure> {
    let (added, samples) = found(rows, system, LATENCY, ADDED_P50_US)?;
    Some(Figure::new(added, samples))
}

/// The paper's statements [fast-forward, §2.4, §3.4 and §5].
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "Table 3 and T(8192), model and simulation: exact",
        figure: "largest distance (µs)",
        samples_min: 6,
        measure: table_distance,
        ..MODEL
    },
    Goal {
        case: "one message in the node, all sizes and δ",
        figure: "|simulation / closed form − 1|, largest",
        bound: Bound::AtMost(0.001),
        samples_min: 150,
        measure: simulation_error,
        ..MODEL
    },
    Goal {
        case: "crossover of figure 5, 1024 B",
        bound: Bound::AtMost(1.5),
        measure: |rows| crossover_distance(rows, 1024, false),
        ..MODEL
    },
    Goal {
        case: "crossover of figure 6, 8192 B, store-and-forward",
        bound: Bound::AtMost(4.0),
        measure: |rows| crossover_distance(rows, 8192, false),
        ..MODEL
    },
    Goal {
        case: "crossover of figure 6, 8192 B, cut-through",
        bound: Bound::AtMost(3.0),
        measure: |rows| crossover_distance(rows, 8192, true),
        ..MODEL
    },
    Goal {
        case: "+45 % as time saved, one message in the node",
        figure: "distance from 45 (points)",
        bound: Bound::AtMost(3.0),
        samples_min: 2,
        measure: |rows| gain_distance(rows, 1),
        ..MODEL
    },
    Goal {
        case: "+45 % as bandwidth, window 2, half-duplex bus",
        figure: "distance from 45 (points)",
        bound: Bound::AtMost(3.0),
        samples_min: 2,
        measure: |rows| gain_distance(rows, 2),
        ..MODEL
    },
    Goal {
        case: "figures 4 to 6 live, 20 MB/s links: the planner picks the faster mode",
        figure: "share of the cells outside ±10 %",
        bound: Bound::AtLeast(0.95),
        samples_min: 10,
        measure: choice,
        ..VIA
    },
    Goal {
        case: "figures 4 to 6 live, 20 MB/s links: bandwidth of the planned mode",
        figure: "|predicted / measured − 1|, largest",
        bound: Bound::AtMost(0.2),
        samples_min: 20,
        measure: prediction_error,
        ..VIA
    },
];
