//! The kernel functions (helpers) that our programs call.

/// A kernel function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
pub enum Helper {
    /// `(map, key) -> value or 0`.
    MapLookup,
    /// `(map, key, value, flags) -> 0 or a negative error`.
    MapUpdate,
    /// `(map, key) -> 0 or a negative error`.
    MapDelete,
    /// `() -> nanoseconds` since boot, without time asleep.
    MonotonicTime,
    /// `() -> number of the processor`.
    Processor,
    /// `(packet, interface, flags)`, for programs at tcx: sends a copy.
    CloneRedirect,
    /// `(interface, flags) -> action`: the packet goes to an interface when the program returns the action.
    Redirect,
    /// `(packet, bytes)`, for programs at tcx and of sockets: makes this many bytes directly readable.
    PullData,
    /// `(packet, bytes)`, for XDP: removes bytes from the front of the frame, or adds some if negative.
    AdjustHead,
    /// `(map, key, flags) -> action`, for XDP: as [`Redirect`](Self::Redirect), to an entry of a map.
    RedirectMap,
    /// `(packet, map, key, flags) -> verdict`, for sockets: to a socket of a `SockMap`.
    SocketRedirectMap,
    /// `(packet, map, key, flags) -> verdict`, for sockets: to a socket of a `SockHash`.
    SocketRedirectHash,
    /// `() -> nanoseconds`, as of the last tick of the kernel: coarser and cheaper.
    MonotonicTimeCoarse,
    /// `(packet) -> bytes`, for XDP: the length of the frame.
    FrameLength,
}

const NUMBERS: [(Helper, i32); 14] = [
    (Helper::MapLookup, 1),
    (Helper::MapUpdate, 2),
    (Helper::MapDelete, 3),
    (Helper::MonotonicTime, 5),
    (Helper::Processor, 8),
    (Helper::CloneRedirect, 13),
    (Helper::Redirect, 23),
    (Helper::PullData, 39),
    (Helper::AdjustHead, 44),
    (Helper::RedirectMap, 51),
    (Helper::SocketRedirectMap, 52),
    (Helper::SocketRedirectHash, 72),
    (Helper::MonotonicTimeCoarse, 160),
    (Helper::FrameLength, 188),
];

impl Helper {
    /// Returns all helpers.
    pub fn all() -> impl Iterator<Item = Self> {
        NUMBERS.into_iter().map(|(helper, _)| helper)
    }

    /// Returns the kernel's number for this helper.
    pub(super) fn number(self) -> i32 {
        NUMBERS.iter().find(|(helper, _)| *helper == self).map_or(0, |(_, number)| *number)
    }

    /// Returns the helper with this number, if this crate knows it.
    pub(super) fn from_number(number: i32) -> Option<Self> {
        NUMBERS.iter().find(|(_, one)| *one == number).map(|(helper, _)| *helper)
    }
}
