//! The listener of a relay, which can pass to another relay without being closed.

use std::{
    fs, io, net,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::FileTypeExt,
            net::{UnixListener as StdUnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::net::{AddressFamily, sockopt::socket_domain};
use vigie_detect::{
    Server,
    net::{TcpListener, UnixListener},
};

use super::{connection::Connection, endpoint::Endpoint};

/// The listener of a relay, for another one that is to accept from it next: no client is refused in between, and those in the
/// kernel's queue stay there. Clones are the same listener. It is closed with the last of them, and of the relays that have it.
///
/// Between processes it passes as a descriptor: [`AsFd`], [`from_fd_on`](Self::from_fd_on), [`set_owns_file`](Self::set_owns_file).
///
/// ```
/// use std::time::Duration;
/// use vigie_detect::Server;
/// use vigie_forward::relay::{ConnectionTask, Endpoint, Relay};
///
/// # tokio::runtime::Builder::new_multi_thread().build()?.block_on(async {
/// let host = Server::spawn_thread()?;
/// let spawn = |connection: ConnectionTask| drop(tokio::spawn(connection));
/// let (one, other) = ("192.0.2.1:80".parse()?, "192.0.2.2:80".parse()?);
/// let listen = Endpoint::Tcp("127.0.0.1:0".parse()?);
/// let relay = Relay::builder(listen.clone()).upstream(Endpoint::Tcp(one)).bind_on(host.server())?;
/// let handle = relay.handle();
/// let serving = tokio::spawn(relay.serve(spawn));
///
/// let listener = handle.listener().expect("it accepts");
/// let next = Relay::builder(listen).upstream(Endpoint::Tcp(other)).listener(listener);
/// let next = next.bind_on(host.server())?;
/// handle.hand_over(Duration::from_secs(5)).await;
/// let next_handle = next.handle();
/// let next_serving = tokio::spawn(next.serve(spawn));
/// # next_handle.drain(Duration::ZERO);
/// # serving.await??;
/// # next_serving.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RelayListener(Arc<Listening>);

/// A relay's listener, or what is left of it once it has stopped accepting.
#[derive(Debug)]
pub(super) struct WeakListener(Weak<Listening>);

#[derive(Debug)]
struct Listening {
    /// Removed before the socket is closed: another relay may listen there at once, and its file must stay.
    file: Option<SocketFile>,
    acceptor: Acceptor,
    endpoint: Endpoint,
}

impl RelayListener {
    pub(super) fn bind_on(server: &Server, endpoint: &Endpoint) -> io::Result<Self> {
        // A simulated socket has no file.
        let path = endpoint.path().filter(|_| !server.is_virtual());
        if let Some(path) = path {
            remove_stale(path);
        }
        let acceptor = Acceptor::bind_on(server, endpoint)?;
        let file = path.map(|path| SocketFile { path: path.into(), is_own: true.into() });
        let endpoint = acceptor.endpoint()?;
        Ok(Self(Arc::new(Listening { file, acceptor, endpoint })))
    }

    /// Takes over a listening socket of TCP or of Unix streams that another process has passed on, watched by `server`. The file of a Unix
    /// socket stays when this is closed, unless you say that this [owns](Self::set_owns_file) it.
    ///
    /// # Errors
    /// It is another kind of socket or cannot be watched; [`io::ErrorKind::Unsupported`] in a simulation.
    pub fn from_fd_on(server: &Server, socket: OwnedFd) -> io::Result<Self> {
        server
            .refuse_in_simulation("descriptors of other processes", "bind a listener of its own")?;
        let acceptor = match socket_domain(&socket)? {
            AddressFamily::UNIX => {
                Acceptor::Unix(UnixListener::from_std_on(server, StdUnixListener::from(socket))?)
            }
            _ => Acceptor::Tcp(TcpListener::from_std_on(server, net::TcpListener::from(socket))?),
        };
        let endpoint = acceptor.endpoint()?;
        let file =
            endpoint.path().map(|path| SocketFile { path: path.into(), is_own: false.into() });
        Ok(Self(Arc::new(Listening { file, acceptor, endpoint })))
    }

    /// Sets whether the file of its Unix socket is removed when it is closed: the file belongs to one process, whichever
    /// listens last. Default: yes, unless it was taken over ([`from_fd_on`](Self::from_fd_on)). TCP has no file.
    pub fn set_owns_file(&self, owns: bool) {
        if let Some(file) = &self.0.file {
            // Read once, when no other reference is left.
            file.is_own.store(owns, Ordering::Relaxed);
        }
    }

    /// Returns the endpoint on which it listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    pub(super) async fn accept(&self) -> io::Result<Connection> {
        self.0.acceptor.accept().await
    }

    pub(super) fn downgrade(&self) -> WeakListener {
        WeakListener(Arc::downgrade(&self.0))
    }
}

impl AsFd for RelayListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0.acceptor {
            Acceptor::Tcp(listener) => listener.as_async_fd().as_inner().as_fd(),
            Acceptor::Unix(listener) => listener.as_async_fd().as_inner().as_fd(),
        }
    }
}

impl WeakListener {
    /// Returns the listener, unless it is closed.
    pub(super) fn upgrade(&self) -> Option<RelayListener> {
        self.0.upgrade().map(RelayListener)
    }
}

/// A listening socket of either family.
#[derive(Debug)]
enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    fn bind_on(server: &Server, endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => TcpListener::bind_on(server, *address).map(Self::Tcp),
            Endpoint::Unix(path) => UnixListener::bind_on(server, path).map(Self::Unix),
        }
    }

    async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // If the peer has already gone, the first read reports it.
                let _ = stream.set_nodelay(true);
                Ok(Connection::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Connection::Unix(listener.accept().await?.0)),
        }
    }

    fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().map(ToOwned::to_owned);
                Ok(Endpoint::Unix(path.unwrap_or_default()))
            }
        }
    }
}

/// The file of a Unix socket on which the relay listens; removed with the relay, if it is its own.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    is_own: AtomicBool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !*self.is_own.get_mut() {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "a socket's file could not be removed");
        }
    }
}

/// Removes the file of a socket that no process listens on any more.
fn remove_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_stale = || {
        UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && is_stale() && fs::remove_file(path).is_ok() {
        tracing::info!(path = %path.display(), "the file of a listener that is gone was removed");
    }
}
