//! The traits of readers and writers, and the standard streams.
//!
//! The traits are tokio's, which need no runtime. The feature `io-util` adds tokio's `AsyncReadExt`, `AsyncWriteExt`, `BufReader`,
//! `copy`, `duplex` and the like.

#[cfg(feature = "io-util")]
pub use tokio::io::*;
#[cfg(not(feature = "io-util"))]
pub use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
pub use vigie_detect::{Interest, Ready};
pub use vigie_runtime::io::{Stderr, Stdin, Stdout, stderr, stdin, stdout};

/// As in `std::io`.
pub use std::io::{Error, ErrorKind, Result, SeekFrom};
