//! The link to one peer over a reliable VI: the RDMA area, its credits and the ring of control entries.
//!
//! ```text
//!   immediate    what the peer finds
//!   n > 0        a frame of n bytes at its ReadPointer
//!   n < 0        a frame of -n bytes at the beginning of its area
//!   0            a notice: the credit word has news
//!   2^30         the next control entry
//!   2^30 + 1     a credit request: the peer sleeps for lack of credit
//! ```

use std::io::IoSlice;

use super::{
    area::{AreaFrame, AreaReader, AreaWriter, FrameSlot, Hold},
    credits::{AREA_BITS, Allowance, Returned},
    envelope::{CONTROL_BYTES, Control, ENVELOPE_BYTES, Envelope, FrameKind},
    payload::SLICES_MAX,
    to_u64,
};
use crate::{
    memory::is_string_copy,
    slots::SlotKey,
    vi::{
        Data, LocalSegment, Memory, MemoryAttributes, MemoryHandle, Operation, ProtectionTag,
        Provider, ReceiveDescriptor, Region, RemoteKey, RemoteSegment, SendDescriptor, ViError,
        ViId,
    },
};

/// The immediate of a control entry.
pub(super) const CONTROL_IMMEDIATE: i32 = 1 << 30;
/// The immediate of a request for credit.
pub(super) const CREDIT_REQUEST_IMMEDIATE: i32 = CONTROL_IMMEDIATE + 1;
/// The immediate of a notice that there is credit.
pub(super) const CREDIT_NOTICE_IMMEDIATE: i32 = 0;
/// The offset of the peer's credit word in the control region.
const CREDIT_WORD: u64 = 0;
/// The offset that a credit request writes to; the request carries no data.
const CREDIT_REQUEST_WORD: u64 = 8;
/// The offset of the peer's control entries.
const ENTRIES: u64 = 64;
/// Descriptors kept for notices: in each direction, a credit request and a credit notice may both be under way
/// twice.
const NOTICE_DESCRIPTORS: u32 = 4;

/// Shorter frames travel inside the announcing entry, or have too few lines to prefetch. Frames that one instruction copies are not prefetched.
const PREFETCH_MIN_BYTES: u32 = 128;
/// The most bytes of the next frame's place that are prefetched. The copy itself prefetches the rest.
const PREFETCH_MAX_BYTES: u32 = 16 << 10;

/// The longest frame whose lines are fetched before it is announced, in bytes: half a KiB behind the envelope. Measured: from 1 KiB on it gains
/// nothing.
const EXPECTED_MAX_BYTES: u32 = 512 + 16;

/// The most bytes of an arrived frame that are prefetched. Measured: 1 KiB takes a message of 2 KiB 13 % longer, and more gains nothing.
const FETCHED_MAX_BYTES: u32 = 4 << 10;

/// Returns the size of a control region.
pub(super) fn control_region_bytes(entries: u32) -> usize {
    usize::try_from(ENTRIES).unwrap_or_default() + entries as usize * CONTROL_BYTES
}

/// The result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what could not be sent must be tried again"]
pub(super) enum SendOutcome {
    /// It is under way.
    Done,
    /// There is no credit, or the queue is full: try later.
    Blocked,
    /// The peer claims what cannot be true, or the VI is broken.
    Fault(&'static str),
}

/// The parameters in a peer's greeting.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerParameters {
    pub(super) area_key: RemoteKey,
    pub(super) control_key: RemoteKey,
    pub(super) area_bytes: u32,
    pub(super) descriptors: u32,
    pub(super) control_entries: u32,
    pub(super) window_bytes: u32,
    pub(super) frame_bytes_max: u32,
    pub(super) announced_messages_max: u32,
}

/// Registered buffers for frames that are too long to be sent inline.
#[derive(Debug)]
pub(super) struct Staging {
    region: Region,
    frame_bytes: u32,
    inline_bytes_max: u64,
    free: Vec<u32>,
}

