//! Programs loaded into the kernel.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use thiserror::Error;
use vigie_via::link::Capability;

use super::{
    kernel_map::KernelMap,
    kernel_types::ChecksumField,
    map::{BpfMap, MapSpec},
    privilege::{self, PrivilegeError},
    program::{Program, ProgramKind},
    sys,
};

/// The size of the buffer for the verifier's log, of which the kernel keeps the end.
const LOG_BYTES: usize = 1 << 18;
/// The verifier's words for arithmetic that takes `CAP_PERFMON`: on numbers from a packet, and between its addresses.
const NOT_FOR_ALL: [&str; 2] = ["prohibited for !root", "pointer -= pointer prohibited"];
/// Lines of the log that an error shows.
const LOG_LINES: usize = 12;
/// Bytes that a frame may grow in a test run.
const GROWTH: usize = 256;

/// The reason why a program was not loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A missing capability, or a map that could not be created.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The verifier refused the program.
    #[error("the kernel refused the program {name:?}: {source}\n{}", last_lines(log))]
    Refused {
        /// The program.
        name: String,
        /// The kernel's error.
        source: io::Error,
        /// The verifier's log, or its end if it is long.
        log: String,
    },
    /// The maps given differ from the program's.
    #[error("the program's map {index} is {wanted:?}, not {given:?}")]
    MapMismatch {
        /// The index of the map.
        index: usize,
        /// The program's.
        wanted: Option<MapSpec>,
        /// The map that was given.
        given: Option<MapSpec>,
    },
}

impl LoadError {
    /// Returns the missing capability, if that is the cause.
    #[must_use]
    pub const fn missing_capability(&self) -> Option<Capability> {
        match self {
            Self::Privilege(error) => error.missing_capability(),
            _ => None,
        }
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// A program in the kernel. It lives as long as this, or a link to it.
#[derive(Debug)]
pub struct LoadedProgram {
    descriptor: OwnedFd,
    kind: ProgramKind,
    maps: Vec<KernelMap>,
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestRun {
    /// The program's return value.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// The average duration of one run, in nanoseconds.
    pub duration_ns: u32,
}

/// `struct xdp_md` of a frame of this length from queue 0 of an interface.
pub(super) fn context(interface: u32, frame: &[u8]) -> Vec<u8> {
    let end = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    [0, end, 0, interface, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect()
}

impl LoadedProgram {
    /// Loads a program, with new maps.
    ///
    /// # Errors
    /// [`LoadError`]: a missing capability, or the verifier's refusal.
    pub fn load(program: &Program) -> Result<Self, LoadError> {
        let maps = program.maps().iter().map(|spec| KernelMap::new(*spec, program.name()));
        Self::load_with(program, maps.collect::<Result<_, _>>()?)
    }

    /// Loads a program with existing maps, which other programs may share.
    ///
    /// # Errors
    /// As [`load`](Self::load), and [`LoadError::MapMismatch`] if the maps differ from the program's.
    pub fn load_with(program: &Program, maps: Vec<KernelMap>) -> Result<Self, LoadError> {
        for index in 0..maps.len().max(program.maps().len()) {
            let (wanted, given) =
                (program.maps().get(index).copied(), maps.get(index).map(BpfMap::spec));
            if wanted != given {
                return Err(LoadError::MapMismatch { index, wanted, given });
            }
        }

        let number = |map: u32| {
            let map = usize::try_from(map).ok().and_then(|map| maps.get(map));
            map.map_or(-1, KernelMap::number)
        };

        let mut words = program.words(number, ChecksumField::of_kernel());
        let kind = program.kind();
        let mut loaded = sys::load(kind, program.name(), &words, None);
        let plain = program.words(number, None);
        if loaded.is_err() && plain != words {
            // A kernel may not let programs see what it describes.
            words = plain;
            loaded = sys::load(kind, program.name(), &words, None);
        }
        let descriptor = loaded.or_else(|first| {
            let is_refused = first.kind() == io::ErrorKind::Unsupported;
            if is_refused || first.raw_os_error() == Some(libc::EPERM) {
                let what = "loading a BPF program";
                return Err(PrivilegeError::of(what, &privilege::LOADING, first).into());
            }
            let mut log = vec![0; LOG_BYTES];
            sys::load(kind, program.name(), &words, Some(&mut log)).map_err(|source| {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).into_owned();
                if NOT_FOR_ALL.iter().any(|words| log.contains(words))
                    && let Some(capability) = Capability::missing(&[Capability::PerfMon])
                {
                    let what = "loading a BPF program that reads headers of any length";
                    return PrivilegeError::MissingCapability { what, capability }.into();
                }
                LoadError::Refused { name: program.name().to_owned(), source, log }
            })
        })?;

        Ok(Self { descriptor, kind, maps })
    }

    /// Returns the kind of the program.
    #[must_use]
    pub const fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// Returns its maps, in the program's order.
    #[must_use]
    pub fn maps(&self) -> &[KernelMap] {
        &self.maps
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Runs the program `repeat` times on a frame from `interface`, which must exist, or be 0 for any. Nothing is sent.
    /// Each run sees the frame as the previous one left it.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` for frames of fewer than 14 bytes, or more than about 3500; a missing capability.
    pub fn test_run(
        &self,
        frame: &[u8],
        interface: u32,
        repeat: u32,
    ) -> Result<TestRun, PrivilegeError> {
        let mut out = vec![0; frame.len() + GROWTH];
        let context = if self.kind == ProgramKind::Xdp && interface != 0 {
            context(interface, frame)
        } else {
            Vec::new()
        };
        let test =
            sys::TestRunInput { frame, context: &context, repeat, ..sys::TestRunInput::default() };
        let tested = sys::test_run(self.descriptor(), &test, Some(&mut out));
        let tested = tested.map_err(|error| {
            PrivilegeError::of("a test run of a BPF program", &privilege::LOADING, error)
        })?;
        out.truncate(tested.length);
        Ok(TestRun { action: tested.action, frame: out, duration_ns: tested.duration_ns })
    }
}
