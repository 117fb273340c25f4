//! What the hot paths cost in allocations, system calls and wake-ups: none. Counts, not times.

#[path = "../child/mod.rs"]
mod child;
#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../guard/mod.rs"]
mod guard;

mod allocations;
mod idleness;
mod supervision;
mod system_calls;
