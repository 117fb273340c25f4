//! The arithmetic of the RDMA area: where the next frame goes, and how much of the area is free.
//!
//! ```text
//!   0          released      ReadPointer        WritePointer          size
//!   |   free   |  held, done  |  sent, not read  |   RDMAmaxwrite ...  |
//! ```
//!
//! The sender owns `WritePointer` and counts what it wrote; the receiver owns `ReadPointer` and counts what
//! it has given back. Both counters only grow (modulo 2^32, in units of 64 bytes), so a late or repeated
//! update does no harm. Short frames begin at a multiple of a cache line; long ones begin later, so that the
//! data after their envelope does, and so do those that take no more room by that. A frame that does not fit before the end starts at the beginning, which a
//! negative immediate announces [via-lam, §4.2].

use std::collections::VecDeque;

use super::to_u64;

/// The unit into which the area is divided, in bytes: a cache line.
pub(super) const UNIT: u32 = 64;

/// The largest area, in bytes: lengths of frames stay clear of the immediates of control entries.
pub(super) const AREA_BYTES_MAX: u32 = 1 << 26;

/// Frames longer than this, in bytes, begin [`LEAD_BYTES`] into their place, whether or not that takes another unit.
const LONG_FRAME_BYTES: u32 = 1024;

/// Puts the data after a frame's envelope of 16 bytes at the beginning of a cache line: no store of the copy touches two lines, and one line
/// less has to be passed on if the envelope comes with the announcement.
const LEAD_BYTES: u32 = UNIT - 16;

/// Returns how far into its place a frame begins, in bytes.
#[inline]
const fn lead(length_bytes: u32) -> u32 {
    let is_free = length_bytes > UNIT && length_bytes.wrapping_sub(1) % UNIT < UNIT - LEAD_BYTES;
    if is_free || length_bytes > LONG_FRAME_BYTES { LEAD_BYTES } else { 0 }
}

/// Returns how many units a frame of `length_bytes` takes.
#[inline]
const fn units(length_bytes: u32) -> u32 {
    length_bytes.saturating_add(lead(length_bytes)).div_ceil(UNIT)
}

/// Returns the longest frame that always finds a place in an empty area of `area_bytes`.
pub(super) const fn longest_frame(area_bytes: u32) -> u32 {
    (area_bytes / UNIT / 2 * UNIT).saturating_sub(LEAD_BYTES)
}

/// The place of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(super) struct FrameSlot {
    /// The offset from the beginning of the area, in bytes.
    pub(super) offset: u32,
    /// The immediate that announces it: its length, negative if it starts at the beginning.
    pub(super) immediate: i32,
}

/// The sender's view of the area at its peer: `WritePointer` and what is free.
///
/// # Source
/// [via-lam, §4.2]. *Deviation:* `RDMAmaxread` is a cumulative count of what was given back, not the amount
/// that is free, so that an update may be lost, repeated or late.
#[derive(Clone, Copy, Debug)]
pub(super) struct AreaWriter {
    size_units: u32,
    /// `WritePointer`, in units.
    write_pointer: u32,
    /// Units ever taken, including those skipped at the wraps.
    taken: u32,
    /// Units ever given back by the peer, as last reported by `RDMAmaxread`.
    freed: u32,
}

impl AreaWriter {
    /// Returns a writer for an empty area of `size_bytes`, rounded down to whole units.
    #[must_use]
    pub(super) const fn new(size_bytes: u32) -> Self {
        Self { size_units: size_bytes / UNIT, write_pointer: 0, taken: 0, freed: 0 }
    }

    /// Returns the longest frame that always finds a place once the area is empty, in bytes: half the area,
    /// less the lead of a long frame.
    #[must_use]
    pub(super) const fn frame_bytes_max(&self) -> u32 {
        longest_frame(self.size_units * UNIT)
    }

    /// Returns how many units are not known to be free.
    #[inline]
    #[must_use]
    pub(super) const fn outstanding(&self) -> u32 {
        self.taken.wrapping_sub(self.freed)
    }

    /// Returns `RDMAmaxwrite`: the bytes that can be written from `WritePointer` on without asking.
    #[cfg(test)]
    const fn max_write(&self) -> u32 {
        let free = self.size_units - self.outstanding();
        let to_end = self.size_units - self.write_pointer;
        (if free < to_end { free } else { to_end }) * UNIT
    }

