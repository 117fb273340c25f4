//! Access to a relay: networks that are allowed or denied, and the limit of connections of one source.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

use thiserror::Error;

use super::{counters::Counter, proxy::AddressRange};

/// The setters of a builder's [`AccessList`]; the documentation of `allow` says what becomes of other clients.
macro_rules! access_setters {
    ($(#[$allow:meta])*) => {
        $(#[$allow])*
        pub fn allow(mut self, network: impl Into<AddressRange>) -> Self {
            self.access.allowed.push(network.into());
            self
        }

        /// Refuses clients in `network`, even if they are [allowed](Self::allow). Default: none.
        pub fn deny(mut self, network: impl Into<AddressRange>) -> Self {
            self.access.denied.push(network.into());
            self
        }
    };
}
pub(super) use access_setters;

/// The networks whose clients are served.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessList {
    pub(super) allowed: Vec<AddressRange>,
    pub(super) denied: Vec<AddressRange>,
}

named! {
    /// What a rule of access does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "a client is served, or it is not")]
    pub enum AccessAction {
        /// It lets clients in.
        Allow => "allow",
        /// It refuses clients.
        Deny => "deny",
    }
}

/// A rule of access, and how often it decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessRule {
    /// What it does.
    pub action: AccessAction,
    /// The clients that it matches.
    pub network: AddressRange,
    /// The connections for which it was the first rule to match; of datagrams, the sessions, and what was received together of a refused client.
    pub hits: u64,
}

/// A client that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", self.reason())]
#[non_exhaustive]
pub struct RefusedClient {
    /// The client.
    pub client: IpAddr,
    /// The network of the rule that denies it; `None` if no rule allows it.
    pub denied_by: Option<AddressRange>,
}

impl RefusedClient {
    fn reason(&self) -> String {
        let client = self.client;
        match self.denied_by {
            Some(network) => format!("{client} is denied by the rule for {network}"),
            None => format!("{client} is not in any network that is allowed"),
        }
    }
}

/// The rules of one relay: those that deny come first.
#[derive(Debug)]
pub(super) struct Access {
    allowed: Vec<(AddressRange, Counter)>,
    denied: Vec<(AddressRange, Counter)>,
}

impl Access {
    pub(super) fn new(list: &AccessList) -> Self {
        let rules = |networks: &[AddressRange]| {
            networks.iter().map(|network| (*network, Counter::default())).collect()
        };
        Self { allowed: rules(&list.allowed), denied: rules(&list.denied) }
    }

    /// Refuses a client that is not served, and counts the rule that decides. Clients without an address always are: the permissions of
    /// the socket's path decide who can connect.
    pub(super) fn admit(&self, client: Option<IpAddr>) -> Result<(), RefusedClient> {
        let Some(client) = client else { return Ok(()) };
        let first = |rules: &[(AddressRange, Counter)]| {
            let first = rules.iter().find(|(network, _)| network.contains(client));
            first.inspect(|(_, hits)| hits.add(1)).map(|(network, _)| *network)
        };
        if let Some(network) = first(&self.denied) {
            return Err(RefusedClient { client, denied_by: Some(network) });
        }
        if self.allowed.is_empty() || first(&self.allowed).is_some() {
            return Ok(());
        }
        Err(RefusedClient { client, denied_by: None })
    }

    /// Returns the rules in the order in which they are tried.
    pub(super) fn rules(&self) -> Vec<AccessRule> {
        let of = |action, rules: &[(AddressRange, Counter)]| {
            let rule = |(network, hits): &(AddressRange, Counter)| AccessRule {
                action,
                network: *network,
                hits: hits.value(),
            };
            rules.iter().map(rule).collect::<Vec<_>>()
        };
        [of(AccessAction::Deny, &self.denied), of(AccessAction::Allow, &self.allowed)].concat()
    }
}

/// The number of open connections of each source: an address of IPv4, or a network of 64 bits of IPv6, which is one host's.
#[derive(Debug)]
pub(super) struct Sources {
    max: Option<usize>,
    open: Mutex<BTreeMap<IpAddr, usize>>,
}

impl Sources {
    pub(super) fn new(max: Option<usize>) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Counts one more of a client's source, until the permit is dropped. `None` if the source has as many as it may.
    pub(super) fn admit(self: &Arc<Self>, client: Option<IpAddr>) -> Option<SourcePermit> {
        let (Some(client), Some(max)) = (client, self.max) else { return Some(SourcePermit(None)) };
        let source = source_of(client);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(source).or_insert(0);
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(SourcePermit(Some((Arc::clone(self), source))))
    }
}

