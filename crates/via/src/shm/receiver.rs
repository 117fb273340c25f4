//! The receiving engine: takes the entries that a peer wrote, checks them, and does what they say.
//!
//! Every entry is copied once and then only the copy is looked at. What an honest peer's descriptor may
//! get wrong (a key that was taken back, no receive descriptor) ends as VIA says; what no honest peer
//! writes breaks the connection.

use super::{
    entry::{Draft, Entry, INLINE_AT, INLINE_MAX, Kind, Line, Place},
    layout::wide,
    sender::Segments,
    table::{Access, copy_bytes, write_bytes},
    vi::{Desk, End, Vi},
};
use crate::vi::{Completion, Queue, ReceiveDescriptor, RemoteKey, Status};

/// The most bytes of an answer copied at a time, likewise.
const ANSWER_MAX_BYTES: u64 = 1024 * 1024;
/// The most entries taken of one VI at a time, so that no peer starves the others.
const ENTRIES_MAX: u32 = 64;

/// A receive descriptor.
#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) cookie: u64,
    segments: Segments,
}

impl PostedReceive {
    #[inline]
    pub(super) fn of(descriptor: &ReceiveDescriptor<'_>) -> Self {
        Self { cookie: descriptor.cookie, segments: Segments::of(descriptor.segments) }
    }
}

/// A message that has arrived in part.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) cookie: u64,
    segments: Segments,
    total: u64,
    filled: u64,
}

/// A read of this side's memory that the peer waits for.
#[derive(Debug)]
pub(super) struct Answer {
    key: RemoteKey,
    offset: u64,
    total: u64,
    done: u64,
}

impl Vi {
    /// Takes the entries that are there, up to a bound. Returns whether there were any.
    #[inline]
    pub(super) fn receive(&mut self, desk: &mut Desk) -> bool {
        let mut count = 0;
        while count < ENTRIES_MAX {
            let Some(line) = self.link.as_ref().and_then(|link| link.consumer.next()) else {
                break;
            };
            count += 1;
            let taken = match Entry::decode(&line) {
                Ok(entry) => self.take_entry(desk, &entry, &line),
                Err(what) => Err(End::Fault(what)),
            };
            if let Err(end) = taken {
                self.end(desk, end);
                return true;
            }
            if let Some(link) = &mut self.link {
                link.consumer.advance();
            }
        }
        if count > 0
            && let Some(link) = &mut self.link
        {
            link.tell_consumed();
        }
        count > 0
    }

    #[inline]
    fn take_entry(&mut self, desk: &mut Desk, entry: &Entry, line: &Line) -> Result<(), End> {
        match entry.kind {
            Kind::Write => self.take_write(desk, entry, line),
            Kind::Send => self.take_send(desk, entry, line),
            Kind::ReadRequest => self.take_request(desk, entry),
            Kind::ReadData => {
                let length = length_of(entry);
                let link = self.link.take();
                let answered = (length, entry.total, entry.is_last);
                let taken =
                    self.take_answer(desk, answered, |own, offset, before, length| {
                        match (entry.place, &link) {
                            (Place::Staged { at, .. }, Some(link)) => link.consumer.copy_staged_to(
                                u64::from(at) + before,
                                own,
                                offset,
                                length,
                            ),
                            _ => write_inline(line, own, offset, before, length),
                        }
                    });
                self.link = link;
                taken
            }
            Kind::ReadRefused => self.end_read(desk, Some(Status::RdmaProtectionError)),
        }
    }

    // ------------------------------------------------------------------ RDMA writes

