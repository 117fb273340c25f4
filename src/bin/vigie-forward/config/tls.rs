//! TLS of a relay: with clients, by their name for the server, and with targets.

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf};

use clap::Args;
use serde::Deserialize;
use vigie::forward::relay::{SniRoute, TlsConfigError, TlsRouter};

use super::{EndpointUri, Relay, TargetUri, check::Findings, tables::One, values::one_or_more};

/// TLS with clients: it ends here, or it is passed through.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClientTls {
    /// Speak TLS with clients, with the certificates in this file: PEM, the own one first. SIGHUP reads it again.
    #[arg(
        id = "tls_certificate",
        long = "tls-certificate",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub(crate) certificate: Option<PathBuf>,

    /// The private key of that certificate: PEM, without a password.
    #[arg(id = "tls_key", long = "tls-key", value_name = "FILE", requires = "tls_certificate")]
    pub(crate) key: Option<PathBuf>,

    /// A protocol that may be agreed on with clients by ALPN, such as h2 or http/1.1, the preferred one first; may be repeated. The
    /// targets must speak it. Default: none.
    #[arg(
        id = "tls_alpn",
        long = "tls-alpn",
        value_name = "PROTOCOL",
        requires = "tls_certificate"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) alpn: Vec<String>,

    /// Serve only clients whose certificate is signed by an authority in this PEM file. Default: clients are not asked for a certificate.
    #[arg(
        id = "tls_client_ca",
        long = "tls-client-ca",
        value_name = "FILE",
        requires = "tls_certificate"
    )]
    pub(crate) client_ca: Option<PathBuf>,

    /// Only in files: targets get the TLS of clients as it is.
    #[arg(skip)]
    pub(crate) pass_through: bool,

    /// Whether the table is there: an empty one must not mean that TLS is off.
    #[arg(skip)]
    #[serde(skip)]
    is_given: bool,
}

/// TLS with targets.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TargetTls {
    /// Speak TLS with targets, whose certificates are checked.
    #[arg(id = "to_tls", long = "to-tls")]
    #[serde(skip)]
    pub(crate) is_on: bool,

    /// The name that the target's certificate must contain. Default: the name or the address in --to.
    #[arg(id = "to_tls_name", long = "to-tls-name", value_name = "NAME", requires = "to_tls")]
    pub(crate) server_name: Option<String>,

    /// A PEM file of the authorities that may sign targets' certificates. Default: those that the system trusts.
    #[arg(id = "to_tls_ca", long = "to-tls-ca", value_name = "FILE", requires = "to_tls")]
    pub(crate) ca: Option<PathBuf>,

    /// The certificates that targets get if they ask for one: PEM, the own one first. SIGHUP reads it again.
    #[arg(id = "to_tls_certificate", long = "to-tls-certificate", value_name = "FILE",
          requires_all = ["to_tls", "to_tls_key"])]
    pub(crate) certificate: Option<PathBuf>,

    /// The private key of that certificate.
    #[arg(
        id = "to_tls_key",
        long = "to-tls-key",
        value_name = "FILE",
        requires = "to_tls_certificate"
    )]
    pub(crate) key: Option<PathBuf>,

    /// A protocol that is offered to targets by ALPN; may be repeated. Default: none.
    #[arg(id = "to_tls_alpn", long = "to-tls-alpn", value_name = "PROTOCOL", requires = "to_tls")]
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) alpn: Vec<String>,
}

/// Clients that ask for certain names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) names: Vec<String>,
    #[serde(deserialize_with = "read_client_tls")]
    pub(crate) tls: ClientTls,
    #[serde(default, deserialize_with = "one_or_more")]
    pub(crate) to: Vec<TargetUri>,
    #[serde(default, deserialize_with = "read_target_tls")]
    pub(crate) to_tls: TargetTls,
}

/// Reads TLS with clients.
pub(super) fn read_client_tls<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<ClientTls, D::Error> {
    Ok(ClientTls { is_given: true, ..One::<ClientTls>::deserialize(from)?.0 })
}

/// Reads TLS with targets: a table, even an empty one, turns it on.
pub(super) fn read_target_tls<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<TargetTls, D::Error> {
    Ok(TargetTls { is_on: true, ..One::<TargetTls>::deserialize(from)?.0 })
}

impl ClientTls {
    pub(crate) const fn is_on(&self) -> bool {
        self.certificate.is_some() || self.key.is_some() || self.pass_through
    }

    /// Checks it, without reading files. `at` is its key.
    fn check(&self, at: &str, found: &mut Findings<'_>) {
        let ends_here = "is for TLS that ends here, and this one is passed through";
        let part = |key: &str| format!("{at}.{key}");
        let has_certificate = self.certificate.is_some() || self.key.is_some();
        found.check(
            has_certificate || self.pass_through,
            &[at],
            "`tls` needs `certificate` and `key`, or `pass_through = true`",
        );
        found.check(
            !has_certificate || !self.pass_through,
            &[&part("pass_through"), at],
            "`tls` has `certificate` and `pass_through`: TLS ends here, or it does not",
        );
        if has_certificate {
            let problem = "`tls` has a `certificate` without its `key`";
            found.check(self.key.is_some(), &[&part("certificate"), &part("key")], problem);
            let problem = "`tls` has a `key` without its `certificate`";
            found.check(self.certificate.is_some(), &[&part("key"), &part("certificate")], problem);
        } else if self.pass_through {
            for (key, is_used) in
                [("alpn", !self.alpn.is_empty()), ("client_ca", self.client_ca.is_some())]
            {
                found.check(!is_used, &[&part(key), at], format!("`{key}` {ends_here}"));
            }
        }
        alpn(&part("alpn"), &self.alpn, found);
    }
}

