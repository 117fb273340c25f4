//! Programs and maps in the kernel, in network namespaces of their own. These tests need root, and are skipped without.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod namespace;

use std::{env, io::Read, net::UdpSocket, time::Duration};

use vigie_forward::bpf::{
    Assembler, Atomic, AttachError, AttachMode, Attachment, BpfMap, ChecksumState, Condition,
    Fault, Generator, Helper, Interpreter, KernelMap, LoadError, LoadedProgram, MapError, MapKind,
    MapSpec, Operation, PacketBuffer, Program, ProgramKind, Register::*, RunContext, Size,
    TCX_DROP, UpdateMode, UserMap, XDP_DROP, XDP_PASS, constant_program,
};

use crate::{
    kit::{
        child::{command_in, role, run as run_child},
        skip::skip,
        speaker::Speaker,
    },
    namespace::{Namespace, index, inside, run},
};

fn zero() -> [u8; 4] {
    0_u32.to_ne_bytes()
}

/// Goal: an added header moves the packet, so that addresses from before are refused; and it is refused where a kernel may have no room. Method:
/// a program that adds one, and then reads by an address from before or after; packets around the limit.
#[test]
fn an_added_header_moves_the_packet() {
    let adding = |reads_anew: bool| {
        let mut a = Assembler::new("adding", ProgramKind::Tcx);
        let refused = a.label();
        a.set(R6, R1).load(Size::Word, R7, R6, 76);
        a.set(R2, 14).set(R3, 0).call(Helper::ChangeHead);
        a.branch(Condition::NotEqual, R0, 0, refused);
        if reads_anew {
            a.load(Size::Word, R7, R6, 76);
        }
        a.load(Size::Byte, R0, R7, 14).exit().bind(refused).set(R0, TCX_DROP).exit();
        Interpreter::new(&a.finish().expect("a program"))
    };
    let run = |bytes: usize, reads_anew| {
        let mut packet = PacketBuffer::new(&vec![0x45; bytes]);
        adding(reads_anew).run(&RunContext::on(1).headerless(), &mut packet, &mut [])
    };
    assert_eq!(run(15_602, true).expect("no fault").action, 0x45);
    assert_eq!(run(15_603, true).expect("no fault").action.cast_signed(), TCX_DROP);
    assert!(matches!(run(100, false), Err(Fault::Memory { is_write: false, .. })));
}

/// Goal: the kernel's packet is read where the kernel says that it keeps the state of a checksum. Method: a program at tcx returns it; a packet of a test
/// run has none, and where the kernel does not describe its types, the program is told that the kernel mends checksums.
#[test]
fn the_state_of_a_checksum_is_read() {
    let mut a = Assembler::new("state", ProgramKind::Tcx);
    a.checksum_state().exit();
    let program = a.finish().expect("a program");
    for state in [
        ChecksumState::None,
        ChecksumState::Unnecessary,
        ChecksumState::Complete,
        ChecksumState::Partial,
    ] {
        let mut packet = PacketBuffer::new(&[0; 60]).checksum(state);
        let outcome = Interpreter::new(&program).run(&RunContext::on(1), &mut packet, &mut []);
        assert_eq!(outcome.expect("no fault").action.cast_signed(), state.number());
    }
    inside("the_state_of_a_checksum_is_read", move || {
        let is_described = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
        let expected = if is_described { ChecksumState::None } else { ChecksumState::Complete };
        let loaded = LoadedProgram::load(&program).expect("loaded");
        let run = loaded.test_run(&[0; 60], 0, 1).expect("a run");
        assert_eq!(run.action.cast_signed(), expected.number());
    });
}

/// A program that counts in a per-CPU array, and then returns `action`.
fn counting(kind: ProgramKind, action: i32) -> Program {
    let mut a = Assembler::new("counting", kind);
    let counts = a.map(MapSpec::per_cpu_array(8, 1));
    let end = a.label();
    a.store(Size::Word, R10, -4, 0).set(R2, R10).add(R2, -4).load_map(R1, counts);
    a.call(Helper::MapLookup).branch(Condition::Equal, R0, 0, end);
    a.load(Size::Double, R1, R0, 0).add(R1, 1).store(Size::Double, R0, 0, R1);
    a.bind(end).set(R0, action).exit();
    a.finish().expect("a program")
}

/// The sum over all processors.
fn count(map: &KernelMap) -> u64 {
    let values = map.value(&zero()).expect("values");
    values.chunks_exact(8).map(|value| u64::from_ne_bytes(value.try_into().expect("8"))).sum()
}

