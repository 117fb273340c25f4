//! Maps: what programs and their makers share.

use std::io;

use thiserror::Error;

/// How a map finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
pub enum MapKind {
    /// By an index of 4 bytes; all values are there from the beginning, as zeros.
    Array,
    /// As an array, with a value for each processor, so that nothing is shared.
    PerCpuArray,
    /// By any bytes.
    Hash,
    /// As a hash; when it is full, what was not used for longest makes room.
    LruHash,
    /// By the longest prefix: a key is a number of bits (4 bytes, in the machine's order), then the bytes.
    LpmTrie,
    /// By an index: interfaces, to which XDP redirects.
    DevMap,
    /// By a key of 4 bytes: interfaces, to which XDP redirects.
    DevMapHash,
    /// By an index: sockets.
    SockMap,
    /// By any bytes: sockets.
    SockHash,
}

impl MapKind {
    /// The kernel's number.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Hash => 1,
            Self::Array => 2,
            Self::PerCpuArray => 6,
            Self::LruHash => 9,
            Self::LpmTrie => 11,
            Self::DevMap => 14,
            Self::SockMap => 15,
            Self::SockHash => 18,
            Self::DevMapHash => 25,
        }
    }

    /// The flags with which it is made.
    pub(super) const fn flags(self) -> u32 {
        // BPF_F_NO_PREALLOC, without which there is no trie.
        if matches!(self, Self::LpmTrie) { 1 } else { 0 }
    }

    /// Returns whether a program can look at its values, and not only redirect by it.
    #[must_use]
    pub const fn has_values(self) -> bool {
        !matches!(self, Self::DevMap | Self::DevMapHash | Self::SockMap | Self::SockHash)
    }

    /// Returns whether its keys are indices.
    #[must_use]
    pub const fn is_array(self) -> bool {
        matches!(self, Self::Array | Self::PerCpuArray | Self::DevMap | Self::SockMap)
    }
}

/// A map before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MapSpec {
    /// How it finds a value.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value; for interfaces and sockets 4.
    pub value_bytes: u32,
    /// The most entries.
    pub entries_max: u32,
}

impl MapSpec {
    /// Describes a map of any kind.
    #[must_use]
    pub const fn new(kind: MapKind, key_bytes: u32, value_bytes: u32, entries_max: u32) -> Self {
        Self { kind, key_bytes, value_bytes, entries_max }
    }

    /// Describes an array.
    #[must_use]
    pub const fn array(value_bytes: u32, entries: u32) -> Self {
        Self::new(MapKind::Array, 4, value_bytes, entries)
    }

    /// Describes an array with a value for each processor.
    #[must_use]
    pub const fn per_cpu_array(value_bytes: u32, entries: u32) -> Self {
        Self::new(MapKind::PerCpuArray, 4, value_bytes, entries)
    }

    /// Describes a hash table.
    #[must_use]
    pub const fn hash(key_bytes: u32, value_bytes: u32, entries_max: u32) -> Self {
        Self::new(MapKind::Hash, key_bytes, value_bytes, entries_max)
    }

    /// Describes interfaces by index.
    #[must_use]
    pub const fn devices(entries: u32) -> Self {
        Self::new(MapKind::DevMap, 4, 4, entries)
    }

    /// Describes sockets by index.
    #[must_use]
    pub const fn sockets(entries: u32) -> Self {
        Self::new(MapKind::SockMap, 4, 4, entries)
    }

    /// The bytes of a key, as a length.
    pub(super) fn key_length(&self) -> usize {
        usize::try_from(self.key_bytes).unwrap_or(usize::MAX)
    }

    /// The bytes of a value, as a length.
    pub(super) fn value_length(&self) -> usize {
        usize::try_from(self.value_bytes).unwrap_or(usize::MAX)
    }
}

/// Which entries [`Table::put`] may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[expect(clippy::exhaustive_enums, reason = "the kernel has three")]
pub enum Put {
    /// New ones and those that are there.
    #[default]
    Any,
    /// New ones.
    New,
    /// Those that are there.
    Existing,
}

