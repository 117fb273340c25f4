//! Rewrite, Ttl, Mirror, Meter.

use std::net::IpAddr;

use super::{
    depth_ns,
    edit::NewValue,
    emitter::{COPY, END, Emitter, KEY, LENGTH, NOW, NetworkKind, OUT, WORK},
};
use crate::{
    bpf::{
        Atomic, Condition, Operation,
        Register::{R0, R1, R2, R3, R4, R5, R8, R10},
        Size,
    },
    nic::layout::octets,
    pipeline::DropReason,
    stages::{Meter, Mirror, Rewrite},
};

/// Attempts to update a bucket that others change concurrently; a packet that loses all of them is dropped.
const ATTEMPTS: i32 = 16;

const WORDS_WITHOUT_OPTIONS: i16 = 5;

impl Emitter<'_> {
    pub(super) fn rewrite(&mut self, rewrite: &Rewrite, kind: NetworkKind) {
        if rewrite.arrives().is_some_and(|port| port != self.ingress) {
            return;
        }
        let (source, destination) = rewrite.addresses();
        let version = kind.version();
        let is_other = |address: IpAddr| version != Some(usize::from(address.is_ipv6()));
        if [source, destination].into_iter().flatten().any(is_other) {
            return self.drop_now(DropReason::NotIp);
        }
        let places = if kind == NetworkKind::V4 { [12, 16] } else { [8, 24] };
        for (at, address) in places.into_iter().zip([source, destination]) {
            if let Some(address) = address {
                self.replace_address(kind, at, NewValue::Bytes(&octets(address)));
            }
        }
        let (source, destination) = rewrite.macs();
        for ((register, offset), mac) in self.macs().into_iter().zip([destination, source]) {
            if let Some(mac) = mac {
                self.put_mac(register, offset, mac.0);
            }
        }
        if let Some(port) = rewrite.port() {
            self.keep(OUT, i32::from(port.0));
        }
    }

    /// Sums up the IPv4 header, whose options are of different lengths.
    pub(super) fn header_checksum(&mut self, kind: NetworkKind) {
        if kind != NetworkKind::V4 {
            return;
        }
        let malformed = self.drop_label(DropReason::Malformed);
        let done = self.a.label();
        self.a.load(Size::Byte, R0, R8, 0).compute(Operation::And, R0, 15).set(R1, 0);
        self.get(R4, END);
        for word in 0..15 {
            if word >= WORDS_WITHOUT_OPTIONS {
                self.a.branch(Condition::AtMost, R0, i32::from(word), done);
                self.a.set(R3, R8).add(R3, i32::from(word * 4 + 4));
                self.a.branch(Condition::Greater, R3, R4, malformed);
            }
            self.a.load(Size::Word, R2, R8, word * 4).add(R1, R2);
        }
        self.a.bind(done);
        self.fold_wide(R1, R2);
        let wrong = self.drop_label(DropReason::ChecksumWrong);
        self.a.branch(Condition::NotEqual, R1, 0xffff, wrong);
    }

    pub(super) fn ttl(&mut self, kind: NetworkKind) {
        if kind.version().is_none() {
            return self.drop_now(DropReason::NotIp);
        }
        let expired = self.drop_label(DropReason::TtlExpired);
        self.decrement(kind, expired);
    }

    pub(super) fn mirror(&mut self, mirror: &Mirror) {
        if mirror.ingress().is_none_or(|port| port == self.ingress) {
            self.keep(COPY, 1);
        }
    }

    /// One number says when the bucket will be full; it is exchanged atomically.
    pub(super) fn meter(&mut self, meter: &Meter, number: u32) {
        let over = self.drop_label(DropReason::Metered);
        let [again, is_later, done] = [(); 3].map(|()| self.a.label());
        let attempts = WORK[0];
        self.a.store(Size::Word, R10, KEY, i32::try_from(number).unwrap_or(i32::MAX));
        self.look_up(self.layout.meters);
        self.a.branch(Condition::Equal, R0, 0, over).set(R2, R0);

        // R1 = the time of the frame at that rate, to the nearest nanosecond.
        let rate = meter.rate().bytes_per_s();
        self.get(R1, LENGTH);
        self.a.compute(Operation::Multiply, R1, 1_000_000_000);
        self.a.constant(R3, rate / 2).add(R1, R3);
        self.a.constant(R3, rate).compute(Operation::Divide, R1, R3);
        self.keep(attempts, 0);
        self.a.bind(again);
        self.get(R3, NOW);

        // R4 = the old `full_at`, R5 = the new one.
        self.a.load(Size::Double, R4, R2, 0).set(R5, R4);
        self.a.branch(Condition::AtLeast, R5, R3, is_later).set(R5, R3).bind(is_later);
        self.a.add(R5, R1).set(R0, R5).compute(Operation::Subtract, R0, R3);
        self.a.constant(R3, depth_ns(meter)).branch(Condition::Greater, R0, R3, over);
        self.a.set(R0, R4).atomic(Size::Double, Atomic::CompareExchange, R2, 0, R5);
        self.a.branch(Condition::Equal, R0, R4, done);
        self.get(R3, attempts);
        self.a.add(R3, 1);
        self.keep(attempts, R3);
        self.a.branch(Condition::Less, R3, ATTEMPTS, again);
        self.a.jump(over).bind(done);
    }
}
