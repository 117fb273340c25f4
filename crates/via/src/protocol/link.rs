//! The way to one peer over a reliable VI: the RDMA area, its credits and the ring of control entries.
//!
//! ```text
//!   immediate    what the peer finds
//!   n > 0        a frame of n bytes at its ReadPointer
//!   n < 0        a frame of -n bytes at the beginning of its area
//!   0            a notice: the credit word has news
//!   2^30         the next control entry
//!   2^30 + 1     a wish: the peer sleeps for want of credit
//! ```

use std::io::IoSlice;

use super::{
    area::{AreaReader, AreaWriter, Found, Hold, Place},
    credits::{AREA_BITS, Allowance, Returned},
    envelope::{CONTROL_BYTES, Control, Envelope, FrameKind},
    payload::SLICES_MAX,
    wide,
};
use crate::vi::{
    CACHE_LINE, Data, LocalSegment, Memory, Operation, Provider, ReceiveDescriptor, Region,
    RemoteKey, RemoteSegment, SendDescriptor, ViError, ViId,
};

/// The immediate of a control entry.
pub(super) const CONTROL_IMMEDIATE: i32 = 1 << 30;
/// The immediate of a wish for credit.
pub(super) const WISH_IMMEDIATE: i32 = CONTROL_IMMEDIATE + 1;
/// The immediate of a notice that there is credit.
pub(super) const NOTICE_IMMEDIATE: i32 = 0;
/// Where the control region has the peer's credit word.
const CREDIT_WORD: u64 = 0;
/// Where a wish goes, which has nothing to say but itself.
const WISH_WORD: u64 = 8;
/// Where its control entries begin.
const ENTRIES: u64 = 64;
/// Descriptors that are kept for bells: a wish and a notice each way may be on the way twice.
const BELLS: u32 = 4;

/// Shorter frames travel inside the entry that tells of them, or have few lines to ask for.
const CLAIMED_MIN_BYTES: u32 = 128;
/// So much of the next frame's place is asked for. The copy itself asks for what is behind.
const CLAIMED_MAX_BYTES: u32 = 16 << 10;

/// So much of a frame that has come is asked for at once: as many lines as a processor waits for at a time.
const FETCHED_MAX_BYTES: u32 = 1 << 10;

/// Returns how many bytes a control region has.
pub(super) fn control_region_bytes(entries: u32) -> usize {
    usize::try_from(ENTRIES).unwrap_or_default() + entries as usize * CONTROL_BYTES
}

/// What became of something that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what could not be sent is to be tried again"]
pub(super) enum Sent {
    /// It is on its way.
    Done,
    /// There is no credit, or the queue is full: later.
    Blocked,
    /// The peer claims what cannot be, or the VI is broken.
    Fault(&'static str),
}

/// What a greeting tells of its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) area_key: RemoteKey,
    pub(super) control_key: RemoteKey,
    pub(super) area_bytes: u32,
    pub(super) descriptors: u32,
    pub(super) control_entries: u32,
    pub(super) window_bytes: u32,
    pub(super) frame_bytes_max: u32,
}

/// Registered buffers for frames that are too long to go inline.
#[derive(Debug)]
pub(super) struct Staging {
    region: Region,
    frame_bytes: u32,
    max_inline: u64,
    free: Vec<u32>,
}

/// The bit of a cookie whose frame is in a staging buffer. Its number is in the low half; the rank is in the
/// bits above.
pub(super) const COOKIE_STAGED: u64 = 1 << 63;

/// Returns the rank in a cookie.
#[inline]
pub(super) fn rank_of(cookie: u64) -> u32 {
    u32::try_from(cookie >> 32 & !(1 << 31)).unwrap_or_default()
}

/// Returns a cookie for a rank.
#[inline]
pub(super) const fn cookie_of(rank: u32) -> u64 {
    (rank as u64) << 32
}

impl Staging {
    pub(super) fn new(region: Region, frame_bytes: u32, count: u32, max_inline: u64) -> Self {
        Self { region, frame_bytes, max_inline, free: (0..count).rev().collect() }
    }

    /// Returns whether frames of that length need a buffer.
    #[inline]
    pub(super) const fn is_needed(&self, length: u64) -> bool {
        length > self.max_inline
    }

