//! Messages of a rank to itself.

use std::{collections::VecDeque, io::IoSlice};

use super::{envelope::Control, link::SendOutcome, to_u64};

/// Something that a rank sent to itself.
#[derive(Debug)]
pub(super) enum LoopbackItem {
    Frame(Vec<u8>),
    Control(Control),
}

/// Frames from a rank to itself: the same protocol, without a VI.
#[derive(Debug, Default)]
pub(super) struct LoopbackLink {
    pub(super) items: VecDeque<LoopbackItem>,
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
}

impl LoopbackLink {
    pub(super) fn new(bytes_max: u32) -> Self {
        Self { bytes_max: u64::from(bytes_max), ..Self::default() }
    }

    pub(super) fn send_frame(&mut self, slices: &[IoSlice<'_>], length: u32) -> SendOutcome {
        if self.bytes + u64::from(length) > self.bytes_max {
            return SendOutcome::Blocked;
        }
        let mut frame = Vec::with_capacity(length as usize);
        for slice in slices {
            frame.extend_from_slice(slice);
        }
        self.bytes += to_u64(frame.len());
        self.items.push_back(LoopbackItem::Frame(frame));
        SendOutcome::Done
    }

    pub(super) fn take(&mut self) -> Option<LoopbackItem> {
        let item = self.items.pop_front()?;
        if let LoopbackItem::Frame(frame) = &item {
            self.bytes -= to_u64(frame.len());
        }
        Some(item)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(own: &mut LoopbackLink, bytes: &[&[u8]]) -> SendOutcome {
        let slices: Vec<_> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let length = bytes.iter().map(|bytes| bytes.len()).sum::<usize>();
        own.send_frame(&slices, u32::try_from(length).expect("short"))
    }

    /// Goal: frames to oneself arrive whole and in order, and no more of them wait than the bound, to the byte.
    /// Method: frames that fill it exactly, one byte more, and again after one was taken.
    #[test]
    fn frames_to_oneself_are_bounded() {
        let mut own = LoopbackLink::new(10);
        assert!(own.is_idle() && own.take().is_none());
        assert_eq!(send(&mut own, &[b"abc", b"d"]), SendOutcome::Done);
        assert_eq!(send(&mut own, &[b"1234567"]), SendOutcome::Blocked);
        assert_eq!(send(&mut own, &[b"123456"]), SendOutcome::Done);
        assert_eq!(send(&mut own, &[b"x"]), SendOutcome::Blocked);
        own.items.push_back(LoopbackItem::Control(Control::Pause));
        assert!(!own.is_idle());
        assert!(matches!(own.take(), Some(LoopbackItem::Frame(frame)) if frame == b"abcd"));
        assert_eq!(send(&mut own, &[b"12345"]), SendOutcome::Blocked);
        assert_eq!(send(&mut own, &[b"1234"]), SendOutcome::Done);
        assert!(matches!(own.take(), Some(LoopbackItem::Frame(frame)) if frame == b"123456"));
        assert!(matches!(own.take(), Some(LoopbackItem::Control(Control::Pause))));
        assert!(matches!(own.take(), Some(LoopbackItem::Frame(frame)) if frame == b"1234"));
        assert!(own.is_idle());
        assert_eq!(send(&mut own, &[b"0123456789"]), SendOutcome::Done, "nothing counts any more");
    }
}
