//! The model against the paper's own figures, and against its neighbours.

use std::time::Duration;

use super::*;
use crate::cost::{Bandwidth, Cost};
use crate::error::ModelError;
use crate::simulation::{Flow, Simulation, SimulationError};

const fn us(time: u64) -> Duration {
    Duration::from_micros(time)
}

/// Table 2 [fast-forward, §2.4].
fn table_2() -> ParametersBuilder {
    Parameters::builder(Message::cut(8192, 2048).unwrap()).t_net(us(15)).t_pci(us(11))
}

/// The same node with costs in proportion to the bytes.
fn paper_node() -> Node {
    let by = |time| Cost::per_byte(Bandwidth::measured(2048, us(time)).unwrap());
    Node::new(by(15), by(11))
}

#[test]
fn table_3_exactly() {
    // Goal: δ* of [fast-forward, §2.4, Table 3]. Method: the parameters of Table 2.
    let parameters = table_2().build().unwrap();
    assert_eq!(parameters.delta_star(SwitchingMode::StoreAndForward), us(22));
    assert_eq!(parameters.delta_star(SwitchingMode::CutThrough), us(67));
    // With one message in the node, a window changes nothing, whatever the algorithm takes on the host.
    for t_algo_h in [us(0), us(3), us(400)] {
        assert_eq!(parameters.crossover(SwitchingMode::StoreAndForward, t_algo_h), us(22));
        assert_eq!(parameters.crossover(SwitchingMode::CutThrough, t_algo_h), us(67));
    }
}

#[test]
fn times_of_8192_bytes_exactly() {
    // Goal: T(8192) at δ = 0 and its bandwidths. Method: the parameters of Table 2, T_algo = 0.
    let parameters = table_2().build().unwrap();
    assert_eq!(parameters.t_none(), us(60));
    for (path, time, shown) in [
        (Path::HOST, 142, "57.7 MB/s"),
        (Path::NIC, 120, "68.3 MB/s"),
        (Path::NIC_CUT_THROUGH, 75, "109.2 MB/s"),
    ] {
        let prediction = parameters.predict(path, Duration::ZERO).unwrap();
        assert_eq!((prediction.time, prediction.limit), (us(time), Limit::Window), "{path}");
        assert_eq!(prediction.bandwidth.to_string(), shown, "{path}");
    }
    let none = Bandwidth::measured(8192, parameters.t_none()).unwrap();
    assert_eq!(none.to_string(), "136.5 MB/s");
}

#[test]
fn measured_crossovers_within_their_bounds() {
    // Goal: the model beside the crossovers that [fast-forward, §3.4] measured: 10 µs for 1024 bytes, 19 and
    // 65 µs for 8192. Method: T_net and T_pci in proportion to the packet, which is the whole message at
    // 1024 bytes; differences in nanoseconds.
    let small = paper_node().parameters(Message::cut(1024, 2048).unwrap()).unwrap();
    let large = paper_node().parameters(Message::cut(8192, 2048).unwrap()).unwrap();
    assert_eq!(large, table_2().build().unwrap());
    for (parameters, mode, measured, bound) in [
        (small, SwitchingMode::StoreAndForward, 10_000, 1_500),
        (small, SwitchingMode::CutThrough, 10_000, 1_500),
        (large, SwitchingMode::StoreAndForward, 19_000, 4_000),
        (large, SwitchingMode::CutThrough, 65_000, 3_000),
    ] {
        let star = parameters.delta_star(mode).as_nanos();
        assert!(star.abs_diff(measured) <= bound, "{mode}: {star} ns beside {measured} ns");
    }
    assert_eq!(
        small.delta_star(SwitchingMode::CutThrough),
        us(11),
        "one packet: as store-and-forward"
    );
}

#[test]
fn forty_five_percent_under_both_readings() {
    // Goal: "45 % of improvement" [fast-forward, §5] within 3 points. Method: time saved with one message in
    // the node, and bandwidth gained with two on a half-duplex bus.
    let parameters = table_2().build().unwrap();
    let host = parameters.t_h(Duration::ZERO).as_secs_f64();
    let nic = parameters.t_n_cut_through(Duration::ZERO).as_secs_f64();
    let saved = 100.0 * (host - nic) / host;
    assert!((saved - 47.2).abs() < 0.05 && (saved - 45.0).abs() <= 3.0, "{saved}");

    let two = parameters.with_window(2).unwrap();
    let span = |path| two.predict(path, Duration::ZERO).unwrap().span.as_secs_f64();
    let gained = 100.0 * (span(Path::HOST) / span(Path::NIC_CUT_THROUGH) - 1.0);
    assert!((gained - 46.7).abs() < 0.05 && (gained - 45.0).abs() <= 3.0, "{gained}");
}

