//! One end of TLS without I/O: rustls' machine, driven by the relay's buffers.
//!
//! ```text
//!   from the peer ──▶ incoming ──▶ rustls ──▶ the caller's room; what does not fit: plain
//!   to the peer   ◀── outgoing ◀── rustls ◀── the caller's bytes; handshake, alerts, updates of keys
//! ```
//!
//! # Bounds
//! `incoming` and `outgoing` hold a few records each, 64 KiB at most (and the flight of a handshake, whose largest part is this side's
//! certificates); `plain` holds what `incoming` held. All of them are empty, and have no memory, while nothing is on its way. Nothing
//! is read while `plain` holds something, and nothing is encrypted while `outgoing` does.

use std::fmt;

use rustls::{
    client::UnbufferedClientConnection,
    server::UnbufferedServerConnection,
    unbuffered::{
        ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
    },
};

use super::{error::TlsError, window::Window};
use crate::relay::buffers::{Buffers, FLOOR_BYTES, TLS_RECORD_BYTES};

/// The sizes of buffers for records: for small messages, for the longest record, for streams (if the budget allows).
const SIZES: [usize; 3] = [FLOOR_BYTES, TLS_RECORD_BYTES, 64 << 10];

/// A buffer shrinks after this many reads that would have fitted into the next smaller size.
const SMALL_READS_MAX: u8 = 16;

/// The longest plaintext of a record, and what a record adds to it at most, in bytes.
const PLAIN_BYTES_MAX: usize = 16 << 10;
const OVERHEAD_BYTES_MAX: usize = 64;

enum TlsSide {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// One end of a connection.
pub(super) struct TlsMachine {
    side: TlsSide,
    buffers: Buffers,
    incoming: Window,
    outgoing: Window,
    plain: PlainBytes,
    /// An index of [`SIZES`], for `incoming`.
    size: usize,
    small_reads: u8,
    has_peer_ended: bool,
    has_ended: bool,
    failed: Option<TlsError>,
}

/// Decrypted bytes that no reader has taken yet.
#[derive(Debug, Default)]
struct PlainBytes {
    bytes: Vec<u8>,
    start: usize,
}

/// The work that waits until the machine may send.
enum Order<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    End,
}

/// The result of one step.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There may be more to do.
    More,
    /// The peer has ended its direction.
    PeerEnded,
    /// The order was carried out.
    Done,
    /// More bytes are needed from the peer.
    Blocked,
}

impl TlsMachine {
    pub(super) fn server(side: UnbufferedServerConnection, buffers: Buffers) -> Self {
        Self::new(TlsSide::Server(side), buffers)
    }

    pub(super) fn client(side: UnbufferedClientConnection, buffers: Buffers) -> Self {
        Self::new(TlsSide::Client(side), buffers)
    }