impl Put {
    pub(super) const fn flag(self) -> u64 {
        match self {
            Self::Any => 0,
            Self::New => 1,
            Self::Existing => 2,
        }
    }

    pub(super) const fn from_flag(flag: u64) -> Option<Self> {
        match flag {
            0 => Some(Self::Any),
            1 => Some(Self::New),
            2 => Some(Self::Existing),
            _ => None,
        }
    }
}

/// Why an entry was not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// All entries are taken. Remove some, or make the map larger.
    #[error("the map is full with {entries_max} entries: remove some, or make it larger")]
    Full {
        /// How many it has.
        entries_max: u32,
    },
    /// There is no such entry.
    #[error("the map has no such entry")]
    Missing,
    /// There is one already.
    #[error("the map has such an entry already")]
    Exists,
    /// A key or a value has another length.
    #[error("a {what} of {length} bytes, but the map takes {wanted}")]
    Length {
        /// Key or value.
        what: &'static str,
        /// The length in bytes.
        length: usize,
        /// The right one, in bytes.
        wanted: usize,
    },
    /// There is no such index, or no such prefix, or the kind of map has no such operation.
    #[error("the map does not take this key, this value or this operation")]
    Invalid,
    /// The interface or the socket that is to be put in is not there, or none that can be redirected to.
    #[error("there is no such interface or socket to redirect to")]
    NoTarget,
    /// The kernel said no.
    #[error("{what} of a map: {source}")]
    Kernel {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MapError {
    pub(super) fn check(what: &'static str, bytes: &[u8], wanted: usize) -> Result<(), Self> {
        if bytes.len() == wanted {
            Ok(())
        } else {
            Err(Self::Length { what, length: bytes.len(), wanted })
        }
    }
}

/// What a maker does with a map: with the kernel's, while the program runs, and with the interpreter's.
pub trait Table {
    /// Returns what the map is.
    fn spec(&self) -> MapSpec;

    /// Returns the value of a key; of a per-CPU array, the values of all processors, each padded to a multiple of 8
    /// bytes.
    ///
    /// # Errors
    /// [`MapError::Missing`], or that the key is none.
    fn value(&self, key: &[u8]) -> Result<Vec<u8>, MapError>;

    /// Writes an entry, as a whole: a program sees the old one or the new one. For a map of interfaces the value is
    /// the interface's index.
    ///
    /// # Errors
    /// [`MapError::Full`], or what does not fit.
    fn put(&mut self, key: &[u8], value: &[u8], put: Put) -> Result<(), MapError>;

    /// Removes an entry.
    ///
    /// # Errors
    /// [`MapError::Missing`], or that this kind of map has no such operation.
    fn remove(&mut self, key: &[u8]) -> Result<(), MapError>;

    /// Returns the keys that are there, in no order, prefixes with zeros behind them; while others write, some may be missing or twice.
    ///
    /// # Errors
    /// What the kernel said.
    fn keys(&self) -> Result<Vec<Vec<u8>>, MapError>;
}

/// The length of a prefix in bits, and its bytes.
pub(super) fn prefix(key: &[u8]) -> Option<(u32, &[u8])> {
    let (length, bytes) = key.split_first_chunk::<4>()?;
    let length = u32::from_ne_bytes(*length);
    let bits = u32::try_from(bytes.len()).ok()?.checked_mul(8)?;
    (length <= bits).then_some((length, bytes))
}

/// A prefix of this length, with zeros behind it.
pub(super) fn masked(key: &[u8], length: u32) -> Option<Vec<u8>> {
    let mut masked = length.to_ne_bytes().to_vec();
    let bytes = key.get(4..)?;
    for (start, byte) in (0..).step_by(8).zip(bytes) {
        let mask = match length.saturating_sub(start) {
            0 => 0,
            bits @ 1..8 => 0xff_u8 << (8 - bits),
            _ => 0xff,
        };
        masked.push(byte & mask);
    }
    Some(masked)
}
