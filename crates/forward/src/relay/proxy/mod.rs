//! The PROXY protocol, version 2: tells an upstream the client's address, before the client's first byte.
//!
//! # Source
//! The PROXY protocol, versions 1 and 2 (W. Tarreau, HAProxy Technologies, 2020), [proxy-protocol, §2.2].

mod header;
mod network;

pub use header::{ProxyError, ProxyHeader, ProxyParse};
pub use network::AddressRange;