    fn fill(&mut self, slices: &[IoSlice<'_>], length: u64) -> Option<(u32, LocalSegment)> {
        let slot = self.free.pop()?;
        let offset = u64::from(slot) * u64::from(self.frame_bytes);
        let segment = LocalSegment { memory: self.region.handle, offset, length };
        let mut at = offset;
        for slice in slices {
            if length > u64::from(self.frame_bytes) || self.region.memory.write(at, slice).is_err()
            {
                self.free.push(slot);
                return None;
            }
            at += wide(slice.len());
        }
        Some((slot, segment))
    }

    /// Copies a frame to a buffer, if one is free. Returns the cookie that gives it back.
    pub(super) fn stage(
        &mut self,
        slices: &[IoSlice<'_>],
        length: u64,
        cookie: u64,
    ) -> Option<(u64, LocalSegment)> {
        let (slot, segment) = self.fill(slices, length)?;
        Some((COOKIE_STAGED | cookie | u64::from(slot), segment))
    }

    /// Takes a buffer back, whose frame was sent.
    pub(super) fn give_back(&mut self, cookie: u64) {
        self.free.push(super::slots::index_of(cookie));
    }
}

/// Both directions of a connection over a reliable VI.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) vi: ViId,
    pub(super) terms: Terms,
    // What the peer has for us.
    pub(super) writer: AreaWriter,
    descriptors_out: Allowance,
    controls_out: Allowance,
    reserve: u32,
    /// The credit word that was seen last.
    seen: u64,
    is_wishing: bool,
    /// A place that was lent and not announced yet; the pointer as it was before.
    lent: Option<(Place, AreaWriter)>,
    /// Pieces of our area that the peer fills later: offset, length.
    reserved: Vec<(u32, u32, Hold)>,
    /// The peer's area, if it is mapped here.
    window: Option<Memory>,
    unsignaled: u32,
    signal_every: u32,
    // What we have for the peer.
    pub(super) area: Region,
    pub(super) control: Region,
    pub(super) reader: AreaReader,
    controls_count: u32,
    descriptors_count: u32,
    cookie: u64,
    returned: Returned,
    /// What the credit word said last.
    told: Returned,
    /// What it said when the peer was last rung for it.
    noticed: Returned,
    unposted: u32,
    owes_notice: bool,
}

/// What a link is made of at its own side.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) vi: ViId,
    pub(super) area: Region,
    pub(super) control: Region,
    pub(super) area_bytes: u32,
    pub(super) descriptors: u32,
    pub(super) control_entries: u32,
    pub(super) cookie: u64,
    pub(super) signal_every: u32,
}

impl Direct {
    pub(super) fn new(own: Own, terms: Terms) -> Self {
        Self {
            vi: own.vi,
            terms,
            writer: AreaWriter::new(terms.area_bytes),
            descriptors_out: Allowance::new(terms.descriptors),
            controls_out: Allowance::new(terms.control_entries),
            reserve: terms.control_entries + BELLS,
            seen: 0,
            is_wishing: false,
            lent: None,
            reserved: Vec::new(),
            window: None,
            unsignaled: 0,
            signal_every: own.signal_every,
            area: own.area,
            control: own.control,
            reader: AreaReader::new(own.area_bytes),
            controls_count: own.control_entries,
            descriptors_count: own.descriptors,
            cookie: own.cookie,
            returned: Returned::default(),
            told: Returned::default(),
            noticed: Returned::default(),
            unposted: 0,
            owes_notice: false,
        }
    }

    // ------------------------------------------------------------------ sending

