//! The traits of readers and writers, and the standard streams.
//!
//! The traits are tokio's, which need no runtime. The feature `io-util` adds tokio's `AsyncReadExt`, `AsyncWriteExt`, `BufReader`,
//! `copy`, `duplex` and the like.

#[cfg(feature = "io-util")]
pub use tokio::io::*;
// By name as well: without the feature, the compiler can then say that these exist, and which feature they need.
#[cfg(not(feature = "io-util"))]
pub use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
#[cfg(feature = "io-util")]
pub use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader, BufStream, BufWriter,
    ReadHalf, WriteHalf, copy, copy_bidirectional, copy_buf, duplex, empty, join, repeat, simplex,
    sink, split,
};
pub use vigie_detect::{Interest, Ready};
pub use vigie_runtime::io::{Stderr, Stdin, Stdout, stderr, stdin, stdout};

/// As in `std::io`.
pub use std::io::{Error, ErrorKind, Result, SeekFrom};
