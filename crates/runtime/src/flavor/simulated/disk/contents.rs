//! The bytes of a file: what the page cache has, and what a crash leaves of it.

use std::collections::VecDeque;

/// A disk writes a sector completely or not at all.
const SECTOR_BYTES: usize = 512;

/// After this many changes without a sync, the simulated kernel writes back the oldest one.
const UNSYNCED_MAX: usize = 1024;

/// A file's bytes, in memory and on the disk.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The bytes that readers see.
    cached: Vec<u8>,
    /// The bytes that the disk surely has.
    stored: Vec<u8>,
    /// The changes that lead from `stored` to `cached`, unless a sync failed.
    unsynced: VecDeque<ContentsChange>,
}

#[derive(Debug)]
enum ContentsChange {
    Write { offset: usize, bytes: Box<[u8]> },
    Length(usize),
}

impl ContentsChange {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => write(image, *offset, bytes),
            Self::Length(length) => image.resize(*length, 0),
        }
    }

    /// Applies what a disk has written when its power failed: whole sectors from the beginning on. The length of the file may
    /// already cover the rest, which then reads as zeros.
    fn tear(&self, image: &mut Vec<u8>, random: &mut fastrand::Rng) {
        let Self::Write { offset, bytes } = self else { return };
        let end = offset + bytes.len();
        let boundaries = end.div_ceil(SECTOR_BYTES) - offset / SECTOR_BYTES;
        let sector = offset / SECTOR_BYTES + random.usize(..boundaries);
        let count = (sector * SECTOR_BYTES).saturating_sub(*offset);
        if count > 0 {
            write(image, *offset, &bytes[..count]);
        }
        if random.bool() && image.len() < end {
            image.resize(end, 0);
        }
    }
}

fn write(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}

impl Contents {
    pub(super) fn len(&self) -> usize {
        self.cached.len()
    }

    pub(super) fn read(&self, offset: usize, room: &mut [u8]) -> usize {
        let rest = self.cached.get(offset..).unwrap_or_default();
        let count = rest.len().min(room.len());
        room[..count].copy_from_slice(&rest[..count]);
        count
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.change(ContentsChange::Write { offset, bytes: bytes.into() });
    }

    pub(super) fn set_len(&mut self, length: usize) {
        self.change(ContentsChange::Length(length));
    }

    fn change(&mut self, change: ContentsChange) {
        change.apply(&mut self.cached);
        self.unsynced.push_back(change);
        if self.unsynced.len() > UNSYNCED_MAX
            && let Some(oldest) = self.unsynced.pop_front()
        {
            oldest.apply(&mut self.stored);
        }
    }

    /// Stores everything.
    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.stored);
        }
    }

    /// Stores what a disk has written that failed: everything, nothing, or any of the changes, some of them torn. Readers still
    /// see all of it.
    pub(super) fn fail_sync(&mut self, random: &mut fastrand::Rng) {
        let style = random.u8(..4);
        for change in self.unsynced.drain(..) {
            match style {
                0 => {}
                1 => change.apply(&mut self.stored),
                _ => match random.u8(..4) {
                    0 => change.apply(&mut self.stored),
                    1 => change.tear(&mut self.stored, random),
                    _ => {}
                },
            }
        }
    }

    /// The machine stops: changes that were not synced are lost, torn or kept, as drawn.
    pub(super) fn crash(&mut self, random: &mut fastrand::Rng) {
        self.fail_sync(random);
        self.cached.clone_from(&self.stored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a crash keeps what was synced; of the rest, it keeps whole sectors from the beginning of each write, and any of
    /// the writes. Method: many seeds; each image after the crash is one of the legal ones, and each kind of loss occurs.
    #[test]
    fn a_crash_tears_what_was_not_synced() {
        let (mut lost, mut kept, mut torn, mut reordered) = (0, 0, 0, 0);
        for seed in 0..1000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut contents = Contents::default();
            contents.write(0, &[1; 700]);
            contents.sync();
            contents.write(700, &[2; 1000]);
            contents.write(1700, &[3; 100]);
            contents.crash(&mut random);
            let image = &contents.cached;
            assert_eq!(image[..700], [1; 700], "what was synced stays");
            let second = image[700..image.len().min(1700)].iter().filter(|&&it| it == 2).count();
            assert!([0, 324, 836, 1000].contains(&second), "{second} bytes are no whole sectors");
            let third = image.get(1700..).unwrap_or_default();
            // All of it is in one sector.
            assert!([0, 100].contains(&third.iter().filter(|&&it| it == 3).count()));
            let has_third = third.starts_with(&[3]);
            lost += u32::from(second == 0 && !has_third);
            kept += u32::from(image.len() == 1800 && second == 1000 && third == [3; 100]);
            torn += u32::from(0 < second && second < 1000);
            reordered += u32::from(second == 0 && has_third);
        }
        assert!([lost, kept, torn, reordered].iter().all(|&count| count > 20));
    }

    /// Goal: a failed sync is not mended by a later one. Method: many seeds; all bytes are readable after both, and some crash
    /// loses them.
    #[test]
    fn a_later_sync_does_not_mend_a_failed_one() {
        let is_lost = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut contents = Contents::default();
            contents.write(0, b"ahoy");
            contents.fail_sync(&mut random);
            contents.sync();
            assert_eq!(contents.cached, b"ahoy");
            contents.crash(&mut random);
            contents.cached != b"ahoy"
        };
        assert!((0..50).any(is_lost) && !(0..50).all(is_lost));
    }

    /// Goal: the list of unsynced changes is bounded. Method: more writes than that without a sync; the oldest are stored.
    #[test]
    fn unsynced_changes_are_bounded() {
        let mut contents = Contents::default();
        for number in 0..UNSYNCED_MAX + 10 {
            contents.write(number, &[7]);
        }
        assert_eq!((contents.unsynced.len(), contents.stored.len()), (UNSYNCED_MAX, 10));
        contents.set_len(3);
        contents.sync();
        assert_eq!((contents.len(), contents.stored.len()), (3, 3));
    }
}
