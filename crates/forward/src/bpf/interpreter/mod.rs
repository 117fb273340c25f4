//! Runs programs in user space: no privilege, no kernel, and no way to reach anything but what it was given.

mod call;
mod memory;
mod packet;

use thiserror::Error;

use self::memory::Memory;
pub use self::packet::PacketBuffer;
use super::{
    insn::{Atomic, Condition, Insn, Operand, Operation, Register, Size, Width},
    program::{Program, ProgramKind},
    user_map::UserMap,
};

/// Instructions after which a run ends, if no other bound was given: as many as the kernel looks at.
pub const INSTRUCTIONS_MAX: u64 = 1_000_000;

/// What a program can ask for, beside its packet and its maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Surroundings {
    /// The interface's index.
    pub interface: u32,
    /// The queue on which the packet came.
    pub queue: u32,
    /// The number of the processor.
    pub processor: u32,
    /// Time in nanoseconds, since any moment.
    pub time_ns: u64,
    /// Of programs of sockets: the peer's port and the own one.
    pub ports: (u16, u16),
}

impl Surroundings {
    /// Returns surroundings in which a packet came from this interface.
    #[must_use]
    pub fn on(interface: u32) -> Self {
        Self { interface, ..Self::default() }
    }

    /// Sets the time.
    #[must_use]
    pub const fn at(self, time_ns: u64) -> Self {
        Self { time_ns, ..self }
    }
}

/// Where a program sent its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "what the helpers can say")]
pub enum Redirect {
    /// To an interface.
    Interface(u32),
    /// To the entry of a map, of which the value is given: an interface or a socket.
    Entry {
        /// The map's index in the program.
        map: u32,
        /// The number that was put in.
        value: u32,
    },
    /// Copies to all entries of a map, except the interface on which it came if so asked for.
    Everywhere {
        /// The map's index in the program.
        map: u32,
        /// Not back.
        but_ingress: bool,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// What the program returned, as the kernel takes it.
    pub action: u32,
    /// Where the packet goes if the action is a redirection.
    pub redirect: Option<Redirect>,
    /// To which interfaces copies went (at tcx).
    pub clones: Vec<u32>,
    /// How many instructions there were.
    pub instructions: u64,
}

/// Why a run was ended: the kernel would not have taken the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// An access beyond what is the program's.
    #[error("word {at}: {} of {bytes} bytes at {address:#x}, where the program has nothing", if *is_write { "writing" } else { "reading" })]
    Memory {
        /// Which word.
        at: usize,
        /// The address.
        address: u64,
        /// How many bytes.
        bytes: u32,
        /// It was a write.
        is_write: bool,
    },
    /// R10 was to be written.
    #[error("word {at}: r10 cannot be written")]
    FramePointer {
        /// Which word.
        at: usize,
    },
    /// The program did not come to its end in time.
    #[error("no end after {limit} instructions")]
    Limit {
        /// How many there may be.
        limit: u64,
    },
    /// A helper was called with what it does not take, or where there is none.
    #[error("word {at}: this helper does not take that, or not in this kind of program")]
    Helper {
        /// Which word.
        at: usize,
    },
}

/// A program that can be run.
///
/// # Cost
/// About 2 to 5 ns an instruction; the kernel's compiled programs take a tenth of it.
///
/// # Examples
/// ```
/// use vigie_forward::bpf::{
///     Assembler, Interpreter, PacketBuffer, ProgramKind, Register::R0, Surroundings, XDP_DROP,
/// };
///
/// let mut a = Assembler::new("all_drop", ProgramKind::Xdp);
/// a.set(R0, XDP_DROP).exit();
/// let interpreter = Interpreter::new(&a.finish()?);
/// let mut packet = PacketBuffer::new(&[0; 60]);
/// let outcome = interpreter.run(&Surroundings::on(1), &mut packet, &mut [])?;
/// assert_eq!(outcome.action, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Interpreter {
    kind: ProgramKind,
    /// By word; the second word of a long instruction is an exit that no jump reaches.
    words: Vec<Insn>,
    limit: u64,
}

/// The state of one run.
struct Run<'a> {
    registers: [u64; 11],
    memory: Memory<'a>,
    surroundings: &'a Surroundings,
    redirect: Option<Redirect>,
    clones: Vec<u32>,
}

