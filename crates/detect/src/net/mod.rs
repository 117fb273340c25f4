//! Thin sockets on [`AsyncFd`](crate::AsyncFd): TCP, UDP and Unix, with tokio's
//! [`AsyncRead`](tokio::io::AsyncRead) and [`AsyncWrite`](tokio::io::AsyncWrite).
//!
//! They need a [`Server`](crate::Server) that a host drives, and nothing else of a runtime: they work
//! in vigie's, and in tokio, smol or a bare `block_on` with a host thread.
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use vigie_detect::{
//!     Server,
//!     net::{TcpListener, TcpStream},
//! };
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let host = Server::spawn_thread()?;
//! let _entered = host.server().enter();
//!
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let (mut client, accepted) =
//!     tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
//! let (mut served, _address) = accepted;
//!
//! client.write_all(b"sail ho").await?;
//! client.shutdown().await?;
//! let mut heard = String::new();
//! served.read_to_string(&mut heard).await?;
//! assert_eq!(heard, "sail ho");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There are three kinds of sockets, each written once for all address families:
//!
//! | | TCP | UDP | Unix |
//! | --- | --- | --- | --- |
//! | [`Stream`] | [`TcpStream`] | | [`UnixStream`] |
//! | [`Listener`] | [`TcpListener`] | | [`UnixListener`] |
//! | [`Datagram`] | | [`UdpSocket`] | [`UnixDatagram`] |
//!
//! # Servers
//! A socket is watched at one server: the one passed to the `_on` form of its constructor, otherwise
//! the [current](crate::Server::current) one. A connection is watched at its listener's server. Once
//! that server is shut down, operations that wait, or would have to, fail with
//! [`NotConnected`](std::io::ErrorKind::NotConnected).
//!
//! # Waiting tasks
//! The `async` methods take `&self`, and any number of tasks may call them at once. Beside those, the
//! `poll_` methods, and `AsyncRead` and `AsyncWrite` with them, keep one waiting task for each
//! direction: a later one replaces it. Arriving data wakes every task that waits in its direction, and
//! the first to try gets it.
//!
//! Every future here is cancel safe: a dropped one has taken nothing, and the other waiting tasks are
//! still woken.
//!
//! # Cost
//! An operation is tried before it waits, so one that need not wait costs one system call and two atomic
//! loads. A wait takes a short lock of its own socket and direction, and none shared between sockets. It
//! does not allocate, unless more `async` methods wait in one direction of a socket than ever before.
//!
//! # In virtual time
//! On a server in virtual time, TCP, UDP and Unix sockets are those of a [`SimulatedNetwork`](crate::SimulatedNetwork). A
//! call that reaches their descriptor in another way, such as one inside `try_io`, fails with the kernel's error for a socket
//! that is not connected; sockets of the standard library are refused ([`Unsupported`](std::io::ErrorKind::Unsupported)). The names
//! of Unix sockets are those of their node: no file is made, and a name is free again once its socket is gone.
//!
//! # Other options and operations
//! For socket options without a method here, every socket is [`AsFd`](std::os::fd::AsFd), as
//! `socket2::SockRef` requires; for other operations there is `try_io`, `async_io` and
//! [`Stream::as_async_fd`].

mod connect;
mod datagram;
mod fill;
mod halves;
mod listener;
mod lookup;
pub mod pipe;
mod refused;
mod simulated;
mod socket;
mod stream;
pub mod tcp;
mod tcp_socket;
mod udp;
pub mod unix;

pub use datagram::Datagram;
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use listener::Listener;
pub use lookup::{Addresses, ToSocketAddrs, lookup_host};
#[doc(hidden)]
pub use simulated::SimulatedUdp;
pub use socket::{DatagramSocket, ListenerSocket, Socket, StreamSocket};
pub use stream::Stream;
pub use tcp::{TcpListener, TcpStream};
pub use tcp_socket::TcpSocket;
pub use udp::UdpSocket;
pub use unix::{PeerCredentials, UnixDatagram, UnixListener, UnixSocket, UnixStream};
