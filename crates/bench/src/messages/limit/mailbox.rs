//! One cache line: a message and the word that says which it is.
//!
//! There is room for one message, so a sender must know that the last one was read: it has received
//! an answer. That holds for round trips and for rings, not for windows.

use std::hint;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::error::Failure;
use crate::host::{Arena, CONTROL_BYTES};
use crate::messages::{Channel, RankContext};

/// Bytes of a mailbox: its line, and one apart, which the processor fetches with its neighbour.
pub(super) const BYTES: usize = 128;

/// Bytes of a message, at most.
pub(super) const CAPACITY: usize = 56;

/// Offset of the word that says that the receiver may be asleep.
const SLEEPING: usize = 4;

/// Offset of the data.
const DATA: usize = 8;

/// One rank's two mailboxes: the next rank's and its own.
#[derive(Debug)]
pub(super) struct Mailbox {
    arena: Arena,
    next: usize,
    own: usize,
    sent: u32,
    received: u32,
    sleeps: bool,
}

impl Mailbox {
    pub(super) fn polling(context: &RankContext) -> Result<Self, Failure> {
        Self::open(context, false)
    }

    pub(super) fn sleeping(context: &RankContext) -> Result<Self, Failure> {
        Self::open(context, true)
    }

    fn open(context: &RankContext, sleeps: bool) -> Result<Self, Failure> {
        let base = |rank| usize::try_from(rank).map(|rank: usize| CONTROL_BYTES + rank * BYTES);
        Ok(Self {
            arena: Arena::open(&context.memory)?,
            next: base(context.next()).map_err(Failure::runtime)?,
            own: base(context.rank).map_err(Failure::runtime)?,
            sent: 0,
            received: 0,
            sleeps,
        })
    }

    /// Sleeps in the kernel until the sequence word is `expected`.
    fn sleep_until(&self, expected: u32) -> Result<(), Failure> {
        let word = self.arena.half_word(self.own);
        let sleeping = self.arena.half_word(self.own + SLEEPING);
        loop {
            // SeqCst here and in `send`: either the sender sees this flag, or we see its sequence.
            sleeping.store(1, Ordering::SeqCst);
            let present = word.load(Ordering::SeqCst);
            if present == expected {
                sleeping.store(0, Ordering::Relaxed);
                return Ok(());
            }
            match futex::wait(word, futex::Flags::empty(), present, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(Failure::io("sleeping on a futex")(error.into())),
            }
        }
    }
}

impl Channel for Mailbox {
    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.sent = self.sent.wrapping_add(1);
        self.arena.write(self.next + DATA, message);
        let word = self.arena.half_word(self.next);
        if !self.sleeps {
            // Pairs with the receiver's acquire.
            word.store(self.sent, Ordering::Release);
            return Ok(());
        }
        word.store(self.sent, Ordering::SeqCst);
        if self.arena.half_word(self.next + SLEEPING).load(Ordering::SeqCst) != 0 {
            let woken = futex::wake(word, futex::Flags::empty(), 1);
            woken.map_err(|error| Failure::io("waking through a futex")(error.into()))?;
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        self.received = self.received.wrapping_add(1);
        if self.sleeps {
            self.sleep_until(self.received)?;
        } else {
            let word = self.arena.half_word(self.own);
            while word.load(Ordering::Acquire) != self.received {
                hint::spin_loop();
            }
        }
        self.arena.read(self.own + DATA, message);
        Ok(())
    }
}
