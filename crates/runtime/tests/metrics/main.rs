//! What a runtime reports: its metrics, the event that names a hog, and the socket.

#[path = "../flavors/mod.rs"]
mod flavors;
#[path = "../guard/mod.rs"]
mod guard;
#[path = "../settle/mod.rs"]
mod settle;

mod counts;
mod dump;
mod hog_event;
mod socket;
