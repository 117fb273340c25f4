//! A public address that this host has itself: which of its ports are the translations', and whether the host uses one of them.

use std::{
    fs, iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    time::Duration,
};

use vigie::{
    Instant,
    forward::{nic::TakenPorts, tables::Prefix},
};

use super::public_side::{PublicSide, of_interface};
use crate::{
    config::{Nat, TransportProtocol},
    flow::{FlowError, FlowStart},
    kernel::{NetlinkCache, Target},
};

/// The ports of translations, of an address of this host.
#[derive(Clone, Debug)]
pub(super) struct OwnAddress {
    address: Ipv4Addr,
    ports: RangeInclusive<u16>,
    published: Vec<(TransportProtocol, u16)>,
    /// The time of the next check, and whether a socket of this host was found at the last one.
    next_check: Option<Instant>,
    was_used: bool,
}

/// The interval at which the kernel's tables are read for sockets that have one of the ports.
const EVERY: Duration = Duration::from_secs(60);
/// The state of a TCP socket whose end only waits for time to pass.
const TIME_WAIT: u8 = 6;

impl OwnAddress {
    /// Checks that the kernel gives none of the ports to its own connections, and that no socket has one.
    pub(super) fn new(nat: &Nat, public: PublicSide, start: FlowStart) -> Result<Self, FlowError> {
        let published = nat.publish.iter().map(|one| (one.transport, one.port)).collect();
        let ports = public.ports.first..=public.ports.last;
        let (next_check, was_used) = (None, false);
        let own = Self { address: public.address, ports, published, next_check, was_used };

        let setting = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
            text.unwrap_or_default()
        };
        let ephemeral = setting("ip_local_port_range");
        let published = nat.publish.iter().map(|one| (one.port..=one.port, one.port.to_string()));
        let reserved = setting("ip_local_reserved_ports");
        for (ports, named) in
            iter::once((own.ports.clone(), public.ports.to_string())).chain(published)
        {
            let Some(port) = shared(&ports, &ephemeral, &reserved) else { continue };
            let ephemeral = ephemeral.split_whitespace().collect::<Vec<_>>().join(" to ");
            start.refuse(format!(
                "{} is an address of this host, whose kernel gives port {port} of {named} (`ports`, `publish`) to connections of its \
                 own: choose ports outside of net.ipv4.ip_local_port_range ({ephemeral}), as in 61000-65535, or reserve them \
                 (`sysctl -w net.ipv4.ip_local_reserved_ports={named}`)",
                public.address
            ))?;
        }
        own.used_by_host().map_or(Ok(()), |used| start.refuse(used))?;
        Ok(own)
    }

    /// Returns what a program keeps from the kernel.
    pub(super) fn taken(&self) -> TakenPorts {
        let ports = TakenPorts::new(self.address).tcp(self.ports.clone()).udp(self.ports.clone());
        self.published.iter().fold(ports, |ports, (transport, port)| match transport {
            TransportProtocol::Tcp => ports.tcp(*port..=*port),
            TransportProtocol::Udp => ports.udp(*port..=*port),
        })
    }

    /// Says when a socket of this host has one of the ports, and when none has any more.
    pub(super) fn check(&mut self, now: Instant) -> Option<String> {
        if self.next_check.is_some_and(|next| now < next) {
            return None;
        }
        self.next_check = Some(now + EVERY);
        let used = self.used_by_host();
        let was_used = std::mem::replace(&mut self.was_used, used.is_some());
        let no_longer = || "no socket of this host has a port of translations any more".to_owned();
        match used {
            Some(used) => (!was_used).then_some(used),
            None => was_used.then(no_longer),
        }
    }

    /// Says which of the ports a socket of this host has, if one has any: it hears nothing by this address.
    fn used_by_host(&self) -> Option<String> {
        let (transport, port) = ["tcp", "tcp6", "udp", "udp6"].iter().find_map(|table| {
            let text = fs::read_to_string(format!("/proc/net/{table}")).ok()?;
            let tcp = table.starts_with("tcp");
            let port = text.lines().skip(1).find_map(|line| self.port_of(line, tcp))?;
            Some((table.trim_end_matches('6').to_owned(), port))
        })?;
        Some(format!(
            "{transport} port {port} of {} is for translations (`ports`, `publish`), but a socket of this host has it, too, and hears \
             nothing there: end its program (`ss -anp 'sport = {port}'` names it), or choose other ports",
            self.address
        ))
    }

    /// Returns the port of a line of the kernel's tables of sockets, if it is one of ours.
    fn port_of(&self, line: &str, tcp: bool) -> Option<u16> {
        let mut columns = line.split_whitespace().skip(1);
        let (address, port) = columns.next()?.split_once(':')?;
        let state = u8::from_str_radix(columns.nth(1)?, 16).ok()?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let is_taken = self.ports.contains(&port)
            || self.published.iter().any(|(transport, published)| {
                *published == port && tcp == (*transport == TransportProtocol::Tcp)
            });
        let is_open = !(tcp && state == TIME_WAIT);
        let reaches = address_of(address)
            .is_some_and(|address| address.is_unspecified() || address == self.address);
        (is_taken && is_open && reaches).then_some(port)
    }
}