    /// Finds a place for a frame, and moves `WritePointer` behind it. `None`: not enough room is known to be
    /// free.
    #[inline]
    pub(super) fn take(&mut self, length_bytes: u32) -> Option<FrameSlot> {
        let needed = units(length_bytes);
        let free = self.size_units - self.outstanding();
        let to_end = self.size_units - self.write_pointer;
        let length = i32::try_from(length_bytes).ok()?;
        if needed <= to_end {
            if needed > free {
                return None;
            }
            let offset = self.write_pointer * UNIT + lead(length_bytes);
            self.write_pointer += needed;
            self.taken = self.taken.wrapping_add(needed);
            return Some(FrameSlot { offset, immediate: length });
        }
        // The rest of the area is skipped; it counts as taken until the frame behind it is given back.
        if needed.checked_add(to_end)? > free {
            return None;
        }
        self.write_pointer = needed;
        self.taken = self.taken.wrapping_add(needed + to_end);
        Some(FrameSlot { offset: lead(length_bytes), immediate: -length })
    }

    /// Undoes the last placement: `WritePointer` returns to where it was `before`.
    pub(super) const fn go_back_to(&mut self, before: &Self) {
        self.write_pointer = before.write_pointer;
        self.taken = before.taken;
    }

    /// Takes in `RDMAmaxread`: `freed` is the low `bits` bits of the count of units ever given back. Returns
    /// whether there is news, or `None` if the peer claims more than was ever taken.
    #[inline]
    pub(super) fn update(&mut self, freed: u32, bits: u32) -> Option<bool> {
        let mask = (1_u32 << bits) - 1;
        let more = freed.wrapping_sub(self.freed) & mask;
        if more > self.outstanding() {
            return None;
        }
        self.freed = self.freed.wrapping_add(more);
        Some(more > 0)
    }
}

/// A frame that stays in the area after it was read.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Units ever taken up to its end.
    end: u32,
    is_released: bool,
}

/// Identifies a frame that is held in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold(u64);

/// The receiver's view of its area: `ReadPointer` and what was given back.
#[derive(Clone, Debug)]
pub(super) struct AreaReader {
    size_units: u32,
    /// `ReadPointer`, in units.
    read_pointer: u32,
    /// Units ever read, including those skipped at the wraps.
    read: u32,
    /// Units ever given back.
    released: u32,
    /// The frames that were read and not given back, oldest first; no two neighbours are both released.
    spans: VecDeque<Span>,
    /// The number of the first span.
    first: u64,
}

/// A frame as the receiver finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(super) struct AreaFrame {
    /// The offset from the beginning of the area, in bytes.
    pub(super) offset: u32,
    /// The length, in bytes.
    pub(super) length: u32,
}

impl AreaReader {
    /// Returns a reader of an empty area of `size_bytes`, rounded down to whole units.
    #[must_use]
    pub(super) const fn new(size_bytes: u32) -> Self {
        Self {
            size_units: size_bytes / UNIT,
            read_pointer: 0,
            read: 0,
            released: 0,
            spans: VecDeque::new(),
            first: 0,
        }
    }

    /// Finds the frame that an immediate announces and moves `ReadPointer` behind it. `None`: the sender
    /// broke the protocol. Release or hold each frame then.
    #[inline]
    pub(super) fn find(&mut self, immediate: i32) -> Option<AreaFrame> {
        let length = immediate.unsigned_abs();
        let needed = units(length);
        let to_end = self.size_units - self.read_pointer;
        let (offset, skipped) = if immediate < 0 { (0, to_end) } else { (self.read_pointer, 0) };
        if needed == 0 || needed > self.size_units - offset {
            return None;
        }
        let free = self.size_units - self.read.wrapping_sub(self.released);
        if skipped + needed > free {
            return None;
        }
        self.read_pointer = offset + needed;
        self.read = self.read.wrapping_add(skipped + needed);
        Some(AreaFrame { offset: offset * UNIT + lead(length), length })
    }

