use std::{num::NonZeroU32, sync::Arc, time::Duration};

use fastrand::Rng;
use proptest::prelude::*;
use vigie_detect::{Clock, Instant, VirtualClock};

use super::*;
use crate::{
    model::{Sees, Writes},
    packet::Part,
    stages::{Checksum, Mirror, Rewrite, StageFn},
};

const NOW: Instant = Instant::from_nanos(0);

/// A frame of unknown protocol, with a number in it.
fn numbered(number: u64) -> Packet {
    let frame = [[2; 12].as_slice(), &[0x88, 0xb5], &number.to_be_bytes()].concat();
    Packet::new(Port(0), &frame)
}

fn number(packet: &Packet) -> u64 {
    u64::from_be_bytes(*packet.bytes()[14..].first_chunk().unwrap())
}

/// Sends packets to a port by their number, and drops every seventh.
fn spread(ports: u16) -> impl Stage {
    StageFn::new(StageModel::new("spread").sees(Sees::Everything), move |packet, _| {
        match number(packet) {
            number if number % 7 == 3 => Verdict::Drop(DropReason::User),
            number => Verdict::SetEgress(Port(u16::try_from(number % u64::from(ports)).unwrap())),
        }
    })
}

#[test]
fn settings_are_checked() {
    // Goal: invalid settings are refused. Method: each setting at zero, and cut-through with a checksum stage.
    let begin = Pipeline::builder;
    for (builder, name) in [
        (begin().input_packets(0), "input_packets"),
        (begin().output_packets(0), "output_packets"),
        (begin().messages(0), "messages"),
        (begin().message_packets(0), "message_packets"),
        (begin().batch(0), "batch"),
    ] {
        assert_eq!(builder.build().unwrap_err(), PipelineError::InvalidSetting { name, value: 0 });
    }
    let checked = begin().mode(SwitchingMode::CutThrough).stage(Checksum::verify());
    let error = checked.build().unwrap_err();
    assert_eq!(error, PipelineError::NeedsWhole { stage: "checksum".to_owned() });
    assert!(error.to_string().contains("store-and-forward"), "{error}");
    assert!(begin().mode(SwitchingMode::CutThrough).stage(Mirror::to(Port(1))).build().is_ok());
}

#[test]
fn a_full_port_holds_up_or_drops() {
    // Goal: with back-pressure nothing is lost and the sender is told; without, the excess is dropped and counted.
    // Method: a port that is never emptied.
    for on_full in [OnFull::Wait, OnFull::Drop] {
        let mut pipeline = Pipeline::builder()
            .default_port(Port(1))
            .input_packets(4)
            .output_packets(3)
            .on_full(on_full)
            .build()
            .unwrap();
        let mut given_back = 0;
        for number in 0..20 {
            given_back += u64::from(pipeline.offer(numbered(number)).is_err());
            pipeline.run(NOW);
        }
        let counted = pipeline.counters().snapshot();
        if on_full == OnFull::Wait {
            // Three at the port, one on its way, four before the stages.
            assert_eq!((given_back, pipeline.waiting(), counted.dropped_total()), (12, 8, 0));
            assert!(pipeline.is_full());
        } else {
            assert_eq!((given_back, pipeline.waiting()), (0, 3));
            assert_eq!(counted.of(DropReason::BufferFull), 17);
            assert!(counted.to_string().contains("buffer full: 17"), "{counted}");
        }
        let mut left = 0;
        while let Some(packet) = pipeline.take(Port(1)) {
            assert_eq!(number(&packet), left);
            left += 1;
            pipeline.run(NOW);
        }
        assert_eq!(left, if on_full == OnFull::Wait { 8 } else { 3 });
    }
}

#[test]
fn copies_are_what_was_there() {
    // Goal: a copy is the packet as it came to the mirror, and never holds it up. Method: a mirror before a
    // rewrite, and a port for copies that is full.
    let mut pipeline = Pipeline::builder()
        .stage(Mirror::to(Port(9)))
        .stage(Rewrite::new().source_mac(vigie_via::link::MacAddress([4; 6])).send(Port(1)))
        .output_packets(2)
        .build()
        .unwrap();
    for number in 0..5 {
        pipeline.offer(numbered(number)).unwrap();
        pipeline.run(NOW);
        assert_eq!(pipeline.take(Port(1)).unwrap().bytes()[6..12], [4; 6]);
    }
    assert_eq!(pipeline.take(Port(9)).unwrap(), numbered(0));
    assert_eq!(pipeline.take(Port(9)).unwrap(), numbered(1));
    assert_eq!(pipeline.counters().snapshot().of(DropReason::BufferFull), 3);
}

