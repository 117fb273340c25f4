//! eBPF without a C toolchain: programs are assembled here, instruction by instruction, and run by the kernel or by an
//! interpreter in this process that takes the same instructions.
//!
//! ```text
//!   Assembler --finish--> Program --+--> LoadedProgram --> Attachment (XDP, tcx)
//!   labels, instructions   a value  |        |   KernelMap: written while the program runs
//!                                   |        +-> test_run, Generator (live frames)
//!                                   +--> Interpreter, UserMap: no privilege, no kernel
//! ```
//!
//! # Main types
//! - [`Assembler`] and [`Program`]: typed instructions ([`Insn`]), labels, maps by description ([`MapSpec`]).
//! - [`LoadedProgram`], [`KernelMap`], [`Attachment`], [`Generator`], [`Support`]: the kernel's side.
//! - [`Interpreter`], [`UserMap`], [`PacketBuffer`]: the same in this process.
//! - [`BpfMap`]: access to a map of either side.
//!
//! # What stays behind
//! Nothing. A program is attached by a link that lives as long as its descriptor: it is gone when the process ends,
//! even after `kill -9`. Nothing is pinned.
//!
//! # Privileges
//! The kernel's side needs `CAP_BPF` and `CAP_NET_ADMIN` in the initial user namespace, and `CAP_PERFMON` for programs
//! that add values they have read to addresses, as all do that read headers of variable length; errors name the missing
//! one. The interpreter needs none.

mod assembler;
mod attachment;
mod generator;
mod helper;
mod insn;
mod interpreter;
mod kernel_map;
mod kernel_types;
mod loaded;
mod map;
mod privilege;
mod probe;
mod program;
mod sys;
mod user_map;

/// For the tests and benches of this workspace, and for other crates at their own risk: these may change at any time.
#[doc(hidden)]
pub use self::{
    assembler::{Assembler, Label, MapId},
    attachment::Attachment,
    generator::{BURST_MIN, Generator},
    helper::Helper,
    insn::{Atomic, ChecksumState, Condition, Insn, Operand, Operation, Register, Size, Width},
    interpreter::{
        Fault, INSTRUCTIONS_MAX, Interpreter, Outcome, PacketBuffer, Redirect, RunContext,
    },
    kernel_map::KernelMap,
    loaded::{LoadedProgram, TestRun},
    map::{BpfMap, MapKind, MapSpec, UpdateMode},
    probe::{
        Support, TCX_DROP, TCX_NEXT, TCX_REDIRECT, XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_REDIRECT,
        XDP_TX, constant_program,
    },
    program::{Program, ProgramKind, WORDS_MAX},
    user_map::{USER_MAP_MAX, UserMap},
};
pub use self::{
    attachment::{AttachError, AttachMode},
    loaded::LoadError,
    map::MapError,
    privilege::PrivilegeError,
    program::ProgramError,
};
