//! The kernel's functions, implemented in this process.

use super::{Fault, Redirect, Run, extended, folded, lower};
use crate::bpf::{
    helper::Helper,
    insn::ChecksumState,
    map::{BpfMap, MapError, MapKind, UpdateMode},
    program::ProgramKind,
};

/// As with the usual 250 ticks a second.
const TICK_NS: u64 = 4_000_000;
const XDP_ABORTED: u64 = 0;
const XDP_REDIRECT: u64 = 4;
const TC_REDIRECT: u64 = 7;
/// `BPF_F_BROADCAST`, `BPF_F_EXCLUDE_INGRESS`.
const BROADCAST: u64 = 8;
const BUT_INGRESS: u64 = 16;
/// `BPF_F_PSEUDO_HDR`, `BPF_F_MARK_MANGLED_0`, `BPF_F_MARK_ENFORCE`.
const PSEUDO_HEADER: u64 = 16;
const MARK_MANGLED_0: u64 = 32;
const MARK_ENFORCED: u64 = 64;
/// The lower bits of a redirection's flags: its result if the entry is missing.
const OTHERWISE: u64 = 3;

/// The negative error that a program sees.
fn error_code(error: &MapError) -> u64 {
    extended(match error {
        MapError::Full { .. } => -7,
        MapError::Missing => -2,
        MapError::Exists => -17,
        _ => -22,
    })
}

