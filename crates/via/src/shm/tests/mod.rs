//! Fuzz targets of the shared-memory provider: packets, ring entries, and whole connections.
//!
//! Ten minutes of each: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-via --lib shm::tests`.

mod hostile;
#[path = "../../../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use self::{
    hostile::{Flood, attack, flood, try_entry, try_packet},
    kit::fuzz::fuzz,
};
use crate::vi::DisconnectReason;

/// Goal: no bytes on the socket crash the decoder, and an accepted packet encodes to the same bytes.
/// Method: mutated packets.
#[test]
fn packets() {
    let outcomes = fuzz("shm/packet", 200_000, |bytes| {
        let kind = bytes.first().copied().unwrap_or(0).min(9);
        try_packet(bytes).map(|is_valid| format!("{kind} {is_valid}"))
    });
    for kind in 1..=7 {
        assert!(outcomes.contains(&format!("{kind} true")), "no packet of kind {kind} was valid");
        let is_always_valid = !outcomes.contains(&format!("{kind} false"));
        assert!(!is_always_valid, "no packet of kind {kind} was malformed");
    }
}

/// Goal: no accepted entry exceeds any bound. Method: mutated entries.
#[test]
fn entries() {
    let outcomes = fuzz("shm/entry", 400_000, |bytes| {
        let kind = bytes.get(4).copied().unwrap_or(0);
        try_entry(bytes).map(|is_valid| format!("{kind:02x} {is_valid}"))
    });
    let valid_count = outcomes.iter().filter(|outcome| outcome.ends_with("true")).count();
    assert!(valid_count > 12, "only {valid_count} kinds of entries were valid");
}

/// Goal: whatever a connected peer does, it loses at most its own connection: no memory changes that it
/// has no right to, every descriptor ends, and the NIC serves others. Method: mutated attacks.
#[test]
fn connections() {
    let outcomes = fuzz("shm/connection", 1500, |bytes| {
        let level = bytes.first().copied().unwrap_or(0) % 3;
        attack(bytes)
            .map(|outcome| format!("{level} {:?} {}", outcome.broken, outcome.completions.min(9)))
    });
    for what in [
        "DescriptorFailed",
        "PeerDied",
        "an entry of an unknown kind",
        "an entry with more inline data than fits",
        "an entry with data outside the staging area",
        "an entry whose parts contradict each other",
        "an impossible count of consumed entries",
        "a packet that does not belong to a connection",
        "was not asked for",
        "of another length than announced",
    ] {
        assert!(outcomes.iter().any(|outcome| outcome.contains(what)), "no attack ended by {what}");
    }
}

/// Goal: excess of any kind costs the peer its connection, for the right reason. Method: floods.
#[test]
fn floods() {
    for (what, fault) in [
        (Flood::Wakeups, "more wake-ups than sleeps"),
        (Flood::Grants, "more memory granted than is allowed"),
        (Flood::Addresses, "more memory granted than is allowed"),
        (Flood::Unsealed, "a file that is not sealed against shrinking"),
        (Flood::Short, "a file that is too short"),
    ] {
        let outcome = flood(what).unwrap_or_else(|suffered| panic!("{what:?}: {suffered}"));
        assert_eq!(outcome.broken, Some(DisconnectReason::PeerFault(fault)), "{what:?}");
    }
}
