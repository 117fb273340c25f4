//! A repeater hub: one wire for all stations, and what happens when two send at once [ieee802.3, §4.2].
//!
//! All stations are equally far from each other. A station with a frame to send
//!
//! 1. waits until it hears nothing and has heard nothing for the gap between frames (`attempt`),
//! 2. sends, and is heard by the others after the delay (`hear`),
//! 3. if it hears another station meanwhile, has a collision: it finishes its preamble, sends the jam, and pauses for
//!    a random number of slots, which doubles on average with each collision (`jammed`),
//! 4. otherwise has sent the whole frame (`sent`).
//!
//! ```text
//!            offer            attempt, wire free        sent
//!   Idle ───────────▶ Ready ───────────────────▶ Sending ─────▶ Idle, or Ready with the next frame
//!                      ▲  │ ▲                       │ hear
//!         fade + gap   │  │ attempt, wire busy      ▼
//!                      └ Deferring                Jamming ── jammed ─▶ Ready after the pause, or frame given up
//! ```

use std::collections::VecDeque;

use super::config::Deferral;
use super::event::{HubEvent, SimEvent};
use super::frame::{Frame, NodeIndex};
use super::world::SimWorld;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StationState {
    Idle,
    /// An attempt is in the event queue.
    Ready,
    /// Waits until it hears no station.
    Deferring,
    Sending {
        since_ns: u64,
    },
    Jamming,
}

#[derive(Debug)]
struct Station<M> {
    state: StationState,
    queue: VecDeque<Frame<M>>,
    /// Collisions of the frame at the head of the queue.
    collisions: u32,
    /// The number of other stations that it hears.
    heard: u32,
    /// The time since which it has heard any station.
    heard_since_ns: u64,
    /// The time since which it has neither heard nor sent anything.
    quiet_since_ns: u64,
    /// The number of its latest attempt.
    attempt: u64,
}

/// The outcome of a frame.
#[derive(Debug)]
pub(super) enum TransmitOutcome<M> {
    /// It has been sent, and arrives after the delay.
    Sent(Frame<M>),
    /// It collided too often.
    GivenUp(Frame<M>),
}

#[derive(Debug)]
pub(super) struct Hub<M> {
    stations: Vec<Station<M>>,
    /// The index of the NIC, in each node, that is a station here.
    nic: usize,
}

impl<M> Hub<M> {
    pub(super) fn new(nic: usize, stations: usize) -> Self {
        let station = || Station {
            state: StationState::Idle,
            queue: VecDeque::new(),
            collisions: 0,
            heard: 0,
            heard_since_ns: 0,
            quiet_since_ns: 0,
            attempt: 0,
        };
        Self { stations: (0..stations).map(|_| station()).collect(), nic }
    }

    /// A frame is in the transmit memory of its NIC.
    pub(super) fn offer(&mut self, world: &mut SimWorld<M>, frame: Frame<M>) {
        let from = frame.from;
        let station = &mut self.stations[from];
        station.queue.push_back(frame);
        if station.state == StationState::Idle {
            station.state = StationState::Ready;
            self.schedule_event(world, 0, HubEvent::Attempt(from));
        }
    }

    /// Handles an event; returns a frame's outcome, if that is known now.
    pub(super) fn handle(
        &mut self,
        world: &mut SimWorld<M>,
        what: HubEvent,
    ) -> Option<TransmitOutcome<M>> {
        match what {
            HubEvent::Attempt(from) => self.attempt(world, from),
            HubEvent::Hear(from) => self.hear(world, from),
            HubEvent::Fade(from) => self.fade(world, from),
            HubEvent::Sent(from, attempt) => return self.sent(world, from, attempt),
            HubEvent::Jammed(from) => return self.jammed(world, from),
        }
        None
    }

