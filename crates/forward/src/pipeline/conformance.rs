//! The conformance suite for implementers of [`Stage`].

use fastrand::Rng;
use thiserror::Error;
use vigie_detect::Instant;

use crate::{
    model::{Sees, Writes},
    packet::{Packet, Port},
    stages::{stage::Stage, verdict::Verdict},
};

/// A violation of the contract by a stage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// It claims to be read-only, but changed bytes (contract 4).
    #[error(
        "stage {stage:?} claims to be read-only, but changed packet {number}: declare `Writes::Yes`"
    )]
    Changed {
        /// The stage.
        stage: String,
        /// The number of the packet in the run.
        number: u32,
    },
    /// It claims to be read-only, but dropped a packet (contract 4).
    #[error(
        "stage {stage:?} claims to be read-only, but dropped packet {number}: declare `Writes::Yes`"
    )]
    Dropped {
        /// The stage.
        stage: String,
        /// The number of the packet in the run.
        number: u32,
    },
    /// Two equal stages acted differently (contract 2).
    #[error(
        "two equal stages {stage:?} differ at packet {number}: what else does the stage depend on?"
    )]
    Differs {
        /// The stage.
        stage: String,
        /// The number of the packet in the run.
        number: u32,
    },
    /// It claims to see only the header, but its verdict depends on later bytes (contract 3).
    #[error(
        "stage {stage:?} claims to see only headers, but its verdict on packet {number} depends on the payload"
    )]
    Saw {
        /// The stage.
        stage: String,
        /// The number of the packet in the run.
        number: u32,
    },
    /// Its model has changed (contract 5).
    #[error("the `model` of stage {stage:?} has changed")]
    Model {
        /// The stage.
        stage: String,
    },
}

/// Tests the contract of [`Stage`] on stages from `make`, with `count` packets, well-formed and not, from a seed. Each
/// call of `make` must return a stage in the same state, with its own tables.
///
/// # Errors
/// The first [`Violation`] found.
///
/// # Panics
/// If the stage does.
pub fn check<S: Stage>(
    mut make: impl FnMut() -> S,
    seed: u64,
    count: u32,
) -> Result<(), Violation> {
    let mut rng = Rng::with_seed(seed);
    let (mut one, mut two, mut blind) = (make(), make(), make());
    let model = one.model();
    let stage = || model.name().to_owned();
    let mut now = Instant::from_nanos(0);
    for number in 0..count {
        now = Instant::from_nanos(now.as_nanos() + rng.u64(0..2_000_000));
        let before = frame(&mut rng);
        let ingress = Port(rng.u16(0..3));
        let mut packet = Packet::new(ingress, &before);
        let verdict = one.process(&mut packet, now);
        if model.written() == Writes::No {
            if packet.bytes() != before {
                return Err(Violation::Changed { stage: stage(), number });
            }
            if matches!(verdict, Verdict::Drop(_)) {
                return Err(Violation::Dropped { stage: stage(), number });
            }
        }
        let mut other = Packet::new(ingress, &before);
        if two.process(&mut other, now) != verdict || other != packet {
            return Err(Violation::Differs { stage: stage(), number });
        }
        if model.seen() != Sees::Everything {
            let mut other = Packet::new(ingress, &before);
            let headers = other.headers();
            // In an unreadable frame it is unknown where the payload starts.
            if let Ok(headers) = headers {
                let behind = (headers.transport_at + 60).min(headers.end_at);
                other.bytes_mut()[behind..headers.end_at].fill(0xa5);
            }
            if blind.process(&mut other, now) != verdict {
                return Err(Violation::Saw { stage: stage(), number });
            }
        }
        if one.model().seen() != model.seen() || one.model().written() != model.written() {
            return Err(Violation::Model { stage: stage() });
        }
    }

    Ok(())
}

