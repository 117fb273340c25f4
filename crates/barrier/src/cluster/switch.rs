//! A store-and-forward switch: it receives a whole frame before it sends it on, in order of arrival at each port.

use super::config::ClusterConfig;
use super::event::SimEvent;
use super::frame::{Frame, NodeIndex};
use super::world::SimWorld;

#[derive(Debug)]
pub(super) struct Switch {
    /// The time at which the link from each node to the switch is free for a frame.
    up_free_ns: Vec<u64>,
    /// The time at which the link from the switch to each node is free for a frame.
    down_free_ns: Vec<u64>,
    /// The index of the NIC, in each node, that is connected here.
    nic: usize,
}

impl Switch {
    pub(super) fn new(nic: usize, ports: usize) -> Self {
        Self { up_free_ns: vec![0; ports], down_free_ns: vec![0; ports], nic }
    }

    /// A frame is in the transmit memory of its NIC.
    pub(super) fn offer<M>(&mut self, world: &mut SimWorld<M>, frame: Frame<M>) {
        let sender = frame.from;
        let sent_ns = occupy(&mut self.up_free_ns[sender], world.now_ns, &world.config);
        world.schedule_event(sent_ns, SimEvent::Sent { node: sender });
        let forward_ns = sent_ns + world.config.switch_ns();
        world.schedule_event(forward_ns, SimEvent::Forward { nic: self.nic, frame });
    }

    /// Sends a frame on, through one port or all others.
    pub(super) fn forward<M: Clone>(&mut self, world: &mut SimWorld<M>, frame: &Frame<M>) {
        let ports: NodeIndex = self.down_free_ns.len();
        for node in (0..ports).filter(|node| frame.is_for(*node)) {
            let port_ns = &mut self.down_free_ns[node];
            let arrived_ns = occupy(port_ns, world.now_ns, &world.config);
            world.land(arrived_ns, self.nic, node, frame);
        }
    }
}

/// Sends a frame over a link as soon as that is free; returns the number of nanoseconds until its last bit arrives.
fn occupy(free_ns: &mut u64, now_ns: u64, config: &ClusterConfig) -> u64 {
    let sent_ns = now_ns.max(*free_ns) + config.transmission_ns();
    *free_ns = sent_ns + config.silence_ns();
    sent_ns - now_ns
}

#[cfg(test)]
mod tests {
    use super::super::frame::Destination;
    use super::*;

    /// Offers frames to a switch of four ports, and returns when they land, and where.
    fn landed(frames: &[(u64, NodeIndex, Destination)]) -> Vec<(u64, NodeIndex)> {
        let mut world = SimWorld::new(ClusterConfig::CALIBRATED, 0.0, 0);
        let mut switch = Switch::new(0, 4);
        for &(at_ns, from, to) in frames {
            world.schedule_event(
                at_ns,
                SimEvent::Offer { nic: 0, frame: Frame { from, to, message: () } },
            );
        }
        let mut landed = Vec::new();
        while let Some(event) = world.next() {
            match event {
                SimEvent::Offer { frame, .. } => switch.offer(&mut world, frame),
                SimEvent::Forward { frame, .. } => switch.forward(&mut world, &frame),
                SimEvent::Land { node, .. } => landed.push((world.now_ns, node)),
                _ => {}
            }
        }
        landed
    }

    #[test]
    fn an_idle_switch_takes_the_rest_of_the_latency() {
        // Goal: from the end of o_s to the receiver's memory it is L. Method: one frame; DMA of the sender is before the offer.
        let set = ClusterConfig::CALIBRATED;
        let frame = [(set.dma_ns, 0, Destination::Node(2))];
        assert_eq!(landed(&frame), [(set.latency_ns, 2)]);
    }

    #[test]
    fn frames_for_one_port_queue() {
        // Goal: the wire of a port is the bottleneck, those of others are not. Method: three at once, two of them for one.
        let first_ns = ClusterConfig::CALIBRATED.latency_ns - 1_600;
        let to = Destination::Node;
        let frames = [(0, 0, to(3)), (0, 1, to(3)), (0, 2, to(1))];
        assert_eq!(landed(&frames), [(first_ns, 3), (first_ns, 1), (first_ns + 7_360, 3)]);
    }

    #[test]
    fn a_multicast_goes_to_all_others() {
        // Goal: one frame up, one down each port but the sender's. Method: a multicast, and one frame behind it.
        let first_ns = ClusterConfig::CALIBRATED.latency_ns - 1_600;
        let frames = [(0, 1, Destination::Others), (0, 1, Destination::Node(0))];
        let all = [(first_ns, 0), (first_ns, 2), (first_ns, 3), (first_ns + 7_360, 0)];
        assert_eq!(landed(&frames), all);
    }
}
