//! Errors of TLS: in the configuration, and with a peer.

use std::{io, path::PathBuf};

use rustls::{AlertDescription, CertificateError, Error};
use thiserror::Error as ThisError;

use super::{hello::HelloError, words};
use crate::relay::counters::{Counter, RelayCounters};

/// The reason why a certificate, a key or a name cannot be used.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not PEM: {problem}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// A file has no certificate.
    #[error("{} has no certificate: a section `-----BEGIN CERTIFICATE-----` is needed, the server's own first", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file has no private key.
    #[error(
        "{} has no private key without a password: a section `-----BEGIN PRIVATE KEY-----` is needed (`openssl pkey` writes one)",
        path.display()
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key is not the certificate's.
    #[error("the key in {} does not belong to the first certificate in {}", key.display(), chain.display())]
    KeyMismatch {
        /// The file of the certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A key or a certificate of a kind that is not supported, or damaged.
    #[error("{} cannot be used: {problem}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// The system has no bundle of certificates.
    #[error(
        "there is no bundle of trusted certificates ({tried}): install `ca-certificates`, or name a file with the certificate to trust"
    )]
    NoRoots {
        /// The files that were tried.
        tried: String,
    },
    /// A name that no server can have.
    #[error(
        "`{name}` cannot be the name of a server: a name is as web.example, *.web.example (for clients' names alone) or an address"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two routes with the same name.
    #[error("two routes have the name `{name}`: a connection goes one way")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A protocol that cannot be named.
    #[error(
        "`{protocol}` cannot be a protocol of ALPN: names have 1 to 255 bytes, as in h2 or http/1.1"
    )]
    Alpn {
        /// The protocol.
        protocol: String,
    },
}

/// The reason why TLS with a peer has failed.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TlsError {
    /// A client that does not begin as a TLS client does.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The handshake did not end within the set-up time-out.
    #[error("its TLS handshake has not ended in time")]
    TimedOut,
    /// The peer closed or reset the connection in the middle of the handshake.
    #[error("it has ended the connection in the middle of the TLS handshake")]
    Closed,
    /// A client that asks for a name that no route has.
    #[error("it asks for {}, and no route has this name", name.as_deref().unwrap_or("no server's name"))]
    NoRoute {
        /// The name.
        name: Option<String>,
    },
    /// The peers have no version, cipher or protocol (ALPN) in common.
    #[error("it has nothing in common with this side: {0}")]
    Incompatible(String),
    /// The peer's certificate has expired.
    #[error("its certificate has expired: renew it (or set this host's clock)")]
    Expired,
    /// The peer's certificate is not valid yet.
    #[error("its certificate is not valid yet: set the clocks of both hosts")]
    NotYetValid,
    /// The peer's certificate is signed by none of the trusted ones.
    #[error(
        "its certificate is signed by none that is trusted here: let it send its whole chain, or trust the certificate of its authority"
    )]
    UnknownIssuer,
    /// The peer's certificate is for other names.
    #[error("its certificate is for other names: ask for one of them ({0})")]
    WrongName(String),
    /// The peer's certificate cannot be used for another reason.
    #[error("its certificate is refused: {0}")]
    BadCertificate(String),
    /// The peer has refused this side, by an alert.
    #[error("it has refused this side: {alert}")]
    Refused {
        /// The alert, and its usual cause.
        alert: String,
    },
    /// The peer violates the protocol.
    #[error("it violates TLS: {0}")]
    Protocol(String),
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(problem) => Self::of_certificate(&problem),
            Error::AlertReceived(AlertDescription::CloseNotify) => Self::Closed,
            Error::AlertReceived(alert) => Self::Refused { alert: words::alert(alert) },
            Error::PeerIncompatible(what) => Self::Incompatible(words::incompatible(&what)),
            Error::NoApplicationProtocol => {
                Self::Incompatible("no protocol of ALPN is known to both".to_owned())
            }
            Error::NoCertificatesPresented => Self::BadCertificate("it has sent none".to_owned()),
            error => Self::Protocol(words::violation(&error)),
        }
    }
}

impl TlsError {
    fn of_certificate(problem: &CertificateError) -> Self {
        match problem {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::NotValidForNameContext { expected, presented } => {
                let expected = expected.to_str();
                let names: Vec<_> = presented.iter().map(|name| words::name(name)).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Self::WrongName(format!("not {expected}, but {names}"))
            }
            CertificateError::NotValidForName => Self::WrongName("not the one wanted".to_owned()),
            problem => Self::BadCertificate(words::certificate(problem)),
        }
    }

    /// Counts a failed handshake with a client.
    pub(in crate::relay) fn count_client(&self, counters: &RelayCounters) {
        let counter: &Counter = match self {
            Self::Hello(_) => &counters.tls_clients_not_tls,
            Self::TimedOut => &counters.tls_clients_timed_out,
            Self::Closed => &counters.tls_clients_closed,
            Self::NoRoute { .. } => &counters.tls_clients_no_route,
            Self::Refused { .. } => &counters.tls_clients_alert,
            Self::Expired
            | Self::NotYetValid
            | Self::UnknownIssuer
            | Self::WrongName(_)
            | Self::BadCertificate(_) => &counters.tls_clients_bad_certificate,
            _ => &counters.tls_clients_incompatible,
        };
        counter.add(1);
    }

    /// Counts a failed handshake with an upstream.
    pub(in crate::relay) fn count_upstream(&self, counters: &RelayCounters) {
        let counter: &Counter = match self {
            Self::Expired | Self::NotYetValid => &counters.tls_upstreams_expired,
            Self::UnknownIssuer => &counters.tls_upstreams_unknown_issuer,
            Self::WrongName(_) => &counters.tls_upstreams_wrong_name,
            Self::BadCertificate(_) => &counters.tls_upstreams_bad_certificate,
            Self::Refused { .. } => &counters.tls_upstreams_alert,
            Self::Closed => &counters.tls_upstreams_closed,
            _ => &counters.tls_upstreams_incompatible,
        };
        counter.add(1);
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
