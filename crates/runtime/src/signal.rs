//! Signals of the process, by tokio's names.
//!
//! Each [`Signal`](unix::Signal) is a [detector](vigie_detect::detectors::signal) of the runtime's server, whose docs say what a
//! handler changes for the process and which arrivals the kernel merges.
//!
//! ```no_run
//! # async fn serve() -> std::io::Result<()> {
//! vigie_runtime::signal::ctrl_c().await?;
//! println!("shutting down");
//! # Ok(())
//! # }
//! ```
//!
//! In a simulation, signals are those of the node, which [`Node::signal`](crate::simulation::Node::signal) raises: none of the kernel's
//! arrives, and no handler is installed.

use std::io;

/// Waits for the next SIGINT, which Ctrl-C at a terminal sends. From the first call on, the process is no longer ended by
/// it.
///
/// # Cancel safety
/// Cancel safe; a SIGINT that arrives between two calls is not seen by either.
///
/// # Errors
/// Same as [`unix::signal`].
pub async fn ctrl_c() -> io::Result<()> {
    match unix::signal(unix::SignalKind::INTERRUPT)?.recv().await {
        Some(()) => Ok(()),
        None => Err(vigie_detect::WaitError::ServerClosed.into()),
    }
}

/// Signals by number.
pub mod unix {
    use std::{
        io,
        task::{Context, Poll},
    };

    pub use vigie_detect::detectors::signal::SignalKind;
    use vigie_detect::{EventStream, Server, detectors::signal};

    /// The arrivals of one signal: see [`signal()`].
    #[derive(Debug)]
    #[must_use = "the signal's default action is off, and nothing reads its arrivals"]
    pub struct Signal {
        stream: EventStream<signal::Signals>,
    }

    /// Listens for a signal. Its default action is off from now on, also once the listener is dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] outside a runtime, or after its shutdown; an error that names the signal if it cannot be
    /// caught, reports a fault, or does not exist.
    pub fn signal(kind: SignalKind) -> io::Result<Signal> {
        let handle = signal::signal(&Server::current()?, kind)?;
        Ok(Signal { stream: handle.stream(())? })
    }

    impl Signal {
        /// Waits for the next arrival. Arrivals that were not received yet are merged into one. Returns `None` once the
        /// runtime is shut down.
        ///
        /// # Cancel safety
        /// Cancel safe: no arrival is lost.
        pub async fn recv(&mut self) -> Option<()> {
            self.stream.next().await.and_then(Result::ok).map(drop)
        }

        /// The poll-style [`recv`](Self::recv).
        pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
            self.stream.poll_event(cx).map(|event| event.and_then(Result::ok).map(drop))
        }
    }
}
