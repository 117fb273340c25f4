//! Filter: unrolled rules.

use std::ops::RangeInclusive;

use super::{
    emitter::{ETHER_TYPE, Emitter, NetworkKind, PROTOCOL, TCP, TRANSPORT, UDP},
    headers::half,
};
use crate::{
    bpf::{
        Condition, Label, Operation,
        Register::{R0, R1, R8, R9},
        Size,
    },
    nic::layout::octets,
    pipeline::DropReason,
    stages::{Action, Filter, FilterRule},
    tables::Prefix,
};

/// Returns whether a rule can match packets of a kind that arrive here, as far as known at compile time.
fn may_mean(rule: &FilterRule, kind: NetworkKind, ingress: crate::packet::Port) -> bool {
    let (port, ether_type) = rule.frames();
    let (source, destination, protocol) = rule.packets();
    let (source_ports, destination_ports) = rule.ports();
    let is_ip = kind.version().is_some();
    let kind_fits = match (kind, ether_type.map(|one| one.0)) {
        (_, None) => true,
        (NetworkKind::V4, Some(number)) => number == 0x0800,
        (NetworkKind::V6, Some(number)) => number == 0x86dd,
        (NetworkKind::Arp, Some(number)) => number == 0x0806,
        (_, Some(number)) => ![0x0800, 0x86dd, 0x0806].contains(&number),
    };
    let version_fits = |prefix: Option<Prefix>| {
        prefix.is_none_or(|prefix| kind.version() == Some(usize::from(prefix.address().is_ipv6())))
    };
    let needs_ip = protocol.is_some() || source_ports.is_some() || destination_ports.is_some();
    port.is_none_or(|port| port == ingress)
        && kind_fits
        && version_fits(source)
        && version_fits(destination)
        && (is_ip || !needs_ip)
}

/// A prefix as native words: the masks, and the values under them.
fn words(prefix: Prefix) -> Vec<(u32, u32)> {
    let bits = usize::from(prefix.length_bits());
    let bytes = octets(prefix.address());
    let (chunks, _) = bytes.as_chunks::<4>();
    let word = |(number, chunk): (usize, &[u8; 4])| {
        let counts = bits.saturating_sub(number * 32).min(32);
        let mask = u32::MAX.checked_shl(u32::try_from(32 - counts).unwrap_or(32)).unwrap_or(0);
        let mask = u32::from_ne_bytes(mask.to_be_bytes());
        (mask, u32::from_ne_bytes(*chunk) & mask)
    };
    chunks.iter().enumerate().map(word).collect()
}

impl Emitter<'_> {
    pub(super) fn filter(&mut self, filter: &Filter, kind: NetworkKind) {
        let end = self.a.label();
        for rule in filter.rules() {
            if !may_mean(rule, kind, self.ingress) {
                continue;
            }
            let next = self.a.label();
            self.conditions(rule, kind, next);
            self.act(rule.action(), filter.drop_reason(), end);
            self.a.bind(next);
        }
        self.act(filter.default_action(), filter.drop_reason(), end);
        self.a.bind(end);
    }

    fn act(&mut self, action: Action, reason: DropReason, end: Label) {
        match action {
            Action::Accept => {
                self.a.jump(end);
            }
            Action::Drop => self.drop_now(reason),
        }
    }

    fn conditions(&mut self, rule: &FilterRule, kind: NetworkKind, next: Label) {
        let (source, destination, protocol) = rule.packets();
        if let (NetworkKind::Other, Some(ether_type)) = (kind, rule.frames().1) {
            self.get(R0, ETHER_TYPE);
            self.a.branch(Condition::NotEqual, R0, half(ether_type.0), next);
        }

        if let Some(protocol) = protocol {
            self.get(R0, PROTOCOL);
            self.a.branch(Condition::NotEqual, R0, i32::from(protocol), next);
        }

        let places: [i16; 2] = if kind == NetworkKind::V4 { [12, 16] } else { [8, 24] };
        for (place, prefix) in places.into_iter().zip([source, destination]) {
            let words = prefix.map(words).unwrap_or_default();
            for (offset, (mask, value)) in (place..).step_by(4).zip(words) {
                if mask == 0 {
                    continue;
                }
                self.a.load(Size::Word, R0, R8, offset);
                if mask != u32::MAX {
                    self.a.compute32(Operation::And, R0, mask.cast_signed());
                }
                self.a.branch32(Condition::NotEqual, R0, value.cast_signed(), next);
            }
        }

        let (source, destination) = rule.ports();
        if source.is_none() && destination.is_none() {
            return;
        }

        let has_ports = self.a.label();
        self.get(R1, TRANSPORT);
        self.a.branch(Condition::Equal, R1, TCP, has_ports);
        self.a.branch(Condition::NotEqual, R1, UDP, next).bind(has_ports);
        for (offset, ports) in [(0, source), (2, destination)] {
            if let Some(ports) = ports {
                self.in_range(offset, ports, next);
            }
        }
    }

    fn in_range(&mut self, offset: i16, ports: &RangeInclusive<u16>, next: Label) {
        self.a.load(Size::Half, R0, R9, offset).network_order(Size::Half, R0);
        self.a.branch(Condition::Less, R0, i32::from(*ports.start()), next);
        self.a.branch(Condition::Greater, R0, i32::from(*ports.end()), next);
    }
}