    /// Takes note of the credits that the peer has written. Returns whether there are new ones.
    #[inline]
    pub(super) fn refresh(&mut self) -> Result<bool, &'static str> {
        let word = self.control.memory.load(CREDIT_WORD).map_err(|_| "no control region")?;
        if word == self.seen {
            return Ok(false);
        }
        let returned = Returned::unpack(word);
        let news = [
            self.writer.update(returned.area, AREA_BITS),
            self.descriptors_out.update(returned.descriptors),
            self.controls_out.update(returned.controls),
        ];
        if news.contains(&None) {
            return Err("credit for more than was ever sent");
        }
        self.seen = word;
        Ok(news.contains(&Some(true)))
    }

    /// Finds a place in the peer's area, asking for news if what is known does not do.
    #[inline]
    fn place(&mut self, length: u32) -> Result<Option<Place>, &'static str> {
        if self.descriptors_out.left() > self.reserve
            && let Some(place) = self.writer.take(length)
        {
            return Ok(Some(place));
        }
        self.place_after_news(length)
    }

    #[cold]
    fn place_after_news(&mut self, length: u32) -> Result<Option<Place>, &'static str> {
        if !self.refresh()? || self.descriptors_out.left() <= self.reserve {
            return Ok(None);
        }
        Ok(self.writer.take(length))
    }

    /// Sends a frame of `length` bytes in all: WritePointer moves on, `descLeft` goes down
    /// [via-lam, §4.1, steps 3 to 6].
    #[inline]
    pub(super) fn send_frame<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        slices: &[IoSlice<'_>],
        length: u32,
    ) -> Sent {
        if self.lent.is_some() {
            match self.announce_lent(nic) {
                Sent::Done => {}
                other => return other,
            }
        }
        let before = self.writer;
        let place = match self.place(length) {
            Ok(Some(place)) => place,
            Ok(None) => return Sent::Blocked,
            Err(what) => return Sent::Fault(what),
        };
        let remote = RemoteSegment { key: self.terms.area_key, offset: u64::from(place.offset) };
        let sent = if staging.is_needed(u64::from(length)) {
            self.post_staged(nic, staging, slices, u64::from(length), remote, place.immediate)
        } else {
            self.post(nic, Data::Inline(slices), remote, Some(place.immediate), None)
        };
        if sent == Sent::Done {
            self.descriptors_out.take();
            if length >= CLAIMED_MIN_BYTES {
                self.claim_next(nic, length);
            }
        } else {
            self.writer = before;
        }
        sent
    }

    /// Asks for the cache lines of the next frame, if it is as long as the last: the peer has read what was
    /// there before, and gives it up while this side has nothing to do with it yet.
    fn claim_next<P: Provider>(&mut self, nic: &P, length: u32) {
        // What is not free the peer is still to read: it would have to ask for it again.
        let mut next = self.writer;
        let Some(place) = next.take(length) else { return };
        if self.window.is_none() {
            self.window = nic.window(self.vi, self.terms.area_key);
        }
        if let Some(window) = &self.window {
            window
                .prefetch_to_write(u64::from(place.offset), length.min(CLAIMED_MAX_BYTES) as usize);
        }
    }

    fn post_staged<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        slices: &[IoSlice<'_>],
        length: u64,
        remote: RemoteSegment,
        immediate: i32,
    ) -> Sent {
        debug_assert!(slices.len() <= SLICES_MAX, "gathered before");
        let Some((cookie, segment)) = staging.stage(slices, length, self.cookie) else {
            return Sent::Blocked;
        };
        let data = Data::Segments(&[segment]);
        let sent = self.post(nic, data, remote, Some(immediate), Some(cookie));
        if sent != Sent::Done {
            staging.give_back(cookie);
        }
        sent
    }

    /// Returns whether a frame of `length` bytes would find credit.
    pub(super) fn has_room(&mut self, length: u32, staging: &Staging) -> bool {
        let mut writer = self.writer;
        let has_room = self.descriptors_out.left() > self.reserve && writer.take(length).is_some();
        let has_buffer = !(staging.is_needed(u64::from(length)) && staging.free.is_empty());
        // A fault in the credits shows again when something is sent.
        has_buffer && (has_room || self.refresh().unwrap_or(true))
    }

    /// Lends a place for a frame of `length` bytes in the peer's area, if it is mapped here.
    pub(super) fn lend<P: Provider>(&mut self, nic: &P, length: u32) -> Option<(Memory, Place)> {
        if self.lent.is_some() {
            return None;
        }
        if self.window.is_none() {
            self.window = nic.window(self.vi, self.terms.area_key);
        }
        let memory = self.window.clone()?;
        let before = self.writer;
        let place = self.place(length).ok()??;
        if wide(memory.len()) < u64::from(place.offset) + u64::from(length) {
            self.writer = before;
            return None;
        }
        self.descriptors_out.take();
        self.lent = Some((place, before));
        Some((memory, place))
    }

    /// Returns whether the place at `offset` is lent, and nothing was sent since.
    pub(super) fn is_lent(&self, offset: u64) -> bool {
        self.lent.is_some_and(|(place, _)| u64::from(place.offset) == offset)
    }

    /// Announces the frame in the lent place, of which only `head` is still to be written.
    pub(super) fn send_lent<P: Provider>(&mut self, nic: &mut P, head: &[u8]) -> Sent {
        let Some((place, _)) = self.lent else { return Sent::Done };
        let remote = RemoteSegment { key: self.terms.area_key, offset: u64::from(place.offset) };
        let slices = [IoSlice::new(head)];
        let sent = self.post(nic, Data::Inline(&slices), remote, Some(place.immediate), None);
        if sent == Sent::Done {
            self.lent = None;
        }
        sent
    }

    /// Another frame is to be sent: the lent place is passed over, to be filled later.
    #[cold]
    fn announce_lent<P: Provider>(&mut self, nic: &mut P) -> Sent {
        let Some((place, _)) = self.lent else { return Sent::Done };
        let length = place.immediate.unsigned_abs() - 16;
        let kind = FrameKind::Reserved;
        let head = Envelope { kind, flags: 0, context: 0, tag: 0, id: u32::MAX, length };
        self.send_lent(nic, &head.encode())
    }

    /// Takes a lent place back. Returns `false` if it was passed over already.
    pub(super) fn unlend(&mut self, offset: u64) -> bool {
        if !self.is_lent(offset) {
            return false;
        }
        if let Some((_, before)) = self.lent.take() {
            // News of credit may have come since.
            self.writer.go_back_to(&before);
            self.descriptors_out.untake();
        }
        true
    }

    /// Keeps the frame that was found last: the peer fills it later.
    pub(super) fn reserve(&mut self, offset: u32, length: u32) {
        let hold = self.reader.hold();
        self.reserved.push((offset, length, hold));
    }

    /// Takes a reserved piece off the list.
    pub(super) fn take_reserved(&mut self, offset: u64) -> Option<(u32, u32, Hold)> {
        let index = self.reserved.iter().position(|one| u64::from(one.0) == offset)?;
        Some(self.reserved.swap_remove(index))
    }

    #[inline]
    fn post<P: Provider>(
        &mut self,
        nic: &mut P,
        data: Data<'_>,
        remote: RemoteSegment,
        immediate: Option<i32>,
        cookie: Option<u64>,
    ) -> Sent {
        // Now and then one is signaled, so that the queue is known to move.
        self.unsignaled += 1;
        let is_signaled = cookie.is_some() || self.unsignaled >= self.signal_every;
        let descriptor = SendDescriptor {
            operation: Operation::RdmaWrite,
            cookie: cookie.unwrap_or(self.cookie),
            immediate,
            is_signaled,
            remote: Some(remote),
            data,
        };
        match nic.post_send(self.vi, &descriptor) {
            Ok(()) => {
                if is_signaled {
                    self.unsignaled = 0;
                }
                Sent::Done
            }
            // A broken VI takes nothing any more; its event tells why, after what had arrived.
            Err(ViError::QueueFull { .. } | ViError::WrongState { .. }) => Sent::Blocked,
            Err(_) => Sent::Fault("the VI takes no descriptors"),
        }
    }

    /// Returns whether the peer has a descriptor for a bell: bells are few, and some are kept for them.
    fn has_descriptor(&mut self) -> Result<bool, &'static str> {
        Ok(self.descriptors_out.left() > 0 || (self.refresh()? && self.descriptors_out.left() > 0))
    }

    /// Sends a control entry.
    pub(super) fn send_control<P: Provider>(&mut self, nic: &mut P, control: Control) -> Sent {
        if self.controls_out.left() == 0 || self.descriptors_out.left() == 0 {
            match self.refresh() {
                Ok(_) if self.controls_out.left() == 0 || self.descriptors_out.left() == 0 => {
                    return Sent::Blocked;
                }
                Ok(_) => {}
                Err(what) => return Sent::Fault(what),
            }
        }
        let slot = self.controls_out.used() % self.terms.control_entries;
        let offset = ENTRIES + u64::from(slot) * wide(CONTROL_BYTES);
        let remote = RemoteSegment { key: self.terms.control_key, offset };
        let bytes = control.encode();
        let slices = [IoSlice::new(&bytes)];
        let sent = self.post(nic, Data::Inline(&slices), remote, Some(CONTROL_IMMEDIATE), None);
        if sent == Sent::Done {
            self.controls_out.take();
            self.descriptors_out.take();
        }
        sent
    }

    fn write_word<P: Provider>(
        &mut self,
        nic: &mut P,
        offset: u64,
        word: u64,
        immediate: Option<i32>,
    ) -> Sent {
        let remote = RemoteSegment { key: self.terms.control_key, offset };
        let bytes = word.to_ne_bytes();
        let slices = [IoSlice::new(&bytes)];
        let sent = self.post(nic, Data::Inline(&slices), remote, immediate, None);
        if sent == Sent::Done && immediate.is_some() {
            self.descriptors_out.take();
        }
        sent
    }

    /// Says that this side goes to sleep for want of credit: the peer will ring when it gives some.
    pub(super) fn wish<P: Provider>(&mut self, nic: &mut P) -> Sent {
        if self.is_wishing {
            return Sent::Done;
        }
        match self.has_descriptor() {
            Ok(true) => {}
            Ok(false) => return Sent::Blocked,
            Err(what) => return Sent::Fault(what),
        }
        let sent = self.write_word(nic, WISH_WORD, 0, Some(WISH_IMMEDIATE));
        self.is_wishing = sent == Sent::Done;
        sent
    }

    // ------------------------------------------------------------------ receiving

    /// Takes a completion's descriptor into account: it will be posted again.
    #[inline]
    pub(super) const fn consumed(&mut self) {
        self.unposted += 1;
    }

    /// Finds the frame that an immediate announces.
    #[inline]
    pub(super) fn find(&mut self, immediate: i32) -> Option<Found> {
        let found = self.reader.find(immediate)?;
        if found.length >= CLAIMED_MIN_BYTES {
            // The envelope is on another processor, too: the bytes behind it come while it does.
            for line in (0..found.length.min(FETCHED_MAX_BYTES)).step_by(CACHE_LINE) {
                self.area.memory.prefetch(u64::from(found.offset + line));
            }
        }
        Some(found)
    }

    /// Returns whether so much is to be given back that the peer should know.
    #[inline]
    pub(super) const fn is_due(&self) -> bool {
        let area = self.reader.released().wrapping_sub(self.told.area);
        self.unposted >= self.descriptors_count / 4
            || area >= self.area_quarter()
            || self.returned.controls.wrapping_sub(self.told.controls) >= self.controls_count / 4
    }

    #[inline]
    const fn area_quarter(&self) -> u32 {
        self.reader.size_units() / 4
    }

    /// Takes the next control entry. `None`: no honest peer would have sent that.
    pub(super) fn take_control(&mut self) -> Option<Control> {
        let slot = self.returned.controls % self.controls_count;
        let mut bytes = [0; CONTROL_BYTES];
        let offset = ENTRIES + u64::from(slot) * wide(CONTROL_BYTES);
        self.control.memory.read(offset, &mut bytes).ok()?;
        self.returned.controls = self.returned.controls.wrapping_add(1);
        Control::decode(bytes)
    }

    /// The peer sleeps for want of credit. What it was told without being rung it may not have seen: it is
    /// rung at once then, else when there is more.
    pub(super) const fn wished(&mut self) {
        self.owes_notice = true;
    }

    /// The peer says that there is credit.
    pub(super) fn noticed(&mut self) -> Result<(), &'static str> {
        self.is_wishing = false;
        self.refresh().map(|_| ())
    }

    /// Posts the consumed descriptors again and then gives the credits back: with a bell, if the peer waits
    /// for them. Without `is_forced` only if the peer waits or much has gathered.
    pub(super) fn give_back<P: Provider>(&mut self, nic: &mut P, is_forced: bool) -> Sent {
        if !is_forced && !self.owes_notice && !self.is_due() {
            return Sent::Done;
        }
        while self.unposted > 0 {
            let descriptor = ReceiveDescriptor { cookie: self.cookie, segments: &[] };
            match nic.post_receive(self.vi, &descriptor) {
                Ok(()) => {}
                Err(ViError::QueueFull { .. } | ViError::WrongState { .. }) => break,
                Err(_) => return Sent::Fault("the VI takes no descriptors"),
            }
            self.unposted -= 1;
            self.returned.descriptors = self.returned.descriptors.wrapping_add(1);
        }
        self.returned.area = self.reader.released();
        if self.returned == if self.owes_notice { self.noticed } else { self.told } {
            return Sent::Done;
        }
        let immediate = match self.has_descriptor() {
            Ok(has) => (self.owes_notice && has).then_some(NOTICE_IMMEDIATE),
            Err(what) => return Sent::Fault(what),
        };
        let sent = self.write_word(nic, CREDIT_WORD, self.returned.pack(), immediate);
        if sent == Sent::Done {
            self.told = self.returned;
            if immediate.is_some() {
                self.noticed = self.told;
                self.owes_notice = false;
            }
        }
        sent
    }

    /// Returns whether the peer waits for credits.
    #[inline]
    pub(super) const fn owes(&self) -> bool {
        self.owes_notice
    }
}

#[cfg(test)]
mod tests;
