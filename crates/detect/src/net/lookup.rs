//! Addresses from names: what the sockets accept wherever they take an address.

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs as _},
    task::{Poll, Waker},
    vec,
};

use crate::{
    network::SimulatedNetwork,
    server::{Server, blocking_executor},
    sync::{Arc, PoisonError, RealGuard, RealMutex},
};

/// One or more socket addresses, or a name that stands for them. Sealed.
///
/// Implemented for [`SocketAddr`] and its two kinds, for pairs of an [`IpAddr`] and a port, for slices of
/// addresses, for strings such as `"127.0.0.1:80"`, `"[::1]:80"` and `"example.org:80"`, and for pairs of a host name
/// and a port.
///
/// Addresses are ready at once. A name is looked up by the system's resolver (`getaddrinfo`, which blocks) on a thread
/// of the host's [blocking executor](Server::set_blocking_executor), which is the blocking pool inside a runtime of
/// vigie.
pub trait ToSocketAddrs: Resolve {}

impl<T: Resolve + ?Sized> ToSocketAddrs for T {}

/// The addresses of a host, in the order in which they should be tried.
#[derive(Clone, Debug)]
pub struct Addresses(Known);

#[derive(Clone, Debug)]
enum Known {
    One(Option<SocketAddr>),
    Many(vec::IntoIter<SocketAddr>),
}

impl Iterator for Addresses {
    type Item = SocketAddr;

