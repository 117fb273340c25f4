//! Messages through a node in the middle, over any provider of `via`: the paper's experiment [fast-forward, §3].
//!
//! ```text
//!   Source ~~~~ VI ~~~~> Forwarder: engine thread (owns the provider) ~~~~ VI ~~~~> Sink
//!   send_forward           |  NIC: the algorithm runs there              ^            |
//!                          +- host: hand-over -> program -> hand-over ---+            |
//!      ^                                                                              |
//!      +------------------- window, final acknowledgement <---------------------------+
//! ```
//! The three are processes of one host or of several, or threads; the provider is anything that implements
//! [`Provider`](vigie_via::vi::Provider). What plays the paper's network processor is the forwarder's
//! engine: the one thread that touches the provider. With [`Path::NIC`](crate::Path::NIC) the algorithm runs there, and a
//! message never reaches the program; with [`Path::HOST`](crate::Path::HOST) the engine copies it into the program's
//! memory, hands it to the program's thread, and gets it back. *Deviation:* both are threads of the same processors,
//! so that the one is no slower than the other: δ is spent on purpose, by [`Busy`].
//!
//! # What is promised
//! - Messages of one source to one destination arrive once, whole and in order, or an error tells that they do not: the
//!   provider's connections are reliable, and nothing is thrown away in the node unless the algorithm says so or the
//!   destination is gone, both of which the source hears of.
//! - Memory is bounded: packets by [`Settings::packets`] for each peer, messages in the program by 64, the window by
//!   [`Settings::window`]. Who has no room gives no credit, back to the source, whose call waits.
//! - Whatever a peer sends, only its own connection suffers.
//! - No call waits for longer than [`Settings::patience`] without getting on.
//!
//! # Examples
//! ```
//! # use std::time::Duration;
//! use vigie_forward::{Path, messages::{Basic, Forwarder, Settings, Sink, SinkEvent, Source}};
//! use vigie_via::{software_nic::{Config, Secret}, udp::Udp};
//!
//! let secret = Secret::new([7; 16]); // of 16 random bytes that all nodes have been given
//! let nic = || Udp::bind("127.0.0.1:0".parse().expect("an address"), secret.clone(), Config::default());
//! let mut sink = Sink::open(nic()?, Settings::new())?;
//! let address = sink.address();
//! let other = std::thread::spawn(move || {
//!     let mut received = Vec::new();
//!     // Until the forwarder has gone, so that the last acknowledgement has left.
//!     while let Ok(Some(event)) = sink.receive() {
//!         match event {
//!             SinkEvent::Message(message) => received.push(message.bytes),
//!             SinkEvent::Lost { .. } => break,
//!             _ => {}
//!         }
//!     }
//!     received
//! });
//! let routes = [(1, address)];
//! let forwarder = Forwarder::start(nic()?, Settings::new(), &routes, Path::NIC_CUT_THROUGH, Basic::default())?;
//! let mut source = Source::connect(nic()?, forwarder.address(), Settings::new())?;
//! source.send_forward(1, 42, b"through the node")?;
//! assert_eq!(source.finish(1)?.delivered, 1);
//! assert_eq!(forwarder.stop()?.forwarded, 1);
//! assert_eq!(other.join().expect("a sink"), [b"through the node"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
mod error;
mod forwarder;
mod hand_over;
mod idle;
mod packet;
mod port;
mod settings;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod work;

pub use self::error::MessagesError;
pub use self::forwarder::{Forwarder, ForwarderReport};
pub use self::hand_over::HandOverTimes;
pub use self::idle::Idle;
pub use self::settings::Settings;
pub use self::sink::{Received, Sink, SinkEvent};
pub use self::source::{Finished, Source};
pub use self::work::{Basic, Busy, Closure, Envelope, Fate, HEAD_BYTES, Work, closure};

/// What sinks and forwarders listen for.
const DISCRIMINATOR: &[u8] = b"vigie-forward/messages";