/// What comes after an instruction.
enum Next {
    Behind,
    Over(i16),
    End,
}

impl Interpreter {
    /// Makes a program ready.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let mut words = Vec::with_capacity(program.insns().len());
        for insn in program.insns() {
            words.push(*insn);
            if insn.words() == 2 {
                words.push(Insn::Exit);
            }
        }
        Self { kind: program.kind(), words, limit: INSTRUCTIONS_MAX }
    }

    /// Bounds the instructions of a run; [`INSTRUCTIONS_MAX`] by default.
    #[must_use]
    pub const fn limit(mut self, instructions: u64) -> Self {
        self.limit = instructions;
        self
    }

    /// Runs the program over a packet. `maps` are those of the program, in its order.
    ///
    /// # Errors
    /// [`Fault`]: the program did what the kernel's verifier does not let it do. The packet is then as the program left
    /// it, with all changes up to the fault.
    pub fn run(
        &self,
        surroundings: &Surroundings,
        packet: &mut PacketBuffer,
        maps: &mut [UserMap],
    ) -> Result<Outcome, Fault> {
        let mut registers = [0; 11];
        registers[1] = Memory::context();
        registers[10] = Memory::stack_end();
        let memory = Memory::new(self.kind, surroundings, packet, maps);
        let mut run = Run { registers, memory, surroundings, redirect: None, clones: Vec::new() };
        let mut at = 0_usize;
        for count in 0..self.limit {
            // Every jump leads to an instruction, and the last one is a jump or the end: `Program::new`.
            let Some(insn) = self.words.get(at) else { break };
            match run.step(at, insn)? {
                Next::Behind => at += insn.words(),
                Next::Over(offset) => at = (at + 1).saturating_add_signed(isize::from(offset)),
                Next::End => {
                    let [a, b, c, d, ..] = run.registers[0].to_le_bytes();
                    return Ok(Outcome {
                        action: u32::from_le_bytes([a, b, c, d]),
                        redirect: run.redirect,
                        clones: run.clones,
                        instructions: count + 1,
                    });
                }
            }
        }
        Err(Fault::Limit { limit: self.limit })
    }
}

fn extended(constant: i32) -> u64 {
    i64::from(constant).cast_unsigned()
}

