//! Programs in the kernel.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use thiserror::Error;
use vigie_via::link::Capability;

use super::{
    kernel_map::KernelMap,
    map::{MapSpec, Table},
    privilege::{self, PrivilegeError},
    program::{Program, ProgramKind},
    sys,
};

/// The verifier's log is kept from its end backwards.
const LOG_BYTES: usize = 1 << 18;
/// What the verifier says of arithmetic that takes `CAP_PERFMON`.
const NOT_FOR_ALL: &str = "prohibited for !root";
/// Lines of it that an error shows.
const LOG_LINES: usize = 12;
/// Bytes that a frame may grow in a test run.
const GROWTH: usize = 256;

/// Why a program was not loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A right is missing, or a map was not made.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The verifier does not take the program.
    #[error("the kernel does not take the program {name:?}: {source}\n{}", last_lines(log))]
    Refused {
        /// The program.
        name: String,
        /// What the kernel said.
        source: io::Error,
        /// What its verifier said; the end, if it was long.
        log: String,
    },
    /// Other maps than the program has.
    #[error("the program's map {index} is {wanted:?}, not {given:?}")]
    OtherMap {
        /// Which map.
        index: usize,
        /// The program's.
        wanted: Option<MapSpec>,
        /// The one that was given.
        given: Option<MapSpec>,
    },
}

impl LoadError {
    /// Returns the right that is missing, if that is it.
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

/// What came of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestRun {
    /// What the program returned.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// Nanoseconds of one run, on average.
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
    /// [`LoadError`]: a right that is missing, or what the verifier said.
    pub fn load(program: &Program) -> Result<Self, LoadError> {
        let maps = program.maps().iter().map(|spec| KernelMap::new(*spec, program.name()));
        Self::load_with(program, maps.collect::<Result<_, _>>()?)
    }

    /// Loads a program with maps that are there, which other programs may have too.
    ///
    /// # Errors
    /// As [`load`](Self::load), and [`LoadError::OtherMap`] if these are not the program's.
    pub fn load_with(program: &Program, maps: Vec<KernelMap>) -> Result<Self, LoadError> {
        for index in 0..maps.len().max(program.maps().len()) {
            let (wanted, given) =
                (program.maps().get(index).copied(), maps.get(index).map(Table::spec));
            if wanted != given {
                return Err(LoadError::OtherMap { index, wanted, given });
            }
        }
        let number = |map: u32| {
            let map = usize::try_from(map).ok().and_then(|map| maps.get(map));
            map.map_or(-1, KernelMap::number)
        };
        let words = program.words(number);
        let kind = program.kind();
        let descriptor = sys::load(kind, program.name(), &words, None).or_else(|first| {
            if first.raw_os_error() == Some(libc::EPERM) {
                let what = "loading a BPF program";
                return Err(PrivilegeError::of(what, &privilege::LOADING, first).into());
            }
            let mut log = vec![0; LOG_BYTES];
            sys::load(kind, program.name(), &words, Some(&mut log)).map_err(|source| {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).into_owned();
                if log.contains(NOT_FOR_ALL)
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

    /// Returns where the program runs.
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

    /// Runs the program `repeat` times over a frame that came from `interface`, which must be there, or be 0: any. Nothing
    /// is sent. Each run sees what the one before has left of the frame.
    ///
    /// # Errors
    /// What the kernel said: `EINVAL` for frames of fewer than 14 bytes, or more than about 3500; a right that is missing.
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
        let test = sys::Test { frame, context: &context, repeat, ..sys::Test::default() };
        let tested = sys::test_run(self.descriptor(), &test, Some(&mut out));
        let tested = tested.map_err(|error| {
            PrivilegeError::of("a test run of a BPF program", &privilege::LOADING, error)
        })?;
        out.truncate(tested.length);
        Ok(TestRun { action: tested.action, frame: out, duration_ns: tested.duration_ns })
    }
}