    fn new(side: TlsSide, buffers: Buffers) -> Self {
        Self {
            side,
            buffers,
            incoming: Window::default(),
            outgoing: Window::default(),
            plain: PlainBytes::default(),
            size: 0,
            small_reads: 0,
            has_peer_ended: false,
            has_ended: false,
            failed: None,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match &self.side {
            TlsSide::Server(side) => side.is_handshaking(),
            TlsSide::Client(side) => side.is_handshaking(),
        }
    }

    /// Returns whether the peer has said that it sends no more.
    pub(super) const fn has_peer_ended(&self) -> bool {
        self.has_peer_ended && self.plain.is_empty()
    }

    /// Returns whether a part of a record has arrived.
    pub(super) const fn has_part(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Takes bytes that were read before.
    pub(super) fn preload(&mut self, bytes: &[u8]) {
        self.incoming.reserve(bytes.len(), SIZES[0], &self.buffers);
        self.incoming.room()[..bytes.len()].copy_from_slice(bytes);
        self.incoming.extend(bytes.len());
    }

    /// Returns room for bytes of the peer; [`received`](Self::received) says how many came.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.incoming.compact();
        // The first bytes of a record that is longer than its buffer are of no use.
        if self.incoming.capacity() > 0 && self.incoming.len() == self.incoming.capacity() {
            self.size = (self.size + 1).min(SIZES.len() - 1);
        }
        let wanted = SIZES[self.size];
        if self.incoming.capacity() < wanted {
            let budgeted = (self.size == 2).then(|| self.buffers.take(wanted)).flatten();
            match budgeted {
                Some(buffer) => self.incoming.move_to(buffer),
                None => {
                    // A full one holds a part of a handshake's message, which rustls bounds to 64 KiB.
                    let is_full = self.incoming.len() >= TLS_RECORD_BYTES;
                    let needed = if is_full { TLS_RECORD_BYTES } else { 1 };
                    self.incoming.reserve(needed, wanted.min(TLS_RECORD_BYTES), &self.buffers);
                }
            }
        }
        self.incoming.room()
    }

    pub(super) fn received(&mut self, bytes: usize) {
        let is_full = self.incoming.room().len() == bytes;
        self.incoming.extend(bytes);
        if is_full {
            self.small_reads = 0;
            self.size = (self.size + 1).min(SIZES.len() - 1);
        } else if self.size > 0 && bytes <= SIZES[self.size - 1] {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS_MAX {
                self.small_reads = 0;
                self.size -= 1;
            }
        } else {
            self.small_reads = 0;
        }
    }

    /// Gives back the memory of what is empty, before a wait for the peer.
    pub(super) fn rest(&mut self) {
        self.incoming.release();
        self.outgoing.release();
    }

    /// Returns what is to be sent; [`sent`](Self::sent) says how much of it was.
    pub(super) fn outgoing(&self) -> &[u8] {
        self.outgoing.filled()
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.outgoing.discard(bytes);
    }

    /// Decrypts what has come, as far as `room` holds it, and does the handshake's work. Returns the number of bytes.
    pub(super) fn decrypt(&mut self, room: &mut [u8]) -> Result<usize, TlsError> {
        let mut filled = self.plain.take(room);
        while filled < room.len() || (room.is_empty() && self.plain.is_empty()) {
            match self.step(&mut room[filled..], &mut filled, &Order::Nothing) {
                Ok(Step::More | Step::PeerEnded) => {}
                Ok(Step::Blocked | Step::Done) => break,
                // What was whole before is the peer's.
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(filled)
    }

    /// Encrypts some of `bytes`, which must not be empty, and returns how many. Nothing may be left to send.
    pub(super) fn encrypt(&mut self, bytes: &[u8]) -> Result<usize, TlsError> {
        debug_assert!(self.outgoing.is_empty(), "invariant: all was sent");
        let budgeted = (bytes.len() > PLAIN_BYTES_MAX && self.outgoing.capacity() < SIZES[2])
            .then(|| self.buffers.take(SIZES[2]))
            .flatten();
        if let Some(buffer) = budgeted {
            self.outgoing.move_to(buffer);
        }
        let records = (self.outgoing.capacity() / (PLAIN_BYTES_MAX + OVERHEAD_BYTES_MAX)).max(1);
        let some = &bytes[..bytes.len().min(records * PLAIN_BYTES_MAX)];
        self.carry_out(&Order::Encrypt(some))?;
        Ok(some.len())
    }

    /// Tells the peer that no more will be sent.
    pub(super) fn end(&mut self) -> Result<(), TlsError> {
        if self.has_ended {
            return Ok(());
        }
        self.has_ended = true;
        self.carry_out(&Order::End)
    }

    fn carry_out(&mut self, order: &Order<'_>) -> Result<(), TlsError> {
        loop {
            match self.step(&mut [], &mut 0, order)? {
                Step::Done => return Ok(()),
                Step::More | Step::PeerEnded => {}
                Step::Blocked => {
                    return Err(TlsError::Protocol("nothing can be sent any more".to_owned()));
                }
            }
        }
    }

    /// Lets rustls do one thing. Decrypted bytes are put into `room`, and counted in `filled`.
    fn step(
        &mut self,
        room: &mut [u8],
        filled: &mut usize,
        order: &Order<'_>,
    ) -> Result<Step, TlsError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let mut sink = PlainSink { room, filled, plain: &mut self.plain };
        let mut out = CipherSink { window: &mut self.outgoing, buffers: &self.buffers };
        let incoming = self.incoming.filled_mut();
        let (discard, step) = match &mut self.side {
            TlsSide::Server(side) => {
                advance(side.process_tls_records(incoming), &mut sink, &mut out, order)
            }
            TlsSide::Client(side) => {
                advance(side.process_tls_records(incoming), &mut sink, &mut out, order)
            }
        };
        self.incoming.discard(discard);
        if step == Ok(Step::PeerEnded) {
            self.has_peer_ended = true;
        }
        step.map_err(|error| {
            self.queue_alert();
            self.failed.insert(error).clone()
        })
    }

    /// Encodes what rustls wants to say about a failure. It must not be asked beyond that: it would meet the failure again, and panic.
    fn queue_alert(&mut self) {
        let mut sink =
            PlainSink { room: &mut [], filled: &mut 0, plain: &mut PlainBytes::default() };
        let mut out = CipherSink { window: &mut self.outgoing, buffers: &self.buffers };
        loop {
            let incoming = self.incoming.filled_mut();
            let (_, step) = match &mut self.side {
                TlsSide::Server(side) if side.wants_write() => advance(
                    side.process_tls_records(incoming),
                    &mut sink,
                    &mut out,
                    &Order::Nothing,
                ),
                TlsSide::Client(side) if side.wants_write() => advance(
                    side.process_tls_records(incoming),
                    &mut sink,
                    &mut out,
                    &Order::Nothing,
                ),
                _ => return,
            };
            if step != Ok(Step::More) {
                return;
            }
        }
    }
}

impl fmt::Debug for TlsMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMachine")
            .field("is_handshaking", &self.is_handshaking())
            .field("incoming", &self.incoming.len())
            .field("outgoing", &self.outgoing.len())
            .finish_non_exhaustive()
    }
}