/// The bit of a cookie whose frame is in a staging buffer. The buffer's number is in the low half, the rank
/// in the bits above.
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
    pub(super) fn new(region: Region, frame_bytes: u32, count: u32, inline_bytes_max: u64) -> Self {
        Self { region, frame_bytes, inline_bytes_max, free: (0..count).rev().collect() }
    }

    /// Returns whether frames of that length need a buffer.
    #[inline]
    pub(super) const fn is_needed(&self, length: u64) -> bool {
        length > self.inline_bytes_max
    }

    /// Registers the buffers for VIs with a tag, if frames need any.
    pub(super) fn register_for<P: Provider>(
        &self,
        nic: &mut P,
        tag: ProtectionTag,
    ) -> Result<Option<MemoryHandle>, ViError> {
        if !self.is_needed(u64::from(self.frame_bytes)) {
            return Ok(None);
        }
        let region = nic.register(self.region.memory.clone(), MemoryAttributes::private(tag))?;
        Ok(Some(region.handle))
    }

    fn fill(
        &mut self,
        slices: &[IoSlice<'_>],
        length: u64,
        memory: MemoryHandle,
    ) -> Option<(u32, LocalSegment)> {
        let slot = self.free.pop()?;
        let offset = u64::from(slot) * u64::from(self.frame_bytes);
        let segment = LocalSegment { memory, offset, length };
        let mut at = offset;
        for slice in slices {
            if length > u64::from(self.frame_bytes) || self.region.memory.write(at, slice).is_err()
            {
                self.free.push(slot);
                return None;
            }
            at += to_u64(slice.len());
        }
        Some((slot, segment))
    }

    /// Copies a frame to a free buffer, if there is one. Returns the cookie that gives the buffer back. `memory` names the
    /// buffers for the frame's VI.
    pub(super) fn stage(
        &mut self,
        slices: &[IoSlice<'_>],
        length: u64,
        cookie: u64,
        memory: Option<MemoryHandle>,
    ) -> Option<(u64, LocalSegment)> {
        let (slot, segment) = self.fill(slices, length, memory?)?;
        Some((COOKIE_STAGED | cookie | u64::from(slot), segment))
    }

    /// Takes back the buffer of a frame that was sent.
    pub(super) fn give_back(&mut self, cookie: u64) {
        self.free.push(cookie.index());
    }
}

/// Both directions of a connection over a reliable VI.
#[derive(Debug)]
pub(super) struct ReliableLink {
    pub(super) vi: ViId,
    pub(super) parameters: PeerParameters,
    // What the peer has for this side.
    pub(super) writer: AreaWriter,
    descriptors_out: Allowance,
    controls_out: Allowance,
    reserve: u32,
    /// The credit word that was last seen.
    seen: u64,
    has_requested_credit: bool,
    /// A place that was loaned and not announced yet, and the writer as it was before.
    loaned: Option<(FrameSlot, AreaWriter)>,
    /// Pieces of this side's area that the peer will fill later: offset, length.
    reserved: Vec<(u32, u32, Hold)>,
    /// The peer's area, if it is mapped here.
    window: Option<Memory>,
    unsignaled: u32,
    signal_every: u32,
    // What this side has for the peer.
    pub(super) area: Region,
    pub(super) control: Region,
    pub(super) staged: Option<MemoryHandle>,
    pub(super) reader: AreaReader,
    controls_count: u32,
    descriptors_count: u32,
    cookie: u64,
    returned: Returned,
    /// The counts that the credit word last had.
    published: Returned,
    /// The counts of which the peer was last notified.
    notified: Returned,
    unposted: u32,
    owes_credit_notice: bool,
    /// The length of the last frame, if the next one's lines should be fetched; otherwise zero.
    last_length: u32,
}

/// The parts that a side prepares for its link.
#[derive(Debug)]
pub(super) struct LocalResources {
    pub(super) vi: ViId,
    pub(super) area: Region,
    pub(super) control: Region,
    /// The staging buffers, as this VI may name them.
    pub(super) staged: Option<MemoryHandle>,
    pub(super) area_bytes: u32,
    pub(super) descriptors: u32,
    pub(super) control_entries: u32,
    pub(super) cookie: u64,
    pub(super) signal_every: u32,
}

impl ReliableLink {
    pub(super) fn new(own: LocalResources, parameters: PeerParameters) -> Self {
        Self {
            vi: own.vi,
            parameters,
            writer: AreaWriter::new(parameters.area_bytes),
            descriptors_out: Allowance::new(parameters.descriptors),
            controls_out: Allowance::new(parameters.control_entries),
            reserve: parameters.control_entries + NOTICE_DESCRIPTORS,
            seen: 0,
            has_requested_credit: false,
            loaned: None,
            reserved: Vec::new(),
            window: None,
            unsignaled: 0,
            signal_every: own.signal_every,
            area: own.area,
            control: own.control,
            staged: own.staged,
            reader: AreaReader::new(own.area_bytes),
            controls_count: own.control_entries,
            descriptors_count: own.descriptors,
            cookie: own.cookie,
            returned: Returned::default(),
            published: Returned::default(),
            notified: Returned::default(),
            unposted: 0,
            owes_credit_notice: false,
            last_length: 0,
        }
    }

    // ------------------------------------------------------------------ sending

    /// Takes in the credits that the peer has written. Returns whether there are new ones.
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

    /// Finds a place in the peer's area, reading the credit word if the known room is not enough.
    #[inline]
    fn place(&mut self, length: u32) -> Result<Option<FrameSlot>, &'static str> {
        if self.descriptors_out.left() > self.reserve
            && let Some(place) = self.writer.take(length)
        {
            return Ok(Some(place));
        }
        self.place_after_news(length)
    }

    #[cold]
    fn place_after_news(&mut self, length: u32) -> Result<Option<FrameSlot>, &'static str> {
        if !self.refresh()? || self.descriptors_out.left() <= self.reserve {
            return Ok(None);
        }
        Ok(self.writer.take(length))
    }

    /// Sends a frame of `length` bytes in all: WritePointer advances, `descLeft` decreases
    /// [via-lam, §4.1, steps 3 to 6].
    #[inline]
    pub(super) fn send_frame<P: Provider>(
        &mut self,
        nic: &mut P,
        staging: &mut Staging,
        slices: &[IoSlice<'_>],
        length: u32,
    ) -> SendOutcome {
        if let [head, rest @ ..] = slices
            && let (Ok(head), [] | [_]) = (<[u8; 16]>::try_from(&**head), rest)
            && self.send_headed(nic, u128::from_le_bytes(head), rest.first().map_or(&[], |it| it))
        {
            return SendOutcome::Done;
        }

        // The peer finds frames one behind the other. So a loaned place is announced first, to be filled later.
        if self.loaned.is_some() {
            match self.skip_loaned(nic) {
                SendOutcome::Done => {}
                other => return other,
            }
        }

        let before = self.writer;
        let place = match self.place(length) {
            Ok(Some(place)) => place,
            Ok(None) => return SendOutcome::Blocked,
            Err(what) => return SendOutcome::Fault(what),
        };

        let remote =
            RemoteSegment { key: self.parameters.area_key, offset: u64::from(place.offset) };
        let sent = if staging.is_needed(u64::from(length)) {
            self.post_staged(nic, staging, slices, u64::from(length), remote, place.immediate)
        } else {
            self.post(nic, Data::Inline(slices), remote, Some(place.immediate), None)
        };

        if sent == SendOutcome::Done {
            self.descriptors_out.take();
            self.prepare_next(nic, length);
        } else {
            // The peer looks for the next frame in this place, since it knows of none here. Credits may have arrived since.
            self.writer.go_back_to(&before);
        }
        sent
    }

    /// Prefetches the cache lines of the next frame, assuming it is as long as the last: the peer has read
    /// what was there before, and its processor gives the lines up while this side does not need them yet.
    fn prefetch_next<P: Provider>(&mut self, nic: &P, length: u32) {
        // The peer still has to read what is not free: it would have to fetch the lines again.
        let mut next = self.writer;
        let Some(place) = next.take(length) else { return };
        if self.window.is_none() {
            self.window = nic.window(self.vi, self.parameters.area_key);
        }
        if let Some(window) = &self.window {
            window.prefetch_to_write(
                u64::from(place.offset),
                length.min(PREFETCH_MAX_BYTES) as usize,
            );
        }
    }

    /// Sends a frame of 16 bytes and `body`, if the NIC can do that at once and nothing is in its way. Returns `false` if
    /// [`send_frame`](Self::send_frame) has to do it, or to say why it cannot be done.
    #[inline]
    pub(super) fn send_headed<P: Provider>(
        &mut self,
        nic: &mut P,
        head: u128,
        body: &[u8],
    ) -> bool {
        let Ok(length) = u32::try_from(ENVELOPE_BYTES + body.len()) else { return false };
        if self.loaned.is_some() {
            return false;
        }
        let before = self.writer;
        let Ok(Some(place)) = self.place(length) else { return false };
        let remote =
            RemoteSegment { key: self.parameters.area_key, offset: u64::from(place.offset) };
        if !nic.post_headed_write(self.vi, remote, place.immediate, head, body) {
            self.writer.go_back_to(&before);
            return false;
        }
        self.descriptors_out.take();
        self.prepare_next(nic, length);
        true
    }

    /// Prefetches the place of the next frame, if that helps.
    #[inline]
    fn prepare_next<P: Provider>(&mut self, nic: &P, length: u32) {
        let body = (length as usize).saturating_sub(ENVELOPE_BYTES);
        if length >= PREFETCH_MIN_BYTES && !is_string_copy(body) {
            self.prefetch_next(nic, length);
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
    ) -> SendOutcome {
        debug_assert!(slices.len() <= SLICES_MAX, "gathered before");
        let Some((cookie, segment)) = staging.stage(slices, length, self.cookie, self.staged)
        else {
            return SendOutcome::Blocked;
        };
        let data = Data::Segments(&[segment]);
        let sent = self.post(nic, data, remote, Some(immediate), Some(cookie));
        if sent != SendOutcome::Done {
            staging.give_back(cookie);
        }
        sent
    }

    /// Returns whether a frame of `length` bytes would find credit.
    pub(super) fn has_room(&mut self, length: u32, staging: &Staging) -> bool {
        let mut writer = self.writer;
        let has_room = self.descriptors_out.left() > self.reserve && writer.take(length).is_some();
        let has_buffer = !(staging.is_needed(u64::from(length)) && staging.free.is_empty());
        // A fault in the credits shows again at the next send.
        has_buffer && (has_room || self.refresh().unwrap_or(true))
    }

    /// Loans a place for a frame of `length` bytes in the peer's area, if it is mapped here.
    pub(super) fn lend_slot<P: Provider>(
        &mut self,
        nic: &P,
        length: u32,
    ) -> Option<(Memory, FrameSlot)> {
        if self.loaned.is_some() {
            return None;
        }
        if self.window.is_none() {
            self.window = nic.window(self.vi, self.parameters.area_key);
        }
        let memory = self.window.clone()?;
        let before = self.writer;
        let place = self.place(length).ok()??;
        if to_u64(memory.len()) < u64::from(place.offset) + u64::from(length) {
            self.writer.go_back_to(&before);
            return None;
        }
        self.descriptors_out.take();
        self.loaned = Some((place, before));
        Some((memory, place))
    }

    /// Returns whether the place at `offset` is loaned and nothing was sent since.
    pub(super) fn is_loaned(&self, offset: u64) -> bool {
        self.loaned.is_some_and(|(place, _)| u64::from(place.offset) == offset)
    }

    /// Announces the frame in the loaned place, of which only `head` remains to be written.
    pub(super) fn send_loaned<P: Provider>(&mut self, nic: &mut P, head: &[u8]) -> SendOutcome {
        let Some((place, _)) = self.loaned else { return SendOutcome::Done };
        let remote =
            RemoteSegment { key: self.parameters.area_key, offset: u64::from(place.offset) };
        let slices = [IoSlice::new(head)];
        let sent = self.post(nic, Data::Inline(&slices), remote, Some(place.immediate), None);
        if sent == SendOutcome::Done {
            self.loaned = None;
        }
        sent
    }

    /// Passes over the loaned place, to be filled later, since another frame is to be sent.
    #[cold]
    fn skip_loaned<P: Provider>(&mut self, nic: &mut P) -> SendOutcome {
        let Some((place, _)) = self.loaned else { return SendOutcome::Done };
        let length = place.immediate.unsigned_abs() - 16;
        let kind = FrameKind::Reserved;
        let head = Envelope { kind, flags: 0, context: 0, tag: 0, id: u32::MAX, length };
        self.send_loaned(nic, &head.encode())
    }

    /// Takes a loaned place back. Returns `false` if it was already passed over.
    pub(super) fn cancel_loan(&mut self, offset: u64) -> bool {
        if !self.is_loaned(offset) {
            return false;
        }
        if let Some((_, before)) = self.loaned.take() {
            // Credits may have arrived since.
            self.writer.go_back_to(&before);
            self.descriptors_out.undo_take();
        }
        true
    }

    /// Keeps the frame that was found last, for the peer to fill later.
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
    ) -> SendOutcome {
        // Now and then a descriptor is signaled, to show that the queue moves.
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
                SendOutcome::Done
            }
            // A broken VI takes nothing any more; its event says why, after everything that had arrived.
            Err(ViError::QueueFull { .. } | ViError::WrongState { .. }) => SendOutcome::Blocked,
            Err(_) => SendOutcome::Fault("the VI takes no descriptors"),
        }
    }

    /// Returns whether the peer has a descriptor for a notice. Notices are few, and some descriptors are kept
    /// for them.
    fn has_descriptor(&mut self) -> Result<bool, &'static str> {
        Ok(self.descriptors_out.left() > 0 || (self.refresh()? && self.descriptors_out.left() > 0))
    }

    /// Sends a control entry.
    pub(super) fn send_control<P: Provider>(
        &mut self,
        nic: &mut P,
        control: Control,
    ) -> SendOutcome {
        if self.controls_out.left() == 0 || self.descriptors_out.left() == 0 {
            match self.refresh() {
                Ok(_) if self.controls_out.left() == 0 || self.descriptors_out.left() == 0 => {
                    return SendOutcome::Blocked;
                }
                Ok(_) => {}
                Err(what) => return SendOutcome::Fault(what),
            }
        }

        // Both sides count the entries, and the count alone says which slot is next: only a posted entry may count.
        let slot = self.controls_out.used() % self.parameters.control_entries;
        let offset = ENTRIES + u64::from(slot) * to_u64(CONTROL_BYTES);
        let remote = RemoteSegment { key: self.parameters.control_key, offset };

        let bytes = control.encode();
        let is_sent = bytes.split_first_chunk().is_some_and(|(head, rest)| {
            let head = u128::from_le_bytes(*head);
            nic.post_headed_write(self.vi, remote, CONTROL_IMMEDIATE, head, rest)
        });
        let sent = if is_sent {
            SendOutcome::Done
        } else {
            let slices = [IoSlice::new(&bytes)];
            self.post(nic, Data::Inline(&slices), remote, Some(CONTROL_IMMEDIATE), None)
        };

        if sent == SendOutcome::Done {
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
    ) -> SendOutcome {
        let remote = RemoteSegment { key: self.parameters.control_key, offset };
        let bytes = word.to_ne_bytes();
        let slices = [IoSlice::new(&bytes)];
        let sent = self.post(nic, Data::Inline(&slices), remote, immediate, None);
        if sent == SendOutcome::Done && immediate.is_some() {
            self.descriptors_out.take();
        }
        sent
    }

    /// Announces that this side goes to sleep for lack of credit: the peer will notify it when it gives some.
    pub(super) fn request_credit<P: Provider>(&mut self, nic: &mut P) -> SendOutcome {
        if self.has_requested_credit {
            return SendOutcome::Done;
        }
        match self.has_descriptor() {
            Ok(true) => {}
            Ok(false) => return SendOutcome::Blocked,
            Err(what) => return SendOutcome::Fault(what),
        }
        let sent = self.write_word(nic, CREDIT_REQUEST_WORD, 0, Some(CREDIT_REQUEST_IMMEDIATE));
        self.has_requested_credit = sent == SendOutcome::Done;
        sent
    }

    // ------------------------------------------------------------------ receiving

    /// Accounts for a completion's descriptor, which will be posted again.
    #[inline]
    pub(super) const fn consumed(&mut self) {
        self.unposted += 1;
    }

    /// Accounts for an arrival whose descriptor the NIC has left posted.
    #[inline]
    pub(super) const fn left_posted(&mut self) {
        self.returned.descriptors = self.returned.descriptors.wrapping_add(1);
    }

    /// Finds the frame that an immediate announces.
    #[inline]
    pub(super) fn find(&mut self, immediate: i32) -> Option<AreaFrame> {
        let found = self.reader.find(immediate)?;
        if found.length >= PREFETCH_MIN_BYTES {
            // The envelope is in another processor's cache: prefetch the bytes behind it at the same time.
            let length = found.length.min(FETCHED_MAX_BYTES);
            self.area.memory.prefetch(found.offset.into(), length as usize);
        }
        Some(found)
    }

    /// Fetches the lines where the next frame should be, while its announcement is waited for, if it is as long as the last one and that was
    /// short: otherwise its receiver would wait for one cache line after the other.
    #[inline]
    pub(super) fn fetch_next(&self) {
        if self.last_length > 0 {
            let (body, length) = self.reader.next_body(self.last_length);
            self.area.memory.prefetch(body.into(), length as usize);
        }
    }

    /// Notes how long the last frame was, if its bytes were in their place.
    #[inline]
    pub(super) const fn note_length(&mut self, length: u32) {
        self.last_length = if length <= EXPECTED_MAX_BYTES { length } else { 0 };
    }

    /// Returns whether enough is to be given back that the peer should be told.
    #[inline]
    pub(super) const fn is_due(&self) -> bool {
        let area = self.reader.released().wrapping_sub(self.published.area);
        let posted = self.returned.descriptors.wrapping_sub(self.published.descriptors);
        self.unposted.wrapping_add(posted) >= self.descriptors_count / 4
            || area >= self.area_quarter()
            || self.returned.controls.wrapping_sub(self.published.controls)
                >= self.controls_count / 4
    }

    #[inline]
    const fn area_quarter(&self) -> u32 {
        self.reader.size_units() / 4
    }

    /// Takes the next control entry. `None`: the peer broke the protocol.
    pub(super) fn take_control(&mut self) -> Option<Control> {
        let slot = self.returned.controls % self.controls_count;
        let mut bytes = [0; CONTROL_BYTES];
        let offset = ENTRIES + u64::from(slot) * to_u64(CONTROL_BYTES);
        self.control.memory.read(offset, &mut bytes).ok()?;
        self.returned.controls = self.returned.controls.wrapping_add(1);
        Control::decode(bytes)
    }

    /// The peer sleeps for lack of credit. It may not have seen credits given without a notice: if there are
    /// any, it is notified at once, otherwise when there are more.
    pub(super) const fn credit_requested(&mut self) {
        self.owes_credit_notice = true;
    }

    /// The peer says that there is credit.
    pub(super) fn notified(&mut self) -> Result<(), &'static str> {
        self.has_requested_credit = false;
        self.refresh().map(|_| ())
    }

    /// Posts the consumed descriptors again and then gives the credits back: with a notice, if the peer waits
    /// for them. Without `is_forced`, it does so only if the peer waits or many have accumulated.
    pub(super) fn give_back<P: Provider>(&mut self, nic: &mut P, is_forced: bool) -> SendOutcome {
        if !is_forced && !self.owes_credit_notice && !self.is_due() {
            return SendOutcome::Done;
        }

        while self.unposted > 0 {
            let descriptor = ReceiveDescriptor { cookie: self.cookie, segments: &[] };
            match nic.post_receive(self.vi, &descriptor) {
                Ok(()) => {}
                Err(ViError::QueueFull { .. } | ViError::WrongState { .. }) => break,
                Err(_) => return SendOutcome::Fault("the VI takes no descriptors"),
            }
            self.unposted -= 1;
            self.returned.descriptors = self.returned.descriptors.wrapping_add(1);
        }

        self.returned.area = self.reader.released();
        if self.returned == if self.owes_credit_notice { self.notified } else { self.published } {
            return SendOutcome::Done;
        }

        let immediate = match self.has_descriptor() {
            Ok(has) => (self.owes_credit_notice && has).then_some(CREDIT_NOTICE_IMMEDIATE),
            Err(what) => return SendOutcome::Fault(what),
        };

        let sent = self.write_word(nic, CREDIT_WORD, self.returned.pack(), immediate);
        if sent == SendOutcome::Done {
            self.published = self.returned;
            if immediate.is_some() {
                self.notified = self.published;
                self.owes_credit_notice = false;
            }
        }
        sent
    }

    /// Returns whether the peer waits for credits.
    #[inline]
    pub(super) const fn owes(&self) -> bool {
        self.owes_credit_notice
    }
}

#[cfg(test)]
mod tests;
