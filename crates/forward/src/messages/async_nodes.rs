//! Nodes driven by a detection server: for tasks, and in virtual time.

use std::fmt;

use vigie_detect::Server;
use vigie_via::vi::{Address, Provider};

use super::{
    algorithm::Algorithm,
    config::NodeConfig,
    error::MessagesError,
    forwarder::{ForwarderEngine, ForwarderReport, assemble_nic},
    node::AsyncNode,
    sink::{SinkEvent, SinkNode},
    source::{DeliveryReport, SourceNode},
};
use crate::model::Path;

/// A [`Source`](super::Source) on a detection server: its calls await instead of blocking, and its connection stays
/// alive between calls.
pub struct AsyncSource<P: Provider>(AsyncNode<SourceNode<P>>);

impl<P: Provider> AsyncSource<P> {
    /// Connects to the next node, within [`NodeConfig::timeout`].
    ///
    /// # Errors
    /// [`MessagesError`].
    pub async fn connect(
        server: &Server,
        nic: P,
        address: &Address,
        config: NodeConfig,
    ) -> Result<Self, MessagesError> {
        let source = SourceNode::begin(nic, address, config)?;
        let connect_steps = source.connect_steps();
        let node = AsyncNode::new(server, source)?;
        node.wait(connect_steps).await?;
        Ok(Self(node))
    }

    /// See [`Source::message_bytes_max`](super::Source::message_bytes_max).
    #[must_use]
    pub fn message_bytes_max(&self) -> u32 {
        self.0.with(|source| source.message_bytes_max())
    }

    /// See [`Source::send_forward`](super::Source::send_forward).
    ///
    /// # Cancel safety
    /// Not cancel safe: part of the message may have been sent, and the source is unusable then.
    ///
    /// # Errors
    /// As [`Source::send_forward`](super::Source::send_forward).
    pub async fn send_forward(
        &mut self,
        destination: u32,
        tag: u32,
        bytes: &[u8],
    ) -> Result<(), MessagesError> {
        let sending = self.0.with(|source| source.begin_send(destination, tag, bytes))?;
        self.0.wait(SourceNode::send_steps(sending, bytes)).await
    }

    /// See [`Source::finish`](super::Source::finish).
    ///
    /// # Cancel safety
    /// Cancel safe: a new call asks again.
    ///
    /// # Errors
    /// As [`Source::finish`](super::Source::finish).
    pub async fn finish(&mut self, destination: u32) -> Result<DeliveryReport, MessagesError> {
        self.0.wait(SourceNode::finish_steps(destination)).await
    }
}

/// A [`Sink`](super::Sink) on a detection server.
pub struct AsyncSink<P: Provider>(AsyncNode<SinkNode<P>>);

impl<P: Provider> AsyncSink<P> {
    /// Opens a sink; forwarders and sources can connect to it at once.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub fn open(server: &Server, nic: P, config: NodeConfig) -> Result<Self, MessagesError> {
        Ok(Self(AsyncNode::new(server, SinkNode::open(nic, config)?)?))
    }

    /// Returns the address that other nodes connect to.
    #[must_use]
    pub fn address(&self) -> Address {
        self.0.with(|sink| sink.address())
    }

    /// Waits for the next event, within [`NodeConfig::timeout`]: `None` if there is none.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`MessagesError`].
    pub async fn next_event(&mut self) -> Result<Option<SinkEvent>, MessagesError> {
        let step = self.0.with(|sink| sink.event_steps());
        self.0.wait(step).await
    }
}

/// A [`Forwarder`](super::Forwarder) on a detection server, for the paths by the interface: its engine works in the
/// server's rounds. It forwards until it is dropped.
pub struct AsyncForwarder<P: Provider> {
    node: AsyncNode<ForwarderEngine<P>>,
    address: Address,
}

impl<P: Provider> AsyncForwarder<P> {
    /// As [`Forwarder::start`](super::Forwarder::start).
    ///
    /// # Errors
    /// As [`Forwarder::start`](super::Forwarder::start); [`MessagesError::NoProgram`] if the path leads through a
    /// program.
    pub async fn start(
        server: &Server,
        nic: P,
        config: NodeConfig,
        routes: &[(u32, Address)],
        path: Path,
        algorithm: impl Algorithm,
    ) -> Result<Self, MessagesError> {
        let mut engine = assemble_nic(nic, &config, path, Box::new(algorithm))?;
        engine.connect(routes)?;
        let (address, connect_steps) = (engine.address(), engine.connect_steps());
        let node = AsyncNode::new(server, engine)?;
        node.wait(connect_steps).await?;
        Ok(Self { node, address })
    }

    /// Returns the address that sources connect to.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns its statistics so far, without processor times, which belong to the server's host.
    #[must_use]
    pub fn report(&self) -> ForwarderReport {
        self.node.with(|engine| engine.report())
    }

    /// Waits until it has ended: see [`NodeConfig::ends_with_sources`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// The error that ended the engine.
    pub async fn ended(&mut self) -> Result<ForwarderReport, MessagesError> {
        self.node.wait(|engine, _| Ok(engine.is_over().then(|| engine.report()))).await
    }
}

impl<P: Provider> fmt::Debug for AsyncSource<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSource").finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Debug for AsyncSink<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSink").finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Debug for AsyncForwarder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncForwarder").field("address", &self.address).finish_non_exhaustive()
    }
}
