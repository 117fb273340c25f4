//! Clocks: setting the machine's clock changes nothing, large times are times like others, and a monotonic
//! clock that jumps loses no timer. What detection makes of jumps is in `vigie-detect`'s own tests.

mod jumps;
mod kernel;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
