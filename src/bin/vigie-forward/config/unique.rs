//! What only one flow, or the process, can have: names, interfaces, ports and paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use super::{Config, EndpointUri, FlowConfig, FlowKind, LogTarget, Nat, check::Findings};

/// A port of TCP (false) or UDP (true).
type TransportPort = (bool, u16);

/// Who uses a path: the key, and the name of the flow; `None`: the process.
type PathUse<'a> = (&'static str, Option<&'a str>);

/// Resources that only one flow can have.
#[derive(Default)]
pub(super) struct UniqueResources<'a> {
    names: BTreeSet<&'a str>,
    interfaces: BTreeMap<&'a str, &'a str>,
    /// The addresses of the listeners of each port, and whose they are.
    ports: BTreeMap<TransportPort, BTreeMap<IpAddr, (&'a EndpointUri, &'a str)>>,
    paths: BTreeMap<&'a Path, PathUse<'a>>,
}

impl<'a> UniqueResources<'a> {
    /// Adds what the process has.
    pub(super) fn add_process(&mut self, config: &'a Config, found: &mut Findings<'_>) {
        let process = &config.process;
        for (key, path) in
            [("stats_socket", &process.stats_socket), ("takeover", &process.takeover)]
        {
            if let Some(path) = path {
                self.path((key, None), path, found);
            }
        }
        match &process.metrics {
            Some(EndpointUri::Unix(path)) => self.path(("metrics", None), path, found),
            Some(endpoint) => self.port(endpoint, "metrics", found),
            None => {}
        }
        if let LogTarget::File(path) = &process.log_file {
            self.path(("log_file", None), path, found);
        }
    }

    pub(super) fn add(&mut self, flow: &'a FlowConfig, found: &mut Findings<'_>) {
        // A flow whose name cannot be read has a number.
        if !found.is_wrong("name") && !self.names.insert(&flow.name) {
            let problem = format!("there is another flow `{}`: give it another name", flow.name);
            found.add(&["name"], problem);
        }

        for (key, interface) in flow.kind.keyed_interfaces() {
            if found.is_wrong(&key) {
                continue;
            }
            match self.interfaces.insert(interface, &flow.name) {
                Some(other) if other == flow.name => found
                    .add(&[&key], format!("interface `{interface}` is named twice: it needs another")),
                Some(other) => found.add(
                    &[&key],
                    format!(
                        "interface `{interface}` belongs to flow `{other}` already, and a frame goes one way: \
                         name it in one flow"
                    ),
                ),
                None => {}
            }
        }

        match &flow.kind {
            FlowKind::Nat(Nat { state: Some(state), .. }) => {
                self.path(("state", Some(&flow.name)), state, found);
            }
            FlowKind::Relay(relay) if !found.is_wrong("listen") => match &relay.listen {
                EndpointUri::Unix(path) => {
                    self.path(("listen", Some(&flow.name)), path, found);
                }
                endpoint => self.port(endpoint, &flow.name, found),
            },
            _ => {}
        }
    }

    /// Adds a path. `.` and `//` in it do not count.
    fn path(&mut self, own: PathUse<'a>, path: &'a Path, found: &mut Findings<'_>) {
        let (key, _) = own;
        let Some(other) = self.paths.get(path) else {
            self.paths.insert(path, own);
            return;
        };
        let (other_key, flow) = *other;
        let whose = flow.map(|name| format!(" of flow `{name}`")).unwrap_or_default();
        let shown = path.display();
        let problem = match key {
            "state" if other_key == key => format!(
                "flow `{}` keeps its translations in {shown}, too, and each would replace those of the other: give \
                 `state` another file",
                flow.unwrap_or_default()
            ),
            _ => format!(
                "`{key}` is {shown}, and so is `{other_key}`{whose}: each needs a path of its own"
            ),
        };
        found.add(&[key], problem);
    }