impl TargetTls {
    /// The name that the certificate of a target must be for.
    pub(crate) fn name_for(&self, target: &TargetUri) -> Option<String> {
        self.server_name.clone().or_else(|| match &target.url {
            EndpointUri::TcpName(name) => Some(name.host.clone()),
            EndpointUri::Tcp(address) => Some(address.ip().to_string()),
            _ => None,
        })
    }

    /// Checks it, without reading files. `at` is its key, and `to_at` that of its targets.
    fn check(&self, at: &str, (to_at, to): (&str, &[TargetUri]), found: &mut Findings<'_>) {
        let part = |key: &str| format!("{at}.{key}");
        found.check(
            self.certificate.is_some() == self.key.is_some(),
            &[at, &part("certificate"), &part("key")],
            "`to_tls` needs `certificate` and `key`, or neither",
        );
        let is_path = |to: &&TargetUri| matches!(to.url, EndpointUri::Unix(_));
        if let Some(to) =
            to.iter().find(is_path).filter(|_| self.is_on && self.server_name.is_none())
        {
            found.add(
                &[at, to_at, "listen"],
                format!("`to_tls` needs the `server_name` of {to}: its address does not say it"),
            );
        }
        alpn(&part("alpn"), &self.alpn, found);
    }
}

/// Returns why clients cannot ask for this name, if that is so.
fn no_name(name: &str) -> Option<String> {
    let expected = "write the name of a server, as in web.example or *.web.example";
    if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Some(format!(
            "`{name}` is an address, and clients never ask for one by TLS: {expected} (who asks for no name gets the relay's own `tls`)"
        ));
    }
    let route = SniRoute::pass_through().name(name);
    TlsRouter::pass_through()
        .route(route)
        .is_err()
        .then(|| format!("`{name}` cannot be the name that a client asks for: {expected}"))
}

/// The longest name of a protocol, in bytes.
const ALPN_BYTES_MAX: usize = 255;

/// Checks the names of protocols.
fn alpn(at: &str, protocols: &[String], found: &mut Findings<'_>) {
    for (index, protocol) in protocols.iter().enumerate() {
        let problem = match protocol.as_str() {
            quic if ["h3", "hq", "doq"].contains(&quic) || quic.starts_with("h3-") => {
                "is a protocol of QUIC, and this is TLS over streams: h2 and http/1.1 are HTTP's"
            }
            "h2c" => "is HTTP/2 without TLS: with TLS it is h2",
            "http/2" | "http2" | "HTTP/2" => "is no protocol's name: that of HTTP/2 is h2",
            "http1.1" | "HTTP/1.1" | "http1" | "h1" => {
                "is no protocol's name: that of HTTP/1.1 is http/1.1"
            }
            name if !(1..=ALPN_BYTES_MAX).contains(&name.len()) => {
                "cannot be a protocol of ALPN: names have 1 to 255 bytes, as in h2 or http/1.1"
            }
            _ => continue,
        };
        found.add(&[&format!("{at}.{index}")], format!("`{protocol}` {problem}"));
    }
}

/// Checks the settings of TLS; without reading files.
pub(super) fn check(relay: &Relay, found: &mut Findings<'_>) {
    if relay.tls.is_given || relay.tls.is_on() {
        relay.tls.check("tls", found);
    }
    relay.to_tls.check("to_tls", ("to", &relay.to), found);
    let mut names = BTreeSet::new();
    for (index, route) in relay.route.iter().enumerate() {
        let part = |key: &str| format!("route.{index}.{key}");
        found.check(
            !route.names.is_empty(),
            &[&part("names")],
            "a route has no `names`: it needs at least one, as in web.example",
        );
        route.tls.check(&part("tls"), found);
        for (at, name) in route.names.iter().enumerate() {
            let lower = name.to_ascii_lowercase();
            let is_new = names.insert(lower.strip_suffix('.').unwrap_or(&lower).to_owned());
            let error = TlsConfigError::DuplicateName { name: name.clone() };
            let key = part(&format!("names.{at}"));
            found.check(is_new, &[&key], error.to_string());
            if let Some(problem) = no_name(name) {
                found.add(&[&key], problem);
            }
        }
        route.to_tls.check(&part("to_tls"), (&part("to"), &route.to), found);
        found.check(
            !route.to.is_empty() || !route.to_tls.is_on,
            &[&part("to_tls"), &part("to")],
            "a route has `to_tls` without `to`: the relay's own `to_tls` says how its targets are reached",
        );
    }
}

/// Returns whether a setting of TLS is there.
pub(crate) fn is_used(relay: &Relay) -> bool {
    relay.tls.is_on() || relay.to_tls.is_on || !relay.route.is_empty()
}
