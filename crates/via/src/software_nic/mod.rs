//! A NIC in software, over anything that carries packets and may lose them: what `udp` is made of.
//!
//! ```text
//!   consumer          SoftwareNic                         Wire
//!   post_send  -----> descriptors -> fragments -> packets -----> send      a datagram, or several of one length
//!   poll       <----- completions <- fragments <- packets <----- receive
//!   progress   -----> time: what to send again, whom to probe, who is dead
//! ```
//! The engine behind it does no I/O: packets and time go in, packets and deadlines come out. Data goes from the
//! packet straight to its place in registered memory, after the checks of [via-lam, §2]; a fragment that comes before
//! its turn is kept until then.
//!
//! # How packets are kept in order and lost ones found
//! - Fragments and transmissions have numbers of their own, as in QUIC [rfc9002, §3]; receipts are cumulative and
//!   selective [rfc2018, §3] for 256 fragments beyond the first gap. What was overtaken by three transmissions or by time
//!   is lost [rfc9002, §6.1] [rfc8985, §6]; silence is probed [rfc9002, §6.2], with times estimated as in
//!   [rfc6298, §2].
//! - The congestion window is NewReno's [rfc9002, §7]; the receiver's window fits its socket's buffer.
//! - Receipts travel with data; alone they come after 1 ms, with every second packet of a burst, or at once when
//!   something is out of order [rfc5681, §4.2].
//! - Unreliable VIs use the same windows, but give up what is lost [rfc3758, §3.5] [rfc9221, §5], and take what comes
//!   as it comes.
//!
//! # Trust
//! Whoever does not know the world's [`Secret`] gets no answer to anything. Calls carry a tag under it, and a cookie
//! that proves the caller's path; names of connections are 64 bits that nobody guesses, and come with each packet. With
//! [`Config::is_tagged`] each packet also has a tag under a key of its connection, which keeps out those who read the
//! packets of others; data is not encrypted either way. Peers that know the secret are held to the rules of the
//! protocol all the same ([`Reason::PeerFault`](crate::vi::Reason::PeerFault)) and reach no memory but what is
//! registered for them.
//!
//! # Costs
//! One copy where it arrives, beside the kernel's; where it departs, two in packets of up to 4 KiB and if packets have
//! tags, else none. A message of 8 bytes is one packet of 82
//! bytes.

mod calls;
mod congestion;
mod connection;
mod engine;
mod gather;
mod inbound;
mod objects;
mod outbound;
mod packet;
mod path_search;
mod provider;
mod secret;
mod transfer;

use std::{fmt, io, mem, os::fd::BorrowedFd, time::Duration};

use vigie_detect::Instant;

use self::engine::{Batch, Engine};

pub use gather::{Gather, Part};
pub use secret::Secret;
pub(crate) use secret::{TAG_BYTES, is_same};

/// How many arrivals are taken at most before what they ask for is sent.
const ARRIVALS_MAX: usize = 64;

/// How many may be taken before it is said that they have arrived.
const UNSENT_MAX: usize = 8;

/// The most bytes of one arrival.
const ARRIVAL_BYTES_MAX: usize = 1 << 16;

/// After so long a wire that took no more is tried again.
const BLOCKED: Duration = Duration::from_millis(1);

/// Where packets go to and come from: an address of a [`Wire`].
pub trait Path: Copy + Ord + fmt::Debug + Send + 'static {
    /// Returns the bytes that name it, at most 64.
    fn to_bytes(&self) -> Vec<u8>;

    /// Returns what these bytes name, if they name anything.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// What carries packets: it may lose, repeat, reorder and change them.
///
/// # Implementing
/// Nothing blocks. What is received may be several packets in one piece, as they were sent together, and zero bytes
/// behind them, as short frames of Ethernet have them.
pub trait Wire: Send + 'static {
    /// Its addresses.
    type Path: Path;

    /// The name of the provider that it makes, for messages and metrics, and at the beginning of addresses.
    const NAME: &'static str;

    /// Returns the time, on the clock of [`Provider::progress`](crate::vi::Provider::progress).
    fn now(&self) -> Instant;

    /// Returns where others reach this end.
    fn path(&self) -> Self::Path;

    /// Sends packets: each of `packet_bytes` bytes, but the last, which may be shorter.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: nothing was sent, try again later. All others: the packets are lost.
    fn send(&mut self, to: Self::Path, packets: &[u8], packet_bytes: usize) -> io::Result<()>;

    /// Sends packets as [`send`](Self::send), of which long pieces lie in registered memory. Others may write that
    /// memory at any time: no reference into it may be made. This copies the pieces together; a wire that need not
    /// do that has its own.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn send_gathered(
        &mut self,
        to: Self::Path,
        packets: &Gather,
        packet_bytes: usize,
    ) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(packets.len());
        packets.copy_onto(&mut bytes)?;
        self.send(to, &bytes, packet_bytes)
    }

    /// Has everything depart that [`send`](Self::send) has only queued.
    ///
    /// # Errors
    /// Whatever went wrong; what was queued is lost then.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Takes what has arrived: how many bytes, and from where. `None`: nothing has.
    ///
    /// # Errors
    /// Whatever went wrong; it is tried again later.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, Self::Path)>>;

    /// Returns how many packets may be sent at once.
    fn packets_max(&self) -> usize;

    /// Returns the longest packet that a path takes, in bytes, as far as is known now. It may be too much: longer
    /// packets than 1200 bytes are tried before they are used.
    fn packet_bytes(&mut self, to: Self::Path) -> usize;

    /// Returns what is readable while something has arrived.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Prepares for the caller's sleep on the descriptor, when nothing was there to be received. Returns whether
    /// something is there now, which the descriptor may not tell.
    ///
    /// # Errors
    /// Whatever keeps the caller from sleeping.
    fn arm(&mut self) -> io::Result<bool> {
        Ok(false)
    }
}

