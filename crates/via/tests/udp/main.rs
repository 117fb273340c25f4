//! The provider over UDP on real sockets: networks that lose, links that change, peers that vanish, strangers.
//!
//! What needs namespaces runs in namespaces of its own, and says so where it cannot.

mod hostile;
mod links;
mod lossy;
mod namespace;
mod pair;
mod relay;
