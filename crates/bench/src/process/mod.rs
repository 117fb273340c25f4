//! Other processes of a measurement: this program, started again in another role.
//!
//! ```text
//!            VIGIE_BENCH_CHILD={role}            stdout: one message per line (JSON)
//!   parent ───────────────────────────▶ child ────────────────────────────────────▶ parent
//!             stdin: kept open; each               stderr: inherited, for people
//!             byte asks for the usage,
//!             or for the runtime's counts
//! ```
//!
//! Server and client of a measurement never share a process with each other or with the command
//! that compares them, so that no allocator, timer or thread of one disturbs the other. A child ends
//! when it has said everything, when its parent kills it, or when its standard input ends, which the
//! kernel brings about however the parent dies.

mod child;
mod message;
mod role;

pub(crate) use self::child::Child;
pub(crate) use self::message::{Message, print_result};
pub(crate) use self::role::{Role, play_if_child, read, wait_for_go};
