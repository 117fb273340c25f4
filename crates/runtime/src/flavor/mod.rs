//! The flavors of scheduler [bouge02, §3.3], one file each.

mod home;
pub(crate) mod hybrid;
pub(crate) mod kernel_level;
pub(crate) mod simulated;
pub(crate) mod user_level;

/// Returns whether an event waits for the calling thread because no other thread serves it. For a task that
/// computes.
pub(crate) fn is_awaited(now: vigie_detect::Instant) -> bool {
    hybrid::is_awaited(now).or_else(|| user_level::is_awaited(now)).unwrap_or(false)
}