/// A message of `count` packets.
fn message(id: u64, count: u32) -> Vec<Packet> {
    let part = |index| Part::new(id, index, index + 1 == count);
    (0..count).map(|index| numbered(id * 100 + u64::from(index)).part_of(part(index))).collect()
}

#[test]
fn messages_are_stored_or_cut_through() {
    // Goal: stored, a message leaves when it is complete; cut through, each packet leaves as it comes, with the verdict
    // on the first. Method: messages packet by packet, a gap, and a drop.
    for mode in [SwitchingMode::StoreAndForward, SwitchingMode::CutThrough] {
        let header = StageModel::new("header").sees(Sees::Header).writes(Writes::Yes);
        let mut seen = 0;
        let stage = StageFn::new(header, move |packet: &mut Packet, _| {
            seen += 1;
            match number(packet) {
                1000 => Verdict::Drop(DropReason::User),
                _ => Verdict::SetEgress(Port(seen)),
            }
        });
        let mut pipeline = Pipeline::builder().mode(mode).stage(stage).build().unwrap();
        let mut left = Vec::new();
        for packet in message(1, 4).into_iter().chain(message(10, 3)) {
            pipeline.offer(packet).unwrap();
            pipeline.run(NOW);
            left.push(std::iter::from_fn(|| pipeline.take(Port(1))).count());
        }
        let expected = if mode == SwitchingMode::CutThrough {
            [1, 1, 1, 1, 0, 0, 0]
        } else {
            [0, 0, 0, 4, 0, 0, 0]
        };
        assert_eq!(left, expected, "{mode:?}");
        let counted = pipeline.counters().snapshot();
        assert_eq!(counted.dropped_total(), 3);
        let mut gap = message(2, 4);
        gap.remove(1);
        for packet in gap {
            pipeline.offer(packet).unwrap();
        }
        pipeline.run(NOW);
        let began = usize::from(mode == SwitchingMode::CutThrough);
        assert_eq!(std::iter::from_fn(|| pipeline.take(Port(3))).count(), began, "{mode:?}");
        assert_eq!(pipeline.waiting(), 0);
        let received = pipeline.counters().snapshot();
        assert_eq!(received.received.packets, received.sent.packets + received.dropped_total());
    }
}

#[test]
fn messages_that_never_end_give_way() {
    // Goal: memory is bounded whatever comes. Method: starts of many messages, and one without end.
    let mut pipeline =
        Pipeline::builder().messages(5).message_packets(10).default_port(Port(1)).build().unwrap();
    for id in 0..100 {
        for packet in message(id, 4).into_iter().take(2) {
            pipeline.offer(packet).unwrap();
            pipeline.run(NOW);
        }
        assert!(pipeline.waiting() <= 10);
    }
    for index in 0..500 {
        pipeline.offer(numbered(7).part_of(Part::new(1000, index, false))).unwrap();
        pipeline.run(NOW);
        assert!(pipeline.waiting() <= 20);
    }
    let counted = pipeline.counters().snapshot();
    assert!(
        counted.of(DropReason::TooLong) > 0 && counted.of(DropReason::Incomplete) > 0,
        "{counted}"
    );
    assert_eq!(
        counted.received.packets,
        counted.dropped_total() + u64::try_from(pipeline.waiting()).unwrap()
    );
}

#[test]
fn costs_are_measured_where_a_clock_is_given() {
    // Goal: the model has what stages took, by the bytes. Method: a virtual clock that a stage moves by a line
    // over its bytes.
    let clock = Arc::new(VirtualClock::new());
    let moved = Arc::clone(&clock);
    let slow = StageFn::new(StageModel::new("slow"), move |packet, _| {
        moved.advance(Duration::from_nanos(100 + 2 * u64::try_from(packet.len()).unwrap()));
        Verdict::Pass
    });
    let every = NonZeroU32::new(2).unwrap();
    let build = |clock: Arc<dyn Clock>, slow| {
        Pipeline::builder().stage(slow).stage(Mirror::to(Port(2))).measure(clock, every)
    };
    let mut pipeline = build(clock, slow).default_port(Port(1)).build().unwrap();
    let cost = |pipeline: &Pipeline, bytes| pipeline.model()[0].host_cost().at(bytes);
    assert_eq!(cost(&pipeline, 1000), Duration::ZERO, "nothing is known yet");
    for number in 0..200 {
        let length = if number % 4 < 2 { 64 } else { 1024 };
        let mut packet = Packet::new(Port(0), &vec![0; length]);
        pipeline.decide(&mut packet, NOW, &mut |_, _| {}).unwrap();
    }
    assert_eq!(cost(&pipeline, 64), Duration::from_nanos(228));
    assert_eq!(cost(&pipeline, 1024), Duration::from_nanos(2148));
    assert_eq!(cost(&pipeline, 2048), Duration::from_nanos(4196));
    assert_eq!(pipeline.model()[1].host_cost().at(64), Duration::ZERO);
}

