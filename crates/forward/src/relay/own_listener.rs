//! Targets that are the relay's own listener, as a name may resolve to: each connection would come back as another one without end.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
};

use vigie_detect::Server;

/// Whether a target is the relay's own listener, by the addresses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnListener {
    No,
    Yes,
    /// If the address is one of this host, which changes.
    IfOfHost,
}

/// Refuses a target that is this listener. Returns true if the target would be this listener whenever its address belongs to this host.
pub(super) fn depends_on_host(
    server: &Server,
    listen: SocketAddr,
    target: SocketAddr,
) -> io::Result<bool> {
    match compare(listen, target) {
        OwnListener::No => Ok(false),
        OwnListener::Yes => Err(refusal(listen)),
        OwnListener::IfOfHost => Ok(!server.is_virtual()),
    }
}

/// Returns the error of a target at which the relay itself listens.
pub(super) fn refusal(listen: SocketAddr) -> io::Error {
    io::Error::other(format!(
        "this relay itself listens there ({listen}), so each connection would come back without end: correct the target, or what its name \
         resolves to"
    ))
}

fn compare(listen: SocketAddr, target: SocketAddr) -> OwnListener {
    if listen.port() != target.port() {
        return OwnListener::No;
    }
    let (own, to) = (listen.ip().to_canonical(), target.ip().to_canonical());
    // What is sent to no address goes to the loopback interface.
    let loopback: IpAddr =
        if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let includes = own.is_unspecified() && (own.is_ipv6() || to.is_ipv4());
    if own == to || (to.is_unspecified() && (includes || own == loopback)) {
        return OwnListener::Yes;
    }
    match includes {
        true if to.is_loopback() => OwnListener::Yes,
        true => OwnListener::IfOfHost,
        false => OwnListener::No,
    }
}

/// Whether a target's address is one of this host, as connections have found: if it is, the target is the relay's own listener.
///
/// Nothing that is remembered is certain. An address can be added at any time, and the kernel announces it before it delivers packets to it. So each
/// connection is checked by its local address once it is connected. Asking the kernel beforehand only avoids connections that come back: that is done
/// for the first one, and while the last answer was that the address is this host's. Connections that are opened while an address is added may reach the relay once,
/// and are refused on both sides.
#[derive(Debug, Default)]
pub(super) struct OwnAddressCheck {
    /// A hint: a reader that misses a change checks its connection later.
    is_foreign: AtomicBool,
}

impl OwnAddressCheck {
    /// Returns whether a connection may be tried.
    pub(super) fn admits(&self, target: SocketAddr) -> bool {
        if self.is_foreign.load(Ordering::Relaxed) {
            return true;
        }
        let is_foreign = !is_of_host(target);
        self.is_foreign.store(is_foreign, Ordering::Relaxed);
        is_foreign
    }

    /// Returns whether a connection leads to another host, by its own end.
    pub(super) fn accepts(&self, local: SocketAddr, target: SocketAddr) -> bool {
        let is_foreign = !is_own_end(local, target);
        if !is_foreign {
            self.is_foreign.store(false, Ordering::Relaxed);
        }
        is_foreign
    }
}

/// Returns whether a socket that is connected to `target` ends at this host, by its own end: only to an address of its own does the kernel send from
/// the same address.
pub(super) fn is_own_end(local: SocketAddr, target: SocketAddr) -> bool {
    local.ip() == target.ip()
}

/// Returns whether an address is this host's.
fn is_of_host(address: SocketAddr) -> bool {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // A socket of datagrams sends nothing when it is connected.
    let from = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    from.is_ok_and(|from| is_own_end(from, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the addresses alone say which targets are the listener, and of which that depends on this host. Method: pairs of addresses by hand;
    /// 192.0.2.1 is no address of this host.
    #[test]
    fn own_listeners_are_known() {
        use OwnListener::{IfOfHost, No, Yes};
        for (listen, target, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", Yes),
            ("127.0.0.1:80", "127.0.0.1:81", No),
            ("127.0.0.1:80", "127.0.0.2:80", No),
            ("127.0.0.1:80", "0.0.0.0:80", Yes),
            ("127.0.0.2:80", "0.0.0.0:80", No),
            ("127.0.0.1:80", "[::]:80", No),
            ("[::1]:80", "[::]:80", Yes),
            ("0.0.0.0:80", "0.0.0.0:80", Yes),
            ("[::]:80", "0.0.0.0:80", Yes),
            ("0.0.0.0:80", "127.0.0.2:80", Yes),
            ("0.0.0.0:80", "[::1]:80", No),
            ("0.0.0.0:80", "[2001:db8::1]:80", No),
            ("[::]:80", "[::1]:80", Yes),
            ("[::]:80", "127.0.0.1:80", Yes),
            ("[::]:80", "[::ffff:127.0.0.1]:80", Yes),
            ("0.0.0.0:80", "192.0.2.1:80", IfOfHost),
            ("0.0.0.0:80", "192.0.2.1:81", No),
            ("[::]:80", "192.0.2.1:80", IfOfHost),
            ("[::]:80", "[2001:db8::1]:80", IfOfHost),
        ] {
            let parsed = |text: &str| text.parse().expect("an address");
            assert_eq!(compare(parsed(listen), parsed(target)), expected, "{listen} {target}");
        }
        assert!(is_of_host(([127, 0, 0, 1], 80).into()));
        assert!(!is_of_host(([192, 0, 2, 1], 80).into()));
    }

    /// Goal: the kernel is asked until an address is another host's, and again after a connection has come back. Method: addresses by hand.
    #[test]
    fn the_kernel_is_asked_when_needed() {
        let (own, other) = (([127, 0, 0, 1], 80).into(), ([192, 0, 2, 1], 80).into());
        let check = OwnAddressCheck::default();
        assert!(!check.admits(own) && !check.admits(own));
        assert!(check.admits(other));
        assert!(check.admits(own), "it was not asked");
        assert!(check.accepts(([192, 0, 2, 2], 5).into(), other));
        assert!(check.admits(own), "it was not asked");
        assert!(!check.accepts(([192, 0, 2, 1], 5).into(), other));
        assert!(!check.admits(own), "it was asked");
    }
}
