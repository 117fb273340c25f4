//! A certificate with its key, from files that may be read again.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    InconsistentKeys, SignatureScheme,
    client::ResolvesClientCert,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::{error::TlsConfigError, validity::CertificateValidity, words};

/// A certificate with its chain and its private key: who this side is. Clones share it, so that [`reload`](Self::reload) changes all
/// of them.
///
/// ```no_run
/// use vigie_forward::relay::TlsIdentity;
///
/// let identity = TlsIdentity::from_pem_files("/etc/web/chain.pem", "/etc/web/key.pem")?;
/// // When the certificate was renewed:
/// identity.reload()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TlsIdentity(Arc<IdentityState>);

struct IdentityState {
    chain: PathBuf,
    key: PathBuf,
    /// Written by `reload`, read by each handshake.
    current: RwLock<Arc<CertifiedKey>>,
}

impl TlsIdentity {
    /// Reads certificates (PEM, the own one first, then those of its issuers) and the private key of the first (PEM: PKCS #8, PKCS #1 or
    /// SEC 1, without a password; RSA, ECDSA or Ed25519). Both may be in one file.
    ///
    /// # Errors
    /// [`TlsConfigError`], also if the key is not that of the certificate.
    pub fn from_pem_files(
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Self, TlsConfigError> {
        let (chain, key) = (chain.into(), key.into());
        let current = RwLock::new(Arc::new(read(&chain, &key)?));
        Ok(Self(Arc::new(IdentityState { chain, key, current })))
    }

    /// Reads the files again. Handshakes that begin from then on use what is in them; open connections go on. Returns whether the
    /// certificates have changed.
    ///
    /// # Errors
    /// [`TlsConfigError`]; what was used before stays in use.
    pub fn reload(&self) -> Result<bool, TlsConfigError> {
        let new = read(&self.0.chain, &self.0.key)?;
        let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
        let has_changed = current.cert != new.cert;
        *current = Arc::new(new);
        Ok(has_changed)
    }

    /// Returns from when to when the own certificate is valid, the first of the chain; `None` if that cannot be read.
    #[must_use]
    pub fn validity(&self) -> Option<CertificateValidity> {
        CertificateValidity::read(self.current().cert.first()?)
    }

    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("chain", &self.0.chain).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for TlsIdentity {
    /// The name was checked before, when the route was chosen.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for TlsIdentity {
    /// A server that does not know its issuer says so by an alert, which is clearer than none at all.
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn read(chain: &Path, key: &Path) -> Result<CertifiedKey, TlsConfigError> {
    let certificates = read_certificates(chain)?;
    let unusable = |error: rustls::Error| TlsConfigError::Unusable {
        path: key.to_owned(),
        problem: words::own(&error),
    };
    let signing = ring::sign::any_supported_type(&read_key(key)?).map_err(unusable)?;
    let identity = CertifiedKey::new(certificates, signing);
    match identity.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(identity),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(TlsConfigError::KeyMismatch { chain: chain.to_owned(), key: key.to_owned() })
        }
        Err(error) => {
            Err(TlsConfigError::Unusable { path: chain.to_owned(), problem: words::own(&error) })
        }
    }
}

/// Reads the certificates of a file; at least one.
pub(super) fn read_certificates(
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let text = read_file(path)?;
    let certificates = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| not_pem(path, &error))?;
    if certificates.is_empty() {
        return Err(TlsConfigError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    PrivateKeyDer::from_pem_slice(&read_file(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsConfigError::NoKey { path: path.to_owned() },
        error => not_pem(path, &error),
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsConfigError> {
    fs::read(path).map_err(|source| TlsConfigError::File { path: path.to_owned(), source })
}

fn not_pem(path: &Path, error: &pem::Error) -> TlsConfigError {
    TlsConfigError::Pem { path: path.to_owned(), problem: error.to_string() }
}