#[test]
fn descriptions_tell_what_cannot_leave_the_host() {
    // Goal: a closure is bound to the host with a reason, stock stages describe themselves. Method: one of each.
    let pipeline = Pipeline::builder().stage(Rewrite::new()).stage(spread(1)).build().unwrap();
    let offloads = pipeline.offloads();
    assert!(matches!(offloads[0], Offload::Builtin(BuiltinStage::Rewrite(_))));
    assert!(matches!(&offloads[1], Offload::HostOnly(reason) if reason.contains("user code")));
    assert!(pipeline.model()[1].nic_cost().is_err());
}

/// The parameters of a run.
fn rehearsals()
-> impl Strategy<Value = (u64, PipelineSimulation, OnFull, SwitchingMode, usize, u32)> {
    let numbers = (any::<u64>(), 0..300_u32, 0..300_u32, 0..3_000_u64, 1..20_usize, 1..6_u32);
    (numbers, any::<bool>(), any::<bool>()).prop_map(
        |((seed, loss, stalls, service_time, buffer, parts), drops, cuts)| {
            let simulation = PipelineSimulation::new(seed, 400, &[Port(0), Port(1), Port(2)])
                .loss_per_mille(loss)
                .service_time(Duration::from_nanos(service_time))
                .stalls(stalls, Duration::from_micros(30));
            let on_full = if drops { OnFull::Drop } else { OnFull::Wait };
            let mode =
                if cuts { SwitchingMode::CutThrough } else { SwitchingMode::StoreAndForward };
            (seed, simulation, on_full, mode, buffer, parts)
        },
    )
}

proptest! {
    /// Goal: despite loss and stalls every accepted packet left, was dropped and counted, or waits for the rest of its
    /// message; memory is bounded; nothing leaves twice or out of order at a port; and the same seed gives the same
    /// run. Method: random runs, each twice.
    #[test]
    fn nothing_disappears((seed, simulation, on_full, mode, buffer, parts) in rehearsals()) {
        let run = || {
            let stage = StageFn::new(StageModel::new("spread").sees(Sees::Header), |packet, _| {
                match number(packet) {
                    number if number % 7 == 3 => Verdict::Drop(DropReason::User),
                    number => Verdict::SetEgress(Port(u16::try_from(number % 3).unwrap())),
                }
            });
            let mut pipeline = Pipeline::builder()
                .stage(stage)
                .stage(Mirror::to(Port(2)).from(Port(5)))
                .mode(mode)
                .on_full(on_full)
                .input_packets(buffer)
                .output_packets(buffer)
                .messages(8)
                .build()
                .unwrap();
            let report = simulation.run(&mut pipeline, |count, rng: &mut Rng| {
                let parts = u64::from(parts);
                let part = Part::new(
                    count / parts,
                    u32::try_from(count % parts).unwrap(),
                    count % parts == parts - 1,
                );
                let packet = numbered(rng.u64(0..1000));
                if parts == 1 { packet } else { packet.part_of(part) }
            });
            (report, pipeline.counters().snapshot())
        };
        let (report, counted) = run();
        let left: u64 = report.delivered.iter().sum();
        prop_assert_eq!(report.taken + report.lost, 400);
        prop_assert_eq!(report.taken, counted.received.packets);
        prop_assert_eq!(left, counted.sent.packets);
        let waiting = u64::try_from(report.left).unwrap();
        prop_assert_eq!(report.taken, left + counted.dropped_total() + waiting);
        prop_assert!(report.most_waiting <= 4 * buffer + 8 * 6 + 6, "{}", report.most_waiting);
        if on_full == OnFull::Wait {
            prop_assert_eq!(counted.of(DropReason::BufferFull), 0);
        }
        if parts == 1 {
            prop_assert_eq!(report.left, 0);
        }
        prop_assert_eq!(run(), (report, counted), "seed {}", seed);
    }
}
