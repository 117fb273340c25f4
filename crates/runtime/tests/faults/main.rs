//! Faults around a runtime, and what must still work.

#[path = "../census/mod.rs"]
mod census;
#[path = "../child/mod.rs"]
mod child;
#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../guard/mod.rs"]
mod guard;
#[path = "../seed/mod.rs"]
mod seed;
#[path = "../settle/mod.rs"]
mod settle;

mod alive;

mod blocking;
mod cancellation;
mod descriptors;
mod detectors;
mod fairness;
mod hogs;
mod lanes;
mod names;
mod panics;
mod refusals;
mod storms;
