//! The options that the builder passes to the flavors.

use std::{path::PathBuf, time::Duration};

use crate::{kernel_help::KernelHelp, tokio_context::TokioContext};

/// The options that every flavor gets.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) workers: usize,
    pub(crate) quantum: Duration,
    pub(crate) long_poll: Duration,
    pub(crate) reserve_threads: usize,
    pub(crate) reserve_keep_alive: Duration,
    pub(crate) kernel_help: KernelHelp,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) reaction_slice: Duration,
    pub(crate) thread_name: String,
    pub(crate) task_stack_bytes: Option<usize>,
    pub(crate) task_threads: usize,
    pub(crate) blocking_threads: usize,
    pub(crate) blocking_keep_alive: Duration,
    pub(crate) metrics_socket: Option<PathBuf>,
    pub(crate) is_first_come_first_served: bool,
    pub(crate) tokio: Option<TokioContext>,
}
