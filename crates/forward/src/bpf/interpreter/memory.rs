//! The memory of a program: regions that are checked at every access.

use super::{Fault, PacketBuffer, RunContext};
use crate::bpf::{insn::Size, program::ProgramKind, user_map::UserMap};

/// The highest 16 bits of an address say which region it points into.
const CONTEXT: u64 = 1 << 48;
const PACKET: u64 = 2 << 48;
const STACK: u64 = 3 << 48;
const MAP: u64 = 4 << 48;
const VALUE: u64 = 5 << 48;
const REGION: u64 = 0xffff << 48;
/// In the address of a byte of the packet, how often its bytes had been moved.
const MOVES_SHIFT: u32 = 32;

pub(super) const STACK_BYTES: usize = 512;
/// Words of `struct __sk_buff`.
const FIELDS: usize = 48;

/// Offsets in `struct __sk_buff` that programs can read, and those that they can also write.
const SKB_READ: [u64; 9] = [0, 4, 16, 20, 36, 40, 132, 136, 176];
const SKB_WRITE: [u64; 7] = [8, 32, 48, 52, 56, 60, 64];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// The word of the packet's type, and the last type that programs may set (`PACKET_OTHERHOST`).
const SKB_PACKET_TYPE: usize = 1;
const PACKET_TYPE_MAX: u32 = 3;
/// The word of the length of each segment, and the longest packet without segments that every kernel gives a header to (`BPF_SKB_MAX_LEN`, with
/// `CONFIG_MAX_SKB_FRAGS=45`).
const SKB_SEGMENT_BYTES: usize = 44;
const WITHOUT_SEGMENTS_MAX: i64 = 15_616;
const SKB_DATA: u64 = 76;
const SKB_DATA_END: u64 = 80;

/// The memory of one run.
pub(super) struct Memory<'a> {
    kind: ProgramKind,
    pub(super) packet: &'a mut PacketBuffer,
    pub(super) maps: &'a mut [UserMap],
    stack: [u8; STACK_BYTES],
    fields: [u32; FIELDS],
    /// How often the packet's bytes were moved: addresses from before are invalid.
    moves: u64,
}

fn low32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