fn source_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// One of what its source may have open.
#[derive(Debug)]
#[must_use = "dropping it lets the source have another one"]
pub(super) struct SourcePermit(Option<(Arc<Sources>, IpAddr)>);

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let Some((sources, source)) = &self.0 else { return };
        let mut open = sources.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(source) {
            *count -= 1;
            if *count == 0 {
                open.remove(source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    /// Goal: what is denied is refused even if it is allowed, what is not allowed is refused if anything is, and all are served without
    /// lists. Method: addresses at the ends of networks, of both versions.
    #[test]
    fn lists_decide() {
        let networks =
            |texts: &[&str]| texts.iter().map(|one| one.parse().expect("a network")).collect();
        for (allowed, denied, inside, outside) in [
            (&[][..], &[][..], &["192.0.2.1", "::1"][..], &[][..]),
            (&["10.0.0.0/8"], &[], &["10.255.255.255", "::ffff:10.0.0.1"], &["11.0.0.0", "::1"]),
            (&[], &["10.0.0.0/8"], &["11.0.0.0", "::1"], &["10.0.0.0", "::ffff:10.0.0.1"]),
            (
                &["10.0.0.0/8", "fd00::/8"],
                &["10.1.0.0/16"],
                &["10.0.0.1", "fd00::1"],
                &["10.1.0.1"],
            ),
            (&["10.1.0.0/16"], &["10.0.0.0/8"], &[], &["10.1.0.1", "192.0.2.1"]),
        ] {
            let list =
                Access::new(&AccessList { allowed: networks(allowed), denied: networks(denied) });
            assert!(list.admit(None).is_ok());
            assert!(inside.iter().all(|one| list.admit(ip(one)).is_ok()), "{allowed:?} {denied:?}");
            assert!(
                outside.iter().all(|one| list.admit(ip(one)).is_err()),
                "{allowed:?} {denied:?}"
            );
        }
    }

    /// Goal: the rule that decides is counted, and no other; refused clients are told apart. Method: clients that several rules match, and one that none matches.
    #[test]
    fn rules_are_counted() {
        let network = |text: &str| text.parse().expect("a network");
        let access = Access::new(&AccessList {
            allowed: vec![network("10.0.0.0/8"), network("10.2.0.0/16")],
            denied: vec![network("10.1.0.0/16")],
        });
        let said = ["10.1.0.1", "10.2.0.1", "10.3.0.1", "192.0.2.1"].map(|client| {
            access.admit(ip(client)).map_or_else(|refused| refused.to_string(), |()| String::new())
        });
        let (denied, other) = (
            "10.1.0.1 is denied by the rule for 10.1.0.0/16",
            "192.0.2.1 is not in any network that is allowed",
        );
        assert_eq!(said, [denied, "", "", other]);
        let found: Vec<_> = access.rules().iter().map(|one| (one.action, one.hits)).collect();
        let expected =
            [(AccessAction::Deny, 1), (AccessAction::Allow, 2), (AccessAction::Allow, 0)];
        assert_eq!(found, expected);
    }

    /// Goal: a source has as many as it may, and others are not affected; what ends makes room, and nothing is left of a source without
    /// any. Method: two of one address; addresses of one and of another network of IPv6.
    #[test]
    fn sources_are_bounded() {
        let sources = Sources::new(Some(2));
        let first = sources.admit(ip("192.0.2.1"));
        let second = sources.admit(ip("::ffff:192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        assert!(sources.admit(ip("192.0.2.1")).is_none());
        assert!(sources.admit(None).is_some());
        let sixth = ["2001:db8::1", "2001:db8::ffff:0:0:1"].map(|one| sources.admit(ip(one)));
        assert!(sixth.iter().all(Option::is_some));
        assert!(sources.admit(ip("2001:db8::2")).is_none(), "one network");
        assert!(sources.admit(ip("2001:db8:0:1::2")).is_some(), "another one");
        drop(first);
        assert!(sources.admit(ip("192.0.2.1")).is_some());
        drop((second, sixth));
        assert!(sources.open.lock().expect("no panic").is_empty());
        let unbounded = Sources::new(None);
        let all: Vec<_> = (0..100).map(|_| unbounded.admit(ip("192.0.2.1"))).collect();
        assert!(all.iter().all(Option::is_some));
    }
}