    fn attempt(&mut self, world: &mut SimWorld<M>, from: NodeIndex) {
        let set = &world.config;
        let (delay_ns, sent_ns) = (set.hub_delay_ns, set.transmission_ns());
        let station = &mut self.stations[from];
        let free_ns = station.quiet_since_ns + set.silence_ns();
        // In the last third of the gap it no longer listens.
        let is_deaf = set.deferral == Deferral::TwoParts
            && world.now_ns == free_ns
            && free_ns - station.heard_since_ns <= set.silence_ns() / 3;
        if station.heard > 0 && !is_deaf {
            station.state = StationState::Deferring;
            return;
        }
        if world.now_ns < free_ns {
            return self.schedule_event(world, free_ns - world.now_ns, HubEvent::Attempt(from));
        }
        station.state = StationState::Sending { since_ns: world.now_ns };
        station.attempt += 1;
        let (attempt, is_met) = (station.attempt, station.heard > 0);
        self.schedule_event(world, delay_ns, HubEvent::Hear(from));
        self.schedule_event(world, sent_ns, HubEvent::Sent(from, attempt));
        if is_met {
            self.collide(world, from);
        }
    }

    fn hear(&mut self, world: &mut SimWorld<M>, from: NodeIndex) {
        for index in (0..self.stations.len()).filter(|index| *index != from) {
            let station = &mut self.stations[index];
            if station.heard == 0 {
                station.heard_since_ns = world.now_ns;
            }
            station.heard += 1;
            self.collide(world, index);
        }
    }

    /// A station hears another one; if it is sending, that is a collision.
    fn collide(&mut self, world: &mut SimWorld<M>, index: NodeIndex) {
        let station = &mut self.stations[index];
        let StationState::Sending { since_ns } = station.state else { return };
        station.state = StationState::Jamming;
        // Everything planned for the end of this attempt is void.
        station.attempt += 1;
        world.counts.collisions += 1;
        let preamble_ns = since_ns + world.config.preamble_ns();
        let jammed_ns = preamble_ns.saturating_sub(world.now_ns) + world.config.jam_ns();
        self.schedule_event(world, jammed_ns, HubEvent::Jammed(index));
    }

    fn fade(&mut self, world: &mut SimWorld<M>, from: NodeIndex) {
        for index in (0..self.stations.len()).filter(|index| *index != from) {
            let station = &mut self.stations[index];
            station.heard -= 1;
            if station.heard > 0 {
                continue;
            }
            station.quiet_since_ns = station.quiet_since_ns.max(world.now_ns);
            if station.state == StationState::Deferring {
                station.state = StationState::Ready;
                self.schedule_event(world, world.config.silence_ns(), HubEvent::Attempt(index));
            }
        }
    }

    fn sent(
        &mut self,
        world: &mut SimWorld<M>,
        from: NodeIndex,
        attempt: u64,
    ) -> Option<TransmitOutcome<M>> {
        if self.stations[from].attempt != attempt {
            return None;
        }
        self.schedule_event(world, world.config.hub_delay_ns, HubEvent::Fade(from));
        self.take(world, from).map(TransmitOutcome::Sent)
    }

    fn jammed(&mut self, world: &mut SimWorld<M>, from: NodeIndex) -> Option<TransmitOutcome<M>> {
        self.schedule_event(world, world.config.hub_delay_ns, HubEvent::Fade(from));
        let station = &mut self.stations[from];
        station.collisions += 1;
        if station.collisions >= world.config.attempts_max {
            return self.take(world, from).map(TransmitOutcome::GivenUp);
        }
        station.state = StationState::Ready;
        station.quiet_since_ns = world.now_ns;
        // A random number of slots r with 0 ≤ r < 2^k [ieee802.3, §4.2.3].
        let exponent = station.collisions.min(world.config.backoff_exponent_max).min(63);
        let slots = world.random.u64(0..1 << exponent);
        let pause_ns = slots.saturating_mul(world.config.slot_ns());
        self.schedule_event(world, pause_ns, HubEvent::Attempt(from));
        None
    }

    /// Removes the first frame of a station's queue, which is done with.
    fn take(&mut self, world: &mut SimWorld<M>, from: NodeIndex) -> Option<Frame<M>> {
        let station = &mut self.stations[from];
        station.collisions = 0;
        station.quiet_since_ns = world.now_ns;
        let frame = station.queue.pop_front();
        station.state =
            if station.queue.is_empty() { StationState::Idle } else { StationState::Ready };
        if station.state == StationState::Ready {
            self.schedule_event(world, 0, HubEvent::Attempt(from));
        }
        frame
    }

