//! TLS with clients: which certificate, and which target, a client gets by the name that it asks for.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use rustls::{
    ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier,
    crypto::ring,
    pki_types::DnsName,
    server::{ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::{
    alpn::alpn_protocols,
    error::{TlsConfigError, TlsError},
    identity::{TlsIdentity, read_certificates},
    words,
};
use crate::relay::upstream::Upstream;

/// TLS that ends at the relay: targets get what the client sends in plain, or by [TLS of their own](super::TlsOrigination). Versions 1.2
/// and 1.3.
#[derive(Clone, Debug)]
pub struct TlsTermination {
    pub(super) config: Arc<ServerConfig>,
}

impl TlsTermination {
    /// The relay answers as `identity`. Clients are not asked for a certificate ([`client_authorities`](Self::client_authorities)), and no
    /// protocol is agreed on ([`alpn`](Self::alpn)).
    #[must_use]
    pub fn new(identity: TlsIdentity) -> Self {
        Self {
            config: Arc::new(config(WebPkiClientVerifier::no_client_auth(), Arc::new(identity))),
        }
    }

    /// Serves only clients that have a certificate signed by one of the authorities whose certificates are in a PEM file, which is read now. All
    /// others are refused in the handshake, before a target is chosen. The name in a client's certificate does not matter; certificates that were
    /// revoked are not known. Default: clients are not asked.
    ///
    /// # Errors
    /// [`TlsConfigError`].
    pub fn client_authorities(mut self, file: impl AsRef<Path>) -> Result<Self, TlsConfigError> {
        let path = file.as_ref();
        let unusable =
            |problem: String| TlsConfigError::Unusable { path: path.to_owned(), problem };
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(path)? {
            roots.add(certificate).map_err(|error| unusable(words::own(&error)))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().map_err(|error| unusable(error.to_string()))?;
        // Tickets of sessions that were opened without a certificate are of another key.
        let mut config = config(verifier, Arc::clone(&self.config.cert_resolver));
        config.alpn_protocols.clone_from(&self.config.alpn_protocols);
        self.config = Arc::new(config);
        Ok(self)
    }

    /// Sets the protocols that may be agreed on by ALPN, the preferred one first, as in `["h2", "http/1.1"]`; take those that all of
    /// its targets speak. A client that offers only other protocols is refused; one that offers none is served. Default: none, so that
    /// what clients offer is ignored.
    ///
    /// # Errors
    /// [`TlsConfigError::Alpn`].
    pub fn alpn<P: AsRef<str>>(
        mut self,
        protocols: impl IntoIterator<Item = P>,
    ) -> Result<Self, TlsConfigError> {
        Arc::make_mut(&mut self.config).alpn_protocols = alpn_protocols(protocols)?;
        Ok(self)
    }
}

fn config(
    verifier: Arc<dyn ClientCertVerifier>,
    identity: Arc<dyn ResolvesServerCert>,
) -> ServerConfig {
    let mut config =
        config_builder().with_client_cert_verifier(verifier).with_cert_resolver(identity);
    // Sessions are resumed by tickets, which take no memory here.
    if let Ok(ticketer) = ring::Ticketer::new() {
        config.ticketer = ticketer;
    }
    config
}

fn config_builder() -> ConfigBuilder<ServerConfig, WantsVerifier> {
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("invariant: the provider has ciphers of both versions")
}

/// The treatment of a client that has asked for a server by name.
#[derive(Clone, Debug)]
pub(in crate::relay) enum TlsAction {
    Terminate(TlsTermination),
    /// The target gets the client's bytes as they are.
    PassThrough,
}

/// A route of a [`TlsRouter`]: what happens to clients that ask for certain names.
#[derive(Clone, Debug)]
pub struct SniRoute {
    names: Vec<String>,
    action: TlsAction,
    upstreams: Vec<Upstream>,
}

impl SniRoute {
    /// The relay terminates TLS for clients that ask for one of the names that are [added](Self::name).
    #[must_use]
    pub const fn terminate(termination: TlsTermination) -> Self {
        Self::new(TlsAction::Terminate(termination))
    }

    /// The relay passes on the bytes of clients that ask for one of the names that are [added](Self::name): the target has the
    /// certificate, and the relay cannot read what is sent.
    #[must_use]
    pub const fn pass_through() -> Self {
        Self::new(TlsAction::PassThrough)
    }

    const fn new(action: TlsAction) -> Self {
        Self { names: Vec::new(), action, upstreams: Vec::new() }
    }

    /// Adds a name, as in `web.example` or `*.web.example`; at least one is needed. An asterisk stands for one label, as in certificates: not for
    /// `web.example` itself, nor for `a.b.web.example`. A route with the name itself is taken before. Upper case is the same as lower.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Adds a target of this route. Default: those of the relay. The policy, checks and time-outs are those of the relay.
    #[must_use]
    pub fn upstream(mut self, upstream: impl Into<Upstream>) -> Self {
        self.upstreams.push(upstream.into());
        self
    }
}

/// The TLS routes of a relay, chosen by the server name (SNI) that a client sends; it is not encrypted, and a client may
/// ask for any: it says where to go, and not who may go there.
///
/// ```no_run
/// use vigie_forward::relay::{Endpoint, Relay, SniRoute, TlsIdentity, TlsRouter, TlsTermination};
///
/// let at = |text: &str| text.parse::<Endpoint>();
/// let identity = TlsIdentity::from_pem_files("/etc/web/chain.pem", "/etc/web/key.pem")?;
/// let web = TlsTermination::new(identity).alpn(["h2", "http/1.1"])?;
/// let mail = SniRoute::pass_through().name("mail.example").upstream(at("192.0.2.25:443")?);
/// let relay = Relay::builder(at("0.0.0.0:443")?)
///     .upstream(at("127.0.0.1:8080")?)
///     .tls(TlsRouter::terminate(web).route(mail)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TlsRouter {
    /// For names that no route has; `None`: they are refused.
    default: Option<TlsAction>,
    routes: Vec<SniRoute>,
    exact: BTreeMap<String, usize>,
    /// By what follows the asterisk and its dot.
    wildcards: BTreeMap<String, usize>,
}

impl TlsRouter {
    /// Terminates TLS of clients whose name no route has, or who ask for none; they get the relay's targets.
    #[must_use]
    pub const fn terminate(termination: TlsTermination) -> Self {
        Self::new(Some(TlsAction::Terminate(termination)))
    }

    /// Passes on the bytes of such clients, to the relay's targets.
    #[must_use]
    pub const fn pass_through() -> Self {
        Self::new(Some(TlsAction::PassThrough))
    }

    /// Refuses such clients, by the alert `unrecognized_name`.
    #[must_use]
    pub const fn by_name_only() -> Self {
        Self::new(None)
    }

    const fn new(default: Option<TlsAction>) -> Self {
        Self { default, routes: Vec::new(), exact: BTreeMap::new(), wildcards: BTreeMap::new() }
    }

    /// Adds a route.
    ///
    /// # Errors
    /// [`TlsConfigError::Name`] if it has no name or one that no server can have, [`TlsConfigError::DuplicateName`] if another route has it.
    pub fn route(mut self, route: SniRoute) -> Result<Self, TlsConfigError> {
        if route.names.is_empty() {
            return Err(TlsConfigError::Name { name: String::new() });
        }
        for name in &route.names {
            let wrong = || TlsConfigError::Name { name: name.clone() };
            let lower = name.to_ascii_lowercase();
            let lower = lower.strip_suffix('.').unwrap_or(&lower);
            let (names, key) = match lower.strip_prefix("*.") {
                Some(parent) => (&mut self.wildcards, parent),
                None => (&mut self.exact, lower),
            };
            DnsName::try_from(key).map_err(|_| wrong())?;
            if names.insert(key.to_owned(), self.routes.len()).is_some() {
                return Err(TlsConfigError::DuplicateName { name: name.clone() });
            }
        }
        self.routes.push(route);
        Ok(self)
    }

    /// The targets of each route that has some of its own.
    pub(in crate::relay) fn upstreams(&self) -> impl Iterator<Item = &[Upstream]> {
        self.routes.iter().map(|route| route.upstreams.as_slice()).filter(|all| !all.is_empty())
    }

    /// Returns what to do with a client, and which of the [targets](Self::upstreams) it gets; `None` for those of the relay.
    pub(super) fn choose(
        &self,
        name: Option<&str>,
    ) -> Result<(&TlsAction, Option<usize>), TlsError> {
        let by_wildcard = |name: &str| self.wildcards.get(name.split_once('.')?.1);
        let found = name.and_then(|name| self.exact.get(name).or_else(|| by_wildcard(name)));
        if let Some(index) = found {
            let route = &self.routes[*index];
            let own = (!route.upstreams.is_empty()).then(|| {
                let before = &self.routes[..*index];
                before.iter().filter(|route| !route.upstreams.is_empty()).count()
            });
            return Ok((&route.action, own));
        }
        let refused = || TlsError::NoRoute { name: name.map(ToOwned::to_owned) };
        self.default.as_ref().map(|action| (action, None)).ok_or_else(refused)
    }

    /// Returns whether some clients get the targets of the relay.
    pub(in crate::relay) fn needs_upstreams(&self) -> bool {
        self.default.is_some() || self.routes.iter().any(|route| route.upstreams.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::endpoint::Endpoint;

    /// Goal: the most exact route is taken, an asterisk is one label, and names that no route has get the default or are refused. Method:
    /// routes with and without own targets, and names beside them.
    #[test]
    fn names_choose_routes() {
        let at = |port: u16| Endpoint::Tcp(([192, 0, 2, 1], port).into());
        let route = |name: &str| SniRoute::pass_through().name(name);
        let router = TlsRouter::by_name_only()
            .route(route("*.web.example").upstream(at(1)))
            .and_then(|router| router.route(route("plain.example")))
            .and_then(|router| router.route(route("A.web.Example.").upstream(at(2))))
            .expect("names");
        assert_eq!(router.upstreams().count(), 2);
        let chosen = |name| router.choose(name).map(|(_, own)| own);
        assert_eq!(chosen(Some("b.web.example")), Ok(Some(0)));
        assert_eq!(chosen(Some("a.web.example")), Ok(Some(1)));
        assert_eq!(chosen(Some("plain.example")), Ok(None));
        for name in [Some("web.example"), Some("a.b.web.example"), Some("example"), None] {
            let refused = TlsError::NoRoute { name: name.map(ToOwned::to_owned) };
            assert_eq!(chosen(name), Err(refused));
        }
        let router = TlsRouter::pass_through().route(route("a.example")).expect("a name");
        assert_eq!(router.choose(None).map(|(_, own)| own), Ok(None));
    }

    /// Goal: names that no client can ask for are refused, and so is the same one twice. Method: one of each.
    #[test]
    fn wrong_names_are_refused() {
        for name in ["", "*", "*.", "a b", "*.*.example", "a.*.example", "-a.example", "a..b"] {
            let router = TlsRouter::by_name_only().route(SniRoute::pass_through().name(name));
            assert!(matches!(router, Err(TlsConfigError::Name { .. })), "{name}");
        }
        let none = TlsRouter::by_name_only().route(SniRoute::pass_through());
        assert!(matches!(none, Err(TlsConfigError::Name { .. })));
        let twice = SniRoute::pass_through().name("a.example").name("A.example");
        let twice = TlsRouter::by_name_only().route(twice);
        assert!(matches!(twice, Err(TlsConfigError::DuplicateName { .. })));
    }
}
