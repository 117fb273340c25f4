//! Members in virtual time, over a network that does to packets what networks do.
//!
//! `SIM_RUNS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed. Ten thousand:
//! `SIM_RUNS=10000 cargo test --release -p vigie-barrier --test member`.

mod clocks;
mod crashes;
mod faults;
mod hostile;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
mod partitions;
mod quiet;
mod world;
