//! Sends frames through a forwarder, and counts the frames that come out of it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vigie_detect::clock::monotonic_now;
use vigie_via::link::{BackEnd, EtherType, Link, LinkError, MacAddress};

use super::keys::ENDS;
use super::placement::{CorePlacement, received};
use crate::error::Failure;
use crate::process::{Role, print_result};

/// Bytes of a frame, without its check sequence.
pub(super) const FRAME_BYTES: usize = 64;
/// How long a frame may be on its way.
const TIMEOUT: Duration = Duration::from_millis(50);
/// The interface on which frames arrive without a forwarder.
const NEXT: &str = "vf-in";

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LiveMeasure {
    /// Frames as fast as possible, for this long.
    Rate { time: Duration },
    /// This many frames, one after the other.
    Latency { frames: u32 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LoadPlan {
    pub(super) namespace: PathBuf,
    pub(super) core: usize,
    pub(super) measure: LiveMeasure,
    /// Frames arrive at the other end of the first pair, without a forwarder.
    pub(super) is_direct: bool,
}

impl Role for LoadPlan {
    const NAME: &'static str = "load";
}

/// The results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    /// Frames that were sent.
    pub(super) sent: u64,
    /// Frames that arrived.
    pub(super) arrived: u64,
    pub(super) nanoseconds: u64,
    /// One-way times, in the order in which they were taken.
    pub(super) times_ns: Vec<u64>,
}

/// The frame with a number: it looks like UDP to an unassigned address.
fn frame(number: u64) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[..6].copy_from_slice(&[2, b'v', b'f', 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, b'v', b'f', 0, 0, 2]);
    frame[12..14].copy_from_slice(&EtherType::IPV4.0.to_be_bytes());
    let length = u16::try_from(FRAME_BYTES - 14).unwrap_or(0).to_be_bytes();
    frame[14..34].copy_from_slice(&[
        0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 9, 1, 10, 9, 9, 2,
    ]);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
    frame[24..26].copy_from_slice(&(!folded).to_be_bytes());
    frame[34..42].copy_from_slice(&[0, 7, 0, 9, 0, 30, 0, 0]);
    frame[42..50].copy_from_slice(&number.to_be_bytes());
    frame
}

fn open(name: &str, is_sender: bool) -> Result<Link, Failure> {
    let link = Link::builder(name).back_end(BackEnd::PacketRings).promiscuous();
    let link = if is_sender {
        // An unused protocol: this link must not receive anything.
        link.send_frames(512).bypass_queue()
    } else {
        link.ether_type(EtherType::IPV4)
    };
    link.open().map_err(|error| Failure::other("opening a link", &error))
}

fn failed(error: LinkError) -> Failure {
    Failure::other("sending and receiving frames", &error)
}

/// Measures, and prints the results.
pub(crate) fn play(plan: &LoadPlan) -> Result<(), Failure> {
    CorePlacement { namespace: plan.namespace.clone(), core: plan.core }.enter()?;
    let found = match plan.measure {
        LiveMeasure::Rate { time } => rate(plan, time)?,
        LiveMeasure::Latency { frames } => latency(plan, frames)?,
    };
    print_result(&found);
    Ok(())
}

fn sink(plan: &LoadPlan) -> &'static str {
    if plan.is_direct { NEXT } else { ENDS[1] }
}

fn rate(plan: &LoadPlan, time: Duration) -> Result<LoadResult, Failure> {
    let mut link = open(ENDS[0], true)?;
    let mut found = LoadResult::default();
    // A tenth before it counts, so that caches and rings are as they will be.
    for (time, counts) in [(time / 10, false), (time, true)] {
        let before = received(sink(plan))?;
        let begin = monotonic_now();
        let mut sent = 0_u64;
        while begin.elapsed_at() < time {
            for _ in 0..64 {
                match link.send_frame(&frame(sent)) {
                    Ok(()) => sent += 1,
                    Err(LinkError::Full) => break,
                    Err(error) => return Err(failed(error)),
                }
            }
            link.flush().map_err(failed)?;
        }
        let took = begin.elapsed_at();
        if counts {
            // Frames under way arrive: the rings hold only some milliseconds.
            found.sent = sent;
            found.arrived = received(sink(plan))? - before;
            found.nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        }
    }
    Ok(found)
}

fn latency(plan: &LoadPlan, frames: u32) -> Result<LoadResult, Failure> {
    let mut link = open(ENDS[0], true)?;
    let mut sink = open(sink(plan), false)?;
    let mut found = LoadResult::default();
    let warm = u64::from(frames / 10);
    for number in 0..u64::from(frames) + warm {
        let bytes = frame(number);
        let begin = monotonic_now();
        link.send_frame(&bytes).map_err(failed)?;
        link.flush().map_err(failed)?;
        let mut is_here = false;
        while !is_here && begin.elapsed_at() < TIMEOUT {
            sink.recv_each(16, |frame| {
                let mut placement = [0; 8];
                frame.read(42, &mut placement);
                is_here |= u64::from_be_bytes(placement) == number;
            })
            .map_err(failed)?;
        }
        let took = begin.elapsed_at();
        if number >= warm {
            found.sent += 1;
            if is_here {
                found.arrived += 1;
                found.times_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        // A pause, as between frames that have nothing to do with each other.
        let pause = monotonic_now();
        while pause.elapsed_at() < Duration::from_micros(3) {}
    }
    Ok(found)
}

/// Time by the real clock, whatever server hosts the caller.
trait Elapsed {
    fn elapsed_at(self) -> Duration;
}

impl Elapsed for vigie_detect::Instant {
    fn elapsed_at(self) -> Duration {
        monotonic_now() - self
    }
}

/// An unassigned address, for peers that must be told one.
pub(super) const NOBODY: MacAddress = MacAddress([2, b'v', b'f', 0, 0, 3]);
