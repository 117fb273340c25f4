//! The work of a server process, on any async runtime.

pub(crate) mod server;
pub(crate) mod switches;
