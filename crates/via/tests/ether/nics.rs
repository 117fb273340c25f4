//! NICs at the ends of a veth pair.

use std::thread;

use vigie_via::{
    ether::{Ether, EtherBuilder},
    link::BackEnd,
    software_nic::{Secret, SoftwareNicConfig},
    vi::Reliability,
};

use crate::{
    pair::{Echo, End},
    veth::Far,
};

pub(crate) type EtherEnd = End<vigie_via::ether::EtherWire>;

/// From one frame to more than a window.
pub(crate) const LENGTHS: [usize; 8] = [8, 1000, 65_536, 0, 40_000, 1472, 65_535, 9000];

/// The settings of a NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) back_end: BackEnd,
    pub(crate) config: SoftwareNicConfig,
}

impl Default for Settings {
    fn default() -> Self {
        Self { back_end: BackEnd::Automatic, config: SoftwareNicConfig::default() }
    }
}

pub(crate) fn secret() -> Secret {
    Secret::new([4; 16])
}

pub(crate) fn builder(interface: &str, settings: Settings) -> EtherBuilder {
    Ether::builder(interface).back_end(settings.back_end).config(settings.config)
}

/// Opens a NIC at the near end.
pub(crate) fn near_nic(settings: Settings) -> Ether {
    builder("v0", settings).open(secret()).expect("a NIC")
}

/// Opens a NIC at the far end.
pub(crate) fn far_nic(far: &Far, settings: Settings) -> Ether {
    let door = far.door();
    let opened = thread::spawn(move || {
        door.enter();
        builder("v1", settings).open(secret()).expect("a NIC")
    });
    opened.join().expect("no panic")
}

/// A client here and a server there.
pub(crate) fn connected(
    far: &Far,
    level: Reliability,
    [here, there]: [Settings; 2],
) -> (EtherEnd, Echo) {
    let server = far_nic(far, there);
    let echo = Echo::new(level, move || server);
    let mut client = End::new(near_nic(here), level);
    client.call(&echo.address);
    (client, echo)
}