/// Goal: every kind of map works in the kernel as in this process, errors included. Method: the same calls on both.
#[test]
fn maps_of_both_sides_agree() {
    inside("maps_of_both_sides_agree", || {
        let word = |number: u32| number.to_ne_bytes().to_vec();
        let prefix = |length: u32, bytes: [u8; 4]| [length.to_ne_bytes(), bytes].concat();
        let cases: [(MapSpec, Vec<Vec<u8>>); 4] = [
            (MapSpec::array(4, 3), (0..5).map(word).collect()),
            (MapSpec::hash(4, 4, 3), [9, 8, 7, 6, 9].map(word).to_vec()),
            (MapSpec::new(MapKind::LruHash, 4, 4, 64), [9, 8, 9].map(word).to_vec()),
            (
                MapSpec::new(MapKind::LpmTrie, 8, 4, 3),
                vec![
                    prefix(8, [10, 9, 9, 9]),
                    prefix(32, [10, 0, 0, 1]),
                    prefix(0, [0; 4]),
                    prefix(33, [0; 4]),
                    prefix(12, [10; 4]),
                    prefix(8, [10, 0, 0, 0]),
                ],
            ),
        ];
        for (spec, keys) in cases {
            let mut kernel = KernelMap::new(spec, "test").expect("a map");
            let mut user = UserMap::new(spec).expect("a map");
            let mut number = 0;
            for put in
                [UpdateMode::Existing, UpdateMode::New, UpdateMode::Any, UpdateMode::Existing]
            {
                for key in &keys {
                    number += 1;
                    let both: [String; 2] = [&mut kernel as &mut dyn BpfMap, &mut user]
                        .map(|map| format!("{:?}", map.put(key, &word(number), put)));
                    assert_eq!(both[0], both[1], "{spec:?} {put:?} {key:?}");
                    let both = [&kernel as &dyn BpfMap, &user]
                        .map(|map| format!("{:?} {:?}", map.value(key), sorted(map)));
                    assert_eq!(both[0], both[1], "{spec:?} {put:?} {key:?}");
                }
            }
            for key in &keys {
                let both = [&mut kernel as &mut dyn BpfMap, &mut user]
                    .map(|map| format!("{:?} {:?}", map.remove(key), sorted(map)));
                assert_eq!(both[0], both[1], "{spec:?} remove {key:?}");
            }
            assert!(matches!(kernel.value(&[1]), Err(MapError::Length { .. })));
        }
        let devices = KernelMap::new(MapSpec::devices(2), "test").expect("a map");
        let put = |key: u32, value: u32| devices.write(&word(key), &word(value), UpdateMode::Any);
        assert!(matches!(put(0, 4_000), Err(MapError::NoTarget)));
        assert!(matches!(put(2, 1), Err(MapError::Full { entries_max: 2 })));
        put(0, 1).expect("the loopback interface");
    });
}

fn sorted(map: &dyn BpfMap) -> Vec<Vec<u8>> {
    let mut keys = map.keys().expect("keys");
    keys.sort();
    keys
}

/// Goal: what the verifier refuses is an error that quotes it. Method: a packet is read without checking where it ends.
#[test]
fn the_verifier_is_quoted() {
    inside("the_verifier_is_quoted", || {
        let mut a = Assembler::new("careless", ProgramKind::Xdp);
        a.load(Size::Word, R2, R1, 0).load(Size::Byte, R0, R2, 0).exit();
        let program = a.finish().expect("a program");
        let error = LoadedProgram::load(&program).expect_err("unsafe");
        let LoadError::Refused { log, .. } = &error else { panic!("{error}") };
        assert!(log.contains("invalid access to packet"), "{log}");
        assert!(error.to_string().contains("careless"), "{error}");
        // The interpreter accepts it, and aborts it at the invalid access.
        let mut packet = PacketBuffer::new(&[]);
        let fault = Interpreter::new(&program).run(&RunContext::on(1), &mut packet, &mut []);
        assert!(matches!(fault, Err(Fault::Memory { at: 1, bytes: 1, .. })), "{fault:?}");
    });
}

const OPERATIONS: [Operation; 13] = Operation::ALL;

