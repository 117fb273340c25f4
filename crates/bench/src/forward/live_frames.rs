//! Live XDP frames: how they look, the program that makes them, and the one that counts them.

use vigie_forward::bpf::{
    Assembler, BpfMap, Condition, Helper, LoadedProgram, MapSpec, Program, ProgramKind,
    Register::{R0, R1, R2, R10},
    Size, XDP_DROP,
};

use crate::host::Namespace;

/// Bytes of a frame, without its check sequence.
pub(super) const FRAME_BYTES: usize = 64;

/// The two ends of a frame: sender, then destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameEnds {
    pub(super) macs: ([u8; 6], [u8; 6]),
    pub(super) addresses: ([u8; 4], [u8; 4]),
    pub(super) ports: (u16, u16),
}

impl FrameEnds {
    /// Returns a frame of UDP, right to the last bit.
    pub(super) fn frame(&self) -> Vec<u8> {
        self.frame_of(FRAME_BYTES)
    }

    /// Returns such a frame of so many bytes, at least 42.
    pub(super) fn frame_of(&self, bytes: usize) -> Vec<u8> {
        let mut frame = Vec::with_capacity(bytes);
        frame.extend(self.macs.1);
        frame.extend(self.macs.0);
        frame.extend([8, 0, 0x45, 0]);
        let length = u16::try_from(bytes - 14).unwrap_or(0);
        frame.extend(length.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(self.addresses.0);
        frame.extend(self.addresses.1);
        frame.extend(self.ports.0.to_be_bytes());
        frame.extend(self.ports.1.to_be_bytes());
        frame.extend((length - 20).to_be_bytes());
        frame.resize(bytes, 0);
        let mut packet = vigie_forward::packet::Packet::new(vigie_forward::packet::Port(0), &frame);
        // It is IPv4 with UDP, as written above.
        let _ = packet.fill_checksums();
        packet.bytes().to_vec()
    }
}

/// Redirects what the generator makes to an interface. The kernel does not restore what was changed on the way in a
/// frame that is used again: its bytes are written anew.
pub(super) fn feeding(interface: u32, frame: &[u8]) -> Result<Program, String> {
    let mut a = Assembler::new("vigie_feeds", ProgramKind::Xdp);
    let short = a.label();
    a.load(Size::Word, R2, R1, 0).load(Size::Word, R0, R1, 4).set(R1, R2).add(R1, 44);
    a.branch(Condition::Greater, R1, R0, short);
    let (words, _) = frame.as_chunks::<4>();
    for (offset, word) in (0_i16..44).step_by(4).zip(words) {
        a.store(Size::Word, R2, offset, i32::from_ne_bytes(*word));
    }
    a.set(R1, i32::try_from(interface).unwrap_or(0)).set(R2, 0).call(Helper::Redirect).exit();
    a.bind(short).set(R0, XDP_DROP).exit();
    a.finish().map_err(|error| error.to_string())
}

/// Counts, and drops.
pub(super) fn counting() -> Result<Program, String> {
    let mut a = Assembler::new("vigie_counts", ProgramKind::Xdp);
    let counts = a.map(MapSpec::per_cpu_array(8, 1));
    let end = a.label();
    a.store(Size::Word, R10, -4, 0).set(R2, R10).add(R2, -4).load_map(R1, counts);
    a.call(Helper::MapLookup).branch(Condition::Equal, R0, 0, end);
    a.load(Size::Double, R1, R0, 0).add(R1, 1).store(Size::Double, R0, 0, R1);
    a.bind(end).set(R0, XDP_DROP).exit();
    a.finish().map_err(|error| error.to_string())
}

/// Returns the sum over all processors of the first number of a per-CPU array.
pub(super) fn sum(program: &LoadedProgram, map: usize, word: usize) -> Result<u64, String> {
    let map = program.maps().get(map).ok_or("no such map")?;
    let value = map.value(&[0; 4]).map_err(|error| error.to_string())?;
    let bytes = usize::try_from(map.spec().value_bytes).unwrap_or(8).next_multiple_of(8);
    let of_processor = |value: &[u8]| {
        let number = value.get(word * 8..).and_then(|rest| rest.first_chunk::<8>());
        number.map_or(0, |number| u64::from_ne_bytes(*number))
    };
    Ok(value.chunks_exact(bytes).map(of_processor).sum())
}

pub(super) fn index(namespace: &Namespace, name: &str) -> Result<u32, String> {
    let output = namespace.command("ip").args(["-o", "link", "show", "dev", name]).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let number = said.split(':').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("`ip link show dev {name}` gives no index"))
}

/// Returns the Ethernet address of an interface.
pub(super) fn address(host: &Namespace, name: &str) -> Result<[u8; 6], String> {
    let output = host.command("ip").args(["-o", "link", "show", "dev", name]).output();
    let output = output.map_err(|error| format!("`nsenter`: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    let bytes = words.nth(1).unwrap_or_default().split(':');
    let bytes: Vec<u8> = bytes.filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().map_err(|_| format!("`ip link show dev {name}` gives no address"))
}
