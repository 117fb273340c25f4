//! A program as a value: its instructions and maps.

use thiserror::Error;

use super::{insn::Insn, kernel_types::ChecksumField, map::MapSpec};

/// The place at which a program runs; this determines its input and the helpers it may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
pub enum ProgramKind {
    /// In the driver, or in the generic path after it: frames (`struct xdp_md`).
    Xdp,
    /// After the first part of the network stack, at tcx: packets (`struct __sk_buff`).
    Tcx,
}

impl ProgramKind {
    /// The kernel's number of the program type.
    pub(super) const fn program_type(self) -> u32 {
        match self {
            Self::Tcx => 3,
            Self::Xdp => 6,
        }
    }

    /// The kernel's number of the attach type.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Xdp => 37,
            // Ingress.
            Self::Tcx => 46,
        }
    }
}

/// A program that is not loaded yet: the kernel can run it, or the [`Interpreter`](super::Interpreter).
///
/// # Examples
/// ```
/// use vigie_forward::bpf::{Assembler, ProgramKind, Register::R0, XDP_PASS};
///
/// let mut assembler = Assembler::new("all_pass", ProgramKind::Xdp);
/// assembler.set(R0, XDP_PASS).exit();
/// let program = assembler.finish()?;
/// assert_eq!(program.insns().len(), 2);
/// # Ok::<(), vigie_forward::bpf::ProgramError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    kind: ProgramKind,
    insns: Vec<Insn>,
    maps: Vec<MapSpec>,
}

/// The reason why instructions do not form a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A jump leads to a label that was never bound.
    #[error("label {label} was never bound, but a jump leads there")]
    Unbound {
        /// Its number, from 0, in the order of `Assembler::label`.
        label: usize,
    },
    /// A label was bound twice.
    #[error("label {label} was bound twice")]
    BoundTwice {
        /// Its number.
        label: usize,
    },
    /// A jump is longer than 32 767 words.
    #[error("the jump in word {at} is too long")]
    TooFar {
        /// The index of its word.
        at: usize,
    },
    /// A word that is not an instruction, or not one that this crate knows.
    #[error("word {at} ({word:#018x}) is not an instruction that vigie-forward knows")]
    Unknown {
        /// Its index.
        at: usize,
        /// The word.
        word: u64,
    },
    /// There are no instructions.
    #[error("a program needs an instruction")]
    Empty,
    /// Too many instructions.
    #[error("{words} words of instructions, more than {max}")]
    TooLong {
        /// The number of words.
        words: usize,
        /// The maximum.
        max: usize,
    },
    /// A jump to a word where no instruction begins.
    #[error("the jump in word {at} leads to no instruction")]
    Jump {
        /// The index of its word.
        at: usize,
    },
    /// An instruction refers to a map that the program does not have.
    #[error("word {at} names map {map}, but the program has {count}")]
    NoMap {
        /// The index of its word.
        at: usize,
        /// The index of the map.
        map: u32,
        /// The number of maps.
        count: usize,
    },
    /// The last instruction is neither a jump nor an exit.
    #[error("the last instruction must be an exit or a jump")]
    RunsOff,
}

/// The maximum number of words, so that a jump (32 767) reaches all of them. (The kernel itself takes a million.)
pub const WORDS_MAX: usize = 32_767;

impl Program {
    /// Builds a program from instructions, and checks that all jump targets and maps exist.
    ///
    /// # Errors
    /// [`ProgramError`] says what is wrong. The kernel or the interpreter decides whether the program is safe.
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

    /// Returns its kind.
    #[must_use]
    pub const fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// Returns its instructions.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns its maps; instructions refer to them by index.
    #[must_use]
    pub fn maps(&self) -> &[MapSpec] {
        &self.maps
    }

    /// Returns its words, with the descriptors of its maps, and with the place of a packet's checksum state in the kernel.
    pub(super) fn words(
        &self,
        map: impl Fn(u32) -> i32,
        checksum: Option<ChecksumField>,
    ) -> Vec<u64> {
        let mut words = Vec::with_capacity(self.insns.len());
        for insn in &self.insns {
            match insn {
                Insn::ChecksumState => words.extend(Insn::checksum_words(checksum)),
                insn => words.extend(insn.encode(&map).into_iter().take(insn.words())),
            }
        }
        words
    }
}
