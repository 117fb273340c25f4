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
//! Each is a [`Case`](crate::report::Case), whose systems are measured in turns.

pub(crate) mod container;
pub(crate) mod crowd;
pub(crate) mod echo;
pub(crate) mod fairness;
pub(crate) mod periodic;
pub(crate) mod service;

use crate::schedulers::System;

/// What is measured by default, before the peers.
const BESIDE_THREADS: [System; 2] = [System::Vigie, System::Threads];
