//! Goals of the simulated cluster: the paper's numbers [eth-barrier, §4.3], [eth-barrier, §4.4], and those that follow from its
//! structure.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::cluster::{
    BarrierCase, ablation, crossing_us, gain, golden_difference, largest_ratio, mean_error,
    paper_error, recovery_cost, saved, times_slower,
};

const SWITCH: &str = "switch";
const HUB: &str = "hub";

const EXCHANGE: BarrierCase = ("shuffle-exchange", 32, SWITCH);
const BINARY: BarrierCase = ("binary", 32, SWITCH);
const TERNARY: BarrierCase = ("ternary", 31, SWITCH);
const CONCURRENT: BarrierCase = ("concurrent", 32, SWITCH);
const TERNARY_15: BarrierCase = ("ternary", 15, SWITCH);
const TERNARY_TWO: BarrierCase = ("ternary-two-networks", 15, SWITCH);
const CONCURRENT_16: BarrierCase = ("concurrent", 16, SWITCH);
const CONCURRENT_TWO: BarrierCase = ("concurrent-two-networks", 16, SWITCH);
const HUB_EXCHANGE: BarrierCase = ("shuffle-exchange", 32, HUB);
const HUB_BINARY: BarrierCase = ("binary", 32, HUB);
const HUB_TERNARY: BarrierCase = ("ternary", 31, HUB);
const HUB_CONCURRENT: BarrierCase = ("concurrent", 32, HUB);
const OPTIMAL: BarrierCase = ("optimal", 32, SWITCH);

/// A barrier on a switch, by its algorithm and members.
const fn on_switch(algorithm: &'static str, members: u32) -> BarrierCase {
    (algorithm, members, SWITCH)
}

const PAPER: Goal = Goal {
    area: Area::BarrierSim,
    case: "",
    command: "vigie-bench barrier --simulate",
    figure: "|simulated / paper − 1|",
    bound: Bound::AtMost(0.1),
    samples_min: 100,
    experiment: Experiment::BarrierSim,
    measure: |_| None,
};

/// On a hub there is chance: eight seeds of a hundred barriers.
const ON_HUB: Goal = Goal { samples_min: 800, ..PAPER };

const ORDER: Goal = Goal { figure: "largest time / next one's", bound: Bound::Below(1.0), ..PAPER };

const ADDED: Goal = Goal {
    command: "vigie-bench barrier --simulate --algorithm concurrent,concurrent-two-networks --members 16,32 --network switch --parameters calibrated,one-frame",
    figure: "time / with batching",
    ..PAPER
};

const SAVED: Goal = Goal {
    figure: "1 − time / shuffle exchange's",
    bound: Bound::AtLeast(0.15),
    command: "vigie-bench barrier --simulate --algorithm shuffle-exchange,dissemination-3,optimal-34500-7360 --members 16,32,64 --network switch",
    ..PAPER
};

const SAVED_BARE: Goal = Goal {
    bound: Bound::AtLeast(0.08),
    command: "vigie-bench barrier --simulate --algorithm shuffle-exchange,dissemination-3,optimal-30000-9500 --members 16,32,64 --network switch --parameters bare",
    ..SAVED
};

