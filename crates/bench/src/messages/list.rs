//! Every system that carries messages.

use super::{Carrier, CarrierKind, OwnCarrier};
use super::{limit, message_layer, program, socket, virtual_interface};

/// Returns every system that carries messages, in the order of the tables: vigie's own, the limits,
/// the peers.
pub(crate) fn carriers() -> Vec<&'static dyn Carrier> {
    let own = own_carriers().iter().map(|&own| own as &dyn Carrier);
    let (own, sockets): (Vec<_>, Vec<_>) = own.partition(|own| own.kind() != CarrierKind::Peer);
    let programs: [&dyn Carrier; 6] = [
        &program::mpi::OPEN_MPI,
        &program::mpi::OPEN_MPI_COPY,
        &program::mpi::MPICH,
        &program::ucx::UCX,
        &program::iceoryx2::COPY,
        &program::iceoryx2::ZERO_COPY,
    ];
    own.into_iter().chain(programs).chain(sockets).collect()
}

/// Returns the systems whose ranks are processes of this program: a new one is named here.
#[must_use]
pub const fn own_carriers() -> &'static [&'static OwnCarrier] {
    OWN
}

static OWN: &[&OwnCarrier] = &[
    &message_layer::MESSAGES,
    &virtual_interface::VIRTUAL_INTERFACE,
    &limit::MAILBOX,
    &limit::RING,
    &limit::COPY_RING,
    &limit::FUTEX_MAILBOX,
    &limit::YIELD_RING,
    &socket::TCP,
    &socket::TCP_BLOCKING,
    &socket::UDS,
    &socket::UDS_BLOCKING,
];
