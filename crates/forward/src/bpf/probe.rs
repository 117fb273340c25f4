//! Probes of the features that this machine supports and this process may use.

use super::{
    assembler::Assembler,
    insn::Register::R0,
    kernel_map::KernelMap,
    loaded::{LoadError, LoadedProgram},
    map::{MapKind, MapSpec},
    program::{Program, ProgramKind},
};

/// The return value of an XDP program that failed.
pub const XDP_ABORTED: i32 = 0;
/// The frame is dropped.
pub const XDP_DROP: i32 = 1;
/// The frame is passed up the network stack.
pub const XDP_PASS: i32 = 2;
/// The frame leaves by the interface at which it arrived.
pub const XDP_TX: i32 = 3;
/// The frame goes where a helper directed it.
pub const XDP_REDIRECT: i32 = 4;
/// At tcx: the next program decides; without one the packet goes up the network stack.
pub const TCX_NEXT: i32 = -1;
/// At tcx: the packet is dropped.
pub const TCX_DROP: i32 = 2;
/// At tcx: the packet goes where a helper directed it.
pub const TCX_REDIRECT: i32 = 7;

/// The support found by [`probe`](Self::probe).
#[derive(Debug)]
#[non_exhaustive]
pub struct Support {
    /// Loading XDP programs, and redirecting between interfaces.
    pub xdp: Result<(), LoadError>,
    /// Loading programs for tcx.
    pub tcx: Result<(), LoadError>,
}

/// Builds the program that always returns the same number.
///
/// The peer of a veth pair needs the XDP program that passes everything ([`XDP_PASS`]): without any, frames redirected
/// into the pair are lost.
///
/// # Panics
/// Never: two instructions form a valid program.
#[must_use]
pub fn constant_program(kind: ProgramKind, action: i32) -> Program {
    let mut assembler = Assembler::new("vigie_constant", kind);
    assembler.set(R0, action).exit();
    assembler.finish().expect("invariant: two instructions form a program")
}

impl Support {
    /// Probes everything by loading minimal programs and maps. Nothing is attached, and nothing remains.
    #[must_use]
    pub fn probe() -> Self {
        let try_to = |kind, map, action| {
            KernelMap::new(MapSpec::new(map, 4, 4, 1), "vigie_probe")?;
            LoadedProgram::load(&constant_program(kind, action)).map(|_| ())
        };
        Self {
            xdp: try_to(ProgramKind::Xdp, MapKind::DevMap, XDP_PASS),
            tcx: try_to(ProgramKind::Tcx, MapKind::Array, TCX_NEXT),
        }
    }
}
