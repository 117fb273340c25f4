//! What recent packets led to, kept on each processor in arrays. The kernel compiles look-ups in arrays into the program (since Linux 6.10 also in
//! arrays for each processor). That spares calls: with return thunks, a return costs some 10 ns.
//!
//! An entry counts while the generation of the tables is the one of when it was written. Programs read the generation before the
//! tables, and user space writes it after them, so no entry outlives a change.

use super::emitter::{Emitter, GENERATION, RECENT, WORK};
use crate::{
    bpf::{
        Condition, Label, Operation,
        Register::{self, R0, R1, R2, R4, R10},
        Size,
    },
    nic::layout::RECENT_SLOTS,
    tables::MULTIPLIER,
};

/// A key in the packet or on the stack: words of 4 bytes from an offset.
pub(super) type KeyWords = (Register, i16, i16);

const INDEX: i16 = WORK[0];

impl Emitter<'_> {
    /// R0 = the entry of a key, which has the key behind what it led to; `miss` if it is another one's or too old.
    pub(super) fn recall(
        &mut self,
        (map, generation): (usize, u32),
        (register, from, words): KeyWords,
        key_at: i16,
        miss: Label,
    ) {
        self.a.store(Size::Word, R10, INDEX, i32::try_from(generation).unwrap_or(0));
        self.look_up_at(self.layout.generations, INDEX);
        self.a.branch(Condition::Equal, R0, 0, self.abort).load(Size::Double, R1, R0, 0);
        self.keep(GENERATION, R1);
        self.a.constant(R4, MULTIPLIER).set(R1, 0);
        for at in (from..from + words * 4).step_by(4) {
            self.a.load(Size::Word, R2, register, at).compute(Operation::Xor, R1, R2);
            self.a.compute(Operation::Multiply, R1, R4);
        }
        let bits = i32::try_from(u64::BITS - RECENT_SLOTS.ilog2()).unwrap_or(0);
        self.a.compute(Operation::ShiftRight, R1, bits).store(Size::Word, R10, INDEX, R1);
        self.look_up_at(map, INDEX);
        self.keep(RECENT, R0);
        self.get(R1, GENERATION);
        self.a.branch(Condition::Equal, R0, 0, self.abort).load(Size::Double, R2, R0, 0);
        self.a.branch(Condition::NotEqual, R1, R2, miss);
        for at in (0..words * 4).step_by(4) {
            self.a.load(Size::Word, R1, register, from + at).load(Size::Word, R2, R0, key_at + at);
            self.a.branch(Condition::NotEqual, R1, R2, miss);
        }
    }

    /// Makes the entry that was not found this key's. R2 = the entry.
    pub(super) fn note(&mut self, (register, from, words): KeyWords, key_at: i16) {
        self.get(R2, RECENT);
        self.get(R1, GENERATION);
        self.a.store(Size::Double, R2, 0, R1);
        self.copy_words(words, (register, from), (R2, key_at));
    }
}