fn to_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl<'a> Memory<'a> {
    pub(super) fn new(
        kind: ProgramKind,
        run_context: &RunContext,
        packet: &'a mut PacketBuffer,
        maps: &'a mut [UserMap],
    ) -> Self {
        let mut fields = [0; FIELDS];
        let length = u32::try_from(packet.frame().len()).unwrap_or(u32::MAX);
        if kind == ProgramKind::Xdp {
            fields[3] = run_context.interface;
            fields[4] = run_context.queue;
        } else {
            fields[0] = length;
            let protocol = match (run_context.is_headerless, packet.frame()) {
                (false, frame) => frame.get(12..14).and_then(|bytes| bytes.try_into().ok()),
                (true, [first, ..]) if first >> 4 == 6 => Some(IPV6.to_be_bytes()),
                (true, _) => Some(IPV4.to_be_bytes()),
            };
            fields[4] = u32::from(protocol.map_or(0, u16::from_ne_bytes));
            fields[9] = run_context.interface;
            fields[10] = run_context.interface;
        }
        Self { kind, packet, maps, stack: [0; STACK_BYTES], fields, moves: 0 }
    }

    pub(super) const fn kind(&self) -> ProgramKind {
        self.kind
    }

    pub(super) const fn context() -> u64 {
        CONTEXT
    }

    pub(super) fn stack_end() -> u64 {
        STACK + to_u64(STACK_BYTES)
    }

    pub(super) fn map(index: u32) -> u64 {
        MAP | u64::from(index)
    }

    /// The index of a map that a register holds.
    pub(super) fn map_of(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address & !REGION).ok()?;
        (address & REGION == MAP && index < self.maps.len()).then_some(index)
    }

    /// The address of a value.
    pub(super) fn value(map: usize, slot: u32) -> u64 {
        VALUE | to_u64(map) << 40 | u64::from(slot) << 20
    }

    /// The bytes at an address, if all of them are in one region.
    fn place(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let at = |mask: u64| usize::try_from(address & mask).ok();
        let (whole, start): (&mut [u8], usize) = match address & REGION {
            PACKET => {
                let start =
                    usize::try_from((address & !REGION) ^ (self.moves << MOVES_SHIFT)).ok()?;
                if start < self.packet.start {
                    return None;
                }
                (&mut self.packet.bytes[..self.packet.end], start)
            }
            STACK => (&mut self.stack, at(!REGION)?),
            VALUE => {
                let map = usize::try_from(address >> 40 & 0xff).ok()?;
                let slot = low32(address >> 20 & 0xf_ffff);
                (self.maps.get_mut(map)?.bytes_mut(slot)?, at(0xf_ffff)?)
            }
            _ => return None,
        };
        whole.get_mut(start..start.checked_add(length)?)
    }

    /// Reads a field of the context.
    fn field(&self, offset: u64, size: Size) -> Option<u64> {
        let base = PACKET + (self.moves << MOVES_SHIFT);
        let start = base + to_u64(self.packet.start);
        let end = base + to_u64(self.packet.end);
        let word = || self.fields.get(usize::try_from(offset / 4).ok()?).copied().map(u64::from);
        if size != Size::Word {
            return None;
        }
        match (self.kind, offset) {
            (ProgramKind::Xdp, 0 | 8) | (_, SKB_DATA) => Some(start),
            (ProgramKind::Xdp, 4) | (_, SKB_DATA_END) => Some(end),
            (ProgramKind::Xdp, 12 | 16) => word(),
            (ProgramKind::Xdp, _) => None,
            _ if SKB_READ.contains(&offset) || SKB_WRITE.contains(&offset) => word(),
            _ => None,
        }
    }

    fn set_field(&mut self, offset: u64, size: Size, value: u64) -> Option<()> {
        if self.kind == ProgramKind::Xdp || size != Size::Word || !SKB_WRITE.contains(&offset) {
            return None;
        }
        *self.fields.get_mut(usize::try_from(offset / 4).ok()?)? = low32(value);
        Some(())
    }

    /// Returns whether the kernel would add so many bytes in front of the packet.
    pub(super) fn has_room_for(&self, bytes: i64) -> bool {
        let length = i64::from(self.fields[0]) + bytes;
        self.fields[SKB_SEGMENT_BYTES] != 0 || length <= WITHOUT_SEGMENTS_MAX
    }

    /// Adds bytes of zero in front of the packet, whose addresses change. Returns whether there was room.
    pub(super) fn add_front(&mut self, bytes: i64) -> bool {
        self.moves += 1;
        let before = self.packet.start;
        let has_room = self.packet.adjust_head(-bytes);
        self.packet.bytes[self.packet.start..before].fill(0);
        self.fields[0] = u32::try_from(self.packet.frame().len()).unwrap_or(u32::MAX);
        has_room
    }

    /// As the helper: only these types are exchanged.
    pub(super) fn set_packet_type(&mut self, new: u32) -> u64 {
        let word = &mut self.fields[SKB_PACKET_TYPE];
        if *word > PACKET_TYPE_MAX || new > PACKET_TYPE_MAX {
            return i64::from(-22).cast_unsigned();
        }
        *word = new;
        0
    }

    /// Returns the number of the host that the packet is for.
    pub(super) const fn packet_type(&self) -> u32 {
        match self.kind {
            ProgramKind::Xdp => 0,
            _ => self.fields[SKB_PACKET_TYPE],
        }
    }

    /// Executes a load.
    pub(super) fn load(&mut self, at: usize, address: u64, size: Size) -> Result<u64, Fault> {
        let bytes = size.bytes();
        let fault = Fault::Memory { at, address, bytes, is_write: false };
        if address & REGION == CONTEXT {
            return self.field(address & !REGION, size).ok_or(fault);
        }
        let length = usize::try_from(bytes).unwrap_or(8);
        let place = self.place(address, length).ok_or(fault)?;
        Ok(read(place, size))
    }

    /// Executes a store.
    pub(super) fn store(
        &mut self,
        at: usize,
        address: u64,
        size: Size,
        value: u64,
    ) -> Result<(), Fault> {
        let bytes = size.bytes();
        let fault = Fault::Memory { at, address, bytes, is_write: true };
        if address & REGION == CONTEXT {
            return self.set_field(address & !REGION, size, value).ok_or(fault);
        }
        let length = usize::try_from(bytes).unwrap_or(8);
        let place = self.place(address, length).ok_or(fault)?;
        match size {
            Size::Byte => place.copy_from_slice(&value.to_le_bytes()[..1]),
            Size::Half => {
                let [a, b, ..] = value.to_le_bytes();
                place.copy_from_slice(&u16::from_le_bytes([a, b]).to_ne_bytes());
            }
            Size::Word => place.copy_from_slice(&low32(value).to_ne_bytes()),
            Size::Double => place.copy_from_slice(&value.to_ne_bytes()),
        }
        Ok(())
    }

    /// Reads the bytes that a helper's argument points to.
    pub(super) fn bytes(
        &mut self,
        at: usize,
        address: u64,
        length: usize,
    ) -> Result<Vec<u8>, Fault> {
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        let fault = Fault::Memory { at, address, bytes, is_write: false };
        Ok(self.place(address, length).ok_or(fault)?.to_vec())
    }
}

/// Reads `size` bytes, in native order.
fn read(place: &[u8], size: Size) -> u64 {
    match (size, place) {
        (Size::Byte, [a, ..]) => u64::from(*a),
        (Size::Half, [a, b, ..]) => u64::from(u16::from_ne_bytes([*a, *b])),
        (Size::Word, [a, b, c, d, ..]) => u64::from(u32::from_ne_bytes([*a, *b, *c, *d])),
        (Size::Double, bytes) => bytes.try_into().map_or(0, u64::from_ne_bytes),
        _ => 0,
    }
}
