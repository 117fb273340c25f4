//! What a runtime reports: its metrics, the event that names a hog, and the socket.

#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "../../../../tests/kit/log.rs"]
mod log;
#[path = "../settle/mod.rs"]
mod settle;

mod counts;
mod dump;
mod hog_event;
mod socket;
