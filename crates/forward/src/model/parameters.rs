//! The inputs of the formulas: parameters of a node and a message.

use std::time::Duration;

use super::message::Message;
use crate::cost::{Cost, TIME_MAX};
use crate::error::ModelError;
pub use crate::error::WINDOW_MAX;

/// The kind of I/O bus: whether it carries both directions at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[expect(clippy::exhaustive_enums, reason = "it does, or it does not")]
pub enum Bus {
    /// One transfer at once, as on the paper's PCI bus [fast-forward, §3.2].
    #[default]
    HalfDuplex,
    /// One transfer per direction at once, as on PCI Express or in memory.
    FullDuplex,
}

/// The parameters of [fast-forward, §2.1, Table 1] except the algorithm's times, for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    pub(super) message: Message,
    pub(super) t_rcv: Duration,
    pub(super) t_snd: Duration,
    pub(super) t_pci: Duration,
    pub(super) t_handover: Duration,
    pub(super) t_idle: Duration,
    pub(super) work: WorkCosts,
    pub(super) bus: Bus,
    pub(super) window: u32,
}

/// The cost of a message on the processors that all nodes of an experiment share, apart from the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct WorkCosts {
    /// The number of processors; zero: every node has as many as it needs.
    pub(super) processors: u32,
    /// Of one packet on both links, at all their ends.
    pub(super) links: Duration,
    /// Of one packet on the bus, both ways.
    pub(super) bus: Duration,
    /// Of the hand-over of one message, both ways.
    pub(super) handover: Duration,
    /// Of one packet in the node's interface, on both links: part of `links`.
    pub(super) engine: Duration,
    /// Of one message there, besides its packets.
    pub(super) engine_message: Duration,
}

impl Parameters {
    /// Starts with a message; the times of its packets follow.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use vigie_forward::{Message, Parameters};
    /// // Table 2 of the paper.
    /// let parameters = Parameters::builder(Message::cut(8192, 2048)?)
    ///     .t_net(Duration::from_micros(15))
    ///     .t_pci(Duration::from_micros(11))
    ///     .build()?;
    /// assert_eq!(parameters.t_h(Duration::ZERO), Duration::from_micros(142));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn builder(message: Message) -> ParametersBuilder {
        let bus = Bus::HalfDuplex;
        ParametersBuilder {
            message,
            t_rcv: None,
            t_snd: None,
            t_pci: None,
            t_handover: Duration::ZERO,
            t_idle: Duration::ZERO,
            work: WorkCosts {
                processors: 0,
                links: Duration::ZERO,
                bus: Duration::ZERO,
                handover: Duration::ZERO,
                engine: Duration::ZERO,
                engine_message: Duration::ZERO,
            },
            bus,
            window: 1,
        }
    }

    getters! {
        /// Returns the message.
        message: Message,

        /// Returns T_rcv(sz(ℓ)), the time to receive a packet.
        t_rcv: Duration,

        /// Returns T_snd(sz(ℓ)), the time to send a packet.
        t_snd: Duration,

        /// Returns T_pci(sz(ℓ)), the time of a packet on the I/O bus, one way.
        t_pci: Duration,

        /// Returns the time of a hand-over to the host or back, in addition to T_pci of its last packet.
        t_handover: Duration,

        /// Returns the time per message, on any path, in which no resource of the node works on it.
        t_idle: Duration,

        /// Returns the kind of bus.
        bus: Bus,

        /// Returns how many messages may be in the node at once.
        window: u32,
    }

    /// Returns whether they include costs that only live systems have.
    pub(crate) fn is_live(&self) -> bool {
        !(self.t_handover.is_zero() && self.t_idle.is_zero()) || self.work.processors != 0
    }

    /// Returns the same parameters with another window.
    ///
    /// # Errors
    /// [`ModelError::Window`] unless it is in 1..=[`WINDOW_MAX`].
    pub const fn with_window(self, window: u32) -> Result<Self, ModelError> {
        if window == 0 || window > WINDOW_MAX {
            return Err(ModelError::Window { window });
        }
        Ok(Self { window, ..self })
    }
}

/// Collects [`Parameters`].
#[derive(Clone, Copy, Debug)]
#[must_use = "`build` makes parameters of it"]
pub struct ParametersBuilder {
    message: Message,
    t_rcv: Option<Duration>,
    t_snd: Option<Duration>,
    t_pci: Option<Duration>,
    t_handover: Duration,
    t_idle: Duration,
    work: WorkCosts,
    bus: Bus,
    window: u32,
}

impl ParametersBuilder {
    /// Sets T_net(sz(ℓ)): T_rcv and T_snd at once. 1 ns to [`TIME_MAX`]; required.
    pub const fn t_net(self, time: Duration) -> Self {
        self.t_rcv(time).t_snd(time)
    }

    vigie_detect::setters! {
        /// Sets T_rcv(sz(ℓ)), the time to receive a packet. 1 ns to [`TIME_MAX`]; required.
        t_rcv: Duration => Some,

        /// Sets T_snd(sz(ℓ)), the time to send a packet. 1 ns to [`TIME_MAX`]; required.
        t_snd: Duration => Some,

        /// Sets T_pci(sz(ℓ)), the time of a packet on the bus, one way. 0 to [`TIME_MAX`]; required.
        t_pci: Duration => Some,

        /// Sets the time of a hand-over between interface and host, once per message and direction, in addition to
        /// T_pci of its packets: an interrupt, a thread's wake-up. Default: zero; at most [`TIME_MAX`].
        ///
        /// *Deviation:* the paper's library polls, and T_pci includes everything.
        t_handover: Duration,

        /// Sets the time per message in which no resource works on it, until the next one may take its place in the
        /// window: propagation, wake-ups of threads, and the return of the window to the source. It counts once per
        /// message, on any path, and only where the window limits. Default: zero; at most [`TIME_MAX`].
        t_idle: Duration,
    }

