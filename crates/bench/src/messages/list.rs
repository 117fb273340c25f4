//! Every system that carries messages, and its name.

use super::{Carrier, CarrierKind, UnknownCarrier};
use super::{datagram, limit, message_layer, program, remote, socket, virtual_interface};

/// Returns every system that carries messages, in the order of the tables: vigie's own, the limits,
/// the peers.
pub(crate) fn carriers() -> Vec<&'static Carrier> {
    let (own, sockets): (Vec<_>, Vec<_>) =
        OWN.iter().copied().partition(|own| own.kind != CarrierKind::Peer);
    let programs = [
        &program::mpi::OPEN_MPI,
        &program::mpi::OPEN_MPI_COPY,
        &program::mpi::MPICH,
        &program::ucx::UCX,
        &program::iceoryx2::COPY,
        &program::iceoryx2::ZERO_COPY,
    ];
    own.into_iter().chain(programs).chain(sockets).collect()
}

/// Returns the system of this very name, of those whose ranks are processes of this program.
///
/// # Errors
/// If the name is unknown; the error lists the known ones.
pub(crate) fn own(name: &str) -> Result<&'static Carrier, UnknownCarrier> {
    let mut all = OWN.iter().chain(&datagram::SYSTEMS).chain(&remote::SYSTEMS).copied();
    all.find(|own| own.name == name).ok_or_else(|| UnknownCarrier::among(&carriers(), name))
}

/// Returns the systems that `word` stands for: one of this name and those of this family.
///
/// # Errors
/// If the name is unknown; the error lists the known ones.
pub(crate) fn named(word: &str) -> Result<Vec<&'static Carrier>, UnknownCarrier> {
    let is_meant = |carrier: &&Carrier| carrier.name == word || carrier.family == word;
    let all = carriers().into_iter().chain(remote::SYSTEMS);
    let found: Vec<_> = all.filter(is_meant).collect();
    if found.is_empty() { Err(UnknownCarrier::among(&carriers(), word)) } else { Ok(found) }
}

/// Returns the systems whose ranks are processes of this program: a new one is named here.
#[must_use]
pub const fn own_carriers() -> &'static [&'static Carrier] {
    OWN
}

static OWN: &[&Carrier] = &[
    &message_layer::MESSAGES,
    &message_layer::HYBRID,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_found() {
        // Goal: every system is found by its own name, and by its family among others. Method: all.
        for one in carriers() {
            assert!(named(one.name).unwrap().iter().any(|found| found.label == one.label));
            assert!(named(one.family).unwrap().iter().any(|found| found.name == one.name));
        }
        let mut names: Vec<_> = carriers().into_iter().map(|carrier| carrier.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), carriers().len());
    }

    #[test]
    fn an_unknown_name_tells_the_known_ones() {
        // Goal: the error says what to write instead. Method: a misspelt name.
        let error = named("mpitch").unwrap_err().to_string();
        assert!(error.contains("\"mpitch\"") && error.contains("mpich, "), "{error}");
    }
}
