//! Every number of the simulated cluster, with its source.
//!
//! | parameter | calibrated | bare | source |
//! | --- | --- | --- | --- |
//! | `send_ns` (o_s) | 3 µs | 3 µs | measured, [eth-barrier, §5.1.1] |
//! | `latency_ns` (L) | 17.5 µs | 17.5 µs | measured, over the switch, [eth-barrier, §5.1.1] |
//! | `receive_interrupt_ns` + `receive_frame_ns` (o_r) | 4 + 5.5 µs | 9.5 µs | the sum measured, [eth-barrier, §5.1.1]; **the parts fitted** |
//! | `completion_ns` | 6 µs | 0 | measured, [eth-barrier, §5.1.1]; not in the closed forms of [eth-barrier, §5.1.2] |
//! | `completion` | awaited | not awaited | [eth-barrier, §2.2]: the buffer may not be reused earlier |
//! | `frames_per_interrupt` | until the ring is empty | one frame | [eth-barrier, §5.2] guesses it from figure 10 |
//! | `wait_ns` | 4.5 µs | 0 | **fitted** |
//! | `frame_bytes` | 72 B | 64 B | **fitted**; the shortest frame has 64 [ieee802.3, §4.4.2] |
//! | `dma_ns` | 1.6 µs | 1.6 µs | estimate of a PCI burst and its set-up; part of L, which stays the same |
//! | `hub_delay_ns` | 0.85 µs | 1.02 µs | **fitted**; bare: the budget of a class II repeater, [ieee802.3, §29.3] |
//! | `rate_mbps`, `preamble_bytes`, `gap_bytes` | 100, 8, 12 | the same | [ieee802.3, §4.4.2] |
//! | `deferral` | the whole gap | the same | a choice: the figures are the same with either, an ablation is not |
//! | `slot_bits`, `jam_bits`, `attempts_max`, `backoff_exponent_max` | 512, 32, 16, 10 | the same | [ieee802.3, §4.4.2] |
//!
//! *Fitted*: four constants only, once, to the twelve times that the paper quotes. `docs/design/barrier.md` says how
//! far the figures depend on each of them.

use vigie_detect::setters;

use super::error::SimulationError;

/// The costs of nodes, wires, switches and hubs of a simulated cluster. Times are in nanoseconds. [`Cluster::run`](super::Cluster::run)
/// refuses a cluster that cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a cluster takes it"]
pub struct ClusterConfig {
    pub(super) send_ns: u64,
    pub(super) latency_ns: u64,
    pub(super) receive_interrupt_ns: u64,
    pub(super) receive_frame_ns: u64,
    pub(super) frames_per_interrupt: FramesPerInterrupt,
    pub(super) completion_ns: u64,
    pub(super) completion: Completion,
    pub(super) wait_ns: u64,
    pub(super) frame_bytes: u64,
    pub(super) preamble_bytes: u64,
    pub(super) gap_bytes: u64,
    pub(super) rate_mbps: u64,
    pub(super) dma_ns: u64,
    pub(super) hub_delay_ns: u64,
    pub(super) deferral: Deferral,
    pub(super) slot_bits: u64,
    pub(super) jam_bits: u64,
    pub(super) attempts_max: u32,
    pub(super) backoff_exponent_max: u32,
}

/// The device that connects one NIC of each node [eth-barrier, §4.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// A switch.
    Switch,
    /// A repeater hub.
    Hub,
}

/// The number of frames that one interrupt handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "one or all")]
pub enum FramesPerInterrupt {
    /// The handler takes frames until the ring is empty, including those that arrive meanwhile.
    UntilEmpty,
    /// Each frame has its own interrupt.
    One,
}

/// The choice whether a sender waits until its frames have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "yes or no")]
pub enum Completion {
    /// Yes, before it receives or leaves the barrier. Several frames in a row are posted without waiting in between.
    Awaited,
    /// No, but the interrupt still comes, and takes its time.
    Ignored,
}

/// The time that a station of a hub listens before it sends.
///
/// It decides whether a station whose next frame is ready sends before the stations that waited for the end of its
/// first one: they hear the second frame at the very moment their gap ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are these two rules")]
pub enum Deferral {
    /// For the whole gap between frames: the station that was first sends again.
    WholeGap,
    /// For the first two thirds of the gap [ieee802.3, §4.2.3]: they collide.
    TwoParts,
}

/// The paper's cluster: [`ClusterConfig::CALIBRATED`].
impl Default for ClusterConfig {
    fn default() -> Self {
        Self::CALIBRATED
    }
}

