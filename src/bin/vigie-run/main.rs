//! `vigie-run`: starts the ranks of a program on this host, and ends them together.
//!
//! ```text
//!              ┌──────────── vigie-run, one thread ────────────┐
//!  signals ───▶│ signals ─┐                                    │
//!              │          ▼            rank.rs: fork, exec     │──▶ process group of rank 0
//!              │      job.rs  ◀── exits, by pidfd ─────────────│──▶ process group of rank 1
//!              │          │                                    │      ⋮
//!              │          ▼                                    │
//!              │   rendezvous.rs ◀── a pair of Unix sockets ──▶│    World of vigie-via
//!              │          ▲                                    │
//!              │       listener.rs ◀─ TCP, with --listen ─────▶│    World on other hosts
//!  stdout ◀────│── output.rs ◀────── two pipes ────────────────│──  stdout, stderr
//!  stdin ──────│── input.rs ───────────────────────────────────│──▶ stdin of rank 0
//!              └───────────────────────────────────────────────┘
//! ```
//! It runs on vigie's user-level flavor: everything above is a task of one thread, except blocking operations: writing
//! to its own output, and reading a terminal. The decisions are in `docs/design/world.md`.

mod binding;
mod cli;
mod input;
mod job;
mod listener;
#[path = "../shared/mailbox.rs"]
mod mailbox;
mod output;
mod rank;
mod rendezvous;
mod rendezvous_address;
mod signals;

use std::process;

use self::cli::Cli;

fn main() {
    let code = job::run(Cli::from_process()).unwrap_or_else(|error| {
        eprintln!("vigie-run: {error}");
        error.code()
    });
    // Do not return: a thread may still be blocked reading a terminal.
    process::exit(code.into());
}