/// A frame: mostly a packet of few flows, often with a fault, sometimes random bytes.
pub(crate) fn frame(rng: &mut Rng) -> Vec<u8> {
    if rng.u8(..) < 16 {
        return (0..rng.usize(0..100)).map(|_| rng.u8(..)).collect();
    }

    let mut frame = vec![2, 0, 0, 0, 0, rng.u8(0..3), 2, 0, 0, 0, 0, rng.u8(0..3)];
    for _ in 0..rng.u8(..) / 100 {
        frame.extend([0x81, 0, 0, rng.u8(0..3)]);
    }

    let is_v4 = rng.u8(..) < 160;
    let protocol = [6, 17, if is_v4 { 1 } else { 58 }, 17][rng.usize(0..4)];
    let transport = transport(rng, protocol);
    if is_v4 {
        frame.extend([0x08, 0]);
        let options = if rng.u8(..) < 40 { rng.u8(0..=10) } else { 0 };
        let header = 20 + usize::from(options) * 4;
        let total = u16::try_from(header + transport.len()).unwrap_or(u16::MAX).to_be_bytes();
        let fragment = if rng.u8(..) < 40 { [rng.u8(0..64), rng.u8(..)] } else { [0x40, 0] };
        let ttl = rng.u8(..) % 65;
        frame.extend([0x45 + options, 0, total[0], total[1], 0, rng.u8(0..4)]);
        frame.extend(fragment);
        frame.extend([
            ttl,
            protocol,
            0,
            0,
            10,
            0,
            0,
            rng.u8(0..4),
            10,
            0,
            rng.u8(0..2),
            rng.u8(0..4),
        ]);
        frame.resize(frame.len() + usize::from(options) * 4, 1);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        let mut extensions = Vec::new();
        let mut next = protocol;
        for _ in 0..rng.u8(..) / 90 {
            let kind = [0, 43, 60, 44][rng.usize(0..4)];
            let mut extension = vec![next, 0, 0, 0, 0, 0, 0, rng.u8(0..2)];
            if kind == 44 {
                extension[2..4].copy_from_slice(&rng.u16(0..64).to_be_bytes());
            }
            extension.extend(extensions);
            extensions = extension;
            next = kind;
        }
        let length = u16::try_from(extensions.len() + transport.len()).unwrap_or(u16::MAX);
        frame.extend(length.to_be_bytes());
        frame.extend([next, rng.u8(..) % 65]);
        for _ in 0..2 {
            frame.extend([0xfd; 15]);
            frame.push(rng.u8(0..4));
        }
        frame.extend(extensions);
    }

    frame.extend(transport);
    if rng.bool() {
        let mut packet = Packet::new(Port(0), &frame);
        if packet.fill_checksums().is_ok() {
            frame = packet.bytes().to_vec();
        }
    }

    spoil(&mut frame, rng);
    frame
}

fn transport(rng: &mut Rng, protocol: u8) -> Vec<u8> {
    let max = if rng.u8(..) < 20 { 1400 } else { 40 };
    let payload = rng.usize(0..max);
    let [a, b] = [rng.u8(0..3), rng.u8(0..3)];
    let mut bytes = match protocol {
        6 => {
            let flags = rng.u8(0..32);
            vec![4, a, 0, 80 + b, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]
        }
        17 => {
            let [high, low] = u16::try_from(8 + payload).unwrap_or(u16::MAX).to_be_bytes();
            vec![4, a, 0, 80 + b, high, low, 0, 0]
        }
        1 => vec![[8, 0, 3, 11][rng.usize(0..4)], 0, 0, 0, 0, a, 0, 1],
        _ => vec![[128, 129, 1, 3][rng.usize(0..4)], 0, 0, 0, 0, a, 0, 1],
    };
    bytes.extend((0..payload).map(|_| rng.u8(..)));
    bytes
}

/// Corrupts one frame in four.
fn spoil(frame: &mut Vec<u8>, rng: &mut Rng) {
    match rng.u8(0..16) {
        0 => frame.truncate(rng.usize(..=frame.len())),
        1 | 2 => {
            let at = rng.usize(0..frame.len());
            frame[at] ^= 1 << rng.u8(0..8);
        }
        3 => frame.extend((0..rng.usize(1..40)).map(|_| rng.u8(..))),
        _ => {}
    }
}