    pub(super) const fn work(mut self, work: WorkCosts) -> Self {
        self.work = work;
        self
    }

    vigie_detect::setters! {
        /// Sets the kind of bus. Default: half-duplex.
        bus: Bus,

        /// Sets how many messages may be in the node at once. Default: 1; at most [`WINDOW_MAX`].
        window: u32,
    }

    /// Checks and returns the parameters.
    ///
    /// # Errors
    /// [`ModelError`] names the parameter that is missing or out of range.
    pub fn build(self) -> Result<Parameters, ModelError> {
        let parameters = Parameters {
            message: self.message,
            t_rcv: checked("T_rcv", self.t_rcv, Duration::from_nanos(1))?,
            t_snd: checked("T_snd", self.t_snd, Duration::from_nanos(1))?,
            t_pci: checked("T_pci", self.t_pci, Duration::ZERO)?,
            t_handover: checked("T_handover", Some(self.t_handover), Duration::ZERO)?,
            t_idle: checked("T_idle", Some(self.t_idle), Duration::ZERO)?,
            work: self.work,
            bus: self.bus,
            window: 1,
        };
        parameters.with_window(self.window)
    }
}

fn checked(
    symbol: &'static str,
    time: Option<Duration>,
    least: Duration,
) -> Result<Duration, ModelError> {
    let time = time.ok_or(ModelError::Missing { symbol })?;
    if time < least || time > TIME_MAX {
        return Err(ModelError::Time { symbol, time });
    }
    Ok(time)
}

/// The parameters of a node for messages of any size: costs as functions of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a node makes parameters and plans"]
pub struct Node {
    t_rcv: Cost,
    t_snd: Cost,
    t_pci: Cost,
    t_handover: Duration,
    t_idle: Duration,
    shared: Option<SharedProcessors>,
    bus: Bus,
    window: u32,
}

/// The processors that source, node and sink share on one machine, and the processor time of moving a message.
///
/// *Deviation:* the paper's nodes are separate machines, and its interface moves bytes without a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "it is constructed from measured values")]
pub struct SharedProcessors {
    /// The number of processors; zero is treated as one.
    pub processors: u32,
    /// Processor time of a packet on one link, at both of its ends, by the packet's bytes.
    pub link: Cost,
    /// Processor time of a packet on the bus, one way, by the packet's bytes.
    pub bus: Cost,
    /// Processor time of a message's hand-over, one way.
    pub handover: Duration,
    /// Processor time of a packet in the node's interface, on both links, by the packet's bytes: time that its
    /// processor lacks for the algorithm.
    pub engine: Cost,
    /// The same per message, besides its packets.
    pub engine_message: Duration,
}

impl Node {
    /// Creates a node from T_net and T_pci as functions of a packet's bytes, measured or given. Its bus is half-duplex
    /// and its window 1.
    pub const fn new(t_net: Cost, t_pci: Cost) -> Self {
        Self {
            t_rcv: t_net,
            t_snd: t_net,
            t_pci,
            t_handover: Duration::ZERO,
            t_idle: Duration::ZERO,
            shared: None,
            bus: Bus::HalfDuplex,
            window: 1,
        }
    }

    vigie_detect::setters! {
        /// Sets T_snd, if the link to the next node differs from that of T_net.
        t_snd: Cost,

        /// Sets the time of a hand-over of a message: see [`ParametersBuilder::t_handover`]. Default: zero.
        t_handover: Duration,

        /// Sets the time per message in which no resource works on it: see [`ParametersBuilder::t_idle`]. Default:
        /// zero.
        t_idle: Duration,

        /// Sets the processors that all nodes share. Default: they share none.
        shared: SharedProcessors => Some,

        /// Sets the kind of bus. Default: half-duplex.
        bus: Bus,

        /// Sets how many messages may be in the node at once. Default: 1; at most [`WINDOW_MAX`].
        window: u32,
    }

    /// Returns the parameters for one message.
    ///
    /// # Errors
    /// [`ModelError`] if one of its packets would take no time or too long, or the window is out of range.
    pub fn parameters(&self, message: Message) -> Result<Parameters, ModelError> {
        let sz = message.sz();
        Parameters::builder(message)
            .t_rcv(self.t_rcv.at(sz))
            .t_snd(self.t_snd.at(sz))
            .t_pci(self.t_pci.at(sz))
            .t_handover(self.t_handover)
            .t_idle(self.t_idle)
            .work(self.shared.map_or_else(WorkCosts::default, |shared| WorkCosts {
                processors: shared.processors.max(1),
                links: shared.link.at(sz).saturating_mul(2),
                bus: shared.bus.at(sz).saturating_mul(2),
                handover: shared.handover.saturating_mul(2),
                engine: shared.engine.at(sz),
                engine_message: shared.engine_message,
            }))
            .bus(self.bus)
            .window(self.window)
            .build()
    }
}