/// The goals of simulations.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "shuffle exchange, 32, switch: 174 µs",
        measure: |rows| paper_error(rows, EXCHANGE),
        ..PAPER
    },
    Goal {
        case: "binary tree, 32, switch: 204 µs",
        measure: |rows| paper_error(rows, BINARY),
        ..PAPER
    },
    Goal {
        case: "ternary tree, 31, switch: 200 µs",
        measure: |rows| paper_error(rows, TERNARY),
        ..PAPER
    },
    Goal {
        case: "concurrent, 32, switch: 309 µs",
        measure: |rows| paper_error(rows, CONCURRENT),
        ..PAPER
    },
    Goal {
        case: "ternary tree, 15, one switch: 159 µs",
        measure: |rows| paper_error(rows, TERNARY_15),
        ..PAPER
    },
    Goal {
        case: "ternary tree, 15, two switches: 169 µs",
        measure: |rows| paper_error(rows, TERNARY_TWO),
        ..PAPER
    },
    Goal {
        case: "concurrent, 16, one switch: 179 µs",
        measure: |rows| paper_error(rows, CONCURRENT_16),
        ..PAPER
    },
    Goal {
        case: "concurrent, 16, two switches: 147 µs",
        measure: |rows| paper_error(rows, CONCURRENT_TWO),
        ..PAPER
    },
    Goal {
        case: "shuffle exchange, 32, hub: 3743 µs",
        measure: |rows| paper_error(rows, HUB_EXCHANGE),
        ..ON_HUB
    },
    Goal {
        case: "binary tree, 32, hub: 728 µs",
        measure: |rows| paper_error(rows, HUB_BINARY),
        ..ON_HUB
    },
    Goal {
        case: "ternary tree, 31, hub: 675 µs",
        measure: |rows| paper_error(rows, HUB_TERNARY),
        ..ON_HUB
    },
    Goal {
        case: "concurrent, 32, hub: 1059 µs",
        measure: |rows| paper_error(rows, HUB_CONCURRENT),
        ..ON_HUB
    },
    Goal {
        case: "all twelve",
        figure: "mean of |simulated / paper − 1|",
        bound: Bound::AtMost(0.04),
        samples_min: 12,
        measure: |rows| mean_error(rows, "calibrated"),
        ..PAPER
    },
    Goal {
        case: "all on switches",
        figure: "largest difference to the stored sum (ns)",
        bound: Bound::AtMost(0.0),
        samples_min: 8,
        measure: golden_difference,
        ..PAPER
    },
    Goal {
        case: "switch: shuffle exchange < ternary < binary < concurrent",
        measure: |rows| largest_ratio(rows, &[EXCHANGE, TERNARY, BINARY, CONCURRENT]),
        ..ORDER
    },
    Goal {
        case: "hub: ternary < binary < concurrent < shuffle exchange",
        measure: |rows| {
            largest_ratio(rows, &[HUB_TERNARY, HUB_BINARY, HUB_CONCURRENT, HUB_EXCHANGE])
        },
        ..ORDER
    },
    Goal {
        case: "ternary tree: one network < two",
        measure: |rows| largest_ratio(rows, &[TERNARY_15, TERNARY_TWO]),
        ..ORDER
    },
    Goal {
        case: "concurrent: two networks < one",
        measure: |rows| largest_ratio(rows, &[CONCURRENT_TWO, CONCURRENT_16]),
        ..ORDER
    },
    Goal {
        case: "shuffle exchange, 32: hub to switch",
        figure: "time / switch's",
        bound: Bound::AtLeast(20.0),
        measure: |rows| times_slower(rows, [HUB_EXCHANGE, EXCHANGE]),
        ..ORDER
    },
    Goal {
        case: "no wait for send completion, shuffle exchange, hub",
        command: "vigie-bench barrier --simulate --algorithm shuffle-exchange --members 32 --network hub --parameters calibrated,no-completion-wait",
        figure: "time / with the wait",
        bound: Bound::AtMost(0.87),
        measure: |rows| ablation(rows, "no-completion-wait", HUB_EXCHANGE),
        ..ON_HUB
    },
    Goal {
        case: "no wait for send completion, shuffle exchange, hub",
        command: "vigie-bench barrier --simulate --algorithm shuffle-exchange --members 32 --network hub --parameters calibrated,no-completion-wait",
        figure: "time / with the wait",
        bound: Bound::AtLeast(0.8),
        measure: |rows| ablation(rows, "no-completion-wait", HUB_EXCHANGE),
        ..ON_HUB
    },
    Goal {
        case: "no batching in the handler, concurrent, 16, one switch: the least of three",
        bound: Bound::AtLeast(1.12),
        measure: |rows| ablation(rows, "one-frame", CONCURRENT_16),
        ..ADDED
    },
    Goal {
        case: "no batching in the handler, concurrent, 32, one switch",
        bound: Bound::AtLeast(1.12),
        measure: |rows| ablation(rows, "one-frame", CONCURRENT),
        ..ADDED
    },
    Goal {
        case: "no batching in the handler, concurrent, 16, two switches: the most of three",
        bound: Bound::AtMost(1.37),
        measure: |rows| ablation(rows, "one-frame", CONCURRENT_TWO),
        ..ADDED
    },
    Goal {
        case: "trinomial tree instead of the heap, 31, switch",
        command: "vigie-bench barrier --simulate --algorithm ternary,nomial-3 --members 31 --network switch",
        figure: "1 − time / heap's",
        bound: Bound::AtLeast(0.15),
        measure: |rows| saved(rows, "calibrated", [on_switch("nomial-3", 31), TERNARY]),
        ..PAPER
    },
    Goal {
        case: "trinomial tree instead of the heap, 31, switch",
        command: "vigie-bench barrier --simulate --algorithm ternary,nomial-3 --members 31 --network switch",
        figure: "1 − time / heap's",
        bound: Bound::AtMost(0.25),
        measure: |rows| saved(rows, "calibrated", [on_switch("nomial-3", 31), TERNARY]),
        ..PAPER
    },
    Goal {
        case: "4-ary tree against shuffle exchange, 16, g = 0.67 µs: 6.83 ± 0.2",
        command: "vigie-bench goals barrier-sim",
        figure: "o_r at the crossing (µs)",
        bound: Bound::AtLeast(6.63),
        samples_min: 1,
        measure: crossing_us,
        ..PAPER
    },
    Goal {
        case: "4-ary tree against shuffle exchange, 16, g = 0.67 µs: 6.83 ± 0.2",
        command: "vigie-bench goals barrier-sim",
        figure: "o_r at the crossing (µs)",
        bound: Bound::AtMost(7.03),
        samples_min: 1,
        measure: crossing_us,
        ..PAPER
    },
    Goal {
        case: "4-ary tree against shuffle exchange, 16, g = 6.72 µs, any o_r",
        command: "vigie-bench goals barrier-sim",
        figure: "largest 1 − time / shuffle exchange's",
        bound: Bound::AtMost(0.01),
        samples_min: 1,
        measure: gain,
        ..PAPER
    },
    Goal {
        case: "optimal tree with multicast, 32, calibrated",
        measure: |rows| saved(rows, "calibrated", [OPTIMAL, EXCHANGE]),
        ..SAVED
    },
    Goal {
        case: "3-way dissemination, 16, calibrated",
        measure: |rows| saved(rows, "calibrated", three_way(16)),
        ..SAVED
    },
    Goal {
        case: "3-way dissemination, 32, calibrated",
        measure: |rows| saved(rows, "calibrated", three_way(32)),
        ..SAVED
    },
    Goal {
        case: "3-way dissemination, 64, calibrated",
        measure: |rows| saved(rows, "calibrated", three_way(64)),
        ..SAVED
    },
    Goal {
        case: "optimal tree with multicast, 32, bare LogP",
        measure: |rows| saved(rows, "bare", [OPTIMAL, EXCHANGE]),
        ..SAVED_BARE
    },
    Goal {
        case: "3-way dissemination, 16, bare LogP",
        measure: |rows| saved(rows, "bare", three_way(16)),
        ..SAVED_BARE
    },
    Goal {
        case: "3-way dissemination, 32, bare LogP",
        measure: |rows| saved(rows, "bare", three_way(32)),
        ..SAVED_BARE
    },
    Goal {
        case: "3-way dissemination, 64, bare LogP",
        measure: |rows| saved(rows, "bare", three_way(64)),
        ..SAVED_BARE
    },
    Goal {
        case: "colours and recovery while nothing is lost, all twelve",
        command: "vigie-bench barrier --simulate --recovery",
        figure: "largest time / bare steps'",
        bound: Bound::AtMost(1.0),
        measure: recovery_cost,
        ..PAPER
    },
];

/// 3-way dissemination and shuffle exchange of this many members.
const fn three_way(members: u32) -> [BarrierCase; 2] {
    [on_switch("dissemination-3", members), on_switch("shuffle-exchange", members)]
}
