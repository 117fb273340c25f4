//! What the model of forwarding must reach.

use crate::experiment::Experiment;
use crate::forward::{crossover_distance, gain_distance, simulation_error, table_distance};
use crate::goal::{Area, Bound, Goal};

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
];