/// What a software NIC may do, and when it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// After so long a silence a peer is asked whether it is there. Default 2 s.
    pub keep_alive: Duration,
    /// A peer that answers nothing for so long is dead. Default 10 s.
    pub dead_after: Duration,
    /// The longest packet, whatever the path takes, in bytes: 1200 to 65 000. Default 65 000.
    pub packet_bytes_max: usize,
    /// How many bytes of one connection may be on the way to this NIC, or four packets if those have more. Default 128 KiB; a wire with buffers that are
    /// smaller loses what does not fit.
    pub window_bytes: usize,
    /// Whether each packet has a tag under a key of its connection: 8 bytes and about a nanosecond per byte, on
    /// either side. Both ends of a connection must say the same. Default `false`: only calls have tags, and
    /// whoever can read packets on their way can forge some.
    pub is_tagged: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(2),
            dead_after: Duration::from_secs(10),
            packet_bytes_max: 65_000,
            window_bytes: 128 << 10,
            is_tagged: false,
        }
    }
}

/// What a software NIC has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets that were handed to the wire.
    pub packets_sent: u64,
    /// Packets that arrived.
    pub packets_received: u64,
    /// Of those, such without a right tag, that made no sense, or came from beyond a window: they changed nothing.
    pub packets_refused: u64,
    /// Of those, data for a connection that there is not, or from another path than its own.
    pub packets_of_strangers: u64,
    /// Fragments that were sent again.
    pub fragments_sent_again: u64,
    /// Fragments that arrived again, or too late to be of use.
    pub fragments_repeated: u64,
    /// Connections whose peer was silent for too long.
    pub peers_silent: u64,
    /// Failures of the wire.
    pub wire_errors: u64,
}

/// A NIC in software over a [`Wire`]: a [`Provider`](crate::vi::Provider).
///
/// Dropping it tells all peers once that it has ended; those that the packet does not reach notice it by their own
/// [`Config::dead_after`].
pub struct SoftwareNic<W: Wire> {
    engine: Engine<W::Path>,
    wire: W,
    arrivals: Box<[u8]>,
    /// Packets that are being sent, and which.
    packets: Gather,
    batch: Option<Batch<W::Path>>,
    /// The wire takes no more until then.
    blocked_until: Option<Instant>,
    /// How many arrivals were taken since something was sent.
    unsent: usize,
    has_arrivals: bool,
}

impl<W: Wire> SoftwareNic<W> {
    /// Makes a NIC over a wire. `seed`: random bytes that nobody else knows, of which its names are made.
    #[must_use]
    pub fn new(wire: W, secret: Secret, config: Config, seed: [u8; 16]) -> Self {
        Self {
            engine: Engine::new(W::NAME, config, secret, seed),
            wire,
            arrivals: vec![0; ARRIVAL_BYTES_MAX].into_boxed_slice(),
            packets: Gather::default(),
            batch: None,
            blocked_until: None,
            unsent: 0,
            has_arrivals: false,
        }
    }

    /// Returns what it has seen.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.engine.counters
    }

    /// Returns the wire.
    #[must_use]
    pub const fn wire(&self) -> &W {
        &self.wire
    }

    /// Takes what has arrived, and sends what that asks for. Returns whether anything has.
    fn pump(&mut self) -> bool {
        self.pump_for(|_| None::<()>);
        mem::take(&mut self.has_arrivals)
    }

    /// Takes what has arrived until `wanted` finds something. What the arrivals ask for is sent when there are no more
    /// of them, or many were taken; what only says that they have arrived may thus travel with the consumer's answer.
    fn pump_for<T>(
        &mut self,
        mut wanted: impl FnMut(&mut Engine<W::Path>) -> Option<T>,
    ) -> Option<T> {
        let mut now = None;
        let mut found = None;
        for _ in 0..ARRIVALS_MAX {
            match self.wire.receive(&mut self.arrivals) {
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
                    // Of a datagram that was sent before, perhaps: nothing that a retry does not mend.
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

    /// Sends what there is to send.
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
            let Batch { to, packet_bytes } = batch;
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
            // Memory is not held longer than needed.
            self.packets.clear();
        }
    }

    fn now(&self) -> u64 {
        self.wire.now().as_nanos()
    }
}

impl<W: Wire> Drop for SoftwareNic<W> {
    fn drop(&mut self) {
        self.engine.end();
        self.batch = None;
        self.packets.clear();
        let now = self.now();
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

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The name of a NIC within its address, in bytes.
const NAME_BYTES: usize = 8;
