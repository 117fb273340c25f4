//! What a server process does, on any async runtime.

pub(crate) mod server;
pub mod switches;
