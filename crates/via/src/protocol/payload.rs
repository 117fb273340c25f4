//! The source and the destination of a message's bytes.

use std::{fmt, io::IoSlice};

use super::to_u64;
use crate::vi::{Memory, Region};

/// The bytes of a message to send.
#[derive(Debug)]
#[non_exhaustive]
pub enum Payload<'a> {
    /// Bytes of the caller, in order. The engine reads them during the call, and again whenever the caller
    /// passes them to [`MessageEngine::poll_send`](super::MessageEngine::poll_send): never in between.
    Borrowed(&'a [IoSlice<'a>]),
    /// Bytes that the engine keeps until they are sent, without further calls.
    Owned(Vec<u8>),
    /// The same of any owner.
    Kept(KeptBytes),
    /// A piece of memory that the engine registers, if the message is long, and keeps registered for the next
    /// time: see [`RegistrationCache`](crate::vi::RegistrationCache). A
    /// [buffer](super::MessageEngine::buffer) is best, since peers can always reach it.
    Memory {
        /// The memory. Do not change it until the request ends.
        memory: Memory,
        /// The beginning of the message in the memory, in bytes.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// A piece of registered memory. If both sides can, the receiver takes the message from there in one
    /// copy.
    Region {
        /// The memory. Do not change it until the request ends.
        region: Region,
        /// The beginning of the message in the region, in bytes.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
}

/// Bytes that stay where they are, and as they are, as long as their owner lives: an `Arc<[u8]>`, a static slice, a mapped file.
///
/// A library that sends from a buffer of its caller, as an MPI library must, makes an owner of its own: it promises by an `unsafe`
/// constructor that the buffer stays until the owner is dropped, and the engine can read it whenever the transport has room, not
/// only while the caller polls. The owner is dropped when the bytes have been sent or will not be: at the latest when the request has ended, if its
/// caller waits for that; a request that is dropped before goes on, and so does its owner.
///
/// The owner is read and dropped inside the endpoint: neither may call the endpoint again, nor panic. One that gives fewer bytes than
/// before breaks the connection to the rank that they are for.
///
/// # Examples
/// ```
/// use vigie_via::protocol::KeptBytes;
///
/// struct Borrowed(*const u8, usize);
/// impl Borrowed {
///     /// # Safety
///     /// The bytes are readable, and not changed, until this is dropped.
///     unsafe fn new(at: *const u8, length: usize) -> Self {
///         Self(at, length)
///     }
/// }
/// impl AsRef<[u8]> for Borrowed {
///     fn as_ref(&self) -> &[u8] {
///         // SAFETY: promised by the caller of `new`.
///         unsafe { std::slice::from_raw_parts(self.0, self.1) }
///     }
/// }
/// // SAFETY: bytes that do not change can be read by any thread.
/// unsafe impl Send for Borrowed {}
///
/// let buffer = [7; 100];
/// // SAFETY: `buffer` outlives `kept`.
/// let kept = KeptBytes::new(unsafe { Borrowed::new(buffer.as_ptr(), buffer.len()) });
/// assert_eq!(kept.as_ref(), [7; 100]);
/// ```
pub struct KeptBytes(Box<dyn AsRef<[u8]> + Send>);

impl KeptBytes {
    /// Takes the owner.
    pub fn new(owner: impl AsRef<[u8]> + Send + 'static) -> Self {
        Self(Box::new(owner))
    }
}

impl AsRef<[u8]> for KeptBytes {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for KeptBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptBytes").field(&self.as_ref().len()).finish()
    }
}

/// The destination of a message: the receiver's own memory, in whatever layout.
pub trait Sink {
    /// Returns the place for the bytes from `offset` on, of which at most `length` will follow: at least one
    /// byte long, or empty if the message is clipped there.
    fn chunk_mut_at(&mut self, offset: u64, length: usize) -> &mut [u8];

    /// Returns the most bytes of a message that it takes; bytes beyond that may be dropped. Default: no limit.
    fn limit(&self) -> u64 {
        u64::MAX
    }