    fn schedule_event(&self, world: &mut SimWorld<M>, delay_ns: u64, what: HubEvent) {
        world.schedule_event(delay_ns, SimEvent::Hub { nic: self.nic, what });
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::ClusterConfig;
    use super::super::frame::Destination;
    use super::*;

    /// Offers frames to a hub of four stations; returns which station has sent when, in order.
    fn sent(
        set: ClusterConfig,
        seed: u64,
        frames: &[(u64, NodeIndex)],
    ) -> (Vec<(u64, NodeIndex)>, u64) {
        let mut world = SimWorld::new(set, 0.0, seed);
        let mut hub = Hub::new(0, 4);
        for &(at_ns, from) in frames {
            let frame = Frame { from, to: Destination::Others, message: () };
            world.schedule_event(at_ns, SimEvent::Offer { nic: 0, frame });
        }
        let mut sent = Vec::new();
        while let Some(event) = world.next() {
            match event {
                SimEvent::Offer { frame, .. } => hub.offer(&mut world, frame),
                SimEvent::Hub { what, .. } => match hub.handle(&mut world, what) {
                    Some(TransmitOutcome::Sent(frame)) => sent.push((world.now_ns, frame.from)),
                    Some(TransmitOutcome::GivenUp(_)) => world.counts.given_up += 1,
                    None => {}
                },
                _ => {}
            }
        }
        assert!(hub.stations.iter().all(|one| one.heard == 0 && one.state == StationState::Idle));
        (sent, world.counts.collisions + 1_000_000 * world.counts.given_up)
    }

    #[test]
    fn who_comes_later_waits_for_the_gap() {
        // Goal: carrier sense and the gap between frames. Method: a second station begins while it hears the first.
        let set = ClusterConfig::CALIBRATED;
        let first_ns = 10_000 + set.transmission_ns();
        let second_ns = first_ns + set.hub_delay_ns + set.silence_ns() + set.transmission_ns();
        let frames = [(10_000, 0), (10_000 + set.hub_delay_ns, 1)];
        assert_eq!(sent(set, 0, &frames), (vec![(first_ns, 0), (second_ns, 1)], 0));
    }

    #[test]
    fn who_cannot_hear_yet_collides() {
        // Goal: all frames come through in the end, after collisions, and never two at once. Method: four stations within the
        // delay, many seeds.
        let set = ClusterConfig::CALIBRATED;
        for seed in 0..64 {
            let frames = [(10_000, 0), (10_000, 1), (10_300, 2), (10_849, 3)];
            let (sent, collisions) = sent(set, seed, &frames);
            assert_eq!(sent.len(), 4, "seed {seed}");
            assert!((4..1_000_000).contains(&collisions), "seed {seed}: {collisions}");
            let apart_ns = set.gap_ns();
            assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 >= apart_ns), "seed {seed}");
        }
    }

    #[test]
    fn the_rule_for_the_end_of_the_gap_decides_who_is_next() {
        // Goal: with the whole gap, the first station sends again at once; with two parts, those that waited collide with it.
        // Method: two frames of one station, and one of another that waits.
        let frames = [(10_000, 0), (10_000, 0), (12_000, 1)];
        let whole = sent(ClusterConfig::CALIBRATED, 0, &frames);
        assert_eq!(whole.0.iter().map(|one| one.1).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!(whole.1, 0);
        let parts = ClusterConfig { deferral: Deferral::TwoParts, ..ClusterConfig::CALIBRATED };
        assert!(sent(parts, 0, &frames).1 >= 2);
    }

    #[test]
    fn a_frame_is_given_up_after_so_many_collisions() {
        // Goal: nothing tries for ever. Method: one attempt allowed, two stations at once.
        let set = ClusterConfig { attempts_max: 1, ..ClusterConfig::CALIBRATED };
        assert_eq!(sent(set, 0, &[(10_000, 0), (10_000, 1)]), (Vec::new(), 2_000_002));
    }
}
