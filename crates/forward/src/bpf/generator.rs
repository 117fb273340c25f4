//! Frames from the kernel itself, as fast as it can make them.

use super::{
    loaded::{LoadedProgram, context},
    privilege::{self, PrivilegeError},
    program::ProgramKind,
    sys,
};

/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE: u32 = 2;
/// Frames that the kernel handles together.
const BATCH: u32 = 64;
/// Fewer frames in one call spend much of it on setting it up.
pub const BURST_MIN: u32 = 65_536;

/// Makes frames that an XDP program handles as if they had come from an interface: what it redirects really goes, what
/// it passes goes up the network stack.
///
/// The frames of a burst use a few pages again and again, and the kernel does not put back what a program wrote
/// into them: a program must write whatever it changes anew.
#[derive(Debug)]
pub struct Generator<'a> {
    program: &'a LoadedProgram,
    frame: Vec<u8>,
    context: Vec<u8>,
}

impl<'a> Generator<'a> {
    /// Makes a generator of copies of `frame`, which seem to come from `interface`: one with an XDP program, or any
    /// other, in this thread's network namespace.
    #[must_use]
    pub fn new(program: &'a LoadedProgram, frame: &[u8], interface: u32) -> Self {
        Self { program, frame: frame.to_vec(), context: context(interface, frame) }
    }

    /// Makes `count` frames; [`BURST_MIN`] or more is fast. Blocks until all of them were handled.
    ///
    /// # Errors
    /// A right that is missing; `EINVAL` if the program is no XDP program or the frame is shorter than 14 bytes or
    /// longer than about 3500; `ENODEV` if the interface is not there.
    pub fn burst(&self, count: u32) -> Result<(), PrivilegeError> {
        let what = "making live frames";
        if self.program.kind() != ProgramKind::Xdp {
            let source = std::io::ErrorKind::InvalidInput.into();
            return Err(PrivilegeError::Kernel { what, source });
        }
        let test = sys::Test {
            frame: &self.frame,
            context: &self.context,
            repeat: count,
            flags: LIVE,
            batch: BATCH,
        };
        let tested = sys::test_run(self.program.descriptor(), &test, None);
        tested.map_err(|error| PrivilegeError::of(what, &privilege::LOADING, error))?;
        Ok(())
    }
}