/// A random program: arithmetic, byte order, forward jumps, stack, atomics. It returns a mix of all registers.
fn of_chance(rng: &mut fastrand::Rng) -> Program {
    let mut a = Assembler::new("chance", ProgramKind::Xdp);
    let registers = [R0, R2, R3, R4, R5, R6, R7, R8];
    for register in registers {
        a.constant(register, rng.u64(..));
    }
    for slot in [-8, -16] {
        a.store(Size::Double, R10, slot, R2);
    }
    let any = |rng: &mut fastrand::Rng| registers[rng.usize(..registers.len())];
    for _ in 0..rng.usize(1..60) {
        let skip = a.label();
        if rng.bool() {
            let condition = Condition::ALL[rng.usize(..11)];
            let of = any(rng);
            match rng.u8(..3) {
                0 => a.branch(condition, of, any(rng), skip),
                1 => a.branch32(condition, of, any(rng), skip),
                _ => a.branch(condition, of, rng.i32(..), skip),
            };
        }
        let (to, from) = (any(rng), any(rng));
        let operation = OPERATIONS[rng.usize(..13)];
        // The verifier refuses constant shifts that are too large, and divisions by a constant 0.
        let small = rng.i32(1..32);
        match rng.u8(..9) {
            0 | 1 => a.compute(operation, to, from),
            2 | 3 => a.compute32(operation, to, from),
            4 => a.compute(operation, to, small),
            5 => a.compute32(operation, to, small),
            6 => a.network_order(Size::ALL[rng.usize(1..4)], to),
            7 => {
                let size = [Size::Word, Size::Double][rng.usize(..2)];
                let atomic =
                    [Atomic::Add, Atomic::FetchAdd, Atomic::Exchange, Atomic::CompareExchange];
                a.atomic(size, atomic[rng.usize(..4)], R10, -8, from)
            }
            _ => {
                let size = Size::ALL[rng.usize(..4)];
                a.store(size, R10, -16, from).load(size, to, R10, -16)
            }
        };
        a.bind(skip);
    }
    a.load(Size::Double, R1, R10, -8);
    for register in &registers[1..] {
        a.compute(Operation::Multiply, R0, 31).add(R0, *register);
    }
    a.add(R0, R1).set(R1, R0).compute(Operation::ShiftRight, R1, 32).add(R0, R1).exit();
    a.finish().expect("a program")
}

/// Goal: the interpreter calculates as the kernel does. Method: random programs, run by both.
#[test]
fn the_interpreter_calculates_as_the_kernel() {
    inside("the_interpreter_calculates_as_the_kernel", || {
        let seed = env::var("SEED").map_or(1, |seed| seed.parse().expect("a number"));
        let mut rng = fastrand::Rng::with_seed(seed);
        for number in 0..400 {
            let program = of_chance(&mut rng);
            let frame = [0; 64];
            let mut packet = PacketBuffer::new(&frame);
            let outcome = Interpreter::new(&program)
                .run(&RunContext::on(1), &mut packet, &mut [])
                .expect("no fault");
            let loaded = LoadedProgram::load(&program).expect("loaded");
            let tested = loaded.test_run(&frame, 0, 1).expect("run");
            assert_eq!(outcome.action, tested.action, "seed {seed}, number {number}: {program:?}");
        }
    });
}

/// Goal: programs run at each place of an interface, exclude others where they should, and are detached with their
/// attachment; invalid uses are typed errors. Method: a veth pair, datagrams.
#[test]
fn programs_are_attached_and_go() {
    inside("programs_are_attached_and_go", || {
        let other = Namespace::new();
        run(&format!(
            "ip link add v0 address 02:00:00:00:00:01 type veth peer name v1 netns {}; \
             ip addr add 10.7.0.1/24 dev v0; ip link set v0 up",
            other.id()
        ));
        other.run(
            "ip addr add 10.7.0.2/24 dev v1; ip link set v1 up; \
             ip neigh add 10.7.0.1 lladdr 02:00:00:00:00:01 dev v1",
        );
        let socket = UdpSocket::bind("10.7.0.1:0").expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        let address = socket.local_addr().expect("an address");
        let arrives = || {
            other.enter(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"here", address)).expect("sent");
            socket.recv(&mut [0; 8]).is_ok()
        };
        assert!(arrives());
        for place in AttachMode::ALL {
            let action = if place == AttachMode::Tcx { TCX_DROP } else { XDP_DROP };
            let program = LoadedProgram::load(&counting(place.kind(), action)).expect("loaded");
            let attachment = Attachment::new(&program, index("v0"), place).expect("attached");
            assert!(!arrives(), "{place}");
            assert!(count(&program.maps()[0]) > 0, "{place}");
            if place != AttachMode::Tcx {
                let second = Attachment::new(&program, index("v0"), place);
                assert!(matches!(second, Err(AttachError::Taken { .. })), "{second:?}");
            }
            assert!(attachment.is_attached());
            drop(attachment);
            assert!(arrives(), "{place}");
        }
        let program = LoadedProgram::load(&constant_program(ProgramKind::Xdp, XDP_PASS));
        let program = program.expect("loaded");
        let nowhere = Attachment::new(&program, 4_000, AttachMode::Generic);
        assert!(matches!(nowhere, Err(AttachError::NoInterface { interface: 4_000 })));
        let wrong = Attachment::new(&program, index("v0"), AttachMode::Tcx);
        assert!(matches!(wrong, Err(AttachError::NoAttachMode { .. })), "{wrong:?}");
        // An interface that is removed loses its programs; the attachment reports that.
        let attachment =
            Attachment::new(&program, index("v0"), AttachMode::Native).expect("attached");
        run("ip link del v0");
        assert!(!attachment.is_attached());
    });
}

