//! Three namespaces joined by veth pairs, a generator in the first, a counter in the last.
//!
//! ```text
//!   live frames ─▶ vn-g ═══ vn-in │ the program │ vn-out ═══ vn-s ─▶ counted, dropped
//! ```

use vigie_forward::bpf::{
    Assembler, AttachMode, Attachment, BpfMap, Condition, Generator, Helper, LoadedProgram,
    MapSpec, Program, ProgramKind,
    Register::{R0, R1, R2, R10},
    Size, XDP_DROP, XDP_PASS, constant_program,
};

use crate::error::Missing;
use crate::host::{Namespace, allowed, enter, pin};

/// Bytes of a frame, without its check sequence.
pub(super) const FRAME_BYTES: usize = 64;
/// The initial addresses of frames: sender and destination.
pub(super) const SOURCE: [u8; 4] = [10, 9, 0, 2];
pub(super) const DESTINATION: [u8; 4] = [10, 9, 1, 2];
pub(super) const PORTS: (u16, u16) = (7, 9);

/// The pairs, as long as they are wanted.
#[derive(Debug)]
pub(super) struct VethPairs {
    namespaces: [Namespace; 3],
    generator: LoadedProgram,
    counter: LoadedProgram,
    /// The index of the interface from which frames come.
    source: u32,
    pub(super) arrival: u32,
    pub(super) departure: u32,
    _attached: Vec<Attachment>,
}

/// A frame of UDP, right to the last bit.
pub(super) fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    let length = u16::try_from(FRAME_BYTES - 14).unwrap_or(0);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(SOURCE);
    frame.extend(DESTINATION);
    frame.extend(PORTS.0.to_be_bytes());
    frame.extend(PORTS.1.to_be_bytes());
    frame.extend((length - 20).to_be_bytes());
    frame.resize(FRAME_BYTES, 0);
    let mut packet = vigie_forward::packet::Packet::new(vigie_forward::packet::Port(0), &frame);
    // It is IPv4 with UDP, as written above.
    let _ = packet.fill_checksums();
    packet.bytes().to_vec()
}

/// Redirects what the generator makes into the first pair. The kernel does not restore what was changed on the way in a
/// frame that is used again: its bytes are written anew.
fn feeding(interface: u32) -> Result<Program, String> {
    let mut a = Assembler::new("vigie_feeds", ProgramKind::Xdp);
    let short = a.label();
    let frame = frame();
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
fn counting() -> Result<Program, String> {
    let mut a = Assembler::new("vigie_counts", ProgramKind::Xdp);
    let counts = a.map(MapSpec::per_cpu_array(8, 1));
    let end = a.label();
    a.store(Size::Word, R10, -4, 0).set(R2, R10).add(R2, -4).load_map(R1, counts);
    a.call(Helper::MapLookup).branch(Condition::Equal, R0, 0, end);
    a.load(Size::Double, R1, R0, 0).add(R1, 1).store(Size::Double, R0, 0, R1);
    a.bind(end).set(R0, XDP_DROP).exit();
    a.finish().map_err(|error| error.to_string())
}

/// The sum over all processors of the first number of a per-CPU array.
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

fn index(namespace: &Namespace, name: &str) -> Result<u32, String> {
    let output = namespace.command("ip").args(["-o", "link", "show", "dev", name]).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let number = said.split(':').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("`ip link show dev {name}` gives no index"))
}

impl VethPairs {
    /// Makes the pairs, and leaves this thread on one core.
    pub(super) fn make() -> Result<Self, String> {
        let missing = |missing: Missing| missing.to_string();
        let text = |error: &dyn std::error::Error| error.to_string();
        let namespaces = || Ok([Namespace::make()?, Namespace::make()?, Namespace::make()?]);
        let namespaces = namespaces().map_err(missing)?;
        let [one, two, three] = &namespaces;
        let ip = |namespace: &Namespace, what: &str| namespace.run("ip", what).map_err(missing);
        ip(two, &format!("link add vn-in type veth peer name vn-g netns {}", one.id()))?;
        ip(two, &format!("link add vn-out type veth peer name vn-s netns {}", three.id()))?;
        for (holder, name) in [(one, "vn-g"), (two, "vn-in"), (two, "vn-out"), (three, "vn-s")] {
            ip(holder, &format!("link set {name} addrgenmode none up"))?;
        }
        // What changes tables has the other cores.
        pin(&allowed()[..1]).map_err(|error| error.to_string())?;
        let [source, sink] = [index(one, "vn-g")?, index(three, "vn-s")?];
        let load = |program: &Program| LoadedProgram::load(program).map_err(|error| text(&error));
        let (generator, counter) = (load(&feeding(source)?)?, load(&counting()?)?);
        let pass = load(&constant_program(ProgramKind::Xdp, XDP_PASS))?;
        let mut attached = Vec::new();
        for (holder, program, interface) in [(three, &counter, sink), (one, &pass, source)] {
            enter_into(holder)?;
            let one = Attachment::new(program, interface, AttachMode::Native);
            attached.push(one.map_err(|error| text(&error))?);
        }
        let [arrival, departure] = [index(two, "vn-in")?, index(two, "vn-out")?];
        Ok(Self { namespaces, generator, counter, source, arrival, departure, _attached: attached })
    }

    /// Moves this thread to where the program is.
    pub(super) fn forwarder(&self) -> Result<(), String> {
        enter_into(&self.namespaces[1])
    }

    /// Makes frames, and returns when all were handled.
    pub(super) fn burst(&self, count: u32) -> Result<(), String> {
        enter_into(&self.namespaces[0])?;
        let generator = Generator::new(&self.generator, &frame(), self.source);
        generator.burst(count).map_err(|error| error.to_string())
    }

    /// Frames that have arrived so far.
    pub(super) fn delivered(&self) -> Result<u64, String> {
        sum(&self.counter, 0, 0)
    }
}

fn enter_into(namespace: &Namespace) -> Result<(), String> {
    enter(&namespace.path()).map_err(|error| error.to_string())
}
