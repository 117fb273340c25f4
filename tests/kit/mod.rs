//! What the tests of all crates share: processes of a test's own, bounds, folders, namespaces, seeds and fuzzing.
//!
//! A test program takes the whole kit in as a module:
//!
//! ```ignore
//! #[path = "../../../tests/kit/mod.rs"]
//! #[expect(dead_code, reason = "a test uses parts of the kit")]
//! mod kit;
//! ```
//!
//! It is a module and not a crate because it is small, needs nothing but what every crate has, and says with `env!` which package
//! and test program it is part of. `forked.rs`, which is unsafe, and `log.rs`, which needs `tracing`, are taken in on their own.

pub(crate) mod child;
pub(crate) mod folder;
pub(crate) mod fuzz;
pub(crate) mod guard;
pub(crate) mod namespace;
pub(crate) mod seeds;
pub(crate) mod skip;
pub(crate) mod speaker;
