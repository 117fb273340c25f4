//! The hot paths cost no allocations, system calls or wake-ups. Counts, not times.

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