    /// Takes the beginning of a message, or all of it, as the vector in which it already is, and leaves another vector in its place. Returns
    /// `false` if the bytes are to be copied, which is the default.
    fn adopt(&mut self, bytes: &mut Vec<u8>) -> bool {
        let _ = bytes;
        false
    }
}

impl Sink for [u8] {
    #[inline]
    fn chunk_mut_at(&mut self, offset: u64, length: usize) -> &mut [u8] {
        let start = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        let end = start.saturating_add(length).min(self.len());
        &mut self[start..end]
    }

    fn limit(&self) -> u64 {
        to_u64(self.len())
    }
}

/// Grows as the message arrives, and never shrinks: if the vector was longer before, the message is the first
/// [`Status::length`](super::Status::length) bytes. Clear it first if it should hold nothing else.
impl Sink for Vec<u8> {
    fn chunk_mut_at(&mut self, offset: u64, length: usize) -> &mut [u8] {
        let Ok(start) = usize::try_from(offset) else { return &mut [] };
        let end = start.saturating_add(length);
        if self.len() < end {
            self.resize(end, 0);
        }
        &mut self[start..end]
    }

    /// Takes the vector if this one is empty and has less room.
    fn adopt(&mut self, bytes: &mut Vec<u8>) -> bool {
        let adopts = self.is_empty() && self.capacity() < bytes.len();
        if adopts {
            std::mem::swap(self, bytes);
        }
        adopts
    }
}

/// A sink that takes nothing: the message is discarded.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Discard;

impl Sink for Discard {
    #[inline]
    fn chunk_mut_at(&mut self, _offset: u64, _length: usize) -> &mut [u8] {
        &mut []
    }

    fn limit(&self) -> u64 {
        0
    }
}

/// Pieces of a buffer, in the order in which a message fills them or is gathered from them: a strided or
/// vectored layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Offset and length of each piece in the buffer, and its offset in the message.
    pieces: Vec<(usize, usize, u64)>,
    length: u64,
}

impl Layout {
    /// Returns the layout of these pieces: offset and length of each, in bytes.
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut layout = Self::default();
        for (offset, length) in pieces.into_iter().filter(|(_, length)| *length > 0) {
            layout.pieces.push((offset, length, layout.length));
            layout.length += to_u64(length);
        }
        layout
    }

    /// Returns a layout of `count` blocks of `block_bytes`, which begin `stride_bytes` apart.
    #[must_use]
    pub fn strided(count: usize, block_bytes: usize, stride_bytes: usize) -> Self {
        Self::new((0..count).map(|index| (index.saturating_mul(stride_bytes), block_bytes)))
    }

    /// Returns the length of the message, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the message is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the pieces of `buffer`, for sending. `None` if one is not inside.
    #[must_use]
    pub fn slices<'a>(&self, buffer: &'a [u8]) -> Option<Vec<IoSlice<'a>>> {
        let slice = |&(offset, length, _): &(usize, usize, u64)| {
            buffer.get(offset..offset.checked_add(length)?).map(IoSlice::new)
        };
        self.pieces.iter().map(slice).collect()
    }

    /// Returns a sink that fills the pieces of `buffer`. Bytes of pieces that are not inside are clipped.
    #[must_use]
    pub const fn sink<'a>(&'a self, buffer: &'a mut [u8]) -> Scattered<'a> {
        Scattered { layout: self, buffer }
    }
}

/// A buffer that is filled piece by piece.
#[derive(Debug)]
pub struct Scattered<'a> {
    layout: &'a Layout,
    buffer: &'a mut [u8],
}

impl Sink for Scattered<'_> {
    fn chunk_mut_at(&mut self, offset: u64, length: usize) -> &mut [u8] {
        let behind = self.layout.pieces.partition_point(|piece| piece.2 <= offset);
        let Some(&(start, piece, begin)) =
            behind.checked_sub(1).and_then(|index| self.layout.pieces.get(index))
        else {
            return &mut [];
        };
        let Ok(within) = usize::try_from(offset - begin) else { return &mut [] };
        let length = length.min(piece.saturating_sub(within));
        let start = start.saturating_add(within);
        self.buffer.get_mut(start..start.saturating_add(length)).unwrap_or_default()
    }

    fn limit(&self) -> u64 {
        self.layout.length
    }
}

