//! Runs programs in user space: without privileges or the kernel, and confined to the memory that they are given.
//!
//! The crate `rbpf` does not fit: it has neither maps nor the contexts of XDP and tcx, its helpers are
//! plain functions over real addresses, without the state of a run, and its assembler knows neither labels nor maps.

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

/// The default limit of instructions per run: as many as the kernel's verifier examines.
pub const INSTRUCTIONS_MAX: u64 = 1_000_000;

/// The facts that a program can query, besides its packet and its maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RunContext {
    /// The interface's index.
    pub interface: u32,
    /// The queue on which the packet arrived.
    pub queue: u32,
    /// The number of the processor.
    pub processor: u32,
    /// Time in nanoseconds, from an arbitrary origin.
    pub time_ns: u64,
    /// The packet begins with IP (at tcx): the interface has no Ethernet headers.
    pub is_headerless: bool,
}

impl RunContext {
    /// Returns a context for a packet that arrived at this interface.
    #[must_use]
    pub fn on(interface: u32) -> Self {
        Self { interface, ..Self::default() }
    }

    /// Has the packet begin with IP, as at tcx of an interface without Ethernet headers. Its protocol is IPv6 by its version, else IPv4.
    #[must_use]
    pub const fn headerless(self) -> Self {
        Self { is_headerless: true, ..self }
    }

    /// Sets the time.
    #[must_use]
    pub const fn at(self, time_ns: u64) -> Self {
        Self { time_ns, ..self }
    }
}

/// The destination to which a program sent its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "what the helpers can say")]
pub enum Redirect {
    /// To an interface.
    Interface(u32),
    /// To the entry of a map, whose value is given: an interface.
    Entry {
        /// The map's index in the program.
        map: u32,
        /// The value that was stored.
        value: u32,
    },
    /// Copies to all entries of a map, except the ingress interface if so requested.
    Broadcast {
        /// The map's index in the program.
        map: u32,
        /// The ingress interface is excluded.
        exclude_ingress: bool,
    },
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The program's return value, as the kernel reads it.
    pub action: u32,
    /// The destination of the packet if the action is a redirection.
    pub redirect: Option<Redirect>,
    /// The interfaces to which copies were sent (at tcx).
    pub clones: Vec<u32>,
    /// The amount that the kernel has added (at tcx) to a sum over the packet from its network header on: as a word of the network, whose
    /// two zeros are the same.
    pub sum_change: u16,
    /// The host that the packet is for in the end (at tcx): 0 is this one, as in the beginning, 3 another one.
    pub packet_type: u32,
    /// The number of instructions executed.
    pub instructions: u64,
}

/// The fault that aborted a run: the kernel would have refused the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// An access outside the program's memory.
    #[error("word {at}: {} of {bytes} bytes at {address:#x}, outside the memory of the program", if *is_write { "writing" } else { "reading" })]
    Memory {
        /// The index of its word.
        at: usize,
        /// The address.
        address: u64,
        /// The number of bytes.
        bytes: u32,
        /// It was a write.
        is_write: bool,
    },
    /// An attempt to write R10.
    #[error("word {at}: r10 cannot be written")]
    FramePointer {
        /// The index of its word.
        at: usize,
    },
    /// The program exceeded the instruction limit.
    #[error("no end after {limit} instructions")]
    Limit {
        /// The limit.
        limit: u64,
    },
    /// A helper was called with invalid arguments, or in a program whose kind does not have it.
    #[error("word {at}: invalid arguments for this helper, or a kind of program that lacks it")]
    Helper {
        /// The index of its word.
        at: usize,
    },
}

/// A program, ready to run.
///
/// # Cost
/// About 2 to 5 ns per instruction; the kernel's compiled programs take a tenth of it.
///
/// # Examples
/// ```
/// use vigie_forward::bpf::{
///     Assembler, Interpreter, PacketBuffer, ProgramKind, Register::R0, RunContext, XDP_DROP,
/// };
///
/// let mut a = Assembler::new("all_drop", ProgramKind::Xdp);
/// a.set(R0, XDP_DROP).exit();
/// let interpreter = Interpreter::new(&a.finish()?);
/// let mut packet = PacketBuffer::new(&[0; 60]);
/// let outcome = interpreter.run(&RunContext::on(1), &mut packet, &mut [])?;
/// assert_eq!(outcome.action, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Interpreter {
    kind: ProgramKind,
    /// Indexed by word; the further words of a long instruction are exits that no jump reaches.
    words: Vec<Insn>,
    limit: u64,
}

/// The state of one run.
struct Run<'a> {
    registers: [u64; 11],
    memory: Memory<'a>,
    run_context: &'a RunContext,
    redirect: Option<Redirect>,
    clones: Vec<u32>,
    /// The change of the sum over the packet, in native order.
    sum_change: u64,
}

/// The continuation after an instruction.
enum Next {
    Behind,
    Over(i16),
    End,
}

impl Interpreter {
    /// Prepares a program.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let mut words = Vec::with_capacity(program.insns().len());
        for insn in program.insns() {
            words.push(*insn);
            words.extend((1..insn.words()).map(|_| Insn::Exit));
        }
        Self { kind: program.kind(), words, limit: INSTRUCTIONS_MAX }
    }

    /// Limits the instructions of a run; [`INSTRUCTIONS_MAX`] by default.
    #[must_use]
    pub const fn limit(mut self, instructions: u64) -> Self {
        self.limit = instructions;
        self
    }

    /// Runs the program on a packet. `maps` are the program's maps, in its order.
    ///
    /// # Errors
    /// [`Fault`] if the program does something that the kernel's verifier would not allow. The packet keeps all changes
    /// made up to the fault.
    pub fn run(
        &self,
        run_context: &RunContext,
        packet: &mut PacketBuffer,
        maps: &mut [UserMap],
    ) -> Result<Outcome, Fault> {
        let mut registers = [0; 11];
        registers[1] = Memory::context();
        registers[10] = Memory::stack_end();
        let memory = Memory::new(self.kind, run_context, packet, maps);
        let (redirect, clones) = (None, Vec::new());
        let mut run = Run { registers, memory, run_context, redirect, clones, sum_change: 0 };
        let mut at = 0_usize;
        for count in 0..self.limit {
            // Every jump leads to an instruction, and the last one is a jump or an exit: `Program::new` checks it.
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
                        sum_change: u16::from_be(folded(run.sum_change)),
                        packet_type: run.memory.packet_type(),
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

/// Adds the carries until none is left.
fn folded(mut sum: u64) -> u16 {
    loop {
        match u16::try_from(sum) {
            Ok(folded) => return folded,
            Err(_) => sum = (sum & 0xffff) + (sum >> 16),
        }
    }
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
            Insn::ChecksumState => {
                let state = extended(self.memory.packet.checksum.number());
                self.set(at, Register::R0, state)?;
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

/// Arithmetic on words of one width; shifts take as many bits of `b` as the width has places.
macro_rules! compute {
    ($name:ident, $word:ty, $places:literal) => {
        fn $name(operation: Operation, a: $word, b: $word) -> $word {
            let by = b & ($places - 1);
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
    };
}

compute!(compute64, u64, 64);
compute!(compute32, u32, 32);

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