#[test]
fn a_slow_bus_counts_through_the_maxima() {
    // Goal: the max() terms of T_H [fast-forward, §2.2]. Method: T_pci > T_net by hand, and that δ* is the
    // difference of the two times in both modes, with links that differ too.
    let slow = table_2().t_pci(us(20)).build().unwrap();
    assert_eq!(slow.t_h(us(1)), us(15 + 3 * 20 + 20 + 1 + 20 + 3 * 20 + 15));
    assert_eq!(slow.delta_star(SwitchingMode::StoreAndForward), us(191 - 1 - 120));
    for (rcv, snd, pci) in [(15, 15, 20), (30, 10, 20), (10, 30, 20), (9, 9, 0), (50, 1, 1)] {
        let parameters = table_2().t_rcv(us(rcv)).t_snd(us(snd)).t_pci(us(pci)).build().unwrap();
        for mode in [SwitchingMode::StoreAndForward, SwitchingMode::CutThrough] {
            let star = parameters.delta_star(mode);
            let path = Path { placement: Placement::Nic, mode };
            let at = |delta| parameters.time(path, us(7) + delta).unwrap();
            assert_eq!(at(star), parameters.t_h(us(7)), "{mode} {rcv} {snd} {pci}");
        }
    }
}

#[test]
fn cut_through_on_the_host_wants_a_full_duplex_bus() {
    // Goal: refused on a half-duplex bus, by hand on the other. Method: the paper's node.
    assert_eq!(table_2().build().unwrap().t_h_cut_through(us(0)), None);
    let full = table_2().bus(Bus::FullDuplex).build().unwrap();
    assert_eq!(full.t_h_cut_through(us(5)), Some(us(15 + 11 + 5 + 11 + 4 * 15)));
    let slow_in = table_2().bus(Bus::FullDuplex).t_rcv(us(40)).build().unwrap();
    // The last packet arrives at 160 µs; the algorithm is long done.
    assert_eq!(slow_in.t_h_cut_through(us(5)), Some(us(160 + 11 + 11 + 15)));
}

#[test]
fn windows_end_at_the_bottleneck() {
    // Goal: bandwidth grows with the window up to the busiest resource, which is named. Method: the paper's
    // node; 2 nb T_pci = 88 µs on a half-duplex bus, 60 µs on a link.
    let at = |bus, window, path, t_algo| {
        let parameters = table_2().bus(bus).window(window).build().unwrap();
        let prediction = parameters.predict(path, t_algo).unwrap();
        (prediction.span / window, prediction.limit)
    };
    let (half, full, zero) = (Bus::HalfDuplex, Bus::FullDuplex, us(0));
    assert_eq!(at(half, 1, Path::HOST, zero), (us(142), Limit::Window));
    assert_eq!(at(half, 2, Path::HOST, zero), (us(88), Limit::Bus));
    assert_eq!(at(full, 2, Path::HOST, zero), (us(71), Limit::Window));
    assert_eq!(at(full, 3, Path::HOST, zero), (us(60), Limit::ReceiveLink));
    assert_eq!(at(half, 2, Path::NIC, zero), (us(60), Limit::Window));
    assert_eq!(at(half, 2, Path::NIC_CUT_THROUGH, zero), (us(60), Limit::ReceiveLink));
    assert_eq!(at(half, 8, Path::NIC, us(90)), (us(90), Limit::Processor));
    let host = table_2().build().unwrap().predict(Path::HOST, us(58)).unwrap();
    assert!((host.host_cpu_share() - 0.29).abs() < 1e-9, "58 of 200 µs");
}

#[test]
fn a_crossover_with_a_window_is_where_the_spans_meet() {
    // Goal: up to it the interface is not slower, a nanosecond later it is. Method: windows, buses and modes.
    for (bus, window, t_algo_h) in [
        (Bus::HalfDuplex, 2, us(0)),
        (Bus::HalfDuplex, 3, us(30)),
        (Bus::FullDuplex, 2, us(0)),
        (Bus::FullDuplex, 9, us(120)),
    ] {
        let parameters = table_2().bus(bus).window(window).build().unwrap();
        let host = parameters.predict(Path::HOST, t_algo_h).unwrap().span;
        for mode in [SwitchingMode::StoreAndForward, SwitchingMode::CutThrough] {
            let path = Path { placement: Placement::Nic, mode };
            let nic = |delta| parameters.predict(path, t_algo_h + delta).unwrap().span;
            let star = parameters.crossover(mode, t_algo_h);
            let beyond = star + Duration::from_nanos(1);
            assert!(nic(star) <= host && nic(beyond) > host, "{mode} {bus:?} {window}: {star:?}");
        }
    }
}