fn lower(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

impl Run<'_> {
    fn of(&self, register: Register) -> u64 {
        self.registers[usize::from(register.index())]
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.of(register),
            Operand::Constant(constant) => extended(constant),
        }
    }

    fn set(&mut self, at: usize, register: Register, value: u64) -> Result<(), Fault> {
        if register == Register::R10 {
            return Err(Fault::FramePointer { at });
        }
        self.registers[usize::from(register.index())] = value;
        Ok(())
    }

    #[inline]
    fn step(&mut self, at: usize, insn: &Insn) -> Result<Next, Fault> {
        match *insn {
            Insn::Arithmetic { width, operation, to, by } => {
                let (a, b) = (self.of(to), self.operand(by));
                let value = match width {
                    Width::W64 => compute64(operation, a, b),
                    Width::W32 => u64::from(compute32(operation, lower(a), lower(b))),
                };
                self.set(at, to, value)?;
            }
            Insn::NetworkOrder { size, to } => {
                let value = self.of(to);
                let [a, b, ..] = value.to_le_bytes();
                let value = match size {
                    Size::Byte => value & 0xff,
                    Size::Half => u64::from(u16::from_le_bytes([a, b]).to_be()),
                    Size::Word => u64::from(lower(value).to_be()),
                    Size::Double => value.to_be(),
                };
                self.set(at, to, value)?;
            }
            Insn::Load { size, to, from, offset } => {
                let address = self.of(from).wrapping_add_signed(i64::from(offset));
                let value = self.memory.load(at, address, size)?;
                self.set(at, to, value)?;
            }
            Insn::Store { size, to, offset, value } => {
                let address = self.of(to).wrapping_add_signed(i64::from(offset));
                self.memory.store(at, address, size, self.operand(value))?;
            }
            Insn::Atomic { size, operation, to, offset, from } => {
                let address = self.of(to).wrapping_add_signed(i64::from(offset));
                self.exchange(at, size, operation, address, from)?;
            }
            Insn::Constant { to, value } => self.set(at, to, value)?,
            Insn::Map { to, map } => self.set(at, to, Memory::map(map))?,
            Insn::Jump { offset } => return Ok(Next::Over(offset)),
            Insn::Branch { width, condition, of, with, offset } => {
                let (a, b) = (self.of(of), self.operand(with));
                let holds = match width {
                    Width::W64 => holds(condition, a, b, a.cast_signed().cmp(&b.cast_signed())),
                    Width::W32 => {
                        let (a, b) = (lower(a), lower(b));
                        let order = a.cast_signed().cmp(&b.cast_signed());
                        holds(condition, u64::from(a), u64::from(b), order)
                    }
                };
                if holds {
                    return Ok(Next::Over(offset));
                }
            }
            Insn::Call(helper) => {
                let result = self.call(at, helper)?;
                self.registers[0] = result;
            }
            Insn::Exit => return Ok(Next::End),
        }
        Ok(Next::Behind)
    }

    fn exchange(
        &mut self,
        at: usize,
        size: Size,
        operation: Atomic,
        address: u64,
        from: Register,
    ) -> Result<(), Fault> {
        let old = self.memory.load(at, address, size)?;
        let by = self.of(from);
        let expected = self.registers[0];
        let cut = |value: u64| if size == Size::Word { u64::from(lower(value)) } else { value };
        let new = match operation {
            Atomic::Add | Atomic::FetchAdd => old.wrapping_add(by),
            Atomic::Exchange => by,
            Atomic::CompareExchange if cut(expected) == old => by,
            Atomic::CompareExchange => old,
        };
        self.memory.store(at, address, size, new)?;
        match operation {
            Atomic::Add => Ok(()),
            Atomic::FetchAdd | Atomic::Exchange => self.set(at, from, old),
            Atomic::CompareExchange => self.set(at, Register::R0, old),
        }
    }
}

fn compute64(operation: Operation, a: u64, b: u64) -> u64 {
    let by = lower(b) & 63;
    match operation {
        Operation::Add => a.wrapping_add(b),
        Operation::Subtract => a.wrapping_sub(b),
        Operation::Multiply => a.wrapping_mul(b),
        Operation::Divide => a.checked_div(b).unwrap_or(0),
        Operation::Or => a | b,
        Operation::And => a & b,
        Operation::ShiftLeft => a << by,
        Operation::ShiftRight => a >> by,
        Operation::Negate => a.wrapping_neg(),
        Operation::Remainder => a.checked_rem(b).unwrap_or(a),
        Operation::Xor => a ^ b,
        Operation::Move => b,
        Operation::ShiftRightSigned => (a.cast_signed() >> by).cast_unsigned(),
    }
}

fn compute32(operation: Operation, a: u32, b: u32) -> u32 {
    let by = b & 31;
    match operation {
        Operation::Add => a.wrapping_add(b),
        Operation::Subtract => a.wrapping_sub(b),
        Operation::Multiply => a.wrapping_mul(b),
        Operation::Divide => a.checked_div(b).unwrap_or(0),
        Operation::Or => a | b,
        Operation::And => a & b,
        Operation::ShiftLeft => a << by,
        Operation::ShiftRight => a >> by,
        Operation::Negate => a.wrapping_neg(),
        Operation::Remainder => a.checked_rem(b).unwrap_or(a),
        Operation::Xor => a ^ b,
        Operation::Move => b,
        Operation::ShiftRightSigned => (a.cast_signed() >> by).cast_unsigned(),
    }
}

fn holds(condition: Condition, a: u64, b: u64, signed: std::cmp::Ordering) -> bool {
    match condition {
        Condition::Equal => a == b,
        Condition::Greater => a > b,
        Condition::AtLeast => a >= b,
        Condition::HasBits => a & b != 0,
        Condition::NotEqual => a != b,
        Condition::GreaterSigned => signed.is_gt(),
        Condition::AtLeastSigned => signed.is_ge(),
        Condition::Less => a < b,
        Condition::AtMost => a <= b,
        Condition::LessSigned => signed.is_lt(),
        Condition::AtMostSigned => signed.is_le(),
    }
}
