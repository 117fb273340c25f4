//! Maps of the kernel.

use std::{io, os::fd::AsRawFd, sync::Arc};

use super::{
    map::{BpfMap, MapError, MapKind, MapSpec, UpdateMode, masked, prefix},
    privilege::{self, PrivilegeError},
    sys,
};

/// A map in the kernel. It lives as long as any of its clones, or a program loaded with it.
///
/// Any thread may write while programs run. They see each entry of a hash, a trie, or a map of interfaces
/// atomically; the bytes of an array's value may change while they read.
#[derive(Clone, Debug)]
pub struct KernelMap {
    map: Arc<sys::Map>,
}

impl KernelMap {
    /// Creates an empty map. The kernel shows 15 characters of its name.
    ///
    /// # Errors
    /// [`PrivilegeError::MissingCapability`], or the kernel's error: `EINVAL` if the sizes do not suit the kind,
    /// `E2BIG` or `ENOMEM` if it is too large.
    pub fn new(spec: MapSpec, name: &str) -> Result<Self, PrivilegeError> {
        let made = sys::Map::create(spec, name);
        let map = made
            .map_err(|error| PrivilegeError::of("making a BPF map", &privilege::LOADING, error))?;
        Ok(Self { map: Arc::new(map) })
    }

    /// Writes an entry, as [`BpfMap::put`] does, without `&mut`.
    ///
    /// # Errors
    /// As [`BpfMap::put`].
    pub fn write(&self, key: &[u8], value: &[u8], put: UpdateMode) -> Result<(), MapError> {
        MapError::check("key", key, self.spec().key_length())?;
        MapError::check("value", value, self.map.value_length())?;
        let written = self.map.update(key, value, put.number());
        written.map_err(|error| self.failed("writing an entry", error))
    }

    /// Removes an entry, as [`BpfMap::remove`] does, without `&mut`.
    ///
    /// # Errors
    /// As [`BpfMap::remove`].
    pub fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        MapError::check("key", key, self.spec().key_length())?;
        self.map.delete(key).map_err(|error| self.failed("removing an entry", error))
    }

    fn failed(&self, what: &'static str, source: io::Error) -> MapError {
        let spec = self.spec();
        match source.raw_os_error() {
            Some(libc::E2BIG | libc::ENOSPC) => MapError::Full { entries_max: spec.entries_max },
            Some(libc::ENOENT) => MapError::Missing,
            Some(libc::EEXIST) => MapError::Exists,
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENODEV) if !spec.kind.has_values() => {
                MapError::NoTarget
            }
            Some(libc::EINVAL) => MapError::Invalid,
            _ => MapError::Kernel { what, source },
        }
    }

    pub(super) fn number(&self) -> i32 {
        self.map.as_fd().as_raw_fd()
    }
}

impl BpfMap for KernelMap {
    fn spec(&self) -> MapSpec {
        self.map.spec()
    }

    fn value(&self, key: &[u8]) -> Result<Vec<u8>, MapError> {
        MapError::check("key", key, self.spec().key_length())?;
        self.map.look_up(key).map_err(|error| self.failed("reading an entry", error))
    }

    fn put(&mut self, key: &[u8], value: &[u8], put: UpdateMode) -> Result<(), MapError> {
        self.write(key, value, put)
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), MapError> {
        self.delete(key)
    }

    fn keys(&self) -> Result<Vec<Vec<u8>>, MapError> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // While others write, the kernel may restart the iteration: bound it.
        let bound =
            usize::try_from(self.spec().entries_max).unwrap_or(usize::MAX).saturating_mul(2);
        while keys.len() < bound {
            match self.map.next_key(keys.last().map(Vec::as_slice)) {
                Ok(key) => keys.push(key),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return Err(self.failed("listing the keys", error)),
            }
        }
        if self.spec().kind == MapKind::LpmTrie {
            // The kernel keeps the bits behind a prefix as given.
            let cut = |key: &Vec<u8>| prefix(key).and_then(|(length, _)| masked(key, length));
            keys = keys.iter().filter_map(cut).collect();
        }
        Ok(keys)
    }
}
