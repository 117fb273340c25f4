//! Targets that are the relay's own listener, as a name may resolve to: each connection would come back as another one without end.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use vigie_detect::Server;

/// Refuses a target at which the relay itself listens, with the error of a target that cannot be reached.
pub(super) fn refuse(server: &Server, listen: SocketAddr, target: SocketAddr) -> io::Result<()> {
    if listen.port() != target.port() || !reaches(server, listen, target) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "this relay itself listens there ({listen}), so each connection would come back without end: correct the target, or what its name \
         resolves to"
    )))
}

fn reaches(server: &Server, listen: SocketAddr, target: SocketAddr) -> bool {
    let (own, to) = (listen.ip().to_canonical(), target.ip().to_canonical());
    // What is sent to no address goes to the loopback interface.
    let loopback: IpAddr =
        if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let includes = own.is_unspecified() && (own.is_ipv6() || to.is_ipv4());
    own == to
        || (to.is_unspecified() && own == loopback)
        || (includes
            && (to.is_loopback()
                || to.is_unspecified()
                || (!server.is_virtual() && is_of_host(target))))
}

/// Returns whether an address is this host's: only to those does the kernel send from the same address.
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
    from.is_ok_and(|from| from.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only targets that are the listener are refused. Method: pairs of addresses by hand; 192.0.2.1 is no address of this host.
    #[test]
    fn own_listeners_are_known() {
        let server = Server::spawn_thread().expect("a server");
        for (listen, target, is_refused) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.2:80", "0.0.0.0:80", false),
            ("127.0.0.1:80", "[::]:80", false),
            ("[::1]:80", "[::]:80", true),
            ("0.0.0.0:80", "127.0.0.2:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "[::ffff:127.0.0.1]:80", true),
            ("0.0.0.0:80", "192.0.2.1:80", false),
        ] {
            let parsed = |text: &str| text.parse().expect("an address");
            let refused = refuse(server.server(), parsed(listen), parsed(target));
            assert_eq!(refused.is_err(), is_refused, "{listen} {target}");
        }
        assert!(is_of_host(([127, 0, 0, 1], 80).into()));
        assert!(!is_of_host(([192, 0, 2, 1], 80).into()));
    }
}