/// Copies bytes to a sink from `offset` on. Returns how many it took.
#[inline]
pub(super) fn put<S: Sink + ?Sized>(sink: &mut S, offset: u64, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let space = sink.chunk_mut_at(offset + to_u64(done), rest.len());
        let length = space.len().min(rest.len());
        if length == 0 {
            break;
        }
        space[..length].copy_from_slice(&rest[..length]);
        done += length;
    }
    done
}

/// Copies bytes to the beginning of a sink. Returns whether it took all.
pub(crate) fn put_all<S: Sink + ?Sized>(sink: &mut S, bytes: &[u8]) -> bool {
    put(sink, 0, bytes) == bytes.len()
}

/// The most slices of a descriptor's inline data, including the envelope.
pub(super) const SLICES_MAX: usize = 12;

/// Gathers `head` and then the pieces of `body` that hold `length` bytes from `skip` on. Returns the number
/// of slices, or `None` if they are too many.
#[inline]
pub(super) fn gather<'a>(
    head: &'a [u8],
    body: &'a [IoSlice<'a>],
    skip: u64,
    length: usize,
    slices: &mut [IoSlice<'a>; SLICES_MAX],
) -> Option<usize> {
    slices[0] = IoSlice::new(head);
    let mut count = 1;
    for piece in pieces(body, skip, length) {
        *slices.get_mut(count)? = IoSlice::new(piece);
        count += 1;
    }
    Some(count)
}

/// Copies `length` bytes of `body` from `skip` on to the end of a vector.
pub(super) fn copy_range(body: &[IoSlice<'_>], skip: u64, length: usize, bytes: &mut Vec<u8>) {
    pieces(body, skip, length).for_each(|piece| bytes.extend_from_slice(piece));
}

/// Returns the pieces of `body` that hold `length` bytes from `skip` on.
#[inline]
fn pieces<'a>(
    body: &'a [IoSlice<'a>],
    mut skip: u64,
    mut rest: usize,
) -> impl Iterator<Item = &'a [u8]> {
    body.iter().filter_map(move |slice| {
        if rest == 0 || skip >= to_u64(slice.len()) {
            skip = skip.saturating_sub(to_u64(slice.len()));
            return None;
        }
        let start = usize::try_from(skip).unwrap_or(usize::MAX);
        skip = 0;
        let end = slice.len().min(start.saturating_add(rest));
        rest -= end - start;
        Some(&slice[start..end])
    })
}

/// Returns the length of all slices together.
#[inline]
pub(super) fn total(body: &[IoSlice<'_>]) -> u64 {
    body.iter().map(|slice| to_u64(slice.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a strided layout gathers and scatters the same bytes, wherever frames are cut. Method: all cuts
    /// of a message of three blocks.
    #[test]
    fn a_layout_gathers_and_scatters() {
        let layout = Layout::strided(3, 4, 10);
        let buffer: Vec<u8> = (0..30).collect();
        let slices = layout.slices(&buffer).expect("inside");
        let mut message = Vec::new();
        copy_range(&slices, 0, 12, &mut message);
        assert_eq!(message, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]);
        for cut in 0..=12 {
            let mut target = vec![255; 30];
            let mut sink = layout.sink(&mut target);
            assert_eq!(put(&mut sink, 0, &message[..cut]), cut);
            assert_eq!(put(&mut sink, to_u64(cut), &message[cut..]), 12 - cut);
            let scattered: Vec<u8> = layout
                .slices(&target)
                .expect("inside")
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            assert_eq!(scattered, message, "cut at {cut}");
            assert_eq!(target.iter().filter(|byte| **byte == 255).count(), 18, "gaps stay");
            let mut again = Vec::new();
            copy_range(&slices, to_u64(cut), 12 - cut, &mut again);
            assert_eq!(again, message[cut..]);
        }
        assert!(Layout::new([(28, 4)]).slices(&buffer).is_none(), "not inside");
        let mut sink = [0; 5];
        assert_eq!(put(&mut sink[..], 3, &[1, 2, 3]), 2, "clipped");
    }
}
