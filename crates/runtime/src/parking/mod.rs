//! The sleep of threads: which workers sleep and which one to wake, each worker's own sleep, and the
//! supervisor's watchdog.

pub(crate) mod idle;
pub(crate) mod parker;
pub(crate) mod timerfd;
pub(crate) mod watchdog;
