//! TLS with targets.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};

use super::{
    alpn::alpn_protocols,
    error::TlsConfigError,
    identity::{TlsIdentity, read_certificates},
    words,
};

/// TLS with a target, whose certificate is always checked. Versions 1.2 and 1.3.
///
/// ```no_run
/// use vigie_forward::relay::{TlsOrigination, Upstream};
///
/// let tls = TlsOrigination::to("api.example")?.alpn(["http/1.1"])?;
/// let upstream = Upstream::named("api.example", 443).tls(tls);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TlsOrigination {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// The paths at which systems keep the certificates that they trust.
const BUNDLES: [&str; 4] = [
    // Debian, Ubuntu, Arch.
    "/etc/ssl/certs/ca-certificates.crt",
    // Fedora, RHEL.
    "/etc/pki/tls/certs/ca-bundle.crt",
    // openSUSE.
    "/etc/ssl/ca-bundle.pem",
    // Alpine.
    "/etc/ssl/cert.pem",
];

impl TlsOrigination {
    /// The target's certificate must be for `server_name` (the name of a host, or an address), and be signed by an authority that
    /// the system trusts: one of its bundle, which is read now.
    ///
    /// # Errors
    /// [`TlsConfigError::Name`], [`TlsConfigError::NoRoots`], and others if the bundle cannot be read.
    pub fn to(server_name: &str) -> Result<Self, TlsConfigError> {
        let found = BUNDLES.iter().map(Path::new).find(|path| path.exists());
        let none = || TlsConfigError::NoRoots { tried: BUNDLES.join(", ") };
        Self::with_roots(server_name, found.ok_or_else(none)?, true)
    }

    /// The same, and signed by an authority whose certificate is in a PEM file; those of the system do not count. The file is read now.
    ///
    /// # Errors
    /// [`TlsConfigError`].
    pub fn trusting(server_name: &str, roots: impl Into<PathBuf>) -> Result<Self, TlsConfigError> {
        Self::with_roots(server_name, &roots.into(), false)
    }

    /// One unreadable certificate in a system's bundle does not matter; in a file of a few it is a mistake.
    fn with_roots(server_name: &str, path: &Path, may_skip: bool) -> Result<Self, TlsConfigError> {
        let bare = server_name.strip_suffix('.').unwrap_or(server_name).to_owned();
        let wrong = |_| TlsConfigError::Name { name: server_name.to_owned() };
        let name = ServerName::try_from(bare).map_err(wrong)?;
        let mut roots = RootCertStore::empty();
        let unusable =
            |problem: String| TlsConfigError::Unusable { path: path.to_owned(), problem };
        for certificate in read_certificates(path)? {
            match roots.add(certificate) {
                Err(error) if !may_skip => return Err(unusable(words::own(&error))),
                _ => {}
            }
        }
        if roots.is_empty() {
            return Err(unusable("none of its certificates can be read".to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder
            .with_safe_default_protocol_versions()
            .expect("invariant: the provider has ciphers of both versions");
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { config: Arc::new(config), name })
    }

    /// Returns whether both targets' certificates are to have the same name.
    pub(in crate::relay) fn has_name_of(&self, other: &Self) -> bool {
        self.name == other.name
    }

    /// Sets who this side is, for a target that asks for a certificate. Default: none.
    #[must_use]
    pub fn identity(mut self, identity: TlsIdentity) -> Self {
        Arc::make_mut(&mut self.config).client_auth_cert_resolver = Arc::new(identity);
        self
    }

    /// Sets the protocols that are offered by ALPN. Default: none.
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

impl fmt::Debug for TlsOrigination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOrigination").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The same configuration: a clone.
impl PartialEq for TlsOrigination {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for TlsOrigination {}
