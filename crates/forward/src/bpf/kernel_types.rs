//! Where the running kernel keeps what its helpers do not tell, by its description of its own types (BTF).

use std::{fs, sync::OnceLock};

const KERNEL: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;

/// How a program reads a packet's `ip_summed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChecksumField {
    /// The number of `bpf_cast_to_kern_ctx`, which the verifier replaces by a move.
    pub(super) cast: i32,
    /// The offset in bytes in `struct sk_buff`, and the field's lowest bit there.
    pub(super) offset: i16,
    pub(super) bit: i32,
}

impl ChecksumField {
    /// Returns what the running kernel says, if it does.
    pub(super) fn of_kernel() -> Option<Self> {
        static FIELD: OnceLock<Option<ChecksumField>> = OnceLock::new();
        *FIELD.get_or_init(|| Self::find(&fs::read(KERNEL).ok()?))
    }

    fn find(btf: &[u8]) -> Option<Self> {
        let types = Types::new(btf)?;
        let cast = types.named("bpf_cast_to_kern_ctx", FUNCTION)?;
        let bits = types.member(types.named("sk_buff", STRUCT)?, "ip_summed", 0)?;
        let bit = i32::try_from(bits % 8).ok()?;
        Some(Self {
            cast: i32::try_from(cast).ok()?,
            offset: i16::try_from(bits / 8).ok()?,
            // Big-endian machines number bits from the other end.
            bit: if cfg!(target_endian = "little") { bit } else { 8 - bit - CHECKSUM_BITS },
        })
    }
}

/// The length of the field in bits.
const CHECKSUM_BITS: i32 = 2;
/// Structures without names lie in each other, a few deep.
const DEPTH_MAX: u32 = 8;

/// The types of a kernel.
struct Types<'a> {
    strings: &'a [u8],
    /// The bytes from each type on, by its number less 1.
    types: Vec<&'a [u8]>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn size(number: u32) -> Option<usize> {
    usize::try_from(number).ok()
}

/// The kind of a type, and how many parts it has.
fn kind(one: &[u8]) -> Option<(u32, usize)> {
    let information = word(one, 4)?;
    Some((information >> 24 & 0x1f, size(information & 0xffff)?))
}

impl<'a> Types<'a> {
    fn new(btf: &'a [u8]) -> Option<Self> {
        if u16::from_ne_bytes(*btf.first_chunk()?) != MAGIC {
            return None;
        }
        let header = size(word(btf, 4)?)?;
        let part = |at: usize| {
            let (from, bytes) = (size(word(btf, at)?)?, size(word(btf, at + 4)?)?);
            btf.get(header.checked_add(from)?..)?.get(..bytes)
        };
        let (mut rest, strings) = (part(8)?, part(16)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            types.push(rest);
            let (kind, parts) = kind(rest)?;
            let behind = match kind {
                // Integers, variables, tags of declarations; arrays.
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCT | UNION | 15 | 19 => 12 * parts,
                // Enumerations, parameters.
                6 | 13 => 8 * parts,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            rest = rest.get(12 + behind..)?;
        }
        Some(Self { strings, types })
    }

    fn is_name(&self, at: u32, name: &str) -> bool {
        let bytes = size(at).and_then(|at| self.strings.get(at..));
        bytes
            .and_then(|bytes| bytes.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Returns the number of a type.
    fn named(&self, name: &str, wanted: u32) -> Option<u32> {
        let is_it = |one: &&[u8]| {
            kind(one).is_some_and(|(kind, _)| kind == wanted)
                && word(one, 0).is_some_and(|at| self.is_name(at, name))
        };
        let place = self.types.iter().position(is_it)?;
        u32::try_from(place + 1).ok()
    }

    /// Returns the offset in bits of a field, also in members without names.
    fn member(&self, number: u32, name: &str, depth: u32) -> Option<u32> {
        let one = *self.types.get(size(number.checked_sub(1)?)?)?;
        let (kind, parts) = kind(one)?;
        if !matches!(kind, STRUCT | UNION) || depth > DEPTH_MAX {
            return None;
        }
        // With this flag, the upper bits of an offset are the length of a bit field.
        let mask = if word(one, 4)? >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
        (0..parts).map(|part| 12 + 12 * part).find_map(|at| {
            let offset = word(one, at + 8)? & mask;
            match word(one, at)? {
                named if self.is_name(named, name) => Some(offset),
                0 => Some(offset + self.member(word(one, at + 4)?, name, depth + 1)?),
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types, each from its words, and the names that they use by their offsets.
    fn btf(types: &[&[u32]], strings: &[u8]) -> Vec<u8> {
        let types: Vec<u8> = types.concat().into_iter().flat_map(u32::to_ne_bytes).collect();
        let (types_length, strings_length) = (types.len(), strings.len());
        let numbers = [24, 0, types_length, types_length, strings_length];
        let words = numbers.map(|number| u32::try_from(number).unwrap().to_ne_bytes());
        let magic = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        [magic, words.concat(), types, strings.to_vec()].concat()
    }

    fn example() -> Vec<u8> {
        let strings = b"\0sk_buff\0ip_summed\0bpf_cast_to_kern_ctx\0len\0";
        let (sk_buff, ip_summed, cast, len) = (1, 9, 19, 40);
        let information = |kind: u32, parts: u32| kind << 24 | parts;
        let with_bits = |kind, parts| information(kind, parts) | 1 << 31;
        let types: &[&[u32]] = &[
            // An integer, a structure without a name, a union around it, the packet, a function, a type of the same name.
            &[0, information(1, 0), 4, 0],
            &[0, with_bits(STRUCT, 2), 4, len, 1, 0, ip_summed, 1, 2 << 24 | 13],
            &[0, information(UNION, 1), 4, 0, 2, 0],
            &[ip_summed, information(STRUCT, 1), 4, ip_summed, 1, 0],
            &[sk_buff, information(STRUCT, 2), 200, len, 1, 0, 0, 3, 1024],
            &[0, information(13, 1), 0, len, 1],
            &[cast, information(FUNCTION, 0), 6],
        ];
        btf(types, strings)
    }

    /// Goal: the field is found in members without names, by bytes and bits. Method: types by hand.
    #[test]
    fn a_field_is_found_by_its_name() {
        let found = ChecksumField::find(&example()).unwrap();
        let bit = if cfg!(target_endian = "little") { 5 } else { 1 };
        assert_eq!(found, ChecksumField { cast: 7, offset: 129, bit });
    }

    /// Goal: a description that is cut or wrong is refused, and nothing panics. Method: all beginnings of one, and each byte changed.
    #[test]
    fn broken_descriptions_are_none() {
        let whole = example();
        for length in 0..whole.len() - 1 {
            let _ = ChecksumField::find(&whole[..length]);
        }
        assert_eq!(ChecksumField::find(&whole[..60]), None);
        for at in 0..whole.len() {
            for change in [1, 0x80, 0xff] {
                let mut broken = whole.clone();
                broken[at] ^= change;
                let _ = ChecksumField::find(&broken);
            }
        }
    }
}
