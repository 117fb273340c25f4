//! Authorities and certificates, made for the tests.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use vigie_forward::relay::{TlsIdentity, TlsOrigination, TlsTermination};

use crate::kit::{folder::Folder, skip::skip};

/// Writes a file into a folder, and returns its path.
pub(crate) fn write(folder: &Folder, name: &str, text: &str) -> PathBuf {
    let path = folder.path(name);
    fs::write(&path, text).expect("a writable folder");
    path
}

/// An authority that signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, as PEM.
pub(crate) struct Signed {
    pub(crate) chain: String,
    pub(crate) key: String,
}

/// From when to when a certificate is valid, in years.
pub(crate) type Years = (i32, i32);
pub(crate) const VALID: Years = (2020, 2099);
pub(crate) const EXPIRED: Years = (2019, 2020);
pub(crate) const FUTURE: Years = (2098, 2099);

fn key() -> KeyPair {
    // OpenSSL 3.0 does not read the form in which rcgen writes keys of Ed25519.
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key")
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two of the same name would be taken for each other.
        let name = format!("authority {}", COUNT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = key();
        let pem = params.self_signed(&key).expect("a key that signs").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub(crate) fn sign(&self, names: &[&str], (from, to): Years) -> Signed {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, "a server");
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority");
        Signed { chain: certificate.pem(), key: key.serialize_pem() }
    }

    /// The certificates that trust this authority.
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("PEM"))
            .expect("an authority");
        roots
    }
}

impl Signed {
    pub(crate) fn write(&self, folder: &Folder, name: &str) -> (PathBuf, PathBuf) {
        let chain = write(folder, &format!("{name}.chain.pem"), &self.chain);
        (chain, write(folder, &format!("{name}.key.pem"), &self.key))
    }

    pub(crate) fn identity(&self, folder: &Folder, name: &str) -> TlsIdentity {
        let (chain, key) = self.write(folder, name);
        TlsIdentity::from_pem_files(chain, key).expect("a certificate and its key")
    }

    pub(crate) fn der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("PEM");
        (chain.collect::<Result<_, _>>().expect("PEM"), key)
    }
}

/// What most tests need: an authority, and a certificate for `web.test` signed by it.
pub(crate) struct Kit {
    pub(crate) folder: Folder,
    pub(crate) authority: Authority,
    pub(crate) web: Signed,
}

impl Kit {
    /// The same for all tests: keys and certificates take a while in a debug build.
    pub(crate) fn shared() -> Arc<Self> {
        static KIT: OnceLock<Arc<Kit>> = OnceLock::new();
        Arc::clone(KIT.get_or_init(|| Arc::new(Self::new())))
    }

    fn new() -> Self {
        let (folder, authority) = (Folder::new(), Authority::new());
        write(&folder, "authority.pem", &authority.pem);
        let web = authority.sign(&["web.test"], VALID);
        web.write(&folder, "web");
        Self { folder, authority, web }
    }

    pub(crate) fn authority_file(&self) -> PathBuf {
        self.folder.path("authority.pem")
    }

    pub(crate) fn termination(&self) -> TlsTermination {
        TlsTermination::new(identity_at(&self.folder, "web"))
    }

    pub(crate) fn origination(&self, name: &str) -> TlsOrigination {
        TlsOrigination::trusting(name, self.authority_file()).expect("an authority")
    }
}

fn identity_at(folder: &Folder, name: &str) -> TlsIdentity {
    let at = |kind: &str| folder.path(format!("{name}.{kind}.pem"));
    TlsIdentity::from_pem_files(at("chain"), at("key")).expect("a certificate and its key")
}

/// Whether a program is installed. If not, the test says so.
pub(crate) fn has_program(test: &str, name: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|all| {
        std::env::split_paths(&all).any(|folder| Path::new(&folder).join(name).is_file())
    });
    if !found {
        skip(test, &format!("`{name}`, which is not installed"));
    }
    found
}
