//! Three namespaces joined by veth pairs, a generator in the first, a counter in the last.
//!
//! ```text
//!   live frames ─▶ vn-g ═══ vn-in │ the program │ vn-out ═══ vn-s ─▶ counted, dropped
//! ```

use vigie_forward::bpf::{
    AttachMode, Attachment, Generator, LoadedProgram, Program, ProgramKind, XDP_PASS,
    constant_program,
};

use super::super::live_frames::{FrameEnds, counting, feeding, index, sum};
use crate::error::Missing;
use crate::host::{Namespace, allowed, enter, pin};

/// The initial addresses of frames: sender and destination.
pub(super) const SOURCE: [u8; 4] = [10, 9, 0, 2];
pub(super) const DESTINATION: [u8; 4] = [10, 9, 1, 2];
pub(super) const PORTS: (u16, u16) = (7, 9);

/// The initial frame.
pub(super) fn frame() -> Vec<u8> {
    let macs = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    FrameEnds { macs, addresses: (SOURCE, DESTINATION), ports: PORTS }.frame()
}

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
        let (generator, counter) = (load(&feeding(source, &frame())?)?, load(&counting()?)?);
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
