//! What this machine and this process offer.

use super::{
    assembler::Assembler,
    insn::Register::R0,
    kernel_map::KernelMap,
    loaded::{LoadError, LoadedProgram},
    map::{MapKind, MapSpec},
    program::{Program, ProgramKind},
};

/// What XDP programs return.
pub const XDP_ABORTED: i32 = 0;
/// The frame is dropped.
pub const XDP_DROP: i32 = 1;
/// The frame goes up the network stack.
pub const XDP_PASS: i32 = 2;
/// The frame leaves where it came.
pub const XDP_TX: i32 = 3;
/// The frame goes where a helper said.
pub const XDP_REDIRECT: i32 = 4;
/// At tcx: the next program decides, and the packet goes up the network stack if there is none.
pub const TCX_NEXT: i32 = -1;
/// At tcx: the packet is dropped.
pub const TCX_DROP: i32 = 2;
/// For sockets: the message is dropped.
pub const SK_DROP: i32 = 0;
/// For sockets: the message goes to its socket, or to the one to which it was redirected.
pub const SK_PASS: i32 = 1;

/// What can be had here.
#[derive(Debug)]
#[non_exhaustive]
pub struct Support {
    /// Loading XDP programs, and redirecting between interfaces.
    pub xdp: Result<(), LoadError>,
    /// Loading programs for tcx.
    pub tcx: Result<(), LoadError>,
    /// Loading programs for sockets, and redirecting between them.
    pub sockets: Result<(), LoadError>,
}

/// Makes the program that returns one number whatever comes.
///
/// The XDP program that passes everything ([`XDP_PASS`]) is what the peer of a veth pair needs, so that frames which
/// are redirected into the pair arrive: without any, they vanish.
///
/// # Panics
/// Never: two instructions are a program.
#[must_use]
pub fn constant_program(kind: ProgramKind, action: i32) -> Program {
    let mut assembler = Assembler::new("vigie_constant", kind);
    assembler.set(R0, action).exit();
    assembler.finish().expect("invariant: two instructions are a program")
}

impl Support {
    /// Tries all of it, by loading the smallest programs and maps. Nothing is attached, and nothing stays.
    #[must_use]
    pub fn probe() -> Self {
        let try_to = |kind, map, action| {
            KernelMap::new(MapSpec::new(map, 4, 4, 1), "vigie_probe")?;
            LoadedProgram::load(&constant_program(kind, action)).map(|_| ())
        };
        Self {
            xdp: try_to(ProgramKind::Xdp, MapKind::DevMap, XDP_PASS),
            tcx: try_to(ProgramKind::Tcx, MapKind::Array, TCX_NEXT),
            sockets: try_to(ProgramKind::StreamVerdict, MapKind::SockMap, SK_PASS),
        }
    }
}
