//! What is wrong with a handshake, in words: rustls names its errors as its code does.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, ExtendedKeyPurpose, PeerIncompatible};

/// Returns what peers that cannot agree lack.
pub(super) fn incompatible(what: &PeerIncompatible) -> String {
    use PeerIncompatible as P;
    match what {
        P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::ServerDoesNotSupportTls12Or13
        | P::ServerTlsVersionIsDisabledByOurConfig
        | P::SupportedVersionsExtensionRequired => {
            "it speaks neither TLS 1.2 nor TLS 1.3: older versions are not secure".to_owned()
        }
        P::NoCipherSuitesInCommon => {
            "no cipher suite is known to both (ECDHE with AES-GCM or CHACHA20-POLY1305 is needed)".to_owned()
        }
        P::NoKxGroupsInCommon | P::NamedGroupsExtensionRequired | P::KeyShareExtensionRequired => {
            "no group for the key exchange is known to both (X25519, P-256 or P-384 is needed)".to_owned()
        }
        P::NoSignatureSchemesInCommon
        | P::NoCertificateRequestSignatureSchemesInCommon
        | P::SignatureAlgorithmsExtensionRequired => {
            "it takes no signature that the certificate's key here can make, or does not say which it takes: it may be too old, or need a key \
             of another kind (RSA or ECDSA)"
                .to_owned()
        }
        P::ExtendedMasterSecretExtensionRequired => {
            "it lacks the extended master secret of TLS 1.2 (RFC 7627)".to_owned()
        }
        P::NoEcPointFormatsInCommon
        | P::EcPointsExtensionRequired
        | P::UncompressedEcPointsRequired => {
            "it takes no uncompressed points of elliptic curves".to_owned()
        }
        P::NullCompressionRequired => "it insists on compression, which is not secure".to_owned(),
        other => words(other),
    }
}

/// Returns what an alert says, and its usual cause.
pub(super) fn alert(alert: AlertDescription) -> String {
    use AlertDescription as A;
    match alert {
        A::HandshakeFailure => {
            "handshake failure (it has no version, cipher or kind of key in common with this side, or wants a certificate)".to_owned()
        }
        A::ProtocolVersion => {
            "protocol version (it speaks neither TLS 1.2 nor TLS 1.3, or this side's only by its settings)".to_owned()
        }
        A::InsufficientSecurity => "insufficient security (its ciphers or keys are others)".to_owned(),
        A::UnknownCA => {
            "unknown CA (it does not trust the authority of this side's certificate)".to_owned()
        }
        A::BadCertificate | A::UnsupportedCertificate | A::CertificateUnknown => {
            format!("{} (it does not accept this side's certificate)", words(&alert))
        }
        A::CertificateExpired => {
            "certificate expired (that of this side: renew it, or set the clocks)".to_owned()
        }
        A::CertificateRequired => {
            "certificate required (it wants a certificate of this side)".to_owned()
        }
        A::AccessDenied => "access denied (to this side's certificate)".to_owned(),
        A::UnrecognisedName => "unrecognized name (it does not serve this name)".to_owned(),
        A::NoApplicationProtocol => {
            "no application protocol (it speaks none of the protocols offered by ALPN)".to_owned()
        }
        A::Unknown(number) => format!("alert {number}"),
        other => words(&other),
    }
}

/// Returns what is wrong with a peer's certificate, apart from its times, its issuer and its names.
pub(super) fn certificate(problem: &CertificateError) -> String {
    use CertificateError as C;
    match problem {
        C::BadEncoding => "it cannot be read (its encoding is damaged)".to_owned(),
        C::Revoked => "it was revoked".to_owned(),
        C::BadSignature => "its signature is not that of its issuer".to_owned(),
        C::UnhandledCriticalExtension => {
            "it has a critical extension that is not known here".to_owned()
        }
        C::InvalidPurpose => "it is for another purpose (extended key usage)".to_owned(),
        C::InvalidPurposeContext { required, presented } => {
            let presented: Vec<_> = presented.iter().map(purpose).collect();
            let presented =
                if presented.is_empty() { "nothing".to_owned() } else { presented.join(", ") };
            format!("it is for {presented}, and not for {} (extended key usage)", purpose(required))
        }
        C::UnsupportedSignatureAlgorithmContext { .. }
        | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its signature, or its issuer's, is of a kind that is not supported (as SHA-1 is)".to_owned()
        }
        C::Other(error) => match error.0.to_string().as_str() {
            "CaUsedAsEndEntity" => {
                "it is an authority's (CA:TRUE, as `openssl req -x509` makes), and no server or client may have that: issue one \
                 with `-addext basicConstraints=critical,CA:FALSE`"
                    .to_owned()
            }
            "EndEntityUsedAsCa" => "its issuer's certificate is not that of an authority".to_owned(),
            "NameConstraintViolation" => "its issuer may not sign for its names".to_owned(),
            "PathLenConstraintViolated" | "MaximumPathDepthExceeded" => {
                "there are more issuers in its chain than are allowed".to_owned()
            }
            "UnsupportedCertVersion" => {
                "it is of version 1 of X.509, without names: issue one of version 3".to_owned()
            }
            other => spaced(other),
        },
        other => words(other),
    }
}