impl Run<'_> {
    pub(super) fn call(&mut self, at: usize, helper: Helper) -> Result<u64, Fault> {
        let [_, a, b, c, d, e, ..] = self.registers;
        let is_xdp = self.memory.kind() == ProgramKind::Xdp;
        let result = match helper {
            Helper::MapLookup => self.look_up(at, a, b)?,
            Helper::MapUpdate => self.update(at, [a, b, c, d])?,
            Helper::MapDelete => self.delete(at, a, b)?,
            Helper::Ticks => self.run_context.time_ns / TICK_NS,
            Helper::MonotonicTime | Helper::MonotonicTimeCoarse => self.run_context.time_ns,
            Helper::Processor => u64::from(self.run_context.processor),
            Helper::ReplaceTransportChecksum if !is_xdp => {
                self.replace_transport_checksum(b, c, d, e)
            }
            Helper::CloneRedirect if !is_xdp => {
                self.clones.push(lower(b));
                0
            }
            Helper::Redirect => {
                self.redirect = Some(Redirect::Interface(lower(a)));
                if is_xdp { XDP_REDIRECT } else { TC_REDIRECT }
            }
            Helper::ChangePacketType if !is_xdp => self.memory.set_packet_type(lower(b)),
            Helper::PullData if !is_xdp => {
                // The whole frame is already readable.
                let has = u64::try_from(self.memory.packet.frame().len()).unwrap_or(0) >= b;
                if has { 0 } else { extended(-12) }
            }
            Helper::UpdateCompleteChecksum if !is_xdp => {
                let has_sum = self.memory.packet.checksum == ChecksumState::Complete;
                self.sum_change += if has_sum { u64::from(lower(b)) } else { 0 };
                if has_sum { 0 } else { extended(-524) }
            }
            Helper::ChangeHead if !is_xdp => {
                let bytes = i64::from(lower(b));
                let fits = c == 0 && self.memory.has_room_for(bytes);
                let has_room = fits && self.memory.add_front(bytes);
                if has_room { 0 } else { extended(-22) }
            }
            Helper::AdjustHead if is_xdp => {
                let by = lower(b).cast_signed();
                if self.memory.packet.adjust_head(i64::from(by)) { 0 } else { extended(-22) }
            }
            Helper::FrameLength if is_xdp => {
                u64::try_from(self.memory.packet.frame().len()).unwrap_or(u64::MAX)
            }
            Helper::RedirectMap if is_xdp => self.redirect_map(at, a, b, c)?,
            _ => return Err(Fault::Helper { at }),
        };

        Ok(result)
    }

    /// Only differences are known.
    fn replace_transport_checksum(&mut self, offset: u64, from: u64, to: u64, flags: u64) -> u64 {
        let known = flags & !(MARK_MANGLED_0 | MARK_ENFORCED | PSEUDO_HEADER) == 0;
        if !known || from != 0 || offset > 0xffff || !offset.is_multiple_of(2) {
            return extended(-22);
        }
        let (packet, at) = (&mut self.memory.packet, usize::try_from(offset).unwrap_or(0));
        let frame = &mut packet.bytes[packet.start..packet.end];
        let Some(place) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) else {
            return extended(-14);
        };
        let old = u16::from_ne_bytes(*place);
        if flags & MARK_MANGLED_0 != 0 && flags & MARK_ENFORCED == 0 && old == 0 {
            return 0;
        }
        let to = u64::from(lower(to));
        let mut new = match packet.checksum {
            ChecksumState::Partial if flags & PSEUDO_HEADER == 0 => return 0,
            ChecksumState::Partial => folded(to + u64::from(old)),
            _ => !folded(to + u64::from(!old)),
        };
        if flags & MARK_MANGLED_0 != 0 && new == 0 {
            new = 0xffff;
        }
        *place = new.to_ne_bytes();
        if flags & PSEUDO_HEADER != 0 && packet.checksum == ChecksumState::Complete {
            // As if another checksum made up for the addresses, as in IPv4.
            self.sum_change += u64::from(!lower(to));
        }
        0
    }

    /// The map in R1, and the key at an address.
    fn map_and_key(&mut self, at: usize, map: u64, key: u64) -> Result<(usize, Vec<u8>), Fault> {
        let map = self.memory.map_of(map).ok_or(Fault::Helper { at })?;
        let length = self.memory.maps[map].spec().key_length();
        Ok((map, self.memory.bytes(at, key, length)?))
    }

    fn look_up(&mut self, at: usize, map: u64, key: u64) -> Result<u64, Fault> {
        let (map, key) = self.map_and_key(at, map, key)?;
        if !self.memory.maps[map].spec().kind.has_values() {
            return Err(Fault::Helper { at });
        }
        let slot = self.memory.maps[map].slot(&key);
        Ok(slot.map_or(0, |slot| super::Memory::value(map, slot)))
    }

    fn update(&mut self, at: usize, arguments: [u64; 4]) -> Result<u64, Fault> {
        let [map, key, value, flags] = arguments;
        let (map, key) = self.map_and_key(at, map, key)?;
        let spec = self.memory.maps[map].spec();
        if !spec.kind.has_values() {
            return Err(Fault::Helper { at });
        }
        let mut value = self.memory.bytes(at, value, spec.value_length())?;
        if spec.kind == MapKind::PerCpuArray {
            value.resize(value.len().next_multiple_of(8), 0);
        }
        let Some(put) = UpdateMode::from_number(flags) else { return Ok(extended(-22)) };
        let done = self.memory.maps[map].put(&key, &value, put);
        Ok(done.map_or_else(|error| error_code(&error), |()| 0))
    }

    fn delete(&mut self, at: usize, map: u64, key: u64) -> Result<u64, Fault> {
        let (map, key) = self.map_and_key(at, map, key)?;
        if !self.memory.maps[map].spec().kind.has_values() {
            return Err(Fault::Helper { at });
        }
        let done = self.memory.maps[map].remove(&key);
        Ok(done.map_or_else(|error| error_code(&error), |()| 0))
    }

    /// The entry of a map of interfaces.
    fn entry(&mut self, map: usize, key: &[u8]) -> Option<u32> {
        let map = &mut self.memory.maps[map];
        let slot = map.slot(key)?;
        let bytes = map.bytes(slot)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    }

    fn redirect_map(&mut self, at: usize, map: u64, key: u64, flags: u64) -> Result<u64, Fault> {
        let map = self.memory.map_of(map).ok_or(Fault::Helper { at })?;
        let kind = self.memory.maps[map].spec().kind;
        if !matches!(kind, MapKind::DevMap | MapKind::DevMapHash) {
            return Err(Fault::Helper { at });
        }
        let index = u32::try_from(map).unwrap_or(u32::MAX);
        if flags & BROADCAST != 0 {
            let exclude_ingress = flags & BUT_INGRESS != 0;
            self.redirect = Some(Redirect::Broadcast { map: index, exclude_ingress });
            return Ok(XDP_REDIRECT);
        }
        if flags & !OTHERWISE != 0 {
            return Ok(XDP_ABORTED);
        }
        let Some(value) = self.entry(map, &lower(key).to_ne_bytes()) else {
            return Ok(flags & OTHERWISE);
        };
        self.redirect = Some(Redirect::Entry { map: index, value });
        Ok(XDP_REDIRECT)
    }
}
