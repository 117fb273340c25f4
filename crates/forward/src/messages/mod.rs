//! Messages through a node in the middle, over any provider of `via`: the paper's experiment [fast-forward, §3].
//!
//! ```text
//!   Source ~~~~ VI ~~~~> Forwarder: engine thread (owns the provider) ~~~~ VI ~~~~> Sink
//!   send_forward           |  NIC: the algorithm runs there              ^            |
//!                          +- host: hand-over -> program -> hand-over ---+            |
//!      ^                                                                              |
//!      +------------------- window, final acknowledgement <---------------------------+
//! ```
//! The three are processes of one host or of several, or threads; the provider is any implementation of
//! [`Provider`](vigie_via::vi::Provider). The forwarder's engine plays the paper's network processor: it is the only
//! thread that touches the provider. With [`Path::NIC`](crate::Path::NIC) the algorithm runs there, and a message never
//! reaches the program; with [`Path::HOST`](crate::Path::HOST) the engine copies it into the program's memory, hands it
//! to the program's thread, and gets it back. *Deviation:* both threads run on the same processors, so neither is
//! slower: [`Busy`] adds δ on purpose.
//!
//! # Guarantees
//! - Messages of one source to one destination arrive once, complete and in order, or an error says that they do not:
//!   the provider's connections are reliable, and the node discards a message only if the algorithm says so or the
//!   destination is gone; the source is told of both.
//! - Memory is bounded: packets by [`NodeConfig::packets`] for each peer, messages in the program by 64, the window
//!   by [`NodeConfig::window`]. A node without room grants no credit, which propagates back to the source, whose call
//!   waits.
//! - Whatever a peer sends, only its own connection suffers.
//! - No call waits longer than [`NodeConfig::timeout`] without progress.
//!
//! # Examples
//! ```
//! # use std::time::Duration;
//! use vigie_forward::{Path, messages::{Basic, Forwarder, NodeConfig, Sink, SinkEvent, Source}};
//! use vigie_via::{software_nic::{SoftwareNicConfig, Secret}, udp::Udp};
//!
//! let secret = Secret::new([7; 16]); // of 16 random bytes that all nodes have been given
//! let nic = || Udp::bind("127.0.0.1:0".parse().expect("an address"), secret.clone(), SoftwareNicConfig::default());
//! let mut sink = Sink::open(nic()?, NodeConfig::new())?;
//! let address = sink.address();
//! let other = std::thread::spawn(move || {
//!     let mut received = Vec::new();
//!     // Until the forwarder has gone, so that the last acknowledgement has left.
//!     while let Ok(Some(event)) = sink.next_event() {
//!         match event {
//!             SinkEvent::Message(message) => received.push(message.bytes),
//!             SinkEvent::Lost { .. } => break,
//!             _ => {}
//!         }
//!     }
//!     received
//! });
//! let routes = [(1, address)];
//! let forwarder = Forwarder::start(nic()?, NodeConfig::new(), &routes, Path::NIC_CUT_THROUGH, Basic::default())?;
//! let mut source = Source::connect(nic()?, forwarder.address(), NodeConfig::new())?;
//! source.send_forward(1, 42, b"through the node")?;
//! assert_eq!(source.finish(1)?.delivered, 1);
//! assert_eq!(forwarder.stop()?.forwarded, 1);
//! assert_eq!(other.join().expect("a sink"), [b"through the node"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algorithm;
mod async_nodes;
mod config;
mod error;
mod forwarder;
mod node;
mod packet;
mod port;
mod program_channel;
mod reassembly;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod wait_budget;

pub use self::algorithm::{
    Algorithm, AlgorithmFn, Basic, Busy, Envelope, HEAD_BYTES, MessageVerdict, algorithm_fn,
};
pub use self::async_nodes::{AsyncForwarder, AsyncSink, AsyncSource};
pub use self::config::NodeConfig;
pub use self::error::MessagesError;
pub use self::forwarder::{Forwarder, ForwarderReport};
pub use self::program_channel::ChannelTimes;
pub use self::sink::{Received, Sink, SinkEvent};
pub use self::source::{DeliveryReport, Source};

/// The discriminator that sinks and forwarders listen on.
const DISCRIMINATOR: &[u8] = b"vigie-forward/messages";
