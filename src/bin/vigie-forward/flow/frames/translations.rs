//! The translations of a flow, as its report and its log show them.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use vigie::{
    Instant,
    detect::clock::monotonic_now,
    forward::{
        packet::TCP,
        tables::{NatTable, Prefix},
    },
};

use super::{
    fullness::Fullness,
    probe::Rival,
    untranslated::{Onset, UntranslatedCount, UntranslatedWatch},
};
use crate::{
    access_log::{self, EntryKind},
    config::{LogChoice, Publish, TransportProtocol},
};

/// The table of a flow, and what is logged of it.
pub(super) struct Translations {
    pub(super) table: NatTable,
    pub(super) log: LogChoice,
    pub(super) publish: Vec<Publish>,
    pub(super) fullness: Fullness,
    pub(super) untranslated: UntranslatedCount,
    pub(super) watch: UntranslatedWatch,
    /// The networks that are translated.
    pub(super) inside: Vec<Prefix>,
    /// Another host with the public address.
    pub(super) rival: Rival,
    pub(super) rival_onset: Onset,
    /// That address, and the interface of the outside network.
    pub(super) public: (Ipv4Addr, String),
}

impl Translations {
    /// Adds its counters to those of the flow.
    pub(super) fn count(&self, counters: &mut BTreeMap<String, u64>) {
        let usage = self.table.usage();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        counters.insert("translations".to_owned(), count(usage.flows));
        counters.insert("translations: ports in use".to_owned(), count(usage.ports));
        counters.insert("translations: percent full".to_owned(), count(usage.percent()));
        counters.insert("translations: ended for others".to_owned(), usage.evicted);
        counters.insert("translations: refused".to_owned(), usage.refused);
        counters.insert("untranslated".to_owned(), self.untranslated.packets());
        for ((protocol, external), hits) in self.table.reserved() {
            let is_tcp = protocol == TCP;
            let rule = self.publish.iter().find(|one| {
                one.port == external.port && (one.transport == TransportProtocol::Tcp) == is_tcp
            });
            if let Some(rule) = rule {
                counters.insert(format!("rule: publish {rule}"), hits);
            }
        }
    }

    /// Returns what there is to say: of a full table, of packets that are not translated, and of another host with the public address.
    pub(super) fn check(&mut self, now: Instant) -> impl Iterator<Item = String> {
        let full = self.fullness.check(&self.table.usage(), now);
        let source = self.watch.check(&self.untranslated, now);
        let untranslated = source.map(|source| {
            let inside: Vec<_> = self.inside.iter().map(Prefix::to_string).collect();
            let inside = inside.join(", ");
            let because = if self.inside.iter().any(|one| one.contains(source.into())) {
                format!(
                    "their destination is in the networks that are translated ({inside}), too: narrow `from` to those inside"
                )
            } else {
                format!(
                    "it is not in the networks that are translated ({inside}): add its network to `from`, unless hosts outside reach this \
                     address"
                )
            };
            format!(
                "forwards packets from {source} to the outside untranslated, since {because}; `untranslated` counts such packets"
            )
        });
        let rival = self.rival.take().filter(|_| self.rival_onset.begins(now));
        let rival = rival.map(|mac| {
            let (address, outside) = &self.public;
            format!(
                "another host at `{outside}` has {address}, too (its Ethernet address is {mac}), and gets some of the answers: take the address \
                 from it, or give `address` a free one and start `vigie-forward` again"
            )
        });
        full.into_iter().chain(untranslated).chain(rival)
    }

    /// Logs that all translations end with the flow. Translations that are kept for the next start do not.
    pub(super) fn log_end(&self, flow: &str) {
        if self.log == LogChoice::Off {
            return;
        }
        let has_remote = self.log == LogChoice::Each;
        let end = move |(flow, age)| {
            let end = Some((age, "stopped".to_owned()));
            EntryKind::Translation { flow, has_remote, end }
        };
        let flows = self.table.flows_with_ages(monotonic_now());
        access_log::offer_all(Arc::from(flow), flows.into_iter().map(end));
    }
}
