//! The program at the interfaces: where it can be had, and why not.

use std::collections::BTreeMap;

use vigie::{
    Instant,
    forward::{
        bpf::Place,
        nic::{Nic, NicError, Settings},
        packet::Port,
        pipeline::{Reason, Stage},
        tables::{CounterSnapshot, Prefix},
    },
};

use crate::{
    config::PathChoice,
    journal::say,
    privileges::{Held, Right, listed},
};

/// What a router's program leaves to the host, which answers, cuts, asks, or drops and counts.
const PASSED_UP: [Reason; 7] = [
    Reason::Malformed,
    Reason::NotIp,
    Reason::TtlExpired,
    Reason::Filtered,
    Reason::NoRoute,
    Reason::NoNeighbour,
    Reason::TooLong,
];
/// Translations that are kept alive in one look.
const REFRESHED_MAX: usize = 256;

/// The word for a place, as the command line has it.
pub(super) const fn word(place: Place) -> &'static str {
    match place {
        Place::Native => "xdp-native",
        Place::Generic => "xdp-generic",
        Place::Tcx => "tcx",
    }
}

/// An interface of the flow.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) is_pair: bool,
    /// What is reached by it.
    pub(super) networks: Vec<Prefix>,
}

/// Why there is no program.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Rights are missing.
    Rights(String),
    /// No place would have it.
    Places(String),
}

impl Refusal {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Rights(text) | Self::Places(text) => text,
        }
    }
}

/// A program at all interfaces of a flow, or ready to be.
#[derive(Debug)]
pub(super) struct Program {
    nic: Nic,
    flow: String,
    interfaces: BTreeMap<Port, u32>,
    is_attached: bool,
    translates: bool,
    /// Its maps could not follow the tables: it is tried again.
    is_behind: bool,
}

/// Attaches a program at the first place that takes it.
pub(super) fn attach(
    flow: &str,
    (choice, needs): (PathChoice, Needs),
    ports: &[Door],
    stages: &[&dyn Stage],
    translates: bool,
) -> Result<(Program, Vec<String>), Refusal> {
    let missing = Held::now().missing(&[Right::Bpf, Right::NetAdmin]);
    if !missing.is_empty() {
        let missing = listed(&missing);
        return Err(Refusal::Rights(format!(
            "a program at the interface needs {missing}, which this process lacks"
        )));
    }
    let (places, mut reasons) = places(choice, needs, ports);
    let mut interfaces = BTreeMap::new();
    let mut builder = Nic::builder().settings(Settings::new().pass_up(&PASSED_UP));
    for (number, door) in (0..).zip(ports) {
        builder = builder.port(Port(number), door.index);
        interfaces.insert(Port(number), door.index);
    }
    for place in places {
        match builder.clone().places(&[place]).start(stages) {
            Ok(nic) => {
                let flow = flow.to_owned();
                let (is_attached, is_behind) = (true, false);
                let program = Program { nic, flow, interfaces, is_attached, translates, is_behind };
                return Ok((program, reasons));
            }
            Err(error) => reasons.push(format!("{}: {}", word(place), named(&error, ports))),
        }
    }
    Err(Refusal::Places(reasons.join("; ")))
}

/// Says what is wrong by the interface's name.
fn named(error: &NicError, ports: &[Door]) -> String {
    match error {
        NicError::Attach { port, source } => {
            let name = ports.get(usize::from(port.0)).map_or("?", |door| door.name.as_str());
            format!("{name}: {source}")
        }
        error => error.to_string(),
    }
}

/// What of a flow decides which places can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing of the host: a wire.
    Nothing,
    /// A host that gets what the program passes up, or the whole flow when it moves there.
    Host,
}

