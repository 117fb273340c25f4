//! The kernel's own ways between the namespaces.

use crate::host::address;
use crate::messages::datagram::udp::Socket;
use crate::messages::socket::{ReceiveMode, Streams};
use crate::messages::{Carrier, CarrierKind, Measure, blocking};

/// The longest datagram that is measured, in bytes: IP cuts it.
const DATAGRAM_BYTES: u32 = 32_768;

/// TCP, read again and again.
pub(super) static TCP: Carrier = Carrier {
    name: super::TCP,
    label: "TCP, polling",
    family: "tcp-netns",
    kind: CarrierKind::Peer,
    has: Measure::is_plain,
    link_bytes: 0,
    is_remote: true,
    open: |context| blocking(Streams::tcp(context, ReceiveMode::Polling, address)),
    program: None,
};

/// TCP whose receiver sleeps in `read`.
pub(super) static TCP_BLOCKING: Carrier = Carrier {
    name: "tcp-netns-blocking",
    label: "TCP, blocking",
    has: Measure::is_blocking,
    open: |context| blocking(Streams::tcp(context, ReceiveMode::Blocking, address)),
    ..TCP
};

/// A UDP socket, read again and again. Nothing keeps a window from overflowing the receiver, so that only a small one is
/// measured.
pub(super) static UDP: Carrier = Carrier {
    name: super::UDP,
    label: "UDP socket, polling",
    family: "udp-netns",
    has: |measure| (TCP.has)(measure) && fits(measure),
    open: |context| blocking(Socket::open(context, ReceiveMode::Polling, address)),
    ..TCP
};

/// A UDP socket whose receiver sleeps in `recv`.
pub(super) static UDP_BLOCKING: Carrier = Carrier {
    name: super::UDP_BLOCKING,
    label: "UDP socket, blocking",
    family: "udp-netns",
    has: |measure| (TCP_BLOCKING.has)(measure) && fits(measure),
    open: |context| blocking(Socket::open(context, ReceiveMode::Blocking, address)),
    ..TCP
};

fn fits(measure: Measure) -> bool {
    measure.bytes() <= DATAGRAM_BYTES
}
