//! Attaching programs to interfaces.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice::index_to_name, socket_with};
use thiserror::Error;
use vigie_via::link::Capability;

use super::{
    loaded::LoadedProgram,
    privilege::{self, PrivilegeError},
    program::ProgramKind,
    sys,
};

named! {
    /// The place at which a program runs at an interface, from the fastest to the slowest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[expect(clippy::exhaustive_enums, reason = "the kernel's places for frames that arrive")]
    pub enum AttachMode {
        /// In the driver, before the kernel allocates a packet for the frame.
        Native => "XDP in the driver",
        /// After the driver; available at any interface.
        Generic => "generic XDP",
        /// After the first part of the network stack.
        Tcx => "tcx",
    }
}

impl AttachMode {
    /// Returns all places, the fastest first.
    pub const ALL: [Self; 3] = [Self::Native, Self::Generic, Self::Tcx];

    /// Returns the kind of program that runs there.
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

/// The reason why a program was not attached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Another program is attached there.
    #[error(
        "interface {interface} has an XDP program already, and can have only one: remove it (`ip link set dev NAME xdp \
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
    /// The interface, or the kernel, does not offer this place.
    #[error("interface {interface} does not offer {mode}: {source}")]
    NoAttachMode {
        /// The interface's index.
        interface: u32,
        /// The place.
        mode: AttachMode,
        /// The kernel's error.
        source: io::Error,
    },
    /// A missing capability, or another error from the kernel.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
}

impl AttachError {
    /// Returns the missing capability, if that is the cause.
    #[must_use]
    pub const fn missing_capability(&self) -> Option<Capability> {
        match self {
            Self::Privilege(error) => error.missing_capability(),
            _ => None,
        }
    }
}

/// An attached program. Dropping this detaches it; the kernel does so too when this process ends, however it ends.
#[derive(Debug)]
#[must_use = "the program is detached when this is dropped"]
pub struct Attachment {
    link: OwnedFd,
    mode: AttachMode,
    interface: u32,
}

impl Attachment {
    /// Attaches a program to an interface, by its index in this thread's network namespace.
    ///
    /// # Errors
    /// [`AttachError`] says what prevents it.
    pub fn new(
        program: &LoadedProgram,
        interface: u32,
        mode: AttachMode,
    ) -> Result<Self, AttachError> {
        Self::before(program, interface, mode, None)
    }

    /// The same; at tcx, before another program there.
    ///
    /// # Errors
    /// [`AttachError`] says what prevents it.
    pub fn before(
        program: &LoadedProgram,
        interface: u32,
        mode: AttachMode,
        other: Option<&Self>,
    ) -> Result<Self, AttachError> {
        let other = other.filter(|_| mode == AttachMode::Tcx).map(|other| other.link.as_fd());
        let link = if program.kind() == mode.kind() {
            let (kind, flags) = (program.kind(), mode.flags());
            sys::create_link(program.descriptor(), interface, kind, flags, other)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        };
        match link {
            Ok(link) => Ok(Self { link, mode, interface }),
            Err(source) => Err(match source.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => AttachError::Taken { interface },
                Some(libc::ENODEV) => AttachError::NoInterface { interface },
                Some(libc::EPERM) => {
                    let what = "attaching a program to an interface";
                    PrivilegeError::of(what, &privilege::LOADING, source).into()
                }
                _ if !exists(interface) => AttachError::NoInterface { interface },
                _ => AttachError::NoAttachMode { interface, mode, source },
            }),
        }
    }

    getters! {
        /// Returns where the program runs.
        mode: AttachMode,

        /// Returns the interface's index.
        interface: u32,
    }

    /// Returns whether the interface still exists. An interface that was removed or moved to another network namespace
    /// has lost the program for good: attach it again when the interface is back.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        sys::interface_of(self.link.as_fd()).is_ok_and(|interface| interface != 0)
    }
}

/// Returns whether this thread's network namespace has this interface.
fn exists(interface: u32) -> bool {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    // Without a socket it cannot be checked.
    socket.map_or(true, |socket| index_to_name(socket, interface).is_ok())
}
