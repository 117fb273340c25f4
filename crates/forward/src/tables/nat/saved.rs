//! A table's flows as bytes, so that a process that starts again goes on with them.
//!
//! ```text
//!   magic, version │ count │ count × flow │ checksum of all before
//!   flow: two tuples (source, destination: length of the address, address, port; protocol, is it an answer), phase, idle
//! ```
//! Numbers are in network order. What TCP has acknowledged is not kept: the first segments after a start tell it.

use std::{
    hash::Hasher,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use siphasher::sip::SipHasher13;
use thiserror::Error;

use super::{NatEndpoint, NatFlow, NatTuple};

const MAGIC: [u8; 8] = *b"vigieNAT";
const VERSION: u32 = 1;
/// The magic, the version and the count; and the checksum at the end.
const HEAD_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

/// The reason why saved flows cannot be restored; the table stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NatRestoreError {
    /// The bytes are something else.
    #[error("it holds no translated flows")]
    Foreign,
    /// They are of another version of the format.
    #[error("its format is of version {found}, and this program reads version {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// They end early, or were changed.
    #[error("it is damaged, or was not written to the end")]
    Damaged,
}

/// A flow as it is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedFlow {
    pub(super) flow: NatFlow,
    /// The number of its phase.
    pub(super) phase: u8,
    /// The time since its last packet.
    pub(super) idle: Duration,
}

pub(super) fn write(flows: impl ExactSizeIterator<Item = SavedFlow>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend(u32::try_from(flows.len()).unwrap_or(u32::MAX).to_be_bytes());
    for SavedFlow { flow, phase, idle } in flows {
        for tuple in [flow.original, flow.translated] {
            for end in [tuple.source, tuple.destination] {
                match end.address {
                    IpAddr::V4(address) => {
                        bytes.push(4);
                        bytes.extend(address.octets());
                    }
                    IpAddr::V6(address) => {
                        bytes.push(16);
                        bytes.extend(address.octets());
                    }
                }
                bytes.extend(end.port.to_be_bytes());
            }
            bytes.extend([tuple.protocol, u8::from(tuple.is_echo_reply)]);
        }
        bytes.push(phase);
        bytes.extend(u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX).to_be_bytes());
    }
    let checksum = checksum(&bytes);
    bytes.extend(checksum);
    bytes
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish().to_be_bytes()
}

pub(super) fn read(bytes: &[u8]) -> Result<Vec<SavedFlow>, NatRestoreError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(NatRestoreError::Foreign)?;
    let mut reader = Reader(rest);
    let found = reader.take().map(u32::from_be_bytes).ok_or(NatRestoreError::Damaged)?;
    if found != VERSION {
        return Err(NatRestoreError::Version { found });
    }
    let damaged = NatRestoreError::Damaged;
    let (all, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(damaged)?;
    if checksum(all) != *sum {
        return Err(damaged);
    }
    let count = reader.take().map(u32::from_be_bytes).ok_or(damaged)?;
    let mut reader = Reader(all.get(HEAD_BYTES..).ok_or(damaged)?);
    let flows = (0..count).map(|_| reader.flow()).collect::<Option<Vec<_>>>();
    flows.filter(|_| reader.0.is_empty()).ok_or(damaged)
}

/// Bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn end(&mut self) -> Option<NatEndpoint> {
        let address = match self.take()? {
            [4] => Ipv4Addr::from(self.take::<4>()?).into(),
            [16] => Ipv6Addr::from(self.take::<16>()?).into(),
            _ => return None,
        };
        Some(NatEndpoint::new(address, u16::from_be_bytes(self.take()?)))
    }

    fn tuple(&mut self) -> Option<NatTuple> {
        let (source, destination) = (self.end()?, self.end()?);
        let [protocol, is_echo_reply] = self.take()?;
        let is_echo_reply = match is_echo_reply {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(NatTuple { protocol, source, destination, is_echo_reply })
    }

    fn flow(&mut self) -> Option<SavedFlow> {
        let flow = NatFlow::new(self.tuple()?, self.tuple()?);
        let [phase] = self.take()?;
        let idle = Duration::from_nanos(u64::from_be_bytes(self.take()?));
        Some(SavedFlow { flow, phase, idle })
    }
}
