//! Endpoints: addresses of streams.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use thiserror::Error;

/// The address of a stream: TCP or Unix.
///
/// ```
/// use vigie_forward::relay::Endpoint;
///
/// let endpoint: Endpoint = "tcp://127.0.0.1:80".parse()?;
/// assert_eq!(endpoint, Endpoint::Tcp("127.0.0.1:80".parse()?));
/// assert_eq!("unix:/run/web".parse::<Endpoint>()?.to_string(), "unix:/run/web");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket, at most 107 bytes.
    Unix(PathBuf),
}

impl Endpoint {
    /// Returns the path of a Unix socket; `None` for TCP.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }

    /// Returns the TCP address; `None` for a Unix socket.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A text that is not an endpoint or a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseAddressError {
    /// Not an [`Endpoint`].
    #[error(
        "`{text}` is not an endpoint: write `tcp://ADDRESS:PORT`, `tcp://[ADDRESS]:PORT` or `unix:PATH`"
    )]
    Endpoint {
        /// The text.
        text: String,
    },
    /// Not a [`AddressRange`](super::AddressRange).
    #[error(
        "`{text}` is not a network: write an address, or `ADDRESS/BITS` with at most 32 or 128 bits"
    )]
    InvalidPrefix {
        /// The text.
        text: String,
    },
}

impl FromStr for Endpoint {
    type Err = ParseAddressError;

    /// Parses `tcp://ADDRESS:PORT` and `unix:PATH`; an address alone is TCP, and the slashes may be left out. Names are not resolved.
    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let wrong = || ParseAddressError::Endpoint { text: text.to_owned() };
        match text.strip_prefix("unix:") {
            Some("") => Err(wrong()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                let plain = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("tcp:"));
                let address = plain.unwrap_or(text);
                address.parse().map(Self::Tcp).map_err(|_| wrong())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a displayed endpoint parses, and nonsense is refused. Method: both families, and texts that lack a part.
    #[test]
    fn shown_endpoints_are_read_back() {
        for text in ["tcp://127.0.0.1:80", "tcp://[::1]:443", "unix:/run/a b"] {
            let endpoint: Endpoint = text.parse().expect("an endpoint");
            assert_eq!(endpoint.to_string(), text);
        }
        for text in ["[::1]:5", "tcp:[::1]:5"] {
            assert_eq!(text.parse(), Ok(Endpoint::Tcp("[::1]:5".parse().expect("an address"))));
        }
        for text in [
            "",
            "unix:",
            "tcp://",
            "//[::1]:5",
            "tcp:",
            "tcp:localhost:80",
            "127.0.0.1",
            "udp:127.0.0.1:5",
        ] {
            assert_eq!(
                text.parse::<Endpoint>(),
                Err(ParseAddressError::Endpoint { text: text.to_owned() })
            );
        }
    }
}
