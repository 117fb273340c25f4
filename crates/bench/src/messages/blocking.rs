//! All roles of a rank, for any system that can send and receive.

use super::{Measure, PingPong};
use crate::error::Failure;

/// The first byte of a message that ends a measure.
const STOP: u8 = 0xff;

/// The first byte of every other message.
const GO: u8 = 1;

/// A rank's way to the next rank and its way from the one before; messages stay in order.
pub(crate) trait Channel {
    /// Sends a message to the next rank; waits as long as there is no room.
    ///
    /// # Errors
    /// Those of the system.
    fn send(&mut self, message: &[u8]) -> Result<(), Failure>;

    /// Waits for a message from the rank before, of exactly the length of `message`.
    ///
    /// # Errors
    /// Those of the system.
    fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure>;
}

/// A [`Channel`] and two buffers: all that the roles need.
#[derive(Debug)]
pub(crate) struct Blocking<C> {
    channel: C,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// Opens a rank on a channel, if there is one.
pub(crate) fn blocking<C: Channel + 'static>(
    channel: Result<C, Failure>,
) -> Result<Box<dyn PingPong>, Failure> {
    Ok(Box::new(Blocking::new(channel?)))
}

impl<C: Channel> Blocking<C> {
    /// Gives a channel its roles.
    pub(crate) const fn new(channel: C) -> Self {
        Self { channel, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Makes both buffers as long as a message of `measure`, every page of them touched.
    fn resize(&mut self, measure: Measure) -> Result<(), Failure> {
        let length = usize::try_from(measure.bytes())
            .map_err(|_| Failure::runtime("a message does not fit into memory"))?;
        for buffer in [&mut self.outgoing, &mut self.incoming] {
            // A new vector of zeros would consist of untouched pages.
            buffer.clear();
            buffer.resize(length.max(1), GO);
        }
        Ok(())
    }
}

impl<C: Channel> PingPong for Blocking<C> {
    fn perform(&mut self, measure: Measure, count: u32) -> Result<(), Failure> {
        if self.outgoing.len() as u64 != u64::from(measure.bytes()) {
            self.resize(measure)?;
        }
        let Self { channel, outgoing, incoming } = self;
        outgoing[0] = GO;
        match measure {
            Measure::Window { window, .. } => {
                for _ in 0..count {
                    for _ in 0..window {
                        channel.send(outgoing)?;
                    }
                    channel.receive(&mut incoming[..1])?;
                }
            }
            _ => {
                for _ in 0..count {
                    channel.send(outgoing)?;
                    channel.receive(incoming)?;
                }
            }
        }
        Ok(())
    }

    fn stop(&mut self, measure: Measure) -> Result<(), Failure> {
        self.resize(measure)?;
        self.outgoing[0] = STOP;
        self.channel.send(&self.outgoing)?;
        let answer = if measure.window() > 1 { 1 } else { self.incoming.len() };
        self.channel.receive(&mut self.incoming[..answer])
    }

    fn follow(&mut self, measure: Measure) -> Result<(), Failure> {
        self.resize(measure)?;
        let Self { channel, incoming, .. } = self;
        let answer = if measure.window() > 1 { 1 } else { incoming.len() };
        loop {
            channel.receive(incoming)?;
            let is_last = incoming[0] == STOP;
            if !is_last {
                for _ in 1..measure.window() {
                    channel.receive(incoming)?;
                }
            }
            channel.send(&incoming[..answer])?;
            if is_last {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::thread;

    use super::*;

    /// A channel over threads that counts what it carries.
    struct Counted {
        next: Sender<Vec<u8>>,
        before: Receiver<Vec<u8>>,
        sent: VecDeque<usize>,
    }

    impl Channel for Counted {
        fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
            self.sent.push_back(message.len());
            self.next.send(message.to_vec()).map_err(Failure::runtime)
        }

        fn receive(&mut self, message: &mut [u8]) -> Result<(), Failure> {
            let received = self.before.recv().map_err(Failure::runtime)?;
            assert_eq!(received.len(), message.len());
            message.copy_from_slice(&received);
            Ok(())
        }
    }

    /// Connects this many ranks to a ring.
    fn ring(ranks: usize) -> Vec<Blocking<Counted>> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..ranks).map(|_| mpsc::channel()).unzip();
        // What rank r sends goes into channel r; it receives from channel r - 1.
        let mut receivers: VecDeque<_> = receivers.into();
        receivers.rotate_right(1);
        let ends = senders.into_iter().zip(receivers);
        ends.map(|(next, before)| Blocking::new(Counted { next, before, sent: VecDeque::new() }))
            .collect()
    }

    fn measure_result(ranks: usize, measure: Measure) -> (usize, Vec<usize>) {
        let mut ranks = ring(ranks);
        let mut leader = ranks.remove(0);
        let followers = ranks.into_iter().map(|mut rank| {
            thread::spawn(move || {
                rank.follow(measure).unwrap();
                rank.channel.sent.len()
            })
        });
        let followers: Vec<_> = followers.collect();
        leader.perform(measure, 3).unwrap();
        leader.perform(measure, 2).unwrap();
        leader.stop(measure).unwrap();
        let sent = followers.into_iter().map(|follower| follower.join().unwrap()).collect();
        (leader.channel.sent.len(), sent)
    }

    #[test]
    fn every_role_sends_what_it_should_and_ends() {
        // Goal: operations have as many messages as they claim, and a stop reaches every rank.
        // Method: five operations of each measure between threads, counted.
        assert_eq!(measure_result(2, Measure::Latency { bytes: 3 }), (6, vec![6]));
        assert_eq!(measure_result(2, Measure::Latency { bytes: 1 }), (6, vec![6]));
        assert_eq!(measure_result(2, Measure::Window { bytes: 8, window: 4 }), (21, vec![6]));
        assert_eq!(measure_result(2, Measure::Quiet), (6, vec![6]));
        assert_eq!(measure_result(4, Measure::Ring), (6, vec![6, 6, 6]));
    }
}
