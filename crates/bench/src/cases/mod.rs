//! Loads beyond the paper's tables, in which a runtime shows whether one task delays another's event.
//!
//! | case | load | figure |
//! | --- | --- | --- |
//! | [`periodic`] | one task sleeps and computes in turn, a worker is idle | time until an echo |
//! | [`service`] | some requests compute, each on a new connection | the same, on old and on new connections |
//! | [`crowd`] | 1000 connections send by the clock, beside compute tasks | time since a message was due |
//! | [`fairness`] | processes of others compute beside ours | share of the work that ours keep |
//! | [`container`] | a quota of one core | time until an echo, and what the kernel withheld |
//! | [`echo`] | nothing | time until an echo, and processor time per message |
//!
//! Each is a plan whose `run` measures all systems in turns.

pub mod container;
pub mod crowd;
pub mod echo;
pub mod fairness;
pub mod periodic;
pub mod service;
