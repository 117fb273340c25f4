//! A program as a value: instructions, and the maps that they name.

use thiserror::Error;

use super::{insn::Insn, map::MapSpec};

/// Where a program runs, which decides what it is given and what it may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
pub enum ProgramKind {
    /// At the driver, or in the generic path behind it: frames (`struct xdp_md`).
    Xdp,
    /// Behind the first part of the network stack: packets (`struct __sk_buff`), at tcx.
    Tcx,
    /// Says how long the next message of a stream is (`struct __sk_buff`), for a `SockMap`.
    StreamParser,
    /// Says where the message goes (`struct __sk_buff`), for a `SockMap`.
    StreamVerdict,
}

impl ProgramKind {
    /// The kernel's number of the program type.
    pub(super) const fn program_type(self) -> u32 {
        match self {
            Self::Tcx => 3,
            Self::Xdp => 6,
            Self::StreamParser | Self::StreamVerdict => 14,
        }
    }

    /// The kernel's number of what it is attached to.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::StreamParser => 4,
            Self::StreamVerdict => 5,
            Self::Xdp => 37,
            // Ingress.
            Self::Tcx => 46,
        }
    }
}

/// A program, before anybody loaded it: the kernel can, and the [`Interpreter`](super::Interpreter).
///
/// # Examples
/// ```
/// use vigie_forward::bpf::{Assembler, ProgramKind, Register::R0, XDP_PASS};
///
/// let mut assembler = Assembler::new("all_pass", ProgramKind::Xdp);
/// assembler.set(R0, XDP_PASS).exit();
/// let program = assembler.finish()?;
/// assert_eq!(program.insns().len(), 2);
/// # Ok::<(), vigie_forward::bpf::AssembleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    kind: ProgramKind,
    insns: Vec<Insn>,
    maps: Vec<MapSpec>,
}

/// Instructions that are no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// There are none.
    #[error("a program needs an instruction")]
    Empty,
    /// Too many.
    #[error("{words} words of instructions, more than {max}")]
    TooLong {
        /// How many there are.
        words: usize,
        /// How many there may be.
        max: usize,
    },
    /// A jump leads to a place where no instruction begins.
    #[error("the jump in word {at} leads to no instruction")]
    Jump {
        /// Where it is.
        at: usize,
    },
    /// An instruction names a map that the program does not have.
    #[error("word {at} names map {map}, but the program has {count}")]
    NoMap {
        /// Where it is.
        at: usize,
        /// Which map.
        map: u32,
        /// How many there are.
        count: usize,
    },
    /// The last instruction is neither a jump nor the end.
    #[error("the last instruction must be an exit or a jump")]
    RunsOff,
}

/// Words of a program, of which a jump reaches 32 767. (The kernel itself takes a million.)
pub const WORDS_MAX: usize = 32_767;

impl Program {
    /// Makes a program of instructions, and looks whether all jumps and maps are there.
    ///
    /// # Errors
    /// [`ProgramError`] says what is wrong. Whether the program is safe, the kernel says, or the interpreter.
    pub fn new(
        name: impl Into<String>,
        kind: ProgramKind,
        insns: Vec<Insn>,
        maps: Vec<MapSpec>,
    ) -> Result<Self, ProgramError> {
        let words = insns.iter().map(|insn| insn.words()).sum();
        if words > WORDS_MAX {
            return Err(ProgramError::TooLong { words, max: WORDS_MAX });
        }
        let mut is_start = vec![false; words];
        let mut at = 0;
        for insn in &insns {
            is_start[at] = true;
            at += insn.words();
        }
        let mut at = 0;
        for insn in &insns {
            let next = at + insn.words();
            if let Insn::Jump { offset } | Insn::Branch { offset, .. } = insn {
                let to = next.checked_add_signed(isize::from(*offset));
                if to.is_none_or(|to| is_start.get(to) != Some(&true)) {
                    return Err(ProgramError::Jump { at });
                }
            }
            if let Insn::Map { map, .. } = *insn
                && usize::try_from(map).map_or(true, |map| map >= maps.len())
            {
                return Err(ProgramError::NoMap { at, map, count: maps.len() });
            }
            at = next;
        }
        match insns.last() {
            None => Err(ProgramError::Empty),
            Some(Insn::Exit | Insn::Jump { .. }) => {
                Ok(Self { name: name.into(), kind, insns, maps })
            }
            Some(_) => Err(ProgramError::RunsOff),
        }
    }

    /// Returns its name, of which the kernel shows 15 characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns where it runs.
    #[must_use]
    pub const fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// Returns its instructions.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns its maps; instructions name them by their index.
    #[must_use]
    pub fn maps(&self) -> &[MapSpec] {
        &self.maps
    }

    /// Returns its words, with the descriptors of its maps.
    pub(super) fn words(&self, map: impl Fn(u32) -> i32) -> Vec<u64> {
        let words = self.insns.iter().flat_map(|insn| {
            let words = insn.encode(&map);
            words.into_iter().take(insn.words())
        });
        words.collect()
    }
}
