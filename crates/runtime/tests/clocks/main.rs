//! Clocks: setting the machine's clock changes nothing, large times are times like others, and a monotonic
//! clock that jumps loses no timer. What detection makes of jumps is in `vigie-detect`'s own tests.

#[expect(dead_code, reason = "these tests use a part of it")]
#[path = "../child/mod.rs"]
mod child;
#[path = "../guard/mod.rs"]
mod guard;

mod jumps;
mod kernel;
