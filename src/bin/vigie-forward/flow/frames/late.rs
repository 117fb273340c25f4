//! Packets that the kernel dropped since the host did not take them in time.

use vigie::Instant;

use super::untranslated::Onset;

/// Says when such packets begin.
#[derive(Debug)]
pub(super) struct LateWatch {
    /// The number at the last check, and at the last message.
    packets: u64,
    told: u64,
    /// How many merged packets fit in a socket's buffer; `None` if it has places for single ones.
    segment_frames: Option<u32>,
    plain_frames: u32,
    onset: Onset,
}

impl LateWatch {
    pub(super) fn new(segment_frames: Option<u32>, plain_frames: u32) -> Self {
        Self { packets: 0, told: 0, segment_frames, plain_frames, onset: Onset::default() }
    }

    /// Takes the number since the start. Returns what to log, if more have begun to be dropped.
    pub(super) fn check(&mut self, packets: u64, now: Instant) -> Option<String> {
        let before = std::mem::replace(&mut self.packets, packets);
        if packets <= before || !self.onset.begins(now) {
            return None;
        }
        let new = packets - std::mem::replace(&mut self.told, packets);
        let advice = self.segment_frames.map_or_else(
            || "leave it more processor time, or spread receiving over more cores".to_owned(),
            |places| {
                format!(
                    "at a burst of packets (beside a program at tcx, the first ones of new flows), a socket has places for {places}; \
                     `--segments refuse` (`segments = \"refuse\"`) gives {}, but then packets that were merged (GRO) are dropped \
                     where the host gets them: turn merging off (`ethtool -K INTERFACE gro off`)",
                    self.plain_frames
                )
            },
        );
        Some(format!(
            "the host has not taken {new} packets in time, and they were dropped (`dropped: not taken in time` counts them): {advice}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: such packets are told when they begin, with those since the last message, and advice that fits. Method: times by hand.
    #[test]
    fn late_packets_are_told() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut watch = LateWatch::new(Some(92), 4096);
        assert_eq!(watch.check(0, at(5)), None);
        let said = watch.check(7, at(10)).unwrap();
        for words in ["taken 7 packets", "places for 92", "`--segments refuse`", "gives 4096"] {
            assert!(said.contains(words), "{said}");
        }
        assert_eq!((watch.check(7, at(15)), watch.check(9, at(20))), (None, None));
        let said = watch.check(10, at(80)).unwrap();
        assert!(said.contains("taken 3 packets"), "{said}");
        let said = LateWatch::new(None, 4096).check(1, at(1)).unwrap();
        assert!(said.contains("processor time") && !said.contains("segments"), "{said}");
    }
}