    /// Adds a listener. It is compared with those alone that can be in its way.
    fn port(&mut self, own: &'a EndpointUri, name: &'a str, found: &mut Findings<'_>) {
        let (EndpointUri::Tcp(at) | EndpointUri::Udp(at)) = own else { return };
        if at.port() == 0 {
            return;
        }
        let ip = at.ip().to_canonical();
        let place = (matches!(own, EndpointUri::Udp(_)), at.port());
        let listeners = self.ports.entry(place).or_default();
        let versions = match ip {
            // [::] has the port in both versions of IP.
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => FIRST..=LAST,
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => FIRST..=LAST_V4,
            ip => ip..=ip,
        };
        let any = [Ipv6Addr::UNSPECIFIED.into(), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
        let any = if ip.is_ipv4() { &any[..] } else { &any[..1] };
        let of_any = any.iter().find_map(|any| listeners.get(any));
        let in_way = of_any.or_else(|| listeners.range(versions).next().map(|(_, other)| other));
        match in_way {
            None => {
                listeners.insert(ip, (own, name));
            }
            Some((listen, other)) if *listen == own => found.add(
                &["listen"],
                format!("`{other}` has the same `listen`: choose another port"),
            ),
            Some((listen, other)) => found.add(
                &["listen"],
                format!(
                    "its `listen`, {own}, overlaps that of `{other}`, {listen}, and only one of them can have the \
                     port: choose another one"
                ),
            ),
        }
    }
}

/// The first and the last address, and the last one of version 4, in the order of the standard library.
const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const LAST_V4: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);
const LAST: IpAddr = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));

/// Returns whether two listeners cannot exist at once: the same port, and an address that includes the other.
pub(crate) fn overlaps(one: &EndpointUri, other: &EndpointUri) -> bool {
    let ((EndpointUri::Tcp(one), EndpointUri::Tcp(other))
    | (EndpointUri::Udp(one), EndpointUri::Udp(other))) = (one, other)
    else {
        return false;
    };
    let ips = (one.ip().to_canonical(), other.ip().to_canonical());
    // [::] has the port in both versions of IP.
    let includes =
        |one: IpAddr, other: IpAddr| one.is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    one.port() == other.port()
        && one.port() != 0
        && (ips.0 == ips.1 || includes(ips.0, ips.1) || includes(ips.1, ips.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Mistakes, Origin, parse};

    /// Goal: a listener is refused if it overlaps one before it, whichever. Method: lists of listeners drawn from 2000 seeds, compared with all pairs.
    #[test]
    fn listeners_in_the_way_are_found() {
        const HOSTS: [&str; 8] = [
            "0.0.0.0",
            "[::]",
            "127.0.0.1",
            "127.0.0.2",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:0.0.0.0]",
            "255.255.255.254",
        ];
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let listeners = (0..6).map(|_| {
                let (kind, host) = (rng.choice(["tcp", "udp"]), rng.choice(HOSTS));
                format!("{}://{}:{}", kind.unwrap(), host.unwrap(), rng.u16(1..3)).parse().unwrap()
            });
            let listeners: Vec<EndpointUri> = listeners.collect();
            let (mut seen, mut kept) = (UniqueResources::default(), Vec::new());
            for own in &listeners {
                let (origin, mut mistakes) = (Origin::default(), Mistakes::default());
                seen.port(own, "a", &mut Findings::new(&origin, &mut mistakes));
                let is_in_way = kept.iter().any(|other| overlaps(own, other));
                assert_eq!(mistakes.is_empty(), !is_in_way, "{own} {kept:?}");
                if !is_in_way {
                    kept.push(own.clone());
                }
            }
        }
    }

    /// Goal: no two of the paths that are served or written are one. Method: each pair of settings with the same path, and all with different ones.
    #[test]
    fn paths_have_one_use() {
        let file = |paths: [&str; 6]| {
            let [stats, metrics, log, one, two, state] = paths;
            format!(
                "[process]\nstats_socket = '{stats}'\nmetrics = 'unix:{metrics}'\nlog_file = '{log}'\n\
                 [[relay]]\nlisten = 'unix:{one}'\nto = 'tcp://[::1]:9'\nlog = 'each'\n\
                 [[relay]]\nlisten = 'unix:{two}'\nto = 'tcp://[::1]:9'\n\
                 [[nat]]\ninside = ['a']\noutside = 'b'\nstate = '{state}'\n"
            )
        };
        let different = ["/x/a", "/x/b", "/x/c", "/x/d", "/x/e", "/x/f"];
        parse("f", &file(different)).unwrap();
        for first in 0..different.len() {
            for second in first + 1..different.len() {
                let mut same = different;
                same[second] = different[first];
                let text = file(same).replacen(
                    different[first],
                    &different[first].replace("/x", "/./x//"),
                    1,
                );
                let problems = parse("f", &text).unwrap_err().problems();
                assert_eq!(problems.len(), 1, "{text}\n{problems:?}");
                let line = [2, 3, 4, 6, 10, 15][second];
                assert!(problems[0].starts_with(&format!("f, line {line},")), "{problems:?}");
            }
        }
    }
}
