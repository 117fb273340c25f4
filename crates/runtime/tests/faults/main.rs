//! Faults around a runtime, and what must still work.

#[path = "../census/mod.rs"]
mod census;
#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
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
mod restless;
mod storms;