#[test]
fn a_sweep_changes_sides_at_the_threshold() {
    // Goal: the curves of figures 5 and 6 cross where δ* says. Method: every microsecond up to 100.
    let parameters = table_2().build().unwrap();
    let points: Vec<_> = parameters.sweep(us(4), (0..=100).map(us)).collect();
    assert_eq!(points.len(), 101);
    for point in points {
        let is_faster = |nic: Prediction| nic.bandwidth >= point.host.bandwidth;
        assert_eq!(is_faster(point.nic), point.delta <= us(22), "{:?}", point.delta);
        assert_eq!(is_faster(point.nic_cut_through), point.delta <= us(67), "{:?}", point.delta);
    }
}

#[test]
fn parameters_are_checked() {
    // Goal: each missing or invalid parameter is refused by name. Method: each once.
    let missing = Parameters::builder(Message::whole(64).unwrap()).t_net(us(1)).build();
    assert_eq!(missing, Err(ModelError::Missing { symbol: "T_pci" }));
    let zero = table_2().t_rcv(us(0)).build();
    assert_eq!(zero, Err(ModelError::Time { symbol: "T_rcv", time: us(0) }));
    assert!(table_2().t_snd(us(60_000_001)).build().is_err());
    assert!(table_2().t_pci(us(0)).build().is_ok(), "memory shared by host and interface");
    for window in [0, WINDOW_MAX + 1] {
        assert_eq!(table_2().window(window).build(), Err(ModelError::Window { window }));
    }
    assert_eq!(Message::whole(0), Err(ModelError::EmptyMessage));
    assert_eq!(Message::cut(1, 0), Err(ModelError::EmptyPackets));
    let count = u64::MAX;
    assert_eq!(Message::cut(u64::MAX, 1), Err(ModelError::TooManyPackets { count }));
    assert_eq!(Message::cut(2049, 2048).unwrap().sz(), 1025, "two packets of equal size");
}

#[test]
fn nothing_overflows_within_the_bounds() {
    // Goal: no panic on any accepted input. Method: everything at its largest.
    let message = Message::cut(u64::MAX, u64::MAX / 1_000_000).unwrap();
    let long = Duration::from_secs(60);
    for bus in [Bus::HalfDuplex, Bus::FullDuplex] {
        let builder = Parameters::builder(message).t_net(long).t_pci(long).bus(bus);
        let parameters = builder.window(WINDOW_MAX).build().unwrap();
        for path in Path::ALL {
            for t_algo in [Duration::ZERO, Duration::MAX] {
                let prediction = parameters.predict(path, t_algo);
                assert!(prediction.is_none_or(|one| one.bandwidth.bytes_per_s() > 0));
                let _host_share = prediction.map(|one| one.host_cpu_share());
            }
        }
        for mode in [SwitchingMode::StoreAndForward, SwitchingMode::CutThrough] {
            assert!(parameters.delta_star(mode) > Duration::ZERO);
            assert_eq!(parameters.crossover(mode, Duration::MAX), Duration::ZERO);
        }
        assert_eq!(parameters.sweep(Duration::MAX, [Duration::MAX]).count(), 1);
    }
}

#[test]
fn a_plan_takes_the_fastest_path_that_the_stages_allow() {
    // Goal: placement and mode follow stages and costs, each with its reason. Method: the paper's node with a
    // stage that is slower and slower on the interface, one that needs the whole message, one that only
    // reads it, and one that cannot go there.
    let message = Message::cut(8192, 2048).unwrap();
    let plan = |stages: &[StageModel]| paper_node().plan(message, stages).unwrap();
    let slower = |time| StageModel::new("nat").on_nic(Cost::fixed(us(time)));

    assert_eq!(plan(&[]).path(), Path::NIC_CUT_THROUGH);
    assert_eq!(plan(&[slower(67)]).path(), Path::NIC_CUT_THROUGH, "of equals the interface");
    assert_eq!(plan(&[slower(68)]).path(), Path::HOST);
    assert_eq!(plan(&[slower(40), slower(28)]).path(), Path::HOST, "stages add up");

    let checksum = StageModel::new("checksum").sees(Sees::Everything);
    let whole = plan(&[slower(22), checksum.clone()]);
    assert_eq!(whole.path(), Path::NIC);
    assert!(whole.reason().contains("no cut-through, since the stage `checksum`"), "{whole}");
    assert_eq!(plan(&[slower(23), checksum.clone()]).path(), Path::HOST);
    let meter = checksum.writes(Writes::No);
    assert_eq!(plan(&[meter]).path(), Path::NIC_CUT_THROUGH);

    let closure = slower(0).not_on_nic("a closure is no program for it");
    let host = plan(&[slower(0), closure]);
    assert_eq!((host.path(), host.delta_ns()), (Path::HOST, None));
    assert_eq!(host.margin(), None);
    let because =
        "the stage `nat` cannot run on the network interface: a closure is no program for it";
    assert!(host.reason().starts_with(because), "{host}");
}

