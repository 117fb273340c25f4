//! The forwarder of a live run: a process of its own, on a core of its own.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vigie_detect::clock::monotonic_now;
use vigie_detect::{Fixed, Frequency, Registration, Server, Strategy};
use vigie_forward::host::{self, Forwarder, Hosted};
use vigie_forward::packet::Port;
use vigie_forward::pipeline::Pipeline;
use vigie_forward::stages::{Closure, Rewrite};
use vigie_forward::{Sees, StageModel};
use vigie_via::link::{BackEnd, LinkBuilder, MacAddress};

use super::keys::{FORWARDER, PORTS};
use super::place::Place;
use crate::error::Failure;
use crate::process::{Message, Role};

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carries {
    Xdp,
    Packet,
}

/// How frames are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Waits {
    Spin,
    BusyPoll,
    Sleep,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ForwarderPlan {
    pub(super) namespace: PathBuf,
    pub(super) core: usize,
    pub(super) carries: Carries,
    pub(super) waits: Waits,
}

impl Role for ForwarderPlan {
    const NAME: &'static str = "forwarder";
}

/// What the destination of frames becomes, by the port by which they leave.
pub(super) const fn rewritten(port: u16) -> MacAddress {
    let [_, number] = port.to_be_bytes();
    MacAddress([2, b'v', b'f', 0, 1, number])
}

impl ForwarderPlan {
    fn link(&self, name: &str) -> LinkBuilder {
        let back_end = match self.carries {
            Carries::Xdp => BackEnd::Xdp,
            Carries::Packet => BackEnd::PacketRings,
        };
        let link = host::link(name).back_end(back_end).bypass_queue();
        if self.waits == Waits::BusyPoll { link.busy_poll(Duration::from_micros(20)) } else { link }
    }

    fn make(&self) -> Result<Forwarder, Failure> {
        let other = |packet: &vigie_forward::packet::Packet| Port(1 - packet.arrival().0.min(1));
        let model = StageModel::new("other side").sees(Sees::Header);
        let to_other = Closure::new(model, move |packet, _| {
            vigie_forward::pipeline::Verdict::Send(other(packet))
        });
        let pipeline = Pipeline::builder()
            .stage(Rewrite::new().destination_mac(rewritten(1)).source_mac(rewritten(0)))
            .stage(to_other)
            .on_full(vigie_forward::pipeline::OnFull::Drop)
            .build()
            .map_err(|error| Failure::other("making the pipeline", &error))?;
        let mut builder = Forwarder::builder(pipeline).reopen(None);
        for (number, name) in (0..).zip(PORTS) {
            builder = builder.port(Port(number), self.link(name));
        }
        builder.build().map_err(|error| Failure::other("opening the links", &error))
    }
}

/// Forwards until standard input ends.
pub(crate) fn play(plan: &ForwarderPlan) -> Result<(), Failure> {
    let place = Place { namespace: plan.namespace.clone(), core: plan.core };
    place.enter()?;
    let mut forwarder = plan.make()?;
    let computing = Message::Computing { process: std::process::id() };
    if plan.waits != Waits::Sleep {
        computing.print();
        loop {
            // Read once for many packets: the clock is no part of the path.
            let now = monotonic_now();
            for _ in 0..64 {
                forwarder.turn(now);
            }
        }
    }
    let host = Server::spawn_thread().map_err(Failure::io("starting a host"))?;
    let sleep = Fixed(Strategy::Sleep { every: Frequency::Switches(1) });
    let registration = Registration::named(FORWARDER).policy(sleep);
    let hosted = Hosted::with_registration(host.server(), forwarder, registration)
        .map_err(|error| Failure::other("registering the forwarder", &error))?;
    let _events =
        hosted.start().map_err(|error| Failure::other("starting the forwarder", &error))?;
    computing.print();
    loop {
        std::thread::park();
    }
}
