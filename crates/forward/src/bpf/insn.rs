//! Typed eBPF instructions, and their encoding as the kernel's words.

use std::fmt;

use super::{helper::Helper, kernel_types::ChecksumField, program::ProgramError};

numbered! {
    /// A register. R0 holds the result of a call or of the program, R1 to R5 are arguments and are clobbered by a call,
    /// R6 to R9 survive it, R10 points to the end of the stack and is read-only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[expect(clippy::exhaustive_enums, reason = "the machine has eleven")]
    #[expect(missing_docs, reason = "their numbers")]
    pub enum Register: u8 {
        R0 = 0,
        R1 = 1,
        R2 = 2,
        R3 = 3,
        R4 = 4,
        R5 = 5,
        R6 = 6,
        R7 = 7,
        R8 = 8,
        R9 = 9,
        R10 = 10,
    }
}

impl Register {
    /// Returns its number, from 0 to 10.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.number()
    }
}

numbered! {
    /// The size of a load or a store.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "the machine has four")]
    pub enum Size: u8 {
        /// One byte.
        Byte = 0x10,
        /// Two bytes.
        Half = 0x08,
        /// Four bytes.
        Word = 0x00,
        /// Eight bytes.
        Double = 0x18,
    }
}

impl Size {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
            Self::Double => 8,
        }
    }
}

/// The width of an operation: 64 bits, or 32, which clear the upper half of its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the machine has two")]
pub enum Width {
    /// The lower half.
    W32,
    /// The whole register.
    W64,
}

numbered! {
    /// An operation with two operands; the result replaces the first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "those of the machine")]
    pub enum Operation: u8 {
        /// Addition, wrapping.
        Add = 0,
        /// Subtraction, wrapping.
        Subtract = 1,
        /// Multiplication, wrapping.
        Multiply = 2,
        /// Unsigned division; by zero: 0.
        Divide = 3,
        /// Bitwise or.
        Or = 4,
        /// Bitwise and.
        And = 5,
        /// Left shift, by the lower 6 bits of the second operand (5 if on 32 bits).
        ShiftLeft = 6,
        /// Right shift, filling with zeros.
        ShiftRight = 7,
        /// The negative of the first operand; the second is ignored.
        Negate = 8,
        /// Unsigned remainder; by zero: the first operand unchanged.
        Remainder = 9,
        /// Bitwise exclusive or.
        Xor = 10,
        /// The second operand.
        Move = 11,
        /// Right shift, filling with the sign.
        ShiftRightSigned = 12,
    }
}

numbered! {
    /// The comparison of a conditional jump.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "those of the machine")]
    pub enum Condition: u8 {
        /// Equal.
        Equal = 0x10,
        /// Greater, unsigned.
        Greater = 0x20,
        /// Greater or equal, unsigned.
        AtLeast = 0x30,
        /// The operands have bits in common.
        HasBits = 0x40,
        /// Not equal.
        NotEqual = 0x50,
        /// Greater, signed.
        GreaterSigned = 0x60,
        /// Greater or equal, signed.
        AtLeastSigned = 0x70,
        /// Less, unsigned.
        Less = 0xa0,
        /// Less or equal, unsigned.
        AtMost = 0xb0,
        /// Less, signed.
        LessSigned = 0xc0,
        /// Less or equal, signed.
        AtMostSigned = 0xd0,
    }
}

numbered! {
    /// An atomic operation on memory, on 4 or 8 bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "those that we use")]
    pub enum Atomic: i32 {
        /// Adds the register.
        Add = 0x00,
        /// Adds the register, which then holds the previous value.
        FetchAdd = 0x01,
        /// Exchanges memory and register.
        Exchange = 0xe1,
        /// Stores the register if memory equals R0; R0 then holds the previous value.
        CompareExchange = 0xf1,
    }
}

/// What the kernel knows of the checksum of a packet's transport (`CHECKSUM_...` in `include/linux/skbuff.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the field has two bits")]
pub enum ChecksumState {
    /// Nothing.
    None,
    /// It is right.
    Unnecessary,
    /// The sum over the packet from its network header on, which a network card has computed.
    Complete,
    /// It is left to the network card: the field holds the sum of the pseudo-header.
    Partial,
}

impl ChecksumState {
    /// Returns the kernel's number.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Unnecessary => 1,
            Self::Complete => 2,
            Self::Partial => 3,
        }
    }
}