    fn next(&mut self) -> Option<SocketAddr> {
        match &mut self.0 {
            Known::One(address) => address.take(),
            Known::Many(addresses) => addresses.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            Known::One(address) => usize::from(address.is_some()),
            Known::Many(addresses) => addresses.len(),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for Addresses {}

impl From<SocketAddr> for Addresses {
    fn from(address: SocketAddr) -> Self {
        Self(Known::One(Some(address)))
    }
}

impl From<Vec<SocketAddr>> for Addresses {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        Self(Known::Many(addresses.into_iter()))
    }
}

pub(super) mod sealed {
    use super::Addresses;

    #[expect(unnameable_types, reason = "no other crate shall implement it")]
    pub trait Resolve {
        /// The addresses, if they are known, or what is to be looked up.
        fn target(&self) -> Target;
    }

    /// The addresses of a host and port, or the name to look up.
    #[expect(unnameable_types, reason = "part of a sealed trait")]
    #[derive(Debug)]
    pub enum Target {
        Known(Addresses),
        Name(Box<str>, Option<u16>),
    }
}

use sealed::{Resolve, Target};

impl Resolve for SocketAddr {
    fn target(&self) -> Target {
        Target::Known((*self).into())
    }
}

/// Implements [`Resolve`] for types that convert into one address.
macro_rules! impl_resolve {
    ($($kind:ty),+ $(,)?) => {$(
        impl Resolve for $kind {
            fn target(&self) -> Target {
                Target::Known(SocketAddr::from(*self).into())
            }
        }
    )+};
}

impl_resolve!(SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl Resolve for [SocketAddr] {
    fn target(&self) -> Target {
        Target::Known(self.to_vec().into())
    }
}

impl Resolve for str {
    fn target(&self) -> Target {
        match self.parse::<SocketAddr>() {
            Ok(address) => Target::Known(address.into()),
            Err(_) => Target::Name(self.into(), None),
        }
    }
}

impl Resolve for String {
    fn target(&self) -> Target {
        self.as_str().target()
    }
}

impl Resolve for (&str, u16) {
    fn target(&self) -> Target {
        match self.0.parse::<IpAddr>() {
            Ok(address) => Target::Known(SocketAddr::new(address, self.1).into()),
            Err(_) => Target::Name(self.0.into(), Some(self.1)),
        }
    }
}

impl Resolve for (String, u16) {
    fn target(&self) -> Target {
        (self.0.as_str(), self.1).target()
    }
}

impl<T: Resolve + ?Sized> Resolve for &T {
    fn target(&self) -> Target {
        (**self).target()
    }
}

/// Looks up the addresses of `host`, such as `"example.org:443"` or `("example.org", 443)`.
///
/// # Cancel safety
/// Cancel safe. A lookup that has begun ends on its thread, and its result is dropped.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], with the text, for a string without a port or with one above 65535; the resolver's error for a name that it does not know;
/// in virtual time, [`io::ErrorKind::NotFound`] for one that no node of the simulated network has; the host's, if it has no thread for the lookup or is shut down.
///
/// # Examples
/// ```
/// use vigie_detect::{Server, net};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let host = Server::spawn_thread()?;
/// # let _entered = host.server().enter();
/// let mut addresses = net::lookup_host("localhost:80").await?;
/// assert!(addresses.all(|address| address.ip().is_loopback() && address.port() == 80));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn lookup_host(host: impl ToSocketAddrs) -> io::Result<Addresses> {
    resolve(None, &host).await
}

/// Looks up `host` by the blocking executor of `server`, or of the current one.
pub(super) async fn resolve(
    server: Option<&Server>,
    host: &(impl ToSocketAddrs + ?Sized),
) -> io::Result<Addresses> {
    let (name, port) = match host.target() {
        Target::Known(addresses) => return Ok(addresses),
        Target::Name(host, Some(port)) => (host, port),
        Target::Name(text, None) => host_and_port(&text)?,
    };
    let current = Server::current().ok();
    if let Some(node) = server.or(current.as_ref()).and_then(Server::network_node) {
        return simulated(&node.network, &name, port);
    }
    let lookup = Arc::new(Lookup::default());
    let filler = Fill(Arc::clone(&lookup));
    let job = move || {
        // The resolver's error does not say which name it means.
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        filler.0.finish((&*name, port).to_socket_addrs().map_err(named));
    };
    match server.or(current.as_ref()) {
        Some(server) => server.run_blocking(Box::new(job))?,
        None => blocking_executor::on_a_thread(Box::new(job))?,
    }
    let found = poll_fn(|cx| lookup.poll(cx.waker())).await?;
    Ok(found.collect::<Vec<_>>().into())
}

/// Splits a text such as `"example.org:80"`.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], with the text, if it has no port.
fn host_and_port(text: &str) -> io::Result<(Box<str>, u16)> {
    // The last group of an IPv6 address is no port, but for std: "::1:80" may be read as "[::1]:80".
    let is_ip = |text: &str| text.parse::<IpAddr>().is_ok();
    let parts = text.rsplit_once(':').filter(|(host, _)| !is_ip(text) || is_ip(host));
    let invalid = |problem| {
        let text = format!(
            "{text:?} {problem}: an address is host:port, such as \"localhost:80\" or \"[::1]:80\""
        );
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    let parts = parts.filter(|_| !text.ends_with(']'));
    let (host, port) = parts.ok_or_else(|| invalid("has no port"))?;
    let port =
        port.parse().map_err(|_| invalid("has a port that is not a number of 0 to 65535"))?;
    Ok((host.into(), port))
}

/// Looks up the name of a node of the simulated network.
fn simulated(network: &SimulatedNetwork, host: &str, port: u16) -> io::Result<Addresses> {
    let ips = network.lookup(host);
    if ips.is_empty() {
        let text = format!("no node of the simulation is named {host}");
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect::<Vec<_>>().into())
}

/// The result of a lookup, on its way from the thread to the task.
#[derive(Default)]
struct Lookup(RealMutex<LookupState>);

#[derive(Default)]
struct LookupState {
    result: Option<io::Result<vec::IntoIter<SocketAddr>>>,
    waker: Option<Waker>,
}

impl Lookup {
    fn lock(&self) -> RealGuard<'_, LookupState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first result counts.
    fn finish(&self, result: io::Result<vec::IntoIter<SocketAddr>>) {
        let mut state = self.lock();
        state.result.get_or_insert(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<io::Result<vec::IntoIter<SocketAddr>>> {
        let mut state = self.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }
}

/// The job's side of a [`Lookup`]. A job that is dropped without having run, or that panics, ends the wait.
struct Fill(Arc<Lookup>);

impl Drop for Fill {
    fn drop(&mut self) {
        self.0.finish(Err(io::Error::new(
            io::ErrorKind::NotConnected,
            "the name was not looked up: the runtime is shut down",
        )));
    }
}

/// Tries `open` with each address until one succeeds.
///
/// # Errors
/// The error of the last address; [`io::ErrorKind::InvalidInput`] if there is none.
pub(super) fn first_of<T>(
    addresses: Addresses,
    mut open: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses {
        match open(address) {
            Ok(opened) => return Ok(opened),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(no_address))
}

/// The error of a name or slice without addresses.
pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any address")
}
