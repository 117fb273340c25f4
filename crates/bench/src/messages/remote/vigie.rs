//! vigie's layers over the providers that leave the host.

use vigie_via::ether::Ether;
use vigie_via::software_nic::{Secret, SoftwareNicConfig};
use vigie_via::udp::Udp;

use super::{BULK, BULK_WINDOW, VIGIE_ETHER, VIGIE_UDP, VIGIE_VI_ETHER, VIGIE_VI_UDP};
use crate::error::Failure;
use crate::host::{INTERFACE, address};
use crate::messages::message_layer::Messages;
use crate::messages::virtual_interface::{ADDRESS_BYTES, VirtualInterface};
use crate::messages::{Carrier, CarrierKind, Measure, RankContext, blocking};

/// Room for all messages of a window, twice.
const AREA_BYTES: u32 = 2 * BULK * BULK_WINDOW;

/// Messages over UDP.
pub(super) static UDP: Carrier = Carrier {
    name: VIGIE_UDP,
    label: "vigie, messages over udp",
    family: "udp",
    kind: CarrierKind::Vigie,
    has: |measure| {
        measure.is_plain() || matches!(measure, Measure::Waiting { .. } | Measure::Quiet)
    },
    link_bytes: ADDRESS_BYTES,
    is_remote: true,
    open: |context| Ok(Box::new(Messages::open(context, udp(context)?)?)),
    program: None,
};

/// Writes over UDP.
pub(super) static UDP_VI: Carrier = Carrier {
    name: VIGIE_VI_UDP,
    label: "vigie, Virtual Interface over udp",
    has: |measure| measure.bytes() <= BULK && (UDP.has)(measure),
    open: |context| {
        let nic = udp(context)?;
        blocking(VirtualInterface::open(|| Ok(nic), context, AREA_BYTES))
    },
    ..UDP
};

/// Messages over Ethernet.
pub(super) static ETHER: Carrier = Carrier {
    name: VIGIE_ETHER,
    label: "vigie, messages over ether",
    family: "ether",
    open: |context| Ok(Box::new(Messages::open(context, ether(context)?)?)),
    ..UDP
};

/// Writes over Ethernet.
pub(super) static ETHER_VI: Carrier = Carrier {
    name: VIGIE_VI_ETHER,
    label: "vigie, Virtual Interface over ether",
    family: "ether",
    open: |context| {
        let nic = ether(context)?;
        blocking(VirtualInterface::open(|| Ok(nic), context, AREA_BYTES))
    },
    ..UDP_VI
};

/// What the ranks of a run have in common, and others have not.
fn secret(context: &RankContext) -> Secret {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&context.token.to_le_bytes());
    Secret::new(bytes)
}

fn udp(context: &RankContext) -> Result<Udp, Failure> {
    let at = (address(context.rank), 0).into();
    Udp::bind(at, secret(context), SoftwareNicConfig::default())
        .map_err(Failure::io("opening a NIC over UDP"))
}

fn ether(context: &RankContext) -> Result<Ether, Failure> {
    Ether::builder(INTERFACE).open(secret(context)).map_err(Failure::runtime)
}