/// A register or a constant that is sign-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the machine has no more")]
pub enum Operand {
    /// The value of a register.
    Register(Register),
    /// A constant.
    Constant(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(constant: i32) -> Self {
        Self::Constant(constant)
    }
}

/// One instruction. Jump offsets count words of 8 bytes from the instruction after the jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
pub enum Insn {
    /// `to = to OPERATION by`.
    Arithmetic {
        /// The number of bits.
        width: Width,
        /// The operation.
        operation: Operation,
        /// First operand, and result.
        to: Register,
        /// Second operand.
        by: Operand,
    },
    /// Converts the lower 16, 32 or 64 bits of `to` from or to network order; clears the rest.
    NetworkOrder {
        /// The size of the part to convert; [`Size::Byte`] cannot be encoded.
        size: Size,
        /// The register.
        to: Register,
    },
    /// `to = *(from + offset)`.
    Load {
        /// The number of bytes.
        size: Size,
        /// The register.
        to: Register,
        /// The address.
        from: Register,
        /// Added to the address, in bytes.
        offset: i16,
    },
    /// `*(to + offset) = value`.
    Store {
        /// The number of bytes.
        size: Size,
        /// The address.
        to: Register,
        /// Added to the address, in bytes.
        offset: i16,
        /// The value to store.
        value: Operand,
    },
    /// An atomic operation on `*(to + offset)`.
    Atomic {
        /// [`Size::Word`] or [`Size::Double`].
        size: Size,
        /// The operation.
        operation: Atomic,
        /// The address.
        to: Register,
        /// Added to the address, in bytes.
        offset: i16,
        /// The operand.
        from: Register,
    },
    /// `to = value`, in two words.
    Constant {
        /// The register.
        to: Register,
        /// Its 64 bits.
        value: u64,
    },
    /// `to =` the map with this index in the program's list, in two words.
    Map {
        /// The register.
        to: Register,
        /// The index of the map.
        map: u32,
    },
    /// Jumps.
    Jump {
        /// The distance in words.
        offset: i16,
    },
    /// Jumps if the condition holds.
    Branch {
        /// The number of bits compared.
        width: Width,
        /// The condition.
        condition: Condition,
        /// First operand.
        of: Register,
        /// Second operand.
        with: Operand,
        /// The distance in words.
        offset: i16,
    },
    /// Calls a kernel function with R1 to R5; the result is in R0.
    Call(Helper),
    /// R0 = the number of the [`ChecksumState`] of the packet whose context is in R1, at tcx; R1 to R5 are clobbered. In four words. Where the
    /// kernel does not describe its types: [`Complete`](ChecksumState::Complete), with which a program leaves checksums to the kernel.
    ChecksumState,
    /// Ends the program and returns R0.
    Exit,
}

/// The parts of a word.
#[derive(Clone, Copy)]
struct Parts {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    constant: i32,
}

const MAP: u8 = 1;
/// In a call, that it is one of a function of the kernel by its number in BTF.
const KERNEL_FUNCTION: u8 = 2;

impl Parts {
    const fn word(self) -> u64 {
        let [a, b] = self.offset.to_ne_bytes();
        let [c, d, e, f] = self.constant.to_ne_bytes();
        let registers = if cfg!(target_endian = "little") {
            self.from << 4 | self.to
        } else {
            self.to << 4 | self.from
        };
        u64::from_ne_bytes([self.code, registers, a, b, c, d, e, f])
    }

    const fn of(word: u64) -> Self {
        let [code, registers, a, b, c, d, e, f] = word.to_ne_bytes();
        let (low, high) = (registers & 15, registers >> 4);
        let (to, from) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        let offset = i16::from_ne_bytes([a, b]);
        Self { code, to, from, offset, constant: i32::from_ne_bytes([c, d, e, f]) }
    }
}

/// The two halves of a 64-bit value.
const fn halves(value: u64) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h]))
}

