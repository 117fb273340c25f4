//! A NIC in software, over any carrier of packets, even a lossy one. The `udp` and `ether` providers
//! build on it.
//!
//! ```text
//!   consumer          SoftwareNic                         Wire
//!   post_send  -----> descriptors -> fragments -> packets -----> send      a datagram, or several of one length
//!   poll       <----- completions <- fragments <- packets <----- receive
//!   progress   -----> time: what to send again, which peers to probe, which are dead
//! ```
//! The engine does no I/O: packets and time go in, packets and deadlines come out. Data goes from the
//! packet straight to its place in registered memory, after the checks of [via-lam, §2]; a fragment that
//! arrives out of order is kept until its turn.
//!
//! # Ordering and loss detection
//! - Fragments and packets are numbered separately, as in QUIC [rfc9002, §3]; ACKs are cumulative, and
//!   selective [rfc2018, §3] for 256 fragments beyond the first gap. A packet overtaken by three others, or
//!   too late, is lost [rfc9002, §6.1] [rfc8985, §6]; silence is probed [rfc9002, §6.2], with times
//!   estimated as in [rfc6298, §2].
//! - The congestion window is NewReno's [rfc9002, §7]; the receiver's window fits its socket's buffer.
//! - ACKs travel with data. An ACK of its own is sent after 1 ms, with every second packet of a burst, or at
//!   once when something is out of order [rfc5681, §4.2].
//! - Unreliable VIs use the same windows, but give up lost fragments [rfc3758, §3.5] [rfc9221, §5], and take
//!   fragments as they arrive.
//!
//! # Trust
//! A sender that does not know the world's [`Secret`] gets no answer to anything. Calls carry a tag
//! under it, and a cookie that proves the caller's path; connection names are 64 unguessable bits,
//! carried in each packet. With [`SoftwareNicConfig::is_tagged`] each packet also has a tag under a key of its
//! connection, which keeps out attackers that can read the packets of others; data is not encrypted
//! either way. Peers that know the secret must still follow the protocol
//! ([`DisconnectReason::PeerFault`](crate::vi::DisconnectReason::PeerFault)), and reach only memory that is registered for
//! them.
//!
//! # Costs
//! Besides the kernel's copies: one copy on arrival; on departure one of each piece of memory of up to 4 KiB (two of those up to
//! 512 bytes, of all if packets have tags, and on unreliable VIs), none of longer ones. All bytes are read once for the CRC on
//! either side. A message of 8 bytes is one packet of 86 bytes.

mod attempt;
mod calls;
mod config;
mod congestion;
mod connection;
mod counters;
mod engine;
mod gather;
mod inbound;
mod mtu_discovery;
mod outbound;
mod packet;
mod provider;
mod transfer;
mod vi;
mod wire;

use std::{fmt, io, mem, time::Duration};

use vigie_detect::Instant;

use self::engine::{PacketBatch, SoftwareEngine};

pub use crate::auth::Secret;
pub use config::SoftwareNicConfig;
pub use counters::SoftwareNicCounters;
pub use gather::{Gather, GatherPart};
pub use wire::{Path, Wire};

/// The most arrivals taken before the replies they cause are sent.
const ARRIVALS_MAX: usize = 64;

/// The most arrivals taken before they are acknowledged.
const UNSENT_MAX: usize = 8;

/// The most bytes of one arrival.
const ARRIVAL_BYTES_MAX: usize = 1 << 16;

/// The time after which to retry a wire that took no more packets.
const BLOCKED: Duration = Duration::from_millis(1);

/// A NIC in software over a [`Wire`]: a [`Provider`](crate::vi::Provider).
///
/// Dropping it tells all peers once that it has ended; peers that the packet does not reach notice by
/// their own [`SoftwareNicConfig::dead_after`].
pub struct SoftwareNic<W: Wire> {
    engine: SoftwareEngine<W::Path>,
    wire: W,
    arrivals: Box<[u8]>,
    /// Packets being sent, and their batch.
    packets: Gather,
    batch: Option<PacketBatch<W::Path>>,
    /// The time until which the wire takes no more.
    blocked_until: Option<Instant>,
    /// The number of arrivals that were taken since the last send.
    unsent: usize,
    has_arrivals: bool,
}

