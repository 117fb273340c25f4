//! QUIC by [`quinn`](https://docs.rs/quinn): its endpoints on this runtime's sockets, timers and tasks.
//!
//! ```ignore
//! use std::{net::UdpSocket, sync::Arc};
//! use quinn::{Endpoint, EndpointConfig};
//!
//! # fn server_config() -> quinn::ServerConfig { unimplemented!() }
//! # vigie::Runtime::builder().build()?.block_on(async {
//! let socket = UdpSocket::bind("0.0.0.0:4433")?;
//! let runtime = Arc::new(vigie::quic::QuinnRuntime);
//! let endpoint =
//!     Endpoint::new(EndpointConfig::default(), Some(server_config()), socket, runtime)?;
//! while let Some(incoming) = endpoint.accept().await {
//!     vigie::spawn(async move { incoming.await }).detach();
//! }
//! # Ok::<(), std::io::Error>(())
//! # })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! (The crate `quinn` needs a feature for its cryptography, such as `rustls-ring`; `tests/ecosystem/src/bin/quic.rs` is a whole program.)
//!
//! quinn spawns a task for each connection and one for each endpoint; as tasks of this runtime they answer in time whatever other
//! tasks compute. Segmentation offload (GSO, GRO) and ECN are used where the kernel has them.

use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncTimer, AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit, UdpSocketState},
};

use vigie_detect::Interest;

use crate::{net::UdpSocket, time};

/// quinn's runtime on that of vigie: the last argument of `Endpoint::new`. Sockets and timers belong to the runtime of the task that
/// calls it.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it stands for the current runtime")]
pub struct QuinnRuntime;

impl quinn::Runtime for QuinnRuntime {
    fn new_timer(&self, deadline: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(time::sleep_until(deadline.into())))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        crate::spawn(future).detach();
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Arc::new(Socket { state, socket: UdpSocket::from_std(socket)? }))
    }

    fn now(&self) -> std::time::Instant {
        crate::Instant::now().into_std()
    }
}

struct Timer(time::Sleep);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: std::time::Instant) {
        self.0.reset(deadline.into());
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_io(Interest::WRITABLE, || self.state.send((&self.socket).into(), transmit))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            let received = self.socket.try_io(Interest::READABLE, || {
                self.state.recv((&self.socket).into(), buffers, meta)
            });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// One task's wait until sending is worth trying; there may be many for one socket.
struct Writable {
    socket: Arc<Socket>,
    waiting: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let waiting = this.waiting.get_or_insert_with(|| {
            let socket = Arc::clone(&this.socket);
            Box::pin(async move { socket.socket.writable().await })
        });
        let result = ready!(waiting.as_mut().poll(cx));
        this.waiting = None;
        Poll::Ready(result)
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").field("socket", &self.socket).finish_non_exhaustive()
    }
}
