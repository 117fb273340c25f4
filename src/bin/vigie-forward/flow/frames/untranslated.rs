//! Packets that leave to the outside with their own address: their source is outside all networks that are translated.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use vigie::{
    Instant,
    forward::packet::{Packet, Port},
};

/// After this time without it, something is told again; the next time after twice as long, and so on up to the longest.
const QUIET: Duration = Duration::from_secs(60);
const QUIET_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What a pipeline has counted. A program passes all of these packets up to it. Clones share the counter. Statistics only.
#[derive(Clone, Debug, Default)]
pub(super) struct UntranslatedCount(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    packets: AtomicU64,
    /// The source of the last one.
    source: AtomicU32,
}

impl UntranslatedCount {
    pub(super) fn packets(&self) -> u64 {
        self.0.packets.load(Ordering::Relaxed)
    }
}

/// Counts in a pipeline.
#[derive(Debug)]
pub(super) struct UntranslatedCounter {
    pub(super) count: UntranslatedCount,
    pub(super) public: Ipv4Addr,
    pub(super) outside: Port,
}

impl UntranslatedCounter {
    /// Takes a packet as it leaves by a port.
    pub(super) fn note(&self, packet: &mut Packet, egress: Port) {
        if egress != self.outside || packet.ingress() == self.outside {
            return;
        }
        let headers = packet.headers().ok();
        let addresses = headers.and_then(|headers| headers.addresses(packet.bytes()));
        if let Some((IpAddr::V4(source), _)) = addresses.filter(|(from, _)| *from != self.public) {
            self.count.0.source.store(source.to_bits(), Ordering::Relaxed);
            self.count.0.packets.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Says when something that happens again and again begins.
#[derive(Debug, Default)]
pub(super) struct Onset {
    last: Option<Instant>,
    /// How often it was told.
    told: u32,
}

impl Onset {
    /// Takes note that it has happened. Returns whether it has just begun, and is to be told.
    pub(super) fn begins(&mut self, now: Instant) -> bool {
        let factor = 2_u32.saturating_pow(self.told.saturating_sub(1));
        let quiet = QUIET.saturating_mul(factor).min(QUIET_MAX);
        let begins = self.last.replace(now).is_none_or(|last| now - last >= quiet);
        self.told = self.told.saturating_add(begins.into());
        begins
    }
}

/// Says when such packets begin.
#[derive(Debug, Default)]
pub(super) struct UntranslatedWatch {
    /// The number at the last check.
    packets: u64,
    onset: Onset,
}

impl UntranslatedWatch {
    /// Returns the source of a packet, if these have begun.
    pub(super) fn check(&mut self, count: &UntranslatedCount, now: Instant) -> Option<Ipv4Addr> {
        let before = std::mem::replace(&mut self.packets, count.packets());
        let begins = self.packets != before && self.onset.begins(now);
        begins.then(|| Ipv4Addr::from_bits(count.0.source.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: packets from inside to outside count unless they have the public address, and are told when they begin, again after a minute without one. Method:
    /// packets of each kind and direction; times by hand.
    #[test]
    fn packets_are_counted_and_told() {
        let (public, outside) = (Ipv4Addr::new(198, 51, 100, 9), Port(1));
        let counter = UntranslatedCounter { count: UntranslatedCount::default(), public, outside };
        let note = |ingress, source: [u8; 4], egress| {
            let mut frame = vec![2; 12];
            frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
            frame.extend(source);
            frame.extend([192, 0, 2, 1, 0, 7, 0, 7, 0, 8, 0, 0]);
            counter.note(&mut Packet::new(Port(ingress), &frame), Port(egress));
            counter.count.packets()
        };
        let inside = [10, 5, 0, 9];
        assert_eq!(note(0, public.octets(), 1), 0);
        assert_eq!((note(0, inside, 0), note(0, inside, 2), note(1, inside, 1)), (0, 0, 0));
        let mut watch = UntranslatedWatch::default();
        let mut check = |seconds: u64| {
            watch.check(&counter.count, Instant::from_nanos(seconds * 1_000_000_000))
        };
        assert_eq!(check(1), None);
        assert_eq!((note(0, inside, 1), check(2)), (1, Some(inside.into())));
        assert_eq!((check(3), note(2, inside, 1), check(40)), (None, 2, None));
        assert_eq!((note(0, inside, 1), check(99), check(150)), (3, None, None));
        assert_eq!((note(0, inside, 1), check(159)), (4, Some(inside.into())));
    }

    /// Goal: what comes and goes for good is told ever more rarely, and after a day without it always. Method: the shortest quiet that is told and one that is a second shorter,
    /// each time; times by hand.
    #[test]
    fn what_comes_and_goes_is_told_more_rarely() {
        let (mut onset, mut seconds) = (Onset::default(), 5);
        let mut begins = |after: u64| {
            seconds += after;
            onset.begins(Instant::from_nanos(seconds * 1_000_000_000))
        };
        assert!(begins(0));
        for quiet in (0..11).map(|power| 60 << power).chain([86_400, 86_400]) {
            assert!(!begins(quiet - 1), "{quiet}");
            assert!(begins(quiet), "{quiet}");
        }
    }
}