impl ClusterConfig {
    /// The paper's cluster, with four constants fitted to its figures.
    pub const CALIBRATED: Self = Self {
        send_ns: 3_000,
        latency_ns: 17_500,
        receive_interrupt_ns: 4_000,
        receive_frame_ns: 5_500,
        frames_per_interrupt: FramesPerInterrupt::UntilEmpty,
        completion_ns: 6_000,
        completion: Completion::Awaited,
        wait_ns: 4_500,
        frame_bytes: 72,
        preamble_bytes: 8,
        gap_bytes: 12,
        rate_mbps: 100,
        dma_ns: 1_600,
        hub_delay_ns: 850,
        deferral: Deferral::WholeGap,
        slot_bits: 512,
        jam_bits: 32,
        attempts_max: 16,
        backoff_exponent_max: 10,
    };

    /// Only the paper's LogP parameters, and the Ethernet standard's values: nothing is fitted.
    ///
    /// The hub's delay is half of a round trip in bits: 92 for the repeater, 100 for both stations, 11 for 10 m of
    /// cable [ieee802.3, §29.3].
    pub const BARE: Self = Self {
        receive_interrupt_ns: 0,
        receive_frame_ns: 9_500,
        frames_per_interrupt: FramesPerInterrupt::One,
        completion_ns: 0,
        completion: Completion::Ignored,
        wait_ns: 0,
        frame_bytes: 64,
        hub_delay_ns: 1_015,
        ..Self::CALIBRATED
    };

    setters! {
        /// Sets the processor time to post one message: a system call and the order to the NIC. LogP's o_s.
        send_ns: u64,

        /// Sets the time from the end of `send_ns` until the frame is in the receiver's memory, over an idle switch. LogP's L.
        ///
        /// L minus DMA and two transmissions is the latency of the switch. A hub has another latency: `hub_delay_ns` and one transmission.
        latency_ns: u64,

        /// Sets the processor time of an interrupt for arrived frames, to enter and leave the handler.
        receive_interrupt_ns: u64,

        /// Sets the processor time per frame within that handler: its header, its port, the copy to the user's buffer.
        receive_frame_ns: u64,

        /// Sets how many frames one interrupt handles.
        frames_per_interrupt: FramesPerInterrupt,

        /// Sets the processor time of the interrupt that reports a sent frame.
        completion_ns: u64,

        /// Sets whether a sender waits for that interrupt.
        completion: Completion,

        /// Sets the processor time of the program per finished wait: to notice the message, and to post its buffer again.
        wait_ns: u64,

        /// Sets the length of a message's frame on the wire, without preamble and gap.
        frame_bytes: u64,

        /// Sets the bytes before each frame.
        preamble_bytes: u64,

        /// Sets the bytes of silence between two frames.
        gap_bytes: u64,

        /// Sets the rate of every link, in megabits per second, at least 1.
        rate_mbps: u64,

        /// Sets the time from the host's memory to the wire, and from the wire to the host's memory.
        dma_ns: u64,

        /// Sets the time from any station of a hub to any other: repeater and cables. At most half a slot.
        hub_delay_ns: u64,

        /// Sets how long a station of a hub listens before it sends.
        deferral: Deferral,

        /// Sets the unit of the pauses after collisions, in bits.
        slot_bits: u64,

        /// Sets the jam that a station sends after a collision, in bits.
        jam_bits: u64,

        /// Sets the number of collisions after which a station drops a frame.
        attempts_max: u32,

        /// Sets the longest pause: that after the k-th collision is 0 to 2^min(k, this) − 1 slots.
        backoff_exponent_max: u32,
    }

    /// Sets o_r, the sum of `receive_interrupt_ns` and `receive_frame_ns`, divided in the same proportion as before.
    pub const fn receive_ns(mut self, receive_ns: u64) -> Self {
        let present_ns = self.receive_interrupt_ns + self.receive_frame_ns;
        // Without an o_r there is no proportion.
        let part = (self.receive_interrupt_ns * receive_ns).checked_div(present_ns);
        let interrupt_ns = match part {
            Some(part_ns) => part_ns,
            None => 0,
        };
        self.receive_interrupt_ns = interrupt_ns;
        self.receive_frame_ns = receive_ns - interrupt_ns;
        self
    }

    /// Returns the time between the starts of two frames on a wire: LogP's g, if the network is the limit.
    #[must_use]
    pub const fn gap_ns(&self) -> u64 {
        self.transmission_ns() + self.silence_ns()
    }