#[test]
fn a_plan_says_what_it_compared() {
    // Goal: the words carry the figures. Method: a plan for each placement, as text.
    let message = Message::cut(8192, 2048).unwrap();
    let stage = StageModel::new("rewrite").on_host(Cost::fixed(us(1))).on_nic(Cost::fixed(us(6)));
    let plan = paper_node().plan(message, &[stage]).unwrap();
    assert_eq!(
        plan.to_string(),
        "network interface, cut-through: 101.1 MB/s against 57.3 MB/s by the host, \
         store-and-forward: the interface's algorithm takes 5µs longer than the host's, and it may \
         take 67µs longer before the host is faster; limited by the window"
    );
    assert_eq!(plan.delta_ns(), Some(5_000));
    assert!(plan.margin().is_some_and(|margin| (margin - 143.0 / 81.0).abs() < 1e-9));
    let slow = StageModel::new("compress").on_nic(Cost::fixed(us(300)));
    let plan = paper_node().window(4).plan(message, &[slow]).unwrap();
    assert_eq!(
        plan.to_string(),
        "host, store-and-forward: 93.1 MB/s against 27.3 MB/s by the network interface, \
         store-and-forward: the interface's algorithm takes 300µs longer than the host's; limited by \
         the bus"
    );
}

#[test]
fn hand_overs_idle_times_and_shared_processors_are_what_a_live_node_adds() {
    // Goal: a hand-over counts twice and on the host only, an idle time once for every path and only where the window limits, and
    // shared processors bound what all nodes do at once. Method: the paper's node with each of them, by hand.
    let message = Message::cut(8192, 2048).unwrap();
    let live = paper_node().t_handover(us(10)).t_idle(us(50));
    let parameters = live.parameters(message).unwrap();
    assert_eq!(parameters.t_h(Duration::ZERO), us(142 + 20));
    assert_eq!(parameters.t_n_store_and_forward(Duration::ZERO), us(120));
    assert_eq!(parameters.delta_star(SwitchingMode::StoreAndForward), us(22 + 20));
    assert_eq!(parameters.crossover(SwitchingMode::CutThrough, Duration::ZERO), us(67 + 20));
    let predict = |parameters: Parameters, path| parameters.predict(path, Duration::ZERO).unwrap();
    let host = predict(parameters, Path::HOST);
    assert_eq!((host.time, host.span, host.limit), (us(162), us(212), Limit::Window));
    // With eight messages on their way the links limit, and no idle time counts.
    let wide = parameters.with_window(8).unwrap();
    let nic = predict(wide, Path::NIC);
    assert_eq!((nic.span, nic.limit), (us(8 * 60), Limit::ReceiveLink));
    // 4 packets × 2 links × 20 µs on two processors; the engine alone has 4 × 20 µs and 20 µs.
    let shared = SharedProcessors {
        processors: 2,
        link: Cost::fixed(us(20)),
        bus: Cost::ZERO,
        handover: us(30),
        engine: Cost::fixed(us(20)),
        engine_message: us(20),
    };
    let crowded = live.shared(shared).window(8).parameters(message).unwrap();
    let nic = predict(crowded, Path::NIC);
    assert_eq!((nic.span, nic.limit), (us(8 * 100), Limit::Processor));
    let host = predict(crowded, Path::HOST);
    assert_eq!((host.span, host.limit), (us(8 * 110), Limit::SharedProcessors));
    let simulated = Simulation::new(vec![Flow::new(crowded, Path::NIC, us(1))]).run();
    assert_eq!(simulated.err(), Some(SimulationError::UnsupportedCosts));
}
