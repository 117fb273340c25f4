//! The stages of a pipeline in a row: the walk of a packet through them.

use vigie_detect::Instant;

use super::costs::Costs;
use crate::{
    drop_reason::DropReason,
    icmp::IcmpErrorSender,
    packet::{Packet, Port},
    stages::{stage::Stage, verdict::Verdict},
    tables::TrafficCounters,
};

/// The stages in order, and the port of packets for which none names one.
pub(super) struct Stages {
    pub(super) stages: Vec<Box<dyn Stage>>,
    pub(super) default_port: Option<Port>,
    pub(super) costs: Option<Costs>,
    /// The sender of ICMP errors, and the counters for suppressed ones.
    pub(super) icmp_errors: Option<(IcmpErrorSender, TrafficCounters)>,
}

/// The destination of a packet as far as the stages have decided: its port, and the longest fragment if it is to be cut.
type Destination = Option<(Port, Option<usize>)>;

impl Stages {
    /// Passes a packet through all stages. `copy` gets copies, fragments but the last, and the ICMP error if the packet
    /// is dropped. `None` if a stage holds it.
    #[inline]
    pub(super) fn decide(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Option<Port>, DropReason> {
        let start = (0, self.default_port.map(|port| (port, None)));
        if self.icmp_errors.is_none() || packet.part().is_some() {
            return self.walk(start, packet, now, copy);
        }
        if let Some((icmp_errors, _)) = &mut self.icmp_errors {
            icmp_errors.keep(packet);
        }
        let decided = self.walk(start, packet, now, copy);
        // Without waiting, it is not known yet whether the neighbour answers.
        if decided != Err(DropReason::NoNeighbour) {
            self.tell(packet, decided, now, copy);
        }
        decided
    }

    /// Sends the ICMP error about a packet that was kept or recalled, if it is dropped; remembers it, if it is held.
    #[inline]
    fn tell(
        &mut self,
        packet: &mut Packet,
        decided: Result<Option<Port>, DropReason>,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) {
        let Some((icmp_errors, counters)) = &mut self.icmp_errors else { return };
        match decided {
            Ok(Some(_)) => {}
            Ok(None) => icmp_errors.hold(),
            Err(reason) => {
                if let Some(answer) = icmp_errors.error_reply(packet, reason, now, counters) {
                    copy(answer.ingress(), &answer);
                }
            }
        }
    }

    /// Passes the next packet that a stage has held through the stages behind.
    #[inline]
    pub(super) fn release(
        &mut self,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Option<(Packet, Result<Option<Port>, DropReason>)> {
        let mut stages = self.stages.iter_mut().enumerate();
        let (at, (mut packet, verdict)) =
            stages.find_map(|(at, stage)| Some((at, stage.release(now)?)))?;
        let mut destination = self.default_port.map(|port| (port, None));
        if let Some((icmp_errors, _)) = &mut self.icmp_errors {
            icmp_errors.recall(&packet);
        }
        let decided = match apply(verdict, &packet, &mut destination, copy) {
            Some(decided) => decided,
            None => self.walk((at + 1, destination), &mut packet, now, copy),
        };
        self.tell(&mut packet, decided, now, copy);
        Some((packet, decided))
    }

    /// Passes a packet through the stages from one on.
    #[inline]
    fn walk(
        &mut self,
        (from, mut destination): (usize, Destination),
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Option<Port>, DropReason> {
        let is_measured = self.costs.as_mut().is_some_and(Costs::is_due);
        for (number, stage) in self.stages.iter_mut().enumerate().skip(from) {
            let begin = self.costs.as_ref().filter(|_| is_measured).map(Costs::now);
            let verdict = stage.process(packet, now);
            if let (Some(costs), Some(begin)) = (&mut self.costs, begin) {
                costs.took(number, packet.len(), begin);
            }
            if let Some(decided) = apply(verdict, packet, &mut destination, copy) {
                return decided;
            }
        }
        match destination {
            Some((port, None)) => Ok(Some(port)),
            Some((port, Some(mtu))) => fragment(packet, (port, mtu), copy),
            None => Err(DropReason::NoPort),
        }
    }
}

/// Applies a verdict. Returns the decision, if it is the last one.
#[inline]
fn apply(
    verdict: Verdict,
    packet: &Packet,
    destination: &mut Destination,
    copy: &mut dyn FnMut(Port, &Packet),
) -> Option<Result<Option<Port>, DropReason>> {
    match verdict {
        Verdict::Pass => {}
        Verdict::SetEgress(to) => *destination = Some((to, None)),
        Verdict::Fragment(to, mtu) => *destination = Some((to, Some(mtu))),
        Verdict::Copy(to) => copy(to, packet),
        Verdict::Hold => return Some(Ok(None)),
        Verdict::Drop(reason) => return Some(Err(reason)),
    }
    None
}

/// Sends all fragments of a packet but the last one, which it becomes.
#[cold]
fn fragment(
    packet: &mut Packet,
    (port, mtu): (Port, usize),
    copy: &mut dyn FnMut(Port, &Packet),
) -> Result<Option<Port>, DropReason> {
    let fragments = packet.fragment(mtu).map_err(|_| DropReason::Malformed)?;
    let mut fragments = fragments.ok_or(DropReason::TooLong)?;
    *packet = fragments.pop().ok_or(DropReason::TooLong)?;
    fragments.iter().for_each(|fragment| copy(port, fragment));
    Ok(Some(port))
}