/// The destination of decrypted bytes.
struct PlainSink<'a> {
    room: &'a mut [u8],
    filled: &'a mut usize,
    plain: &'a mut PlainBytes,
}

/// The destination of encrypted bytes.
struct CipherSink<'a> {
    window: &'a mut Window,
    buffers: &'a Buffers,
}

/// Does what rustls' state asks for. Returns how many incoming bytes are used up.
fn advance<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    sink: &mut PlainSink<'_>,
    out: &mut CipherSink<'_>,
    order: &Order<'_>,
) -> (usize, Result<Step, TlsError>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => Err(error.into()),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    sink.put(record.payload);
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(Step::More),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            out.put(|room| data.encode(room)).map(|()| Step::More)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It is in `outgoing`, and is sent before anything else.
            data.done();
            Ok(Step::More)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Step::PeerEnded),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match order {
            Order::Nothing => Ok(Step::Blocked),
            Order::Encrypt(bytes) => {
                out.put(|room| traffic.encrypt(bytes, room)).map(|()| Step::Done)
            }
            Order::End => out.put(|room| traffic.queue_close_notify(room)).map(|()| Step::Done),
        },
        // The handshake waits, or all is over. (Early data is never allowed.)
        Ok(_) => Ok(Step::Blocked),
    };
    (discard, step)
}

impl PlainSink<'_> {
    fn put(&mut self, payload: &[u8]) {
        // In order: behind what waits already.
        let fits = if self.plain.is_empty() { payload.len().min(self.room.len()) } else { 0 };
        let (now, later) = payload.split_at(fits);
        let room = std::mem::take(&mut self.room);
        let (taken, rest) = room.split_at_mut(fits);
        taken.copy_from_slice(now);
        self.room = rest;
        *self.filled += fits;
        self.plain.bytes.extend_from_slice(later);
    }
}

/// An error that says how much room is needed.
trait NeedsRoom {
    fn needed(self) -> Result<usize, TlsError>;
}

impl NeedsRoom for EncodeError {
    fn needed(self) -> Result<usize, TlsError> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Ok(required_size),
            error @ Self::AlreadyEncoded => Err(TlsError::Protocol(error.to_string())),
        }
    }
}

impl NeedsRoom for EncryptError {
    fn needed(self) -> Result<usize, TlsError> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Ok(required_size),
            error @ Self::EncryptExhausted => Err(TlsError::Protocol(error.to_string())),
        }
    }
}

impl CipherSink<'_> {
    /// Lets `write` write, with more room if it asks for that.
    fn put<E: NeedsRoom>(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), TlsError> {
        let mut written = write(self.window.room());
        if let Err(error) = written {
            let needed = error.needed()?;
            self.window.reserve(needed, FLOOR_BYTES, self.buffers);
            written = write(self.window.room());
        }
        match written {
            Ok(bytes) => {
                self.window.extend(bytes);
                Ok(())
            }
            Err(error) => {
                let needed = error.needed()?;
                Err(TlsError::Protocol(format!("{needed} bytes are not enough")))
            }
        }
    }
}

impl PlainBytes {
    const fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    fn take(&mut self, room: &mut [u8]) -> usize {
        let held = &self.bytes[self.start..];
        let count = held.len().min(room.len());
        room[..count].copy_from_slice(&held[..count]);
        self.start += count;
        if self.is_empty() {
            *self = Self::default();
        }
        count
    }
}

#[cfg(test)]
mod tests;
