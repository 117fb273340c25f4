//! The kernel's own ways between the namespaces.

use crate::host::namespaces::address;
use crate::messages::blocking::Blocking;
use crate::messages::carrier::Kind;
use crate::messages::datagram::udp::Socket;
use crate::messages::measure::Measure;
use crate::messages::ranks::Own;
use crate::messages::socket::{Reading, Streams};

/// The longest datagram that is measured, in bytes: IP cuts it.
const DATAGRAM_BYTES: u32 = 32_768;

/// TCP, read again and again.
pub(super) static TCP: Own = Own {
    name: super::TCP,
    label: "TCP, polling",
    family: "tcp-netns",
    kind: Kind::Peer,
    has: |measure| matches!(measure, Measure::Latency { .. } | Measure::Window { .. }),
    link_bytes: 0,
    open: |seat| Ok(Box::new(Blocking::new(Streams::tcp(seat, Reading::Polling, address)?))),
};

/// TCP whose receiver sleeps in `read`.
pub(super) static TCP_BLOCKING: Own = Own {
    name: "tcp-netns-blocking",
    label: "TCP, blocking",
    has: |measure| !matches!(measure, Measure::Synchronous { .. } | Measure::Loaned { .. }),
    open: |seat| Ok(Box::new(Blocking::new(Streams::tcp(seat, Reading::Blocking, address)?))),
    ..TCP
};

/// A UDP socket, read again and again. Nothing keeps a window from overflowing the receiver, so that only a small one is
/// measured.
pub(super) static UDP: Own = Own {
    name: super::UDP,
    label: "UDP socket, polling",
    family: "udp-netns",
    has: |measure| (TCP.has)(measure) && fits(measure),
    open: |seat| Ok(Box::new(Blocking::new(Socket::open(seat, Reading::Polling, address)?))),
    ..TCP
};

/// A UDP socket whose receiver sleeps in `recv`.
pub(super) static UDP_BLOCKING: Own = Own {
    name: super::UDP_BLOCKING,
    label: "UDP socket, blocking",
    family: "udp-netns",
    has: |measure| (TCP_BLOCKING.has)(measure) && fits(measure),
    open: |seat| Ok(Box::new(Blocking::new(Socket::open(seat, Reading::Blocking, address)?))),
    ..TCP
};

fn fits(measure: Measure) -> bool {
    measure.bytes() <= DATAGRAM_BYTES
}
