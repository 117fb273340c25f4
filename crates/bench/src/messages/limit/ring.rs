//! A ring of slots between two ranks: its sender writes a slot and then its sequence word.

use std::hint;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::error::Failure;
use crate::host::{Arena, CONTROL_BYTES};
use crate::messages::{Channel, RankContext};

/// Bytes of a slot that are not data: its sequence word, and eight that a real entry would need
/// too.
const HEADER_BYTES: usize = 16;

/// Bytes of a cache line.
const CACHE_LINE_BYTES: usize = 64;

/// The layout of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Bytes of a slot, a multiple of 64.
    pub(super) slot_bytes: usize,
    /// Number of slots, at least 4.
    pub(super) slots: u32,
}

impl Geometry {
    /// Bytes of a message that fit into one slot.
    pub(super) const fn capacity(self) -> usize {
        self.slot_bytes - HEADER_BYTES
    }

    /// Bytes of a ring: a line for the receiver's counter, and the slots.
    pub(super) const fn bytes(self) -> usize {
        CACHE_LINE_BYTES + self.slot_bytes * self.slots as usize
    }
}

/// The pause of a rank between two looks.
pub(super) trait Wait {
    fn wait();
}

/// Tells the processor that this is a loop.
#[derive(Debug)]
pub(super) struct Spin;

impl Wait for Spin {
    #[inline]
    fn wait() {
        hint::spin_loop();
    }
}

/// Yields the core to others that wait for it.
#[derive(Debug)]
pub(super) struct Yield;

impl Wait for Yield {
    #[inline]
    fn wait() {
        thread::yield_now();
    }
}

/// One rank's two rings: to the next rank, and from the one before.
#[derive(Debug)]
pub(super) struct SlotRing<W> {
    next: RingEnd,
    before: RingEnd,
    wait: PhantomData<W>,
}

/// One end of a ring.
#[derive(Debug)]
struct RingEnd {
    arena: Rc<Arena>,
    base: usize,
    geometry: Geometry,
    slots: u64,
    /// Slots sent or received so far.
    position: u64,
    /// Sender: the receiver's counter when it was last read. Receiver: what it holds now.
    returned: u64,
    /// Offset of the present slot.
    slot: usize,
}

impl<W: Wait> SlotRing<W> {
    pub(super) fn open(context: &RankContext, geometry: Geometry) -> Result<Self, Failure> {
        let arena = Rc::new(Arena::open(&context.memory)?);
        let next = RingEnd::new(&arena, context.rank, geometry)?;
        let before = RingEnd::new(&arena, context.before(), geometry)?;
        Ok(Self { next, before, wait: PhantomData })
    }
}

impl RingEnd {
    /// The ring into which `rank` sends.
    fn new(arena: &Rc<Arena>, rank: u32, geometry: Geometry) -> Result<Self, Failure> {
        let rank = usize::try_from(rank).map_err(Failure::runtime)?;
        let base = CONTROL_BYTES + rank * geometry.bytes();
        let arena = Rc::clone(arena);
        let slots = geometry.slots.into();
        Ok(Self {
            arena,
            base,
            geometry,
            slots,
            position: 0,
            returned: 0,
            slot: base + CACHE_LINE_BYTES,
        })
    }

    #[inline]
    fn advance(&mut self) {
        self.position += 1;
        self.slot += self.geometry.slot_bytes;
        if self.position.is_multiple_of(self.slots) {
            self.slot = self.base + CACHE_LINE_BYTES;
        }
    }
}

impl<W: Wait> Channel for SlotRing<W> {
    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        let way = &mut self.next;
        for chunk in message.chunks(way.geometry.capacity()) {
            while way.position - way.returned >= way.slots {
                // Pairs with the receiver's release: what it has read may be overwritten.
                way.returned = way.arena.word(way.base).load(Ordering::Acquire);
                if way.position - way.returned >= way.slots {
                    W::wait();
                }
            }
            way.arena.write(way.slot + HEADER_BYTES, chunk);
            // Pairs with the receiver's acquire: the data is there before its sequence.
            way.arena.word(way.slot).store(way.position + 1, Ordering::Release);
            way.advance();
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
        let way = &mut self.before;
        for chunk in message.chunks_mut(way.geometry.capacity()) {
            while way.arena.word(way.slot).load(Ordering::Acquire) != way.position + 1 {
                W::wait();
            }
            way.arena.read(way.slot + HEADER_BYTES, chunk);
            way.advance();
            // Seldom, since the sender has this line too.
            if way.position - way.returned >= way.slots / 4 {
                way.returned = way.position;
                way.arena.word(way.base).store(way.position, Ordering::Release);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::host::SharedFile;

    #[test]
    fn messages_of_all_lengths_go_around_many_times() {
        // Goal: lengths around the slot's capacity arrive whole and in order, also after the ring has
        // wrapped. Method: two ends in one thread, which never fill the ring, compared byte by byte.
        let geometry = Geometry { slot_bytes: 128, slots: 8 };
        let file = SharedFile::create(CONTROL_BYTES + 2 * geometry.bytes()).unwrap();
        let memory: PathBuf = file.path();
        let context = |rank| RankContext {
            rank,
            ranks: 2,
            cores: Vec::new(),
            memory: memory.clone(),
            token: 0,
            namespace: None,
        };
        let mut one = SlotRing::<Spin>::open(&context(0), geometry).unwrap();
        let mut other = SlotRing::<Yield>::open(&context(1), geometry).unwrap();
        for round in 0..50_u8 {
            for length in [1, 8, 111, 112, 113, 224, 255] {
                let sent: Vec<_> = (0..length).map(|at: u8| at ^ round).collect();
                let mut received = vec![0; sent.len()];
                one.send(&sent).unwrap();
                other.receive(&mut received).unwrap();
                assert_eq!(received, sent);
                other.send(&sent[..1]).unwrap();
                one.receive(&mut received[..1]).unwrap();
            }
        }
    }
}
