//! Random programs of sends and receives that are legal by MPI 5.0, section 3.5: with any buffering, or none, they end.

use vigie_via::protocol::SendMode;

use crate::pattern::pattern;

/// A message with a tag of its own: its number.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) to: u32,
    pub(crate) from: u32,
    pub(crate) context: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) mode: SendMode,
    pub(crate) has_wildcard: bool,
}

/// A step of a rank's program. Each transfer has its own tag, so the steps of different ones may be in any order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A call that returns when the message may be changed.
    Send(usize),
    /// A call that returns with the message.
    Receive(usize),
    StartSend(usize),
    WaitSend(usize),
    StartReceive(usize),
    WaitReceive(usize),
}

/// Makes `count` transfers among `size` ranks, and the program of each rank. Each transfer has a time. A step of it that
/// blocks is at that time; one that only begins it is earlier, and one that waits for it later: so all steps up to any
/// time can be carried out in its order, whatever is buffered.
pub(crate) fn programs(
    random: &mut fastrand::Rng,
    size: u32,
    count: usize,
) -> (Vec<Transfer>, Vec<Vec<Step>>) {
    let lengths = [0, 8, 400, 600, 3000, 20_000, 150_000];
    let modes = [SendMode::Standard, SendMode::Standard, SendMode::Synchronous];
    let mut transfers = Vec::new();
    let mut timed: Vec<Vec<(f64, Step)>> = (0..size).map(|_| Vec::new()).collect();
    for number in 0..count {
        let (from, to) = (random.u32(0..size), random.u32(0..size));
        transfers.push(Transfer {
            from,
            to,
            context: random.u16(0..2),
            body: pattern(lengths[random.usize(0..lengths.len())], number),
            mode: modes[random.usize(0..modes.len())],
            has_wildcard: random.bool(),
        });
        let time = number as f64;
        let mut spread = || random.f64() * time.max(1.0);
        let (early, late) = ((spread(), spread()), (spread(), spread()));
        let mut starts = [random.bool(), random.bool()];
        if from == to && starts == [false, false] {
            starts[random.usize(0..2)] = true;
        }
        let own = &mut timed[from as usize];
        if starts[0] {
            own.push((time - early.0 - 0.5, Step::StartSend(number)));
            own.push((time + late.0 + 0.5, Step::WaitSend(number)));
        } else {
            own.push((time, Step::Send(number)));
        }
        let own = &mut timed[to as usize];
        if starts[1] {
            own.push((time - early.1 - 0.5, Step::StartReceive(number)));
            own.push((time + late.1 + 0.5, Step::WaitReceive(number)));
        } else {
            own.push((time, Step::Receive(number)));
        }
    }
    let programs = timed.into_iter().map(|mut steps| {
        steps.sort_by(|one, other| one.0.total_cmp(&other.0));
        steps.into_iter().map(|(_, step)| step).collect()
    });
    (transfers, programs.collect())
}
