//! Names of protocols that are agreed on in the handshake (ALPN).

use super::error::TlsConfigError;

/// Checks names of protocols.
pub(super) fn alpn_protocols<P: AsRef<str>>(
    protocols: impl IntoIterator<Item = P>,
) -> Result<Vec<Vec<u8>>, TlsConfigError> {
    let checked = protocols.into_iter().map(|protocol| {
        let protocol = protocol.as_ref();
        if (1..=255).contains(&protocol.len()) {
            Ok(protocol.as_bytes().to_vec())
        } else {
            Err(TlsConfigError::Alpn { protocol: protocol.to_owned() })
        }
    });
    checked.collect()
}