fn purpose(of: &ExtendedKeyPurpose) -> String {
    match of {
        ExtendedKeyPurpose::ServerAuth => "servers".to_owned(),
        ExtendedKeyPurpose::ClientAuth => "clients".to_owned(),
        ExtendedKeyPurpose::Other(numbers) => {
            numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
        }
    }
}

/// Returns a name in a certificate, of which rustls shows the kind: `DnsName("web.example")`.
pub(super) fn name(shown: &str) -> &str {
    let inner = shown.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(shown, |inner| inner.trim_matches('"'))
}

/// Returns how a peer violates the protocol.
pub(super) fn violation(error: &Error) -> String {
    match error {
        Error::PeerMisbehaved(what) => words(what),
        Error::InvalidMessage(what) => format!("a message cannot be read: {}", words(what)),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "a message comes out of turn".to_owned()
        }
        Error::DecryptError => {
            "a message cannot be decrypted: it was damaged on its way".to_owned()
        }
        Error::PeerSentOversizedRecord => "a message is too long".to_owned(),
        Error::General(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns what is wrong with a certificate or key of this side.
pub(super) fn own(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::General(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the name of a variant as words.
fn words(of: &impl fmt::Debug) -> String {
    spaced(&format!("{of:?}"))
}

/// Returns words that were joined by capitals: `NoKxGroups` is `no kx groups`. Abbreviations keep their capitals.
fn spaced(joined: &str) -> String {
    let letters: Vec<char> = joined.chars().collect();
    let is_upper = |at: usize| letters.get(at).is_some_and(char::is_ascii_uppercase);
    let mut text = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let begins = is_upper(at)
            && at > 0
            && letters[at - 1].is_ascii_alphanumeric()
            && (!is_upper(at - 1) || letters.get(at + 1).is_some_and(char::is_ascii_lowercase));
        if begins {
            text.push(' ');
        }
        let is_abbreviation = is_upper(at + 1) || (at > 0 && is_upper(at - 1) && !begins);
        text.push(if is_abbreviation { *letter } else { letter.to_ascii_lowercase() });
    }
    text
}

#[cfg(test)]
mod tests {
    use rustls::{InvalidMessage, PeerMisbehaved};

    use super::*;
    use crate::relay::tls::TlsError;

    /// Goal: no error that a peer can cause is shown as rustls' code names it. Method: those of all kinds, of which none may hold two words without a space.
    #[test]
    fn errors_are_words() {
        let other = |name: &'static str| {
            let error = rustls::OtherError(std::sync::Arc::new(std::io::Error::other(name)));
            Error::InvalidCertificate(CertificateError::Other(error))
        };
        let errors = [
            (
                Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired),
                "takes no signature",
            ),
            (Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon), "no cipher suite"),
            (
                Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension),
                "incorrect certificate type extension",
            ),
            (
                Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedKxGroup),
                "selected unoffered kx group",
            ),
            (Error::InvalidMessage(InvalidMessage::MissingData("Random")), "missing data"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "unknown CA (it does not trust"),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "handshake failure ("),
            (Error::AlertReceived(AlertDescription::InternalError), "internal error"),
            (Error::AlertReceived(AlertDescription::Unknown(200)), "alert 200"),
            (Error::InvalidCertificate(CertificateError::BadEncoding), "cannot be read"),
            (other("CaUsedAsEndEntity"), "it is an authority's"),
            (other("InvalidNetworkMaskConstraint"), "invalid network mask constraint"),
        ];
        for (error, said) in errors {
            let text = TlsError::from(error).to_string();
            let is_joined = |word: &str| {
                let letters: Vec<_> = word.chars().collect();
                letters
                    .windows(2)
                    .any(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase())
            };
            assert!(text.contains(said), "{text}");
            assert!(!text.split([' ', '=']).any(is_joined) || text.contains('`'), "{text}");
        }
        assert_eq!(name("DnsName(\"*.web.example\")"), "*.web.example");
        assert_eq!(name("IpAddress(192.0.2.1)"), "192.0.2.1");
        assert_eq!(name("DirectoryName"), "DirectoryName");
        assert_eq!(spaced("UnknownPSKIdentity"), "unknown PSK identity");
    }
}
