//! This machine: what it is, what it allows, and what is installed on it.

mod arena;
pub(crate) mod control_group;
mod cores;
pub(crate) mod limits;
mod machine;
pub(crate) mod mpi;
pub(crate) mod namespaces;
mod program;
pub(crate) mod realtime;
mod strace;
mod usage;

pub(crate) use self::arena::{Arena, CONTROL_BYTES, SharedFile};
pub(crate) use self::cores::{allowed, pin};
pub(crate) use self::machine::Machine;
pub(crate) use self::mpi::{BuiltMpi, MPICH, Mpi, OPEN_MPI};
pub(crate) use self::namespaces::{INTERFACE, Namespace, Namespaces, address, enter, missing};
pub(crate) use self::program::{Program, cache, describe, is_installed, output_of, write_if_new};
pub use self::realtime::Priority;
pub(crate) use self::strace::Trace;
pub use self::usage::Usage;
pub(crate) use self::usage::threads_of;
