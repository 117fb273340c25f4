//! TLS in relays: ended at the relay, passed through by the client's name for its server, and begun with targets.
//!
//! ```text
//!                     ┌ terminate: handshake, by the certificate of the route ─┐
//!   ClientHello ─▶ name                                                       ├─▶ targets of the route ─▶ [PROXY header] ─▶ [TLS]
//!                     └ pass through: the bytes as they are ──────────────────┘
//! ```
//! The protocol is rustls', which does no I/O: `machine.rs` drives it with the relay's buffers, `stream.rs` puts it on a socket, and the
//! session's pumps take it for any other stream, with its back pressure, half-closes (`close_notify`) and resets.

mod accept;
mod alpn;
mod error;
mod hello;
mod identity;
mod machine;
mod origination;
mod stream;
mod termination;
mod validity;
mod window;
mod words;

pub(super) use self::{
    accept::{accept, connect},
    stream::TlsStream,
};
pub use self::{
    error::{TlsConfigError, TlsError},
    hello::{ClientHello, HelloError, HelloParse},
    identity::TlsIdentity,
    origination::TlsOrigination,
    termination::{SniRoute, TlsRouter, TlsTermination},
    validity::CertificateValidity,
};
