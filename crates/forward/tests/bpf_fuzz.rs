//! Fuzz target of the interpreter: no program and no packet makes it panic, run for ever, or access memory that it was
//! not given.
//!
//! It makes random instructions, from one seed, for as long as `VIGIE_FUZZ_SECONDS` says (by default for about a
//! second). A failure prints the seed, which `VIGIE_FUZZ_SEED` takes.
//!
//! Ten minutes: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-forward --test bpf_fuzz`.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use fastrand::Rng;
use vigie_forward::bpf::{
    Atomic, Condition, Fault, Helper, Insn, Interpreter, MapKind, MapSpec, Operand, Operation,
    PacketBuffer, Program, ProgramKind, Register, RunContext, Size, UserMap, Width,
};

use crate::kit::seeds::fuzz_seeds;

const LIMIT: u64 = 2_000;

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

fn width(rng: &mut Rng) -> Width {
    if rng.bool() { Width::W64 } else { Width::W32 }
}

fn operand(rng: &mut Rng) -> Operand {
    if rng.bool() {
        Operand::Register(one_of(rng, &Register::ALL))
    } else {
        // Mostly small numbers, which look like an index, a length or an offset.
        let small = rng.i32(-520..520);
        Operand::Constant(if rng.u8(..4) == 0 { rng.i32(..) } else { small })
    }
}

fn offset(rng: &mut Rng) -> i16 {
    if rng.u8(..8) == 0 { rng.i16(..) } else { rng.i16(-24..24) }
}

fn insn(rng: &mut Rng, helpers: &[Helper]) -> Insn {
    let register = |rng: &mut Rng| one_of(rng, &Register::ALL);
    // Mostly valid pointers: to the stack, the packet, the context.
    let base = |rng: &mut Rng| {
        use Register::{R2, R6, R7, R10};
        if rng.u8(..8) == 0 { register(rng) } else { one_of(rng, &[R2, R6, R7, R10, R10]) }
    };
    let size = |rng: &mut Rng| one_of(rng, &Size::ALL);
    match rng.u8(..16) {
        0..4 => Insn::Arithmetic {
            width: width(rng),
            operation: one_of(rng, &Operation::ALL),
            to: register(rng),
            by: operand(rng),
        },
        4 => Insn::NetworkOrder { size: size(rng), to: register(rng) },
        5..8 => {
            Insn::Load { size: size(rng), to: register(rng), from: base(rng), offset: offset(rng) }
        }
        8..10 => {
            Insn::Store { size: size(rng), to: base(rng), offset: offset(rng), value: operand(rng) }
        }
        10 => Insn::Atomic {
            size: size(rng),
            operation: one_of(
                rng,
                &[Atomic::Add, Atomic::FetchAdd, Atomic::Exchange, Atomic::CompareExchange],
            ),
            to: base(rng),
            offset: offset(rng),
            from: register(rng),
        },
        11 => Insn::Constant { to: register(rng), value: rng.u64(..) },
        12 => Insn::Map { to: Register::R1, map: rng.u32(..6) },
        13 => Insn::Branch {
            width: width(rng),
            condition: one_of(rng, &Condition::ALL),
            of: register(rng),
            with: operand(rng),
            offset: rng.i16(-6..12),
        },
        14 => Insn::Call(one_of(rng, helpers)),
        _ => Insn::Jump { offset: rng.i16(-4..8) },
    }
}

/// Typical first instructions, so that registers hold usable values.
fn opening(rng: &mut Rng, insns: &mut Vec<Insn>) {
    use Register::{R1, R2, R3, R6, R7, R10};
    let copy = |to, from: Register| Insn::Arithmetic {
        width: Width::W64,
        operation: Operation::Move,
        to,
        by: from.into(),
    };
    let load = |to, offset| Insn::Load { size: Size::Word, to, from: R1, offset };
    let data = if rng.bool() { 0 } else { 76 };
    insns.extend([copy(R6, R1), load(R7, data), load(R3, 4), copy(R2, R10)]);
    let by = Operand::Constant(-8);
    insns.push(Insn::Arithmetic { width: Width::W64, operation: Operation::Add, to: R2, by });
}

fn maps() -> Vec<MapSpec> {
    vec![
        MapSpec::array(16, 4),
        MapSpec::per_cpu_array(8, 4),
        MapSpec::hash(8, 8, 4),
        MapSpec::new(MapKind::LruHash, 4, 12, 4),
        MapSpec::new(MapKind::LpmTrie, 8, 4, 4),
        MapSpec::devices(4),
    ]
}

/// Goal: see above. Method: random programs on random packets; accesses outside their memory and invalid calls are
/// faults, and a run that ends has not exceeded its instructions.
#[test]
fn no_program_escapes() {
    let helpers: Vec<Helper> = Helper::all().collect();
    let kinds = [ProgramKind::Xdp, ProgramKind::Tcx];
    let [mut tried, mut ended, mut reached, mut endless] = [0_u64; 4];
    fuzz_seeds(34_000, |seed| {
        let mut rng = Rng::with_seed(seed);
        let mut insns = Vec::new();
        opening(&mut rng, &mut insns);
        for _ in 0..rng.usize(1..40) {
            insns.push(insn(&mut rng, &helpers));
        }
        insns.push(Insn::Exit);
        // Jumps to nowhere are refused before anything runs.
        let Ok(program) = Program::new("fuzz", one_of(&mut rng, &kinds), insns, maps()) else {
            return;
        };
        let mut maps: Vec<UserMap> =
            maps().into_iter().map(|spec| UserMap::new(spec).expect("a map")).collect();
        let mut frame = vec![0; rng.usize(..200)];
        rng.fill(&mut frame);
        let interpreter = Interpreter::new(&program).limit(LIMIT);
        let mut packet = PacketBuffer::new(&frame);
        match interpreter.run(&RunContext::on(7), &mut packet, &mut maps) {
            Ok(outcome) => {
                ended += 1;
                assert!(outcome.instructions <= LIMIT);
            }
            Err(Fault::Memory { .. }) => reached += 1,
            Err(Fault::Limit { limit: LIMIT }) => endless += 1,
            Err(_) => {}
        }
        assert!(packet.frame().len() <= frame.len() + 256);
        tried += 1;
    });
    println!("{tried} programs: {ended} ended, {reached} reached beyond, {endless} did not end");
    assert!(ended > 0 && reached > 0 && endless > 0, "chance is worn out");
}