/// Tells when this host gets or loses the public address, for which the flow was set up otherwise.
#[derive(Clone, Debug)]
pub(super) struct AddressWatch {
    public: PublicSide,
    /// The interface whose address it is.
    outside: String,
    has_changed: bool,
    /// The other address that the interface had at the last check, and whether that was told.
    other: Option<(Ipv4Addr, bool)>,
}

/// What a change of the address asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AddressChange {
    /// Only to say so.
    Said(String),
    /// The flow begins anew, with another address.
    Moved,
}

impl AddressWatch {
    pub(super) const fn new(public: PublicSide, outside: String) -> Self {
        Self { public, outside, has_changed: false, other: None }
    }

    pub(super) fn check(&mut self, cache: &NetlinkCache) -> Option<AddressChange> {
        let target = cache.target(Prefix::host(self.public.address.into()));
        self.changed(target == Some(Target::Local), of_interface(&self.outside, cache))
    }

    /// Returns what has changed; `is_local` says whether this host has the address now, and `outside` is what the outside interface has.
    fn changed(&mut self, is_local: bool, outside: Option<Ipv4Addr>) -> Option<AddressChange> {
        let PublicSide { address, is_own, is_followed, .. } = self.public;
        let other = outside.filter(|other| is_followed && *other != address);
        let before = std::mem::replace(&mut self.other, other.map(|other| (other, false)));
        if let Some(other) = other
            && let Some((same, is_told)) = before.filter(|(same, _)| *same == other)
        {
            // It is there to stay, for an interval at least.
            self.other = Some((same, true));
            if !is_told {
                return Some(AddressChange::Moved);
            }
        }
        let has_changed = is_local != is_own;
        if has_changed == std::mem::replace(&mut self.has_changed, has_changed) {
            return None;
        }
        Some(AddressChange::Said(match (has_changed, is_own) {
            (false, true) => format!("{address} is an address of this host again"),
            (false, false) => format!("{address} is no address of this host any more"),
            (true, true) if is_followed => format!(
                "{address} is no address of this host any more, so that no answers to its translations arrive: waits for another one of `{}`",
                self.outside
            ),
            (true, true) => format!(
                "{address} is no address of this host any more, so that no answers to its translations arrive: add it again (`ip addr \
                 add`), or end `vigie-forward` and start it again"
            ),
            (true, false) => format!(
                "{address} has become an address of this host, whose kernel resets translated connections: take it away (`ip addr \
                 del`), or end `vigie-forward` and start it again"
            ),
        }))
    }
}

/// Returns one of some ports that the kernel would choose for a connection, given its two settings.
fn shared(ports: &RangeInclusive<u16>, ephemeral: &str, reserved: &str) -> Option<u16> {
    let mut bounds = ephemeral.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    let (first, last) = (bounds.next()?, bounds.next()?);
    let reserved: Vec<RangeInclusive<u16>> = reserved
        .trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .collect();
    let mut both = first.max(*ports.start())..=last.min(*ports.end());
    both.find(|port| !reserved.iter().any(|range| range.contains(port)))
}