    /// Returns where the bytes behind the next frame's envelope of 16 bytes begin, and how many they are, if it is of `length_bytes` and does not
    /// begin anew.
    #[inline]
    pub(super) const fn next_body(&self, length_bytes: u32) -> (u32, u32) {
        (self.read_pointer * UNIT + lead(length_bytes) + 16, length_bytes.saturating_sub(16))
    }

    /// Gives back the frame that was found last.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.spans.is_empty() {
            self.released = self.read;
        } else {
            self.release_behind_others();
        }
    }

    #[cold]
    fn release_behind_others(&mut self) {
        match self.spans.back_mut() {
            Some(last) if last.is_released => last.end = self.read,
            _ => self.spans.push_back(Span { end: self.read, is_released: true }),
        }
    }

    /// Keeps the frame that was found last in the area.
    pub(super) fn hold(&mut self) -> Hold {
        self.spans.push_back(Span { end: self.read, is_released: false });
        Hold(self.first + to_u64(self.spans.len()) - 1)
    }

    /// Gives a held frame back. It counts once all frames before it are given back.
    pub(super) fn release_held(&mut self, hold: Hold) {
        let Some(index) = hold.0.checked_sub(self.first) else { return };
        let Some(span) = usize::try_from(index).ok().and_then(|index| self.spans.get_mut(index))
        else {
            return;
        };
        span.is_released = true;
        while let Some(span) = self.spans.front()
            && span.is_released
        {
            self.released = span.end;
            self.spans.pop_front();
            self.first += 1;
        }
    }

    /// Returns the units ever given back, for `RDMAmaxread`.
    #[inline]
    #[must_use]
    pub(super) const fn released(&self) -> u32 {
        self.released
    }

    /// Returns the units that were found and not given back.
    #[cfg(test)]
    pub(super) const fn held(&self) -> u32 {
        self.read.wrapping_sub(self.released)
    }

    /// Returns the size of the area, in units.
    #[inline]
    #[must_use]
    pub(super) const fn size_units(&self) -> u32 {
        self.size_units
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Goal: the pointers of the paper's example. Method: three frames in an area that holds two and a half.
    #[test]
    fn a_frame_that_does_not_fit_starts_at_the_beginning() {
        let mut writer = AreaWriter::new(640);
        let mut reader = AreaReader::new(640);
        assert_eq!(writer.max_write(), 640);
        assert_eq!(writer.take(250), Some(FrameSlot { offset: 0, immediate: 250 }));
        assert_eq!(writer.take(200), Some(FrameSlot { offset: 304, immediate: 200 }));
        assert_eq!(writer.max_write(), 128);
        assert_eq!(writer.take(250), None, "the rest is too short and the beginning is taken");
        assert_eq!(reader.find(250), Some(AreaFrame { offset: 0, length: 250 }));
        reader.release();
        assert_eq!(writer.take(250), None, "the sender has not been told");
        assert_eq!(writer.update(reader.released(), 22), Some(true));
        assert_eq!(writer.take(250), Some(FrameSlot { offset: 0, immediate: -250 }));
        assert_eq!(writer.update(reader.released(), 22), Some(false), "an update may be repeated");
        assert_eq!(reader.find(200), Some(AreaFrame { offset: 304, length: 200 }));
        reader.release();
        assert_eq!(reader.find(-250), Some(AreaFrame { offset: 0, length: 250 }));
        reader.release();
        assert_eq!(writer.update(reader.released(), 22), Some(true));
        assert_eq!(writer.outstanding(), 0);
        assert_eq!(writer.update(reader.released().wrapping_add(1), 22), None, "more than taken");
    }

    /// Goal: immediates that no honest sender would send are refused and change nothing. Method: each kind.
    #[test]
    fn impossible_immediates_are_refused() {
        let mut reader = AreaReader::new(640);
        for immediate in [0, 641, i32::MAX, i32::MIN, -641] {
            assert_eq!(reader.find(immediate), None, "{immediate}");
        }
        assert_eq!(reader.find(600), Some(AreaFrame { offset: 0, length: 600 }));
        let hold = reader.hold();
        for immediate in [1, -1, -600] {
            assert_eq!(reader.find(immediate), None, "{immediate} while the area is full");
        }
        reader.release_held(hold);
        assert_eq!(reader.find(1), None, "no room before the end");
        assert_eq!(reader.find(-1), Some(AreaFrame { offset: 0, length: 1 }));
    }

    /// The place of a frame, in whole units.
    fn bounds(offset: u32, length: u32) -> (u32, u32) {
        let begin = offset / UNIT * UNIT;
        (begin, begin + units(length) * UNIT)
    }

    /// Goal: frames whose bytes behind the envelope can begin at a line do so, and only long ones take more room by that. Method: all lengths.
    #[test]
    fn a_lead_costs_short_frames_nothing() {
        for length in 1..5000 {
            let has_lead = lead(length) > 0;
            assert_eq!(
                units(length) > length.div_ceil(UNIT),
                length > 1024 && !matches!(length % UNIT, 1..=16)
            );
            assert_eq!(
                has_lead,
                length > 1024 || (length > 64 && matches!(length % UNIT, 1..=16)),
                "{length}"
            );
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send(u32),
        Receive { is_held: bool },
        ReleaseOldest,
        ReleaseNewest,
        Tell,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1_u32..1300).prop_map(Step::Send),
            4 => any::<bool>().prop_map(|is_held| Step::Receive { is_held }),
            1 => Just(Step::ReleaseOldest),
            1 => Just(Step::ReleaseNewest),
            2 => Just(Step::Tell),
        ]
    }

    proptest! {
        /// Goal: frames are found where they were put, no frame is put over one that is not given back,
        /// and nothing leaks. Method: random steps, against a list of the bytes in use.
        #[test]
        fn frames_never_overlap(
            units_count in 2_u32..40,
            steps in proptest::collection::vec(step(), 1..300),
        ) {
            let size = units_count * UNIT;
            let mut writer = AreaWriter::new(size);
            let mut reader = AreaReader::new(size);
            let mut sent: VecDeque<(FrameSlot, u32)> = VecDeque::new();
            let mut held: Vec<(Hold, AreaFrame)> = Vec::new();
            // What the sender must not touch: sent, and not yet reported as free.
            let mut in_use: Vec<(u32, u32)> = Vec::new();
            let mut done: Vec<(u32, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Send(length) => if let Some(place) = writer.take(length) {
                        let range = bounds(place.offset, length);
                        prop_assert!(range.1 <= size);
                        prop_assert!(in_use.iter().all(|one| one.1 <= range.0 || range.1 <= one.0));
                        in_use.push(range);
                        sent.push_back((place, length));
                    },
                    Step::Receive { is_held } => if let Some((place, length)) = sent.pop_front() {
                        let found = reader.find(place.immediate).expect("an honest sender");
                        prop_assert_eq!(found, AreaFrame { offset: place.offset, length });
                        if is_held {
                            held.push((reader.hold(), found));
                        } else {
                            reader.release();
                            done.push(bounds(found.offset, length));
                        }
                    },
                    Step::ReleaseOldest | Step::ReleaseNewest => if !held.is_empty() {
                        let index =
                            if matches!(step, Step::ReleaseOldest) { 0 } else { held.len() - 1 };
                        let (hold, found) = held.remove(index);
                        reader.release_held(hold);
                        done.push(bounds(found.offset, found.length));
                    },
                    Step::Tell => {
                        prop_assert!(writer.update(reader.released(), 22).is_some());
                        // The model gives back what is done, up to the first frame that is held.
                        while let Some(first) = in_use.first()
                            && let Some(index) = done.iter().position(|one| one == first)
                        {
                            done.remove(index);
                            in_use.remove(0);
                        }
                        let used: u32 = in_use.iter().map(|one| (one.1 - one.0) / UNIT).sum();
                        prop_assert!(writer.outstanding() >= used, "free before its time");
                    }
                }
            }
            for (place, _) in sent {
                prop_assert!(reader.find(place.immediate).is_some());
                reader.release();
            }
            for (hold, _) in held {
                reader.release_held(hold);
            }
            prop_assert!(writer.update(reader.released(), 22).is_some());
            prop_assert_eq!(writer.outstanding(), 0);
            prop_assert!(writer.take(writer.frame_bytes_max()).is_some(), "always finds a place");
        }
    }
}
