//! The kernel functions (helpers) that our programs call.

numbered! {
    /// A kernel function.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(clippy::exhaustive_enums, reason = "an interpreter must know them all")]
    pub enum Helper: i32 {
        /// `(map, key) -> value or 0`.
        MapLookup = 1,
        /// `(map, key, value, flags) -> 0 or a negative error`.
        MapUpdate = 2,
        /// `(map, key) -> 0 or a negative error`.
        MapDelete = 3,
        /// `() -> nanoseconds` since boot, without time asleep.
        MonotonicTime = 5,
        /// `() -> number of the processor`.
        Processor = 8,
        /// `(packet, offset, from, to, flags) -> 0 or a negative error`, for programs at tcx: replaces a part of what the
        /// transport's checksum at an offset covers, whether the sender has computed it or left it to the network card.
        /// With a `from` and a size (the lowest bits of the flags) of 0, `to` is the difference.
        ReplaceTransportChecksum = 11,
        /// `(packet, interface, flags)`, for programs at tcx: sends a copy.
        CloneRedirect = 13,
        /// `(interface, flags) -> action`: the packet goes to an interface when the program returns the action.
        Redirect = 23,
        /// `(packet, type) -> 0 or a negative error`, for programs at tcx: sets the host that the packet is for, as the kernel
        /// sees it; 0 is this one, 3 another one.
        ChangePacketType = 32,
        /// `(packet, bytes)`, for programs at tcx: makes this many bytes directly readable.
        PullData = 39,
        /// `(packet, difference)`, for programs at tcx: adds what the program has changed to the sum that a network card has computed
        /// over the whole packet, if it has; else a negative error, and nothing is to be done.
        UpdateCompleteChecksum = 40,
        /// `(packet, bytes, 0) -> 0 or a negative error`, for programs at tcx: adds bytes of zero in front of the packet, for the header of an
        /// interface with headers. No address of the packet is valid afterwards.
        ChangeHead = 43,
        /// `(packet, bytes)`, for XDP: removes bytes from the front of the frame, or adds some if negative.
        AdjustHead = 44,
        /// `(map, key, flags) -> action`, for XDP: as [`Redirect`](Self::Redirect), to an entry of a map.
        RedirectMap = 51,
        /// `() -> ticks` of the kernel's clock, 100 to 1000 a second. Compiled into the program, without a call.
        Ticks = 118,
        /// `() -> nanoseconds`, as of the last tick of the kernel: coarser and cheaper.
        MonotonicTimeCoarse = 160,
        /// `(packet) -> bytes`, for XDP: the length of the frame.
        FrameLength = 188,
    }
}

impl Helper {
    /// Returns all helpers.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }
}
