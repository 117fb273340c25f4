//! The hot paths cost no allocations, system calls or wake-ups. Counts, not times.

#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

mod allocations;
mod idleness;
mod supervision;
mod system_calls;
