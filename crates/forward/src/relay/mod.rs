//! Relays: streams and datagrams taken from one socket and given to another, for those who cannot reach each other.
//!
//! - [`Relay`]: TCP and Unix streams, any to any. Raw bytes are copied or spliced; framed ones are forwarded message
//!   by message, stored first or cut through ([`Framing`]).
//! - [`UdpRelay`]: datagrams, in sessions that expire.
//! - [`ProxyHeader`]: the PROXY protocol, version 2, sent and accepted.
//!
//! ```text
//!   client ──▶ accept ──▶ [PROXY header] ──▶ connect, upstreams in order ──▶ [PROXY header] ──▶ both directions:
//!                │                                                              raw: buffer, or pipe in the kernel
//!                └ waits: connections_max, out of descriptors                   framed: planned for each message
//! ```
//!
//! # Threads and executors
//! Everything is futures on sockets of `vigie_detect::net`: they run in vigie's runtimes, and in tokio or any other
//! executor beside a [host thread](vigie_detect::HostThread). A connection is one task.
//!
//! # Bounds
//! Connections by [`RelayBuilder::connections_max`], memory by [`RelayBuilder::memory_bytes_max`] and 8 KiB per connection,
//! pipes by [`RelayBuilder::pipes_max`]. An idle connection holds no buffer. A slow receiver is not read for: the
//! sender waits.
//!
//! # Ends
//! An end of a stream is passed on in its direction (half-close). Whatever else ends a connection while bytes may be
//! under way is a reset for both peers: a reset by one of them, a broken protocol, a drain's deadline, a panic in the
//! connection's task, a task that is dropped. So nobody takes a part for the whole, as far as the socket knows a reset:
//! TCP does, Unix sockets do not. In a framed relay the messages that came whole before arrive first.

mod buffers;
mod chooser;
mod connection;
mod counters;
mod courtesy;
mod endpoint;
mod error;
mod framed;
mod health;
mod means;
mod pipes;
mod proxy;
mod raw;
#[expect(clippy::module_inception, reason = "the noun of the folder is the type's too")]
mod relay;
mod session;
mod settings;
mod sys;
mod transport;
mod udp;
mod upstream;
mod wait;

pub use self::{
    chooser::Transfer,
    connection::Connection,
    counters::RelayStats,
    endpoint::{Endpoint, ParseEndpointError},
    error::{Peer, RelayError},
    framed::{FrameError, FrameMode, Framing, Header, LengthFormat},
    proxy::{Network, ParseNetworkError, ProxyError, ProxyHeader, ProxyParse},
    relay::{ConnectionTask, Drained, Relay, RelayHandle},
    settings::{BindError, RelayBuilder},
    udp::{UdpBindError, UdpRelay, UdpRelayBuilder, UdpRelayHandle, UdpRelayStats},
};
