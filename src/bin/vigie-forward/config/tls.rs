//! TLS of a relay: with clients, by their name for the server, and with targets.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::{EndpointUri, Relay, TargetUri, values::one_or_more};

/// TLS with clients: it ends here, or it is passed through.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table, as in tls = { certificate = \"chain.pem\", key = \"key.pem\" }"
)]
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
    #[serde(deserialize_with = "text_or_more")]
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
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table, as in to_tls = {} or to_tls = { server_name = \"web.example\" }"
)]
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
    #[serde(deserialize_with = "text_or_more")]
    pub(crate) alpn: Vec<String>,
}

/// Clients that ask for certain names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    #[serde(deserialize_with = "text_or_more")]
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
    Ok(ClientTls { is_given: true, ..ClientTls::deserialize(from)? })
}

/// Reads TLS with targets: a table, even an empty one, turns it on.
pub(super) fn read_target_tls<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<TargetTls, D::Error> {
    Ok(TargetTls { is_on: true, ..TargetTls::deserialize(from)? })
}

/// Reads a list of texts, or a single one without brackets.
fn text_or_more<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a string, or a list of strings")]
    enum Texts {
        One(String),
        More(Vec<String>),
    }
    Ok(match Texts::deserialize(from)? {
        Texts::One(text) => vec![text],
        Texts::More(texts) => texts,
    })
}

impl ClientTls {
    pub(crate) const fn is_on(&self) -> bool {
        self.certificate.is_some() || self.key.is_some() || self.pass_through
    }

    fn check(&self) -> Result<(), String> {
        match (&self.certificate, &self.key) {
            (Some(_), Some(_)) if self.pass_through => {
                Err("`tls` has `certificate` and `pass_through`: TLS ends here, or it does not"
                    .to_owned())
            }
            (None, None) if !self.pass_through => {
                Err("`tls` needs `certificate` and `key`, or `pass_through = true`".to_owned())
            }
            (None, None) if !self.alpn.is_empty() => {
                Err("`alpn` is for TLS that ends here, and this one is passed through".to_owned())
            }
            (None, None) if self.client_ca.is_some() => {
                Err("`client_ca` is for TLS that ends here, and this one is passed through"
                    .to_owned())
            }
            (Some(_), None) => Err("`tls` has a `certificate` without its `key`".to_owned()),
            (None, Some(_)) => Err("`tls` has a `key` without its `certificate`".to_owned()),
            _ => Ok(()),
        }
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

    fn check(&self, to: &[TargetUri]) -> Result<(), String> {
        if self.certificate.is_some() != self.key.is_some() {
            return Err("`to_tls` needs `certificate` and `key`, or neither".to_owned());
        }
        let nameless = to.iter().find(|to| self.is_on && self.name_for(to).is_none());
        nameless.map_or(Ok(()), |to| {
            Err(format!("`to_tls` needs the `server_name` of {to}: its address does not say it"))
        })
    }
}

/// Checks the settings of TLS; without reading files.
pub(super) fn check(relay: &Relay) -> Result<(), String> {
    if relay.tls.is_given || relay.tls.is_on() {
        relay.tls.check()?;
    }
    relay.to_tls.check(&relay.to)?;
    for route in &relay.route {
        if route.names.is_empty() {
            return Err(
                "a route has no `names`: it needs at least one, as in web.example".to_owned()
            );
        }
        route.tls.check()?;
        let to = if route.to.is_empty() { &relay.to } else { &route.to };
        route.to_tls.check(to)?;
        if route.to.is_empty() && route.to_tls.is_on {
            return Err(format!(
                "the route of `{}` has `to_tls` without `to`: the relay's own `to_tls` says how its targets are reached",
                route.names[0]
            ));
        }
    }
    Ok(())
}

/// Returns whether a setting of TLS is there.
pub(crate) fn is_used(relay: &Relay) -> bool {
    relay.tls.is_on() || relay.to_tls.is_on || !relay.route.is_empty()
}
