//! vigie's layers over the providers that leave the host.

use vigie_via::ether::Ether;
use vigie_via::software_nic::{Config, Secret};
use vigie_via::udp::Udp;

use super::{BULK, BULK_WINDOW, VIGIE_ETHER, VIGIE_UDP, VIGIE_VI_ETHER, VIGIE_VI_UDP};
use crate::error::Failure;
use crate::host::namespaces::{INTERFACE, address};
use crate::messages::blocking::Blocking;
use crate::messages::carrier::Kind;
use crate::messages::measure::Measure;
use crate::messages::message_layer::Messages;
use crate::messages::ranks::Own;
use crate::messages::seat::Seat;
use crate::messages::virtual_interface::{ADDRESS_BYTES, VirtualInterface};

/// Room for all messages of a window, twice.
const AREA_BYTES: u32 = 2 * BULK * BULK_WINDOW;

/// Messages over UDP.
pub(super) static UDP: Own = Own {
    name: VIGIE_UDP,
    label: "vigie, messages over udp",
    family: "udp",
    kind: Kind::Vigie,
    has: |measure| {
        matches!(
            measure,
            Measure::Latency { .. }
                | Measure::Window { .. }
                | Measure::Waiting { .. }
                | Measure::Quiet
        )
    },
    link_bytes: ADDRESS_BYTES,
    open: |seat| Ok(Box::new(Messages::open(seat, udp(seat)?)?)),
};

/// Writes over UDP.
pub(super) static UDP_VI: Own = Own {
    name: VIGIE_VI_UDP,
    label: "vigie, Virtual Interface over udp",
    has: |measure| measure.bytes() <= BULK && (UDP.has)(measure),
    open: |seat| {
        let nic = udp(seat)?;
        Ok(Box::new(Blocking::new(VirtualInterface::open(|| Ok(nic), seat, AREA_BYTES)?)))
    },
    ..UDP
};

/// Messages over Ethernet.
pub(super) static ETHER: Own = Own {
    name: VIGIE_ETHER,
    label: "vigie, messages over ether",
    family: "ether",
    open: |seat| Ok(Box::new(Messages::open(seat, ether(seat)?)?)),
    ..UDP
};

/// Writes over Ethernet.
pub(super) static ETHER_VI: Own = Own {
    name: VIGIE_VI_ETHER,
    label: "vigie, Virtual Interface over ether",
    family: "ether",
    open: |seat| {
        let nic = ether(seat)?;
        Ok(Box::new(Blocking::new(VirtualInterface::open(|| Ok(nic), seat, AREA_BYTES)?)))
    },
    ..UDP_VI
};

/// What the ranks of a run have in common, and others have not.
fn secret(seat: &Seat) -> Secret {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seat.token.to_le_bytes());
    Secret::new(bytes)
}

fn udp(seat: &Seat) -> Result<Udp, Failure> {
    let at = (address(seat.rank), 0).into();
    Udp::bind(at, secret(seat), Config::default()).map_err(Failure::io("opening a NIC over UDP"))
}

fn ether(seat: &Seat) -> Result<Ether, Failure> {
    Ether::builder(INTERFACE).open(secret(seat)).map_err(Failure::runtime)
}
