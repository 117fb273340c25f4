//! Flows: what a simulated node forwards.

use std::time::Duration;

use crate::model::{Parameters, Path};

/// Messages of one kind on one path through the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a simulation runs it"]
pub struct Flow {
    pub(crate) parameters: Parameters,
    pub(crate) path: Path,
    pub(crate) t_algo: Duration,
    pub(crate) messages: u32,
    pub(crate) port_in: u16,
    pub(crate) port_out: u16,
}

impl Flow {
    /// Creates a flow of one message, with the algorithm's time on its path, from port 0 to port 0.
    ///
    /// The host may cut through on a half-duplex bus too, which the closed form leaves out.
    pub const fn new(parameters: Parameters, path: Path, t_algo: Duration) -> Self {
        Self { parameters, path, t_algo, messages: 1, port_in: 0, port_out: 0 }
    }

    /// Sets the number of messages. Default: 1.
    pub const fn messages(mut self, count: u32) -> Self {
        self.messages = count;
        self
    }

    /// Sets the receive link and the send link, by number; flows with the same number share a link.
    /// Default: 0 and 0. A receive link and a send link are never shared: ports are full-duplex.
    pub const fn ports(mut self, port_in: u16, port_out: u16) -> Self {
        self.port_in = port_in;
        self.port_out = port_out;
        self
    }

    /// The steps of one message: two links, possibly two crossings of the bus, and the algorithm.
    pub(super) fn steps(&self) -> u64 {
        u64::from(self.messages) * (4 * u64::from(self.parameters.message().nb()) + 1)
    }
}
