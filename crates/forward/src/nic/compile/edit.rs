//! Editing packets in place, with their checksums: exactly as `packet::Packet` does it (RFC 1624).
//!
//! Words are added in native order: a one's complement sum is the same in either byte order, except that its own bytes
//! are swapped.

use super::emitter::{
    ADDRESSES_ADDED, Emitter, ICMP, NetworkKind, OTHER, PAYLOAD_ADDED, TCP, TRANSPORT, UDP, VALUE,
};
use crate::bpf::{
    ChecksumState, Condition, Operation,
    Register::{self, R0, R1, R2, R3, R4, R5, R8, R9},
    Size,
};

/// The new contents of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum NewValue<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// The bytes at this offset of the value whose address is in [`VALUE`].
    Value(i16),
}

impl Emitter<'_> {
    /// Folds the 64 bits of a register into 16, using another as scratch.
    pub(super) fn fold_wide(&mut self, sum: Register, work: Register) {
        for _ in 0..2 {
            self.a.set(work, sum).compute(Operation::ShiftRight, work, 32);
            self.a.compute32(Operation::Move, sum, sum).add(sum, work);
        }
        self.fold(sum, work);
    }

    /// Folds the 33 bits of a register into 16.
    fn fold(&mut self, sum: Register, work: Register) {
        for _ in 0..3 {
            self.fold_once(sum, work);
        }
    }

    fn fold_once(&mut self, sum: Register, work: Register) {
        self.a.set(work, sum).compute(Operation::ShiftRight, work, 16);
        self.a.compute(Operation::And, sum, 0xffff).add(sum, work);
    }

    /// Updates the checksum at an offset from an address: R1 was removed, R3 added. Both stay.
    fn update(&mut self, at: Register, offset: i16) {
        self.a.load(Size::Half, R0, at, offset);
        self.updated();
        self.a.store(Size::Half, at, offset, R0);
    }

    /// R0, a checksum, with R1 removed and R3 added. R2 is clobbered.
    fn updated(&mut self) {
        self.a.compute(Operation::Xor, R0, 0xffff).set(R2, R1).compute(Operation::Xor, R2, 0xffff);
        self.a.add(R0, R2).add(R0, R3);
        self.fold_once(R0, R2);
        self.fold_once(R0, R2);
        self.a.compute(Operation::Xor, R0, 0xffff);
    }

    /// Updates the checksum of the transport, if it has one; with ICMP in IPv4 only if `of_payload` has changed.
    fn update_transport(&mut self, kind: NetworkKind, of_payload: bool) {
        let [go, end] = [(); 2].map(|()| self.a.label());
        self.get(R0, TRANSPORT);
        // At tcx, a changed address of IPv6 counts with every protocol: `mend_complete_checksum`.
        if !(self.is_tcx() && kind == NetworkKind::V6) {
            self.a.branch(Condition::Equal, R0, OTHER, end);
        }
        if kind == NetworkKind::V4 && !of_payload {
            self.a.branch(Condition::Equal, R0, ICMP, end);
        }
        if self.is_tcx() {
            // Mended when all has changed.
            let added = if of_payload { PAYLOAD_ADDED } else { ADDRESSES_ADDED };
            self.get(R0, added);
            self.a.set(R2, R1).compute(Operation::Xor, R2, 0xffff).add(R0, R2).add(R0, R3);
            self.keep(added, R0);
            self.a.bind(end);
            return;
        }
        self.a.set(R4, R9).add(R4, 16).branch(Condition::Equal, R0, TCP, go);
        self.a.set(R4, R9).add(R4, 2).branch(Condition::Equal, R0, ICMP, go);
        self.a.set(R4, R9).add(R4, 6);
        // With UDP, 0 means no checksum.
        self.a.load(Size::Half, R0, R4, 0).branch(Condition::Equal, R0, 0, end);
        self.updated();
        let some = self.a.label();
        self.a.branch(Condition::NotEqual, R0, 0, some).set(R0, 0xffff).bind(some);
        self.a.store(Size::Half, R4, 0, R0).jump(end).bind(go);
        self.update(R4, 0);
        self.a.bind(end);
    }

    /// Mends the checksum of the transport, whose state is in R0, by what was added to addresses and payload.
    pub(super) fn mend_transport(&mut self) {
        let [known, partial, mended, end] = [(); 4].map(|()| self.a.label());
        self.a.set(R5, R0);
        self.get(R3, TRANSPORT);
        self.a.branch(Condition::Equal, R3, OTHER, end);
        for (transport, offset) in [(TCP, 16), (ICMP, 2), (UDP, 6)] {
            self.a.set(R4, R9).add(R4, offset).branch(Condition::Equal, R3, transport, known);
        }
        self.a.jump(end).bind(known).load(Size::Half, R0, R4, 0);
        let is_there = self.a.label();
        // With UDP, 0 means no checksum.
        self.a.branch(Condition::NotEqual, R3, UDP, is_there);
        self.a.branch(Condition::Equal, R0, 0, end).bind(is_there);
        self.get(R1, ADDRESSES_ADDED);
        let is_partial = ChecksumState::Partial.number();
        self.a.branch(Condition::Equal, R5, is_partial, partial);
        self.get(R2, PAYLOAD_ADDED);
        self.a.add(R1, R2).compute(Operation::Xor, R0, 0xffff).add(R0, R1);
        self.fold(R0, R2);
        self.a.compute(Operation::Xor, R0, 0xffff).jump(mended).bind(partial).add(R0, R1);
        self.fold(R0, R2);
        let some = self.a.label();
        self.a.bind(mended).branch(Condition::NotEqual, R3, UDP, some);
        self.a.branch(Condition::NotEqual, R0, 0, some).set(R0, 0xffff).bind(some);
        self.a.store(Size::Half, R4, 0, R0).bind(end);
    }

    /// Replaces an IP address at an offset from R8.
    pub(super) fn replace_address(&mut self, kind: NetworkKind, at: i16, new: NewValue<'_>) {
        let words: i16 = if kind == NetworkKind::V4 { 1 } else { 4 };

        // R1 = the sum of the old words, R3 = of the new ones.
        self.a.set(R1, 0).set(R3, 0);
        for word in 0..words {
            self.a.load(Size::Word, R2, R8, at + word * 4).add(R1, R2);
            match new {
                NewValue::Bytes(bytes) => {
                    let from = usize::try_from(word * 4).unwrap_or(0);
                    let bytes = bytes.get(from..).and_then(|rest| rest.first_chunk::<4>());
                    let constant = bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    self.a.compute32(Operation::Move, R2, constant);
                }
                NewValue::Value(offset) => {
                    self.get(R5, VALUE);
                    self.a.load(Size::Word, R2, R5, offset + word * 4);
                }
            }
            self.a.store(Size::Word, R8, at + word * 4, R2).add(R3, R2);
        }

        for sum in [R1, R3] {
            if kind == NetworkKind::V4 {
                self.fold_once(sum, R2);
                self.fold_once(sum, R2);
            } else {
                self.fold_wide(sum, R2);
            }
        }
        if kind == NetworkKind::V4 {
            self.update(R8, 10);
        }

        self.update_transport(kind, false);
    }

    /// Replaces a port or an identifier at an offset from R9 by the word at another offset of the value.
    pub(super) fn replace_word(&mut self, kind: NetworkKind, at: i16, from: i16) {
        self.get(R5, VALUE);
        self.a.load(Size::Half, R1, R9, at).load(Size::Half, R3, R5, from);
        self.a.store(Size::Half, R9, at, R3);
        self.update_transport(kind, true);
    }

    /// As [`replace_word`](Self::replace_word), with the new word in R3.
    pub(super) fn replace_identifier(&mut self, kind: NetworkKind) {
        self.a.load(Size::Half, R1, R9, 4).store(Size::Half, R9, 4, R3);
        self.update_transport(kind, true);
    }

    /// Decrements the hop limit.
    pub(super) fn decrement(&mut self, kind: NetworkKind, expired: crate::bpf::Label) {
        let at = if kind == NetworkKind::V4 { 8 } else { 7 };
        self.a.load(Size::Byte, R1, R8, at).branch(Condition::AtMost, R1, 1, expired);
        self.a.set(R3, R1).add(R3, -1).store(Size::Byte, R8, at, R3);
        if kind == NetworkKind::V4 {
            if cfg!(target_endian = "big") {
                self.a.compute(Operation::ShiftLeft, R1, 8).compute(Operation::ShiftLeft, R3, 8);
            }
            self.update(R8, 10);
        }
    }

    /// Writes an Ethernet address at an offset from an address.
    pub(super) fn put_mac(&mut self, at: Register, offset: i16, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.a.store(Size::Word, at, offset, i32::from_ne_bytes([a, b, c, d]));
        let half = i32::from(u16::from_ne_bytes([e, f]));
        self.a.store(Size::Half, at, offset + 4, half);
    }
}
