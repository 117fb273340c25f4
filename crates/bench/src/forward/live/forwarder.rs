//! The forwarder of a live run: a separate process, on its own core.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vigie_detect::clock::monotonic_now;
use vigie_detect::{Fixed, Frequency, Registration, Server, Strategy};
use vigie_forward::host::{self, AsyncForwarder, Forwarder};
use vigie_forward::packet::Port;
use vigie_forward::pipeline::Pipeline;
use vigie_forward::stages::{Rewrite, StageFn};
use vigie_forward::{Sees, StageModel};
use vigie_via::link::{BackEnd, LinkBuilder, MacAddress};

use super::keys::{FORWARDER, PORTS};
use super::placement::CorePlacement;
use crate::error::Failure;
use crate::process::{Message, Role};

/// The carrier of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FrameTransport {
    Xdp,
    Packet,
}

/// How frames are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostWait {
    Spin,
    BusyPoll,
    Sleep,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ForwarderPlan {
    pub(super) namespace: PathBuf,
    pub(super) core: usize,
    pub(super) carries: FrameTransport,
    pub(super) waits: HostWait,
}

impl Role for ForwarderPlan {
    const NAME: &'static str = "forwarder";
}

/// The new destination of frames, by outgoing port.
pub(super) const fn rewritten(port: u16) -> MacAddress {
    let [_, number] = port.to_be_bytes();
    MacAddress([2, b'v', b'f', 0, 1, number])
}

impl ForwarderPlan {
    fn link(&self, name: &str) -> LinkBuilder {
        let back_end = match self.carries {
            FrameTransport::Xdp => BackEnd::Xdp,
            FrameTransport::Packet => BackEnd::PacketRings,
        };
        let link = host::link(name).back_end(back_end).bypass_queue();
        if self.waits == HostWait::BusyPoll {
            link.busy_poll(Duration::from_micros(20))
        } else {
            link
        }
    }

    fn make(&self) -> Result<Forwarder, Failure> {
        let other = |packet: &vigie_forward::packet::Packet| Port(1 - packet.ingress().0.min(1));
        let model = StageModel::new("other side").sees(Sees::Header);
        let to_other = StageFn::new(model, move |packet, _| {
            vigie_forward::pipeline::Verdict::SetEgress(other(packet))
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
    let placement = CorePlacement { namespace: plan.namespace.clone(), core: plan.core };
    placement.enter()?;
    let mut forwarder = plan.make()?;
    let computing = Message::Computing { process: std::process::id() };
    if plan.waits != HostWait::Sleep {
        computing.print();
        loop {
            // Read once for many packets: the clock is not part of the path.
            let now = monotonic_now();
            for _ in 0..64 {
                forwarder.tick(now);
            }
        }
    }
    let host = Server::spawn_thread().map_err(Failure::io("starting a host"))?;
    let sleep = Fixed(Strategy::Sleep { every: Frequency::Switches(1) });
    let registration = Registration::named(FORWARDER).policy(sleep);
    let hosted = AsyncForwarder::with_registration(host.server(), forwarder, registration)
        .map_err(|error| Failure::other("registering the forwarder", &error))?;
    let _events =
        hosted.start().map_err(|error| Failure::other("starting the forwarder", &error))?;
    computing.print();
    loop {
        std::thread::park();
    }
}
