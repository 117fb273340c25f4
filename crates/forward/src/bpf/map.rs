//! Maps: data shared between programs and user space.

use std::io;

use thiserror::Error;

/// The kind of a map, by which it finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
pub enum MapKind {
    /// By an index of 4 bytes; all values exist from the start, as zeros.
    Array,
    /// As an array, with a separate value for each processor.
    PerCpuArray,
    /// By a key of arbitrary bytes.
    Hash,
    /// As a hash; when full, the least recently used entry is evicted.
    LruHash,
    /// By the longest prefix: a key is a number of bits (4 bytes, in native order), then the bytes.
    LpmTrie,
    /// By an index; values are interfaces, to which XDP redirects.
    DevMap,
    /// By a key of 4 bytes; values are interfaces, to which XDP redirects.
    DevMapHash,
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
            Self::DevMapHash => 25,
        }
    }

    /// The flags to create it with.
    pub(super) const fn flags(self) -> u32 {
        // BPF_F_NO_PREALLOC is mandatory for tries.
        if matches!(self, Self::LpmTrie) { 1 } else { 0 }
    }

    /// Returns whether programs can read its values, not only redirect by it.
    #[must_use]
    pub const fn has_values(self) -> bool {
        !matches!(self, Self::DevMap | Self::DevMapHash)
    }

    /// Returns whether its keys are indices.
    #[must_use]
    pub const fn is_array(self) -> bool {
        matches!(self, Self::Array | Self::PerCpuArray | Self::DevMap)
    }
}

/// The description of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MapSpec {
    /// The kind of the map.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value; 4 for interfaces.
    pub value_bytes: u32,
    /// The maximum number of entries.
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

    /// Describes a map of interfaces by index.
    #[must_use]
    pub const fn devices(entries: u32) -> Self {
        Self::new(MapKind::DevMap, 4, 4, entries)
    }

    /// The length of a key, in bytes.
    pub(super) fn key_length(&self) -> usize {
        usize::try_from(self.key_bytes).unwrap_or(usize::MAX)
    }

    /// The length of a value, in bytes.
    pub(super) fn value_length(&self) -> usize {
        usize::try_from(self.value_bytes).unwrap_or(usize::MAX)
    }
}

numbered! {
    /// The entries that [`BpfMap::put`] may write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    #[expect(clippy::exhaustive_enums, reason = "the kernel has three")]
    pub enum UpdateMode: u64 {
        /// New and existing ones.
        #[default]
        Any = 0,
        /// New ones only.
        New = 1,
        /// Existing ones only.
        Existing = 2,
    }
}

/// The reason why access to an entry failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The map is full. Remove entries, or make it larger.
    #[error("the map is full with {entries_max} entries: remove some, or make it larger")]
    Full {
        /// Its capacity.
        entries_max: u32,
    },
    /// There is no such entry.
    #[error("the map has no such entry")]
    Missing,
    /// The entry exists already.
    #[error("the map has such an entry already")]
    Exists,
    /// A key or a value of the wrong length.
    #[error("a {what} of {length} bytes, but the map takes {wanted}")]
    Length {
        /// Key or value.
        what: &'static str,
        /// The length in bytes.
        length: usize,
        /// The required length in bytes.
        wanted: usize,
    },
    /// The index does not exist, the prefix is invalid, or this kind of map does not support the operation.
    #[error("the map does not take this key, this value or this operation")]
    Invalid,
    /// The interface does not exist or cannot be redirected to.
    #[error("there is no such interface to redirect to")]
    NoTarget,
    /// Another error from the kernel.
    #[error("{what} of a map: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
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

/// Access to a map from user space: to a kernel map, while the program runs, or to one of the interpreter.
pub trait BpfMap {
    /// Returns the description of the map.
    fn spec(&self) -> MapSpec;

    /// Returns the value of a key; for a per-CPU array, the values of all processors, each padded to a multiple of 8
    /// bytes.
    ///
    /// # Errors
    /// [`MapError::Missing`], or an error if the key is invalid.
    fn value(&self, key: &[u8]) -> Result<Vec<u8>, MapError>;

    /// Writes an entry atomically: a program sees the old one or the new one. For a map of interfaces the value is the
    /// interface's index.
    ///
    /// # Errors
    /// [`MapError::Full`], or an error if key, value or mode do not fit.
    fn put(&mut self, key: &[u8], value: &[u8], put: UpdateMode) -> Result<(), MapError>;

    /// Removes an entry.
    ///
    /// # Errors
    /// [`MapError::Missing`], or an error if this kind of map does not support removal.
    fn remove(&mut self, key: &[u8]) -> Result<(), MapError>;

    /// Returns the existing keys in arbitrary order, prefixes padded with zeros. If others write meanwhile, some keys
    /// may be missing or appear twice.
    ///
    /// # Errors
    /// The kernel's error.
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