impl<W: Wire> SoftwareNic<W> {
    /// Makes a NIC over a wire. `seed`: secret random bytes from which its names are derived.
    #[must_use]
    pub fn new(wire: W, secret: Secret, config: SoftwareNicConfig, seed: [u8; 16]) -> Self {
        Self {
            engine: SoftwareEngine::new(W::NAME, config, secret, seed),
            wire,
            arrivals: vec![0; ARRIVAL_BYTES_MAX].into_boxed_slice(),
            packets: Gather::default(),
            batch: None,
            blocked_until: None,
            unsent: 0,
            has_arrivals: false,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> SoftwareNicCounters {
        self.engine.counters
    }

    /// Returns the wire.
    #[must_use]
    pub const fn wire(&self) -> &W {
        &self.wire
    }

    /// Takes what has arrived, and sends the replies. Returns whether anything has arrived.
    fn pump(&mut self) -> bool {
        self.pump_for(|_| None::<()>);
        mem::take(&mut self.has_arrivals)
    }

    /// Takes arrivals until `wanted` finds something. Replies are sent once no arrivals are left or many
    /// were taken, so that a mere ACK may travel with the consumer's answer.
    fn pump_for<T>(
        &mut self,
        mut wanted: impl FnMut(&mut SoftwareEngine<W::Path>) -> Option<T>,
    ) -> Option<T> {
        let mut now = None;
        let mut found = None;
        for _ in 0..ARRIVALS_MAX {
            match self.wire.recv(&mut self.arrivals) {
                Ok(Some((count, from))) => {
                    let now = *now.get_or_insert_with(|| self.wire.now().as_nanos());
                    let bytes = self.arrivals.get(..count).unwrap_or(&[]);
                    self.engine.receive(now, from, bytes);
                    self.unsent += 1;
                    self.has_arrivals = true;
                    found = wanted(&mut self.engine);
                    if found.is_some() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    // Perhaps the error of an earlier datagram: a retry mends it.
                    self.engine.counters.wire_errors += 1;
                    break;
                }
            }
        }

        let may_wait = found.is_some() && self.unsent < UNSENT_MAX && !self.engine.is_urgent();
        if self.unsent > 0 && !may_wait {
            let now = now.unwrap_or_else(|| self.wire.now().as_nanos());
            self.flush(now);
        }

        found
    }

    /// Sends what is ready.
    fn flush(&mut self, now: u64) {
        self.hand_over(now);
        if self.wire.flush().is_err() {
            self.engine.counters.wire_errors += 1;
        }
    }

    fn hand_over(&mut self, now: u64) {
        self.unsent = 0;
        loop {
            while let Some(path) = self.engine.unmeasured() {
                let bytes = self.wire.packet_bytes(path);
                self.engine.set_packet_bytes(path, bytes);
            }

            let batch = match self.batch.take() {
                Some(batch) => batch,
                None => {
                    let count = self.wire.packets_max();
                    match self.engine.transmit(now, count, &mut self.packets) {
                        Some(batch) => batch,
                        None => return,
                    }
                }
            };

            let PacketBatch { to, packet_bytes } = batch;
            let sent = match self.packets.as_slice() {
                Some(packets) => self.wire.send(to, packets, packet_bytes),
                None => self.wire.send_gathered(to, &self.packets, packet_bytes),
            };
            match sent {
                Ok(()) => self.blocked_until = None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.batch = Some(batch);
                    self.blocked_until = Some(Instant::from_nanos(now) + BLOCKED);
                    self.engine.departed(now);
                    return;
                }
                Err(_) => {
                    self.engine.counters.wire_errors += 1;
                    // Perhaps it was too long.
                    let bytes = self.wire.packet_bytes(to);
                    self.engine.set_packet_bytes(to, bytes);
                }
            }

            // Don't hold memory longer than needed.
            self.packets.clear();
        }
    }

    fn now(&self) -> u64 {
        self.wire.now().as_nanos()
    }
}

impl<W: Wire> Drop for SoftwareNic<W> {
    fn drop(&mut self) {
        let now = self.now();
        // A peer that waits for an ACK would not know that all has arrived.
        self.engine.acknowledge_all(now);
        self.flush(now);
        self.engine.end();
        self.batch = None;
        self.packets.clear();
        self.flush(now);
    }
}

impl<W: Wire> fmt::Debug for SoftwareNic<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftwareNic")
            .field("name", &W::NAME)
            .field("path", &self.wire.path())
            .field("counters", &self.engine.counters)
            .finish_non_exhaustive()
    }
}

/// The length of a NIC's name within its address, in bytes.
const NAME_BYTES: usize = 8;