/// Goal: nothing stays after `kill -9`. Method: a child attaches programs at two places and is killed.
#[test]
fn nothing_stays_after_a_kill() {
    const TEST: &str = "nothing_stays_after_a_kill";
    inside(TEST, || {
        if role(TEST).is_some() {
            let mut kept = Vec::new();
            for (place, action) in [(AttachMode::Native, XDP_DROP), (AttachMode::Tcx, TCX_DROP)] {
                let program = constant_program(place.kind(), action);
                let program = LoadedProgram::load(&program).expect("loaded");
                kept.push(Attachment::new(&program, index("v0"), place).expect("attached"));
            }
            println!("\nattached");
            let _ = std::io::stdin().read(&mut [0]);
            return;
        }
        run("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up");
        let shown = || run("ip link show dev v0").contains("xdp");
        assert!(!shown());
        let mut child = Speaker::start(command_in("attaches", &[], TEST));
        child.line("attached");
        assert!(shown());
        child.kill();
        // The kernel frees links in the background after the process has ended: soon, but not at once.
        let gone = (0..100).any(|_| !run("sleep 0.05; ip link show dev v0").contains("xdp"));
        assert!(gone, "still attached");
    });
}

/// Goal: without the rights, errors name the missing one, and nothing else happens. Method: the same call without each
/// capability, and in a user namespace, whose capabilities have no effect here.
#[test]
fn missing_rights_are_named() {
    const TEST: &str = "missing_rights_are_named";
    if let Some(name) = role(TEST) {
        let error = LoadedProgram::load(&counting(ProgramKind::Xdp, XDP_PASS));
        let said = error.expect_err("no right").to_string();
        assert!(said.contains(&name) && said.contains("setcap"), "{said}");
        return;
    }
    let again = |program: &[&str], name: &str| run_child(command_in(name, program, TEST), TEST);
    if run("unshare -Urn true && echo yes || echo no") == "yes\n" {
        again(&["unshare", "-Urn"], "CAP_BPF");
    } else {
        skip(TEST, "user namespaces");
    }
    if run("setpriv --bounding-set -bpf true && echo yes || echo no") == "yes\n" {
        let bounded = |set| ["setpriv", "--bounding-set", set, "--inh-caps", set];
        again(&bounded("-bpf,-sys_admin"), "CAP_BPF");
        // Who may load nothing has no other right to miss.
        if vigie_forward::bpf::Support::probe().xdp.is_ok() {
            again(&bounded("-net_admin,-sys_admin"), "CAP_NET_ADMIN");
        }
    }
}

/// Goal: live frames are all handled. Method: a program that counts and drops, fed by the generator.
#[test]
fn live_frames_are_all_counted() {
    inside("live_frames_are_all_counted", || {
        run("ip link set lo up");
        let program = LoadedProgram::load(&counting(ProgramKind::Xdp, XDP_DROP)).expect("loaded");
        let generator = Generator::new(&program, &[0; 60], index("lo"));
        generator.burst(100_000).expect("frames");
        assert_eq!(count(&program.maps()[0]), 100_000);
        let error = Generator::new(&program, &[0; 60], 4_000).burst(64).expect_err("no interface");
        assert!(error.to_string().contains("live frames"), "{error}");
        let tcx = LoadedProgram::load(&constant_program(ProgramKind::Tcx, 0)).expect("loaded");
        assert!(Generator::new(&tcx, &[0; 60], 1).burst(64).is_err());
    });
}