    /// The smallest o_r of LogP: that of a single frame.
    pub(super) const fn receive_one_ns(&self) -> u64 {
        self.receive_interrupt_ns + self.receive_frame_ns
    }

    /// Checks that such a cluster is possible.
    pub(super) fn check(&self, media: &[Medium]) -> Result<(), SimulationError> {
        if self.rate_mbps == 0 {
            return Err(SimulationError::NoRate);
        }
        let least_ns = 2 * (self.dma_ns + self.transmission_ns());
        if self.latency_ns < least_ns {
            return Err(SimulationError::Latency { latency_ns: self.latency_ns, least_ns });
        }
        // Otherwise a station could have sent a whole frame before it hears of a collision.
        let limit_ns = self.bits_ns(self.slot_bits) / 2;
        if media.contains(&Medium::Hub) && self.hub_delay_ns > limit_ns {
            return Err(SimulationError::HubDelay { hub_delay_ns: self.hub_delay_ns, limit_ns });
        }
        Ok(())
    }

    /// The time that a frame and its preamble occupy the wire.
    pub(super) const fn transmission_ns(&self) -> u64 {
        self.bits_ns(8 * (self.preamble_bytes + self.frame_bytes))
    }

    /// The silence between two frames.
    pub(super) const fn silence_ns(&self) -> u64 {
        self.bits_ns(8 * self.gap_bytes)
    }

    pub(super) const fn preamble_ns(&self) -> u64 {
        self.bits_ns(8 * self.preamble_bytes)
    }

    pub(super) const fn jam_ns(&self) -> u64 {
        self.bits_ns(self.jam_bits)
    }

    pub(super) const fn slot_ns(&self) -> u64 {
        self.bits_ns(self.slot_bits)
    }

    /// From the end of a frame at the switch until the switch may send it on: L without its other parts.
    pub(super) const fn switch_ns(&self) -> u64 {
        self.latency_ns.saturating_sub(2 * (self.dma_ns + self.transmission_ns()))
    }

    const fn bits_ns(&self, bits: u64) -> u64 {
        (bits * 1_000).div_ceil(self.rate_mbps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_latency_add_up() {
        // Goal: L is what the paper measured, however it is divided. Method: the parts of both sets.
        for set in [ClusterConfig::CALIBRATED, ClusterConfig::BARE] {
            assert_eq!(set.check(&[Medium::Switch, Medium::Hub]), Ok(()));
            let parts = 2 * set.dma_ns + 2 * set.transmission_ns() + set.switch_ns();
            assert_eq!(parts, set.latency_ns);
            assert_eq!(set.receive_one_ns(), 9_500);
        }
        assert_eq!(
            (ClusterConfig::CALIBRATED.gap_ns(), ClusterConfig::BARE.gap_ns()),
            (7_360, 6_720)
        );
        assert_eq!(ClusterConfig::CALIBRATED.slot_ns(), 5_120);
        assert_eq!(ClusterConfig::CALIBRATED.jam_ns(), 320);
    }

    #[test]
    fn contradictions_are_found() {
        // Goal: a cluster that cannot be is refused. Method: each contradiction once.
        let set = ClusterConfig::CALIBRATED;
        let check = |set: ClusterConfig| set.check(&[Medium::Hub]);
        assert_eq!(check(ClusterConfig { rate_mbps: 0, ..set }), Err(SimulationError::NoRate));
        let short = check(ClusterConfig { latency_ns: 15_000, ..set });
        assert_eq!(short, Err(SimulationError::Latency { latency_ns: 15_000, least_ns: 16_000 }));
        let far = ClusterConfig { hub_delay_ns: 2_561, ..set };
        assert_eq!(far.check(&[Medium::Switch]), Ok(()));
        let far = check(far);
        assert_eq!(far, Err(SimulationError::HubDelay { hub_delay_ns: 2_561, limit_ns: 2_560 }));
    }

    #[test]
    fn another_o_r_keeps_its_proportion() {
        // Goal: o_r can be set without a thought of its parts. Method: both sets, and none.
        let half = ClusterConfig::CALIBRATED.receive_ns(4_750);
        assert_eq!((half.receive_interrupt_ns, half.receive_frame_ns), (2_000, 2_750));
        let bare = ClusterConfig::BARE.receive_ns(2_000);
        assert_eq!((bare.receive_interrupt_ns, bare.receive_frame_ns), (0, 2_000));
        let none = bare.receive_ns(0).receive_ns(7);
        assert_eq!((none.receive_interrupt_ns, none.receive_frame_ns), (0, 7));
    }
}
