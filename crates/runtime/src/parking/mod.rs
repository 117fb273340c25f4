//! How threads sleep: which workers do and whom to wake, each worker's own sleep, and the supervisor's alarm.

pub(crate) mod alarm;
pub(crate) mod idle;
pub(crate) mod parker;
pub(crate) mod timerfd;
