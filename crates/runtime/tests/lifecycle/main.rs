//! The life of a runtime: entering it, its end, and what destructors may do on the way.

#[path = "../census/mod.rs"]
mod census;
#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../../../../tests/kit/forked.rs"]
mod forked;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "../settle/mod.rs"]
mod settle;

mod leftovers;
mod tasks;

mod block_on;
mod context;
mod destructors;
mod fork;
mod ids;
mod join_set;
mod local;
mod local_set;
mod shutdown;