/// Reads an address as the kernel's tables of sockets have it, in words of 32 bits of this processor. Addresses of IPv4 within IPv6 become
/// those of IPv4.
fn address_of(hex: &str) -> Option<IpAddr> {
    let words = hex.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    match *bytes.as_slice() {
        [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
        _ => {
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
            Some(address.to_canonical())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::public_side::AddressReach, *};
    use crate::config::Ports;

    fn own(first: u16, last: u16) -> OwnAddress {
        let published = vec![(TransportProtocol::Tcp, 8080)];
        let (address, ports) = ([10, 2, 0, 1].into(), first..=last);
        OwnAddress { address, ports, published, next_check: None, was_used: false }
    }

    /// Goal: a port that the kernel may choose is found, and none that is reserved or beside its range. Method: settings as the kernel
    /// writes them.
    #[test]
    fn ephemeral_ports_are_refused() {
        let range = "32768\t60999\n";
        assert_eq!(shared(&(61000..=65535), range, "\n"), None);
        assert_eq!(shared(&(1024..=32767), range, "\n"), None);
        assert_eq!(shared(&(1024..=32768), range, "\n"), Some(32768));
        assert_eq!(shared(&(60999..=65535), range, "\n"), Some(60999));
        assert_eq!(shared(&(40000..=50000), range, "40000-50000\n"), None);
        assert_eq!(shared(&(40000..=50000), range, "80,40000-45000,45002-50000"), Some(45001));
    }

    fn watch(is_own: bool, is_followed: bool) -> AddressWatch {
        let (address, ports) = ([10, 2, 0, 1].into(), Ports { first: 61000, last: 65535 });
        let reach = AddressReach::Outside;
        let public = PublicSide { address, ports, is_own, is_followed, reach };
        AddressWatch::new(public, "wan0".to_owned())
    }

    /// Goal: each change of the address is told once. Method: an address that the host has at the start, and one that it has not.
    #[test]
    fn changes_of_the_address_are_told() {
        for is_own in [false, true] {
            let mut watch = watch(is_own, false);
            let other = Some([10, 2, 0, 7].into());
            let mut said = |is_local| match watch.changed(is_local, other) {
                Some(AddressChange::Moved) => panic!("it is not followed"),
                said => said.is_some(),
            };
            let all = [is_own, !is_own, !is_own, is_own, is_own].map(&mut said);
            assert_eq!(all, [false, true, false, true, false]);
        }
    }

    /// Goal: an address that was not configured is followed once the interface has had another one at two checks, which is told once.
    /// Method: the interface has the same one, none, another one for a moment, and others that stay.
    #[test]
    fn the_address_of_an_interface_is_followed() {
        let at = |last| Some(Ipv4Addr::new(10, 2, 0, last));
        let mut watch = watch(true, true);
        let is_said = |found| matches!(found, Some(AddressChange::Said(_)));
        assert_eq!(watch.changed(true, at(1)), None);
        assert!(is_said(watch.changed(false, None)));
        assert_eq!(watch.changed(false, None), None, "once");
        assert_eq!(watch.changed(false, at(7)), None, "perhaps for a moment");
        assert!(is_said(watch.changed(true, at(1))));
        for last in [7, 8] {
            let found = [(); 4].map(|()| watch.changed(true, at(last)));
            assert_eq!(found, [None, Some(AddressChange::Moved), None, None]);
        }
    }

    /// Goal: sockets that have one of the ports at this address are found, and no others. Method: lines as the kernel writes them.
    #[test]
    fn sockets_are_found() {
        let own = own(61000, 65535);
        let line = |address: &str, port: u16, state: &str| {
            format!(
                "   1: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000"
            )
        };
        let word = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let (any, here, other) = (word([0; 4]), word([10, 2, 0, 1]), word([10, 1, 0, 1]));
        let found = |address: &str, port, state, tcp| own.port_of(&line(address, port, state), tcp);
        assert_eq!(found(&any, 61000, "0A", true), Some(61000));
        assert_eq!(found(&here, 65535, "01", true), Some(65535));
        assert_eq!(found(&here, 8080, "0A", true), Some(8080));
        assert_eq!(found(&here, 8080, "07", false), None);
        assert_eq!(found(&here, 61000, "07", false), Some(61000));
        assert_eq!(found(&here, 61000, "06", true), None);
        assert_eq!(found(&other, 61000, "0A", true), None);
        assert_eq!(found(&here, 22, "0A", true), None);
        assert_eq!(found(&any.repeat(4), 61000, "0A", true), Some(61000));
        let mapped = [word([0; 4]), word([0; 4]), word([0, 0, 0xff, 0xff]), here].concat();
        assert_eq!(found(&mapped, 61000, "0A", true), Some(61000));
        let six =
            [word([0x20, 1, 0xd, 0xb8]), word([0; 4]), word([0; 4]), word([0, 0, 0, 1])].concat();
        assert_eq!(found(&six, 61000, "0A", true), None);
    }
}
