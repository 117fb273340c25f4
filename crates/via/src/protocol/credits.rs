//! Credits: what a receiver gives back, in one word that only ever counts up.
//!
//! The receiver writes the word into its peer's memory with a plain RDMA write, which takes no descriptor and
//! interrupts no one: the paper's `RDMAmaxread` and its answer to a low `descLeft` [via-lam, §4.2]. It does
//! so at a threshold and when it goes to sleep. A sender that goes to sleep for lack of credit says so, and
//! the next word comes with immediate data, which wakes it.

/// Bits of the count of area units; an area has at most half as many units as they can count.
pub(super) const AREA_BITS: u32 = 22;
const COUNT_BITS: u32 = 21;

/// The most descriptors: half of what the word can count.
pub(super) const DESCRIPTORS_MAX: u32 = 1 << (COUNT_BITS - 1);

/// Everything that a receiver has ever given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Returned {
    /// Units of the RDMA area.
    pub(super) area: u32,
    /// Receive descriptors that were posted again.
    pub(super) descriptors: u32,
    /// Control entries that were taken.
    pub(super) controls: u32,
}

impl Returned {
    /// Returns the word: the low bits of each count.
    #[inline]
    pub(super) fn pack(self) -> u64 {
        let low = |count: u32, bits: u32| u64::from(count) & ((1 << bits) - 1);
        low(self.area, AREA_BITS)
            | low(self.descriptors, COUNT_BITS) << AREA_BITS
            | low(self.controls, COUNT_BITS) << (AREA_BITS + COUNT_BITS)
    }

    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        let low = |shift: u32, bits: u32| {
            u32::try_from(word >> shift & ((1 << bits) - 1)).unwrap_or_default()
        };
        Self {
            area: low(0, AREA_BITS),
            descriptors: low(AREA_BITS, COUNT_BITS),
            controls: low(AREA_BITS + COUNT_BITS, COUNT_BITS),
        }
    }
}

/// The sender's allowance of something of which the peer has `count`: `descLeft`, for descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    count: u32,
    used: u32,
    returned: u32,
}

impl Allowance {
    pub(super) const fn new(count: u32) -> Self {
        Self { count, used: 0, returned: 0 }
    }

    /// Returns how many may be used.
    #[inline]
    pub(super) const fn left(&self) -> u32 {
        self.count - self.used.wrapping_sub(self.returned)
    }

    #[inline]
    pub(super) const fn take(&mut self) {
        debug_assert!(self.left() > 0, "the caller has checked");
        self.used = self.used.wrapping_add(1);
    }

    /// Undoes the last take.
    pub(super) const fn undo_take(&mut self) {
        self.used = self.used.wrapping_sub(1);
    }

    /// Returns how many were ever used.
    #[inline]
    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    /// Records what was returned. Returns whether there is news; `None` if the peer claims more than was
    /// used.
    #[inline]
    pub(super) const fn update(&mut self, returned: u32) -> Option<bool> {
        let more = returned.wrapping_sub(self.returned) & ((1 << COUNT_BITS) - 1);
        if more > self.used.wrapping_sub(self.returned) {
            return None;
        }
        self.returned = self.returned.wrapping_add(more);
        Some(more > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: the word keeps the low bits of each count apart. Method: random counts, also near the wrap.
        #[test]
        fn counts_do_not_mix(area: u32, descriptors: u32, controls: u32) {
            let returned = Returned { area, descriptors, controls };
            let unpacked = Returned::unpack(returned.pack());
            prop_assert_eq!(unpacked.area, area & ((1 << 22) - 1));
            prop_assert_eq!(unpacked.descriptors, descriptors & ((1 << 21) - 1));
            prop_assert_eq!(unpacked.controls, controls & ((1 << 21) - 1));
        }
    }

    /// Goal: an allowance survives the wrap of its counter, and takes back no more than was used. Method: use
    /// and return until far behind the wrap of 21 bits.
    #[test]
    fn an_allowance_wraps() {
        let mut allowance = Allowance::new(1000);
        let mut returned = 0_u32;
        for _ in 0..10_000 {
            for _ in 0..700 {
                allowance.take();
            }
            assert_eq!(allowance.left(), 300);
            returned = returned.wrapping_add(700);
            assert_eq!(allowance.update(returned & ((1 << 21) - 1)), Some(true));
            assert_eq!(allowance.update(returned & ((1 << 21) - 1)), Some(false));
            assert_eq!(allowance.update(returned.wrapping_add(1) & ((1 << 21) - 1)), None);
        }
        assert_eq!(allowance.used(), 7_000_000);
    }

    /// Goal: what was taken and not used can be used again, and news is reported as such. Method: every count
    /// of what was used and returned, up to five.
    #[test]
    fn an_allowance_counts() {
        for used in 0..=5 {
            for returned in 0..=6 {
                let mut allowance = Allowance::new(5);
                (0..used).for_each(|_| allowance.take());
                let news = (returned <= used).then_some(returned > 0);
                assert_eq!(allowance.update(returned), news);
                let back = if news.is_some() { returned } else { 0 };
                assert_eq!((allowance.left(), allowance.used()), (5 - used + back, used));
                if used > back {
                    allowance.undo_take();
                    assert_eq!((allowance.left(), allowance.used()), (6 - used + back, used - 1));
                }
            }
        }
    }
}