impl Insn {
    /// Returns the number of words it takes: 1, 2 or 4.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            Self::ChecksumState => 4,
            Self::Constant { .. } | Self::Map { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the words of [`ChecksumState`](Self::ChecksumState).
    pub(super) fn checksum_words(field: Option<ChecksumField>) -> [u64; 4] {
        let r0 = Register::R0;
        let arithmetic = |operation, constant: i32| {
            let by = Operand::Constant(constant);
            Self::Arithmetic { width: Width::W64, operation, to: r0, by }.encode(|_| 0)[0]
        };
        let Some(ChecksumField { cast, offset, bit }) = field else {
            let unknown = ChecksumState::Complete.number();
            let stays = arithmetic(Operation::Or, 0);
            return [arithmetic(Operation::Move, unknown), stays, stays, stays];
        };
        let call = Parts { code: 0x85, to: 0, from: KERNEL_FUNCTION, offset: 0, constant: cast };
        let load = Self::Load { size: Size::Byte, to: r0, from: r0, offset };
        [
            call.word(),
            load.encode(|_| 0)[0],
            arithmetic(Operation::ShiftRight, bit),
            arithmetic(Operation::And, 3),
        ]
    }

    /// Returns its words; the second is valid only if [`words`](Self::words) is 2. `map` returns the descriptor of a
    /// map by its index. Not for [`ChecksumState`](Self::ChecksumState), whose words depend on the kernel.
    pub(super) fn encode(self, map: impl Fn(u32) -> i32) -> [u64; 2] {
        let one = |code, to: Register, from: u8, offset, constant| {
            [Parts { code, to: to.index(), from, offset, constant }.word(), 0]
        };
        let two = |to: Register, from, low, high| {
            let first = Parts { code: 0x18, to: to.index(), from, offset: 0, constant: low };
            let second = Parts { code: 0, to: 0, from: 0, offset: 0, constant: high };
            [first.word(), second.word()]
        };
        match self {
            Self::Arithmetic { width, operation, to, by } => {
                let class = if width == Width::W64 { 0x07 } else { 0x04 };
                let (mode, from, constant) = operand(by);
                let (mode, from, constant) =
                    if operation == Operation::Negate { (0, 0, 0) } else { (mode, from, constant) };
                one(class | operation.number() << 4 | mode, to, from, 0, constant)
            }
            Self::NetworkOrder { size, to } => {
                one(0xdc, to, 0, 0, i32::try_from(size.bytes() * 8).unwrap_or(0))
            }
            Self::Load { size, to, from, offset } => {
                one(0x61 | size.number(), to, from.index(), offset, 0)
            }
            Self::Store { size, to, offset, value } => match value {
                Operand::Register(from) => one(0x63 | size.number(), to, from.index(), offset, 0),
                Operand::Constant(constant) => one(0x62 | size.number(), to, 0, offset, constant),
            },
            Self::Atomic { size, operation, to, offset, from } => {
                one(0xc3 | size.number(), to, from.index(), offset, operation.number())
            }
            Self::Constant { to, value } => {
                let (low, high) = halves(value);
                two(to, 0, low, high)
            }
            Self::Map { to, map: index } => two(to, MAP, map(index), 0),
            Self::Jump { offset } => one(0x05, Register::R0, 0, offset, 0),
            Self::Branch { width, condition, of, with, offset } => {
                let class = if width == Width::W64 { 0x05 } else { 0x06 };
                let (mode, from, constant) = operand(with);
                one(class | condition.number() | mode, of, from, offset, constant)
            }
            Self::Call(helper) => one(0x85, Register::R0, 0, 0, helper.number()),
            Self::Exit => one(0x95, Register::R0, 0, 0, 0),
            Self::ChecksumState => [0; 2],
        }
    }

    /// Decodes words. A map is represented by its index in place of its descriptor.
    ///
    /// # Errors
    /// [`ProgramError`] if a word is not an instruction, or not one that this crate uses.
    pub fn decode(words: &[u64]) -> Result<Vec<Self>, ProgramError> {
        let mut insns = Vec::with_capacity(words.len());
        let mut rest = words.iter().copied().enumerate();
        while let Some((at, word)) = rest.next() {
            let parts = Parts::of(word);
            let insn = if parts.code == 0x18 {
                rest.next().and_then(|(_, second)| decode_two(parts, Parts::of(second)))
            } else {
                decode_one(parts)
            };
            insns.push(insn.ok_or(ProgramError::Unknown { at, word })?);
        }
        Ok(insns)
    }
}

/// The mode bit, the register and the constant of a second operand.
const fn operand(operand: Operand) -> (u8, u8, i32) {
    match operand {
        Operand::Register(register) => (0x08, register.index(), 0),
        Operand::Constant(constant) => (0, 0, constant),
    }
}

fn decode_two(first: Parts, second: Parts) -> Option<Insn> {
    let to = Register::from_number(first.to)?;
    if second.code != 0 || second.to != 0 || second.from != 0 || second.offset != 0 {
        return None;
    }
    match first.from {
        0 => {
            let [a, b, c, d] = first.constant.to_le_bytes();
            let [e, f, g, h] = second.constant.to_le_bytes();
            Some(Insn::Constant { to, value: u64::from_le_bytes([a, b, c, d, e, f, g, h]) })
        }
        MAP => Some(Insn::Map { to, map: u32::try_from(first.constant).ok()? }),
        _ => None,
    }
}

fn decode_one(parts: Parts) -> Option<Insn> {
    let Parts { code, offset, constant, .. } = parts;
    let to = Register::from_number(parts.to)?;
    let from = Register::from_number(parts.from)?;
    let by = if code & 0x08 == 0 { Operand::Constant(constant) } else { Operand::Register(from) };
    let size = Size::from_number(code & 0x18)?;
    let width = |narrow: u8| if code & 7 == narrow { Width::W32 } else { Width::W64 };
    match (code & 7, code & 0xf0) {
        (0x04, 0xd0) if code & 0x08 != 0 => {
            let size = Size::ALL.into_iter().skip(1);
            let size =
                size.into_iter().find(|one| i64::from(one.bytes() * 8) == i64::from(constant))?;
            Some(Insn::NetworkOrder { size, to })
        }
        (0x04 | 0x07, operation) => {
            let operation = Operation::from_number(operation >> 4)?;
            if operation == Operation::Negate && by != Operand::Constant(0) {
                // The kernel refuses a second operand too.
                return None;
            }
            Some(Insn::Arithmetic { width: width(0x04), operation, to, by })
        }
        _ if code & 0xe7 == 0x61 => Some(Insn::Load { size, to, from, offset }),
        _ if code & 0xe7 == 0x63 => {
            Some(Insn::Store { size, to, offset, value: Operand::Register(from) })
        }
        _ if code & 0xe7 == 0x62 => {
            Some(Insn::Store { size, to, offset, value: Operand::Constant(constant) })
        }
        _ if code & 0xe7 == 0xc3 && matches!(size, Size::Word | Size::Double) => {
            let operation = Atomic::from_number(constant)?;
            Some(Insn::Atomic { size, operation, to, offset, from })
        }
        _ if code == 0x05 => Some(Insn::Jump { offset }),
        _ if code == 0x85 && parts.from == 0 => Some(Insn::Call(Helper::from_number(constant)?)),
        _ if code == 0x95 => Some(Insn::Exit),
        (0x05 | 0x06, condition) => {
            let condition = Condition::from_number(condition)?;
            Some(Insn::Branch { width: width(0x06), condition, of: to, with: by, offset })
        }
        _ => None,
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_same(insn: Insn, word: u64) {
        assert_eq!(insn.encode(|map| i32::try_from(map).unwrap())[0], word, "{insn:?}");
    }

    /// Goal: the words are those of the kernel. Method: words taken from its documentation, by hand.
    #[test]
    #[cfg(target_endian = "little")]
    fn words_are_those_of_the_kernel() {
        use Register::*;
        let by = Operand::Constant(-1);
        let w64 = Width::W64;
        assert_same(
            Insn::Arithmetic { width: w64, operation: Operation::Move, to: R0, by: 2.into() },
            0x0000_0002_0000_00b7,
        );
        assert_same(
            Insn::Arithmetic { width: Width::W32, operation: Operation::And, to: R3, by },
            0xffff_ffff_0000_0354,
        );
        assert_same(
            Insn::Load { size: Size::Word, to: R2, from: R1, offset: 4 },
            0x0000_0000_0004_1261,
        );
        assert_same(
            Insn::Store { size: Size::Double, to: R10, offset: -8, value: R1.into() },
            0x0000_0000_fff8_1a7b,
        );
        assert_same(Insn::NetworkOrder { size: Size::Half, to: R4 }, 0x0000_0010_0000_04dc);
        assert_same(
            Insn::Atomic {
                size: Size::Double,
                operation: Atomic::Add,
                to: R0,
                offset: 0,
                from: R1,
            },
            0x0000_0000_0000_10db,
        );
        let branch =
            |condition| Insn::Branch { width: w64, condition, of: R1, with: R2.into(), offset: 3 };
        assert_same(branch(Condition::Greater), 0x0000_0000_0003_212d);
        assert_same(Insn::Call(Helper::RedirectMap), 0x0000_0033_0000_0085);
        assert_same(Insn::Exit, 0x95);
    }

    /// Goal: decoding inverts encoding. Method: every word that decodes, of all codes, is encoded again.
    #[test]
    fn words_that_can_be_read_are_written_back() {
        let mut count = 0;
        for code in 0..=255 {
            for constant in [0, 1, 16, 32, 64, 51, 0xe1] {
                let parts = Parts { code, to: 3, from: 0, offset: -2, constant };
                let words = [parts.word(), 0];
                let words = if code == 0x18 { &words[..] } else { &words[..1] };
                let Ok(insns) = Insn::decode(words) else { continue };
                let again = insns[0].encode(|map| i32::try_from(map).unwrap());
                assert_eq!(Insn::decode(&again[..words.len()]), Ok(insns));
                count += 1;
            }
        }
        assert!(count > 500, "{count}");
    }
}
