//! Relays: streams and datagrams forwarded from one socket to another, between peers that cannot reach each other.
//!
//! - [`Relay`]: TCP and Unix streams, any to any. Raw bytes are copied or spliced; framed ones are forwarded message
//!   by message, stored first or cut through ([`Framing`]).
//! - [`UdpRelay`]: datagrams, in sessions that expire.
//! - [`Balance`]: which of several targets a connection or session gets.
//! - [`ProxyHeader`]: the PROXY protocol, version 2, sent and accepted.
//! - `TlsRouter`, `TlsOrigination` (feature `tls`): TLS with clients and with targets, by rustls; targets by the client's name for its
//!   server (SNI), with and without ending TLS.
//!
//! ```text
//!   client ──▶ accept ──▶ [PROXY header] ──▶ [TLS] ──▶ connect, by policy and health ──▶ [PROXY header] ──▶ [TLS] ──▶ both directions:
//!                │                                                                raw: buffer, or pipe in the kernel
//!                └ waits: connections_max, out of descriptors                     framed: planned for each message
//! ```
//!
//! # Threads and executors
//! Everything is futures on sockets of `vigie_detect::net`: they run in vigie's runtimes, and in tokio or any other
//! executor beside a [host thread](vigie_detect::HostThread). Each connection is one task.
//!
//! # Bounds
//! Connections are limited by [`RelayBuilder::connections_max`], in all, and [`RelayBuilder::per_source_max`], memory by [`RelayBuilder::memory_bytes_max`] plus 8
//! KiB per connection and 60 KiB for each of its sides that speaks TLS, pipes by [`RelayBuilder::pipes_max`]. An idle connection holds no buffer. While a receiver is
//! slow, its sender is not read and has to wait. Attempts to reach another target after a failed one are limited by [`RelayBuilder::retries`].
//!
//! # How connections end
//! The end of a stream is passed on in its direction (half-close). Anything else that ends a connection while bytes may
//! be in flight is a reset for both peers: a reset by one of them, a protocol violation, a drain's deadline, a panic in
//! the connection's task, or dropping the task. So no peer takes a part for the whole, as far as its socket has resets:
//! TCP has, Unix sockets do not. In a framed relay messages that arrived completely before are delivered first.

mod access;
mod availability;
mod balance;
mod buffers;
mod check;
mod chooser;
mod connecting;
mod connection;
mod counters;
mod endpoint;
mod error;
mod framed;
mod health;
mod listener;
mod names;
mod own_listener;
mod peer_stream;
mod pipes;
mod proxy;
mod raw;
mod record;
#[expect(clippy::module_inception, reason = "the noun of the folder is the type's too")]
mod relay;
mod resources;
mod retries;
mod session;
mod settings;
mod shared;
mod stream;
mod sys;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod train;
mod udp;
mod upstream;
mod wait;
mod yielder;

#[cfg(feature = "tls")]
pub use self::tls::{
    CertificateValidity, ClientHello, HelloError, HelloParse, SniRoute, TlsConfigError, TlsError,
    TlsIdentity, TlsOrigination, TlsRouter, TlsTermination,
};
pub use self::{
    access::{AccessAction, AccessRule, RefusedClient},
    balance::Balance,
    check::HealthCheckConfig,
    chooser::Transfer,
    connection::Connection,
    counters::RelayStats,
    endpoint::{Endpoint, ParseAddressError},
    error::{Peer, RelayError},
    framed::{FrameError, FrameHeader, FrameMode, Framing, LengthFormat},
    listener::RelayListener,
    proxy::{AddressRange, ProxyError, ProxyHeader, ProxyParse},
    record::{ConnectionEnd, ConnectionRecord},
    relay::{ConnectionTask, Relay, RelayHandle},
    retries::RetryBudget,
    settings::{BindError, RelayBuilder},
    shared::Drained,
    target::{TargetState, TargetStats},
    udp::{UdpRelay, UdpRelayBuilder, UdpRelayHandle, UdpRelayListener, UdpRelayStats},
    upstream::Upstream,
};
