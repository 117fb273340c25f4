//! Members in virtual time, over a network that does to packets what networks do.
//!
//! `SIM_SEEDS` is the number of seeds of each test, `SIM_SEED` the first; a failure names its seed. Ten thousand:
//! `SIM_SEEDS=10000 cargo test --release -p vigie-barrier --test member`.

mod clocks;
mod crashes;
mod faults;
mod hostile;
mod partitions;
mod quiet;
#[path = "../../../via/tests/kit/seeds.rs"]
mod seeds;
mod world;
