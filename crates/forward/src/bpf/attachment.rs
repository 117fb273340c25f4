//! Programs at their places.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice::index_to_name, socket_with};
use thiserror::Error;
use vigie_via::link::Capability;

use super::{
    kernel_map::KernelMap,
    loaded::LoadedProgram,
    privilege::{self, PrivilegeError},
    program::ProgramKind,
    sys,
};

/// Where at an interface a program runs, from the fastest place to the slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "the kernel's places for frames that arrive")]
pub enum Place {
    /// In the driver, before the kernel makes a packet of the frame.
    Native,
    /// Behind the driver: any interface has it.
    Generic,
    /// Behind the first part of the network stack.
    Tcx,
}

impl Place {
    /// Returns all places, the fastest first.
    pub const ALL: [Self; 3] = [Self::Native, Self::Generic, Self::Tcx];

    /// Returns the kind of programs that run there.
    #[must_use]
    pub const fn kind(self) -> ProgramKind {
        match self {
            Self::Native | Self::Generic => ProgramKind::Xdp,
            Self::Tcx => ProgramKind::Tcx,
        }
    }

    /// `XDP_FLAGS_DRV_MODE`, `XDP_FLAGS_SKB_MODE`.
    const fn flags(self) -> u32 {
        match self {
            Self::Native => 4,
            Self::Generic => 2,
            Self::Tcx => 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "XDP in the driver",
            Self::Generic => "generic XDP",
            Self::Tcx => "tcx",
        })
    }
}

/// Why a program was not attached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Another program is there.
    #[error(
        "interface {interface} has an XDP program already, and takes one: remove it (`ip link set dev NAME xdp \
         off`), or stop the program that attached it (`bpftool link` shows it)"
    )]
    Taken {
        /// The interface's index.
        interface: u32,
    },
    /// There is no such interface in this network namespace.
    #[error("there is no interface {interface} in this network namespace")]
    NoInterface {
        /// The interface's index.
        interface: u32,
    },
    /// The interface, or the kernel, has no such place.
    #[error("interface {interface} does not offer {place}: {source}")]
    NoPlace {
        /// The interface's index.
        interface: u32,
        /// The place.
        place: Place,
        /// What the kernel said.
        source: io::Error,
    },
    /// A right is missing, or the kernel said something else.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
}

impl AttachError {
    /// Returns the right that is missing, if that is it.
    #[must_use]
    pub const fn missing_capability(&self) -> Option<Capability> {
        match self {
            Self::Privilege(error) => error.missing_capability(),
            _ => None,
        }
    }
}

/// A program at its place. Dropping it takes the program away; so does the kernel when this process ends, however
/// it ends.
#[derive(Debug)]
#[must_use = "the program is taken away when this is dropped"]
pub struct Attachment {
    link: OwnedFd,
    place: Place,
    interface: u32,
}

impl Attachment {
    /// Attaches a program to an interface, by its index in this thread's network namespace.
    ///
    /// # Errors
    /// [`AttachError`] says what is in the way.
    pub fn new(program: &LoadedProgram, interface: u32, place: Place) -> Result<Self, AttachError> {
        let link = if program.kind() == place.kind() {
            sys::create_link(program.descriptor(), interface, program.kind(), place.flags())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        };
        match link {
            Ok(link) => Ok(Self { link, place, interface }),
            Err(source) => Err(match source.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => AttachError::Taken { interface },
                Some(libc::ENODEV) => AttachError::NoInterface { interface },
                Some(libc::EPERM) => {
                    let what = "attaching a program to an interface";
                    PrivilegeError::of(what, &privilege::LOADING, source).into()
                }
                _ if !exists(interface) => AttachError::NoInterface { interface },
                _ => AttachError::NoPlace { interface, place, source },
            }),
        }
    }

    /// Returns where the program runs.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Returns the interface's index.
    #[must_use]
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// Returns whether the interface is still there. One that was removed, or went to another network namespace, has lost
    /// the program for good: attach it again when it is back.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        sys::interface_of(self.link.as_fd()).is_ok_and(|interface| interface != 0)
    }
}

/// Returns whether this thread's network namespace has this interface.
fn exists(interface: u32) -> bool {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    // Without a socket nobody knows.
    socket.map_or(true, |socket| index_to_name(socket, interface).is_ok())
}

/// Gives all sockets of a map a program: parser or verdict. It stays as long as the map.
///
/// # Errors
/// A right that is missing; `EINVAL` if the map is none of sockets or the program none for them.
pub fn attach_to_sockets(program: &LoadedProgram, map: &KernelMap) -> Result<(), PrivilegeError> {
    let attached = sys::attach_to_map(map.descriptor(), program.descriptor(), program.kind());
    let what = "attaching a program to sockets";
    attached.map_err(|error| PrivilegeError::of(what, &privilege::LOADING, error))
}