/// Returns which places are tried, and why others are not.
fn places(choice: PathChoice, needs: Needs, ports: &[Door]) -> (Vec<Place>, Vec<String>) {
    let mut places = match choice {
        PathChoice::Auto => Place::ALL.to_vec(),
        PathChoice::XdpNative => vec![Place::Native],
        PathChoice::XdpGeneric => vec![Place::Generic],
        PathChoice::Tcx => vec![Place::Tcx],
        PathChoice::AfXdp | PathChoice::AfPacket => Vec::new(),
    };
    let mut reasons = Vec::new();
    let mut leave_out = |place: Place, because: String| {
        if places.contains(&place) {
            places.retain(|one| *one != place);
            reasons.push(format!("{}: {because}", word(place)));
        }
    };
    if needs == Needs::Host {
        leave_out(
            Place::Tcx,
            "packet sockets see frames before it does, so that the host would forward them, too"
                .to_owned(),
        );
    }
    if choice != PathChoice::Auto {
        return (places, reasons);
    }
    if let Some(Door { name, .. }) = ports.iter().find(|door| door.is_pair) {
        leave_out(
            Place::Native,
            format!(
                "{name} is one end of a veth pair, where frames that are redirected vanish unless the other end has a \
                 program of XDP, too (--path xdp-native takes it all the same)"
            ),
        );
    }
    if needs == Needs::Nothing {
        leave_out(
            Place::Generic,
            "it drops frames of several segments, which a wire must carry (--path xdp-generic takes it all the same)"
                .to_owned(),
        );
    }
    (places, reasons)
}

impl Program {
    /// Returns where it runs, if it does.
    pub(super) fn place(&self) -> Option<Place> {
        self.nic.place(Port(0))
    }

    pub(super) const fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Returns whether it has all frames for itself: no host sees what it passes up.
    pub(super) fn is_alone(&self) -> bool {
        self.place() == Some(Place::Tcx)
    }

    /// Takes it away: everything goes up to the host from here on.
    pub(super) fn pause(&mut self) {
        self.nic.pause();
        self.is_attached = false;
    }

    /// Attaches it again.
    pub(super) fn resume(&mut self) -> Result<(), String> {
        self.nic.resume().map_err(|error| error.to_string())?;
        self.is_attached = true;
        self.is_behind = false;
        Ok(())
    }

    /// Takes note of an interface that is up, down, gone, or another one of the same name.
    pub(super) fn interface(&mut self, port: Port, index: u32, is_up: bool) {
        let known = self.interfaces.insert(port, index);
        let result = if known == Some(index) {
            if is_up { self.nic.open(port) } else { self.nic.close(port) }
        } else {
            let replaced = self.nic.replace(port, index);
            if !self.is_attached {
                self.nic.pause();
            }
            replaced
        };
        match result {
            Err(error) => say(format!("flow `{}`: its program: {error}", self.flow)),
            Ok(()) if known != Some(index) && self.is_attached => {
                say(format!("flow `{}`: its program is attached again at {port}", self.flow));
            }
            Ok(()) => {}
        }
    }

    /// Takes note that an interface is gone.
    pub(super) fn gone(&mut self, port: Port) {
        // Whatever returns is another one.
        self.interfaces.remove(&port);
        if let Err(error) = self.nic.close(port) {
            say(format!("flow `{}`: its program: {error}", self.flow));
        }
    }

    /// Keeps its maps like the tables, and the tables' translations alive.
    pub(super) fn follow(&mut self, now: Instant) {
        if self.is_behind {
            if self.is_attached && self.resume().is_ok() {
                say(format!("flow `{}`: its program is attached again", self.flow));
            }
            return;
        }
        if let Err(error) = self.nic.follow() {
            say(format!(
                "flow `{}`: its program is taken away, the host forwards: {error}",
                self.flow
            ));
            self.is_behind = true;
            return;
        }
        if self.translates && self.is_attached {
            // What is not refreshed now is with the next look.
            let _ = self.nic.refresh(now, REFRESHED_MAX);
        }
    }

    /// Returns what it has counted, and how many packets it left to the host.
    pub(super) fn counters(&self) -> Option<(CounterSnapshot, u64)> {
        let counters = self.nic.counters().ok()?;
        Some((counters.traffic, counters.passed_up))
    }
}