    #[inline]
    fn take_write(&mut self, desk: &mut Desk, entry: &Entry, line: &Line) -> Result<(), End> {
        if self.drops_write {
            self.drops_write = !entry.is_last;
            return Ok(());
        }
        let length = length_of(entry);
        if let Place::Staged { .. } = entry.place {
            self.written += length;
            if self.written > entry.total || entry.is_last != (self.written == entry.total) {
                return Err(End::Fault("a write of another length than announced"));
            }
        } else if self.written > 0 {
            return Err(End::Fault("a write in the middle of another"));
        }
        // Before anything is put in place: a message that nobody expects leaves nothing behind.
        let placed = match entry.immediate {
            Some(_) if self.receives.is_empty() => Err(Status::RemoteDescriptorError),
            _ => self.place(desk, entry, line, length),
        };
        if let Err(status) = placed {
            self.written = 0;
            self.drops_write = !entry.is_last;
            return self.refuse(status);
        }
        if !entry.is_last {
            return Ok(());
        }
        self.written = 0;
        if let Some(immediate) = entry.immediate
            && let Some(posted) = self.receives.pop_front()
        {
            self.arrived(desk, posted.cookie, entry.total, Some(immediate));
        }
        Ok(())
    }

    /// Puts the data of a write in place.
    #[inline]
    fn place(&self, desk: &Desk, entry: &Entry, line: &Line, length: u64) -> Result<(), Status> {
        let place = (entry.offset, length);
        let region = desk.table.remote(&self.attributes, entry.key, place, Access::Write)?;
        let placed = match (entry.place, &self.link) {
            (Place::Inline { length }, _) => {
                let end = INLINE_AT + usize::from(length).min(INLINE_MAX);
                write_bytes(&region.memory, entry.offset, &line[INLINE_AT..end])
            }
            (Place::Staged { at, length }, Some(link)) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                link.consumer.copy_staged_to(at.into(), &region.memory, entry.offset, length)
            }
            // The peer has put it there, if it could.
            _ => {
                return if region.file.is_some() {
                    Ok(())
                } else {
                    Err(Status::RdmaProtectionError)
                };
            }
        };
        placed.map_err(|_| Status::RdmaProtectionError)
    }

    // ------------------------------------------------------------------ sends

    fn take_send(&mut self, desk: &mut Desk, entry: &Entry, line: &Line) -> Result<(), End> {
        if self.drops_send {
            self.drops_send = !entry.is_last;
            return Ok(());
        }
        let length = length_of(entry);
        let mut arriving = match self.arriving.take() {
            Some(arriving) => arriving,
            None => {
                let Some(posted) = self.receives.pop_front() else {
                    self.drops_send = !entry.is_last;
                    return self.refuse(Status::RemoteDescriptorError);
                };
                let PostedReceive { cookie, segments } = posted;
                let fits = match desk.table.check(self.attributes.tag, segments.as_slice()) {
                    Ok(capacity) if capacity >= entry.total => Ok(()),
                    Ok(_) => Err((Status::LengthError, Status::LengthError)),
                    Err(own) => Err((own, Status::RemoteDescriptorError)),
                };
                if let Err((own, peers)) = fits {
                    self.drops_send = !entry.is_last;
                    self.complete(desk, Completion::new(self.id, Queue::Receive, cookie, own));
                    return self.refuse(peers);
                }
                Arriving { cookie, segments, total: entry.total, filled: 0 }
            }
        };
        let left = arriving.total - arriving.filled;
        if entry.total != arriving.total || length > left || entry.is_last != (length == left) {
            self.arriving = Some(arriving);
            return Err(End::Fault("a message of another length than announced"));
        }
        let link = &self.link;
        let placed = desk.table.pieces(
            self.attributes.tag,
            arriving.segments.as_slice(),
            arriving.filled,
            length,
            |own, offset, before, length| match (entry.place, link) {
                (Place::Staged { at, .. }, Some(link)) => {
                    link.consumer.copy_staged_to(u64::from(at) + before, own, offset, length)
                }
                _ => write_inline(line, own, offset, before, length),
            },
        );
        if let Err(status) = placed {
            self.drops_send = !entry.is_last;
            let failed = Completion::new(self.id, Queue::Receive, arriving.cookie, status);
            self.complete(desk, failed);
            return self.refuse(Status::RemoteDescriptorError);
        }
        arriving.filled += length;
        if entry.is_last {
            self.arrived(desk, arriving.cookie, arriving.total, entry.immediate);
        } else {
            self.arriving = Some(arriving);
        }
        Ok(())
    }

    #[inline]
    fn arrived(&mut self, desk: &mut Desk, cookie: u64, length: u64, immediate: Option<i32>) {
        let mut completion = Completion::new(self.id, Queue::Receive, cookie, Status::Done);
        completion.length = length;
        completion.immediate = immediate;
        self.complete(desk, completion);
    }

    /// The peer's descriptor fails. Under unreliable delivery nobody is told.
    fn refuse(&self, status: Status) -> Result<(), End> {
        if self.is_reliable() { Err(End::Refuse(status)) } else { Ok(()) }
    }

    // ------------------------------------------------------------------ RDMA reads

    fn take_request(&mut self, desk: &mut Desk, entry: &Entry) -> Result<(), End> {
        if self.answer.is_some() {
            return Err(End::Fault("a second read before the first was answered"));
        }
        let Entry { key, offset, total, .. } = *entry;
        let place = (offset, total);
        if let Err(status) = desk.table.remote(&self.attributes, key, place, Access::Read) {
            self.refuse(status)?;
        }
        self.answer = Some(Answer { key, offset, total, done: 0 });
        Ok(())
    }

    /// Answers the peer's read, as far as the ring has room.
    pub(super) fn answer(&mut self, desk: &Desk) -> Result<(), End> {
        let mut copied = 0;
        while let (Some(answer), Some(link)) = (&mut self.answer, &mut self.link) {
            if copied >= ANSWER_MAX_BYTES || !link.producer.has_room()? {
                return Ok(());
            }
            let Answer { key, offset, total, done } = *answer;
            let left = total - done;
            let draft = Draft::new();
            let mut entry = Entry {
                kind: Kind::ReadData,
                place: Place::Inline { length: 0 },
                immediate: None,
                is_last: true,
                key,
                offset: 0,
                total,
            };
            let place = (offset, total);
            let Ok(region) = desk.table.remote(&self.attributes, key, place, Access::Read) else {
                if self.attributes.reliability != crate::vi::Reliability::Unreliable {
                    return Err(End::Refuse(Status::RdmaProtectionError));
                }
                entry.kind = Kind::ReadRefused;
                entry.total = 0;
                link.push(&entry, &draft);
                self.answer = None;
                return Ok(());
            };
            let length = if total <= wide(INLINE_MAX) {
                let mut bytes = [0; INLINE_MAX];
                let end = usize::try_from(total).unwrap_or(0);
                let read = super::table::read_bytes(&region.memory, offset, &mut bytes[..end]);
                debug_assert!(read.is_ok(), "was just checked");
                let _ = draft.put_inline(0, &bytes);
                entry.place = Place::Inline { length: u8::try_from(total).unwrap_or(0) };
                left
            } else {
                let Some((at, length)) = link.producer.stage(left)? else { return Ok(()) };
                let count = usize::try_from(length).unwrap_or(0);
                let from = offset + done;
                let staged = link.producer.copy_staged(at, &region.memory, from, count);
                debug_assert!(staged.is_ok(), "was just checked");
                link.producer.use_staged(at, length);
                entry.place = Place::Staged {
                    at: u32::try_from(at).unwrap_or(0),
                    length: u32::try_from(length).unwrap_or(0),
                };
                length
            };
            entry.is_last = length == left;
            link.push(&entry, &draft);
            answer.done += length;
            copied += length;
            if entry.is_last {
                self.answer = None;
            }
        }
        Ok(())
    }
}

/// Returns how many bytes an entry carries, or says to be in place.
#[inline]
fn length_of(entry: &Entry) -> u64 {
    match entry.place {
        Place::Inline { length } => length.into(),
        Place::Staged { length, .. } => length.into(),
        Place::Placed => entry.total,
    }
}

fn write_inline(
    line: &Line,
    own: &crate::vi::Memory,
    offset: u64,
    before: u64,
    length: usize,
) -> Result<(), crate::vi::OutOfBounds> {
    let start = INLINE_AT + usize::try_from(before).unwrap_or(INLINE_MAX);
    match line.get(start..start.saturating_add(length)) {
        Some(bytes) => write_bytes(own, offset, bytes),
        None => copy_bytes(own, u64::MAX, own, 0, length),
    }
}
