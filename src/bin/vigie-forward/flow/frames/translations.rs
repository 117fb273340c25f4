//! The translations of a flow, as its report and its log show them.

use std::{collections::BTreeMap, sync::Arc};

use vigie::forward::{packet::TCP, tables::NatTable};

use crate::{
    access_log::{self, EntryKind},
    config::{LogChoice, Publish, TransportProtocol},
};

/// The table of a flow, and what is logged of it.
pub(super) struct Translations {
    pub(super) table: NatTable,
    pub(super) log: LogChoice,
    pub(super) publish: Vec<Publish>,
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

    /// Logs that all translations end with the flow. Translations that are kept for the next start do not.
    pub(super) fn log_end(&self, flow: &str) {
        if self.log == LogChoice::Off {
            return;
        }
        let has_remote = self.log == LogChoice::Each;
        let end = move |flow| EntryKind::Translation {
            flow,
            has_remote,
            end: Some((None, "stopped".to_owned())),
        };
        access_log::offer_all(Arc::from(flow), self.table.flows().into_iter().map(end));
    }
}
