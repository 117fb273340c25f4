//! Messages and NICs as futures: in tasks of vigie's runtimes, and of tokio with a separate thread for
//! the detection server. All ranks are in this process, each with a shared-memory NIC.

#[path = "messages/buffers.rs"]
mod buffers;
#[path = "messages/failures.rs"]
mod failures;
#[path = "messages/hosts.rs"]
mod hosts;
#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;
#[path = "messages/nics.rs"]
mod nics;
#[path = "kit/pattern.rs"]
mod pattern;
#[path = "messages/progress.rs"]
mod progress;
#[path = "messages/requests.rs"]
mod requests;
#[path = "messages/semantics.rs"]
mod semantics;
#[path = "messages/sets.rs"]
mod sets;
#[path = "messages/waking.rs"]
mod waking;
