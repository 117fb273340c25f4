//! The reasons for drops: every drop has a reason, and every reason is counted.

use std::fmt;

macro_rules! reasons {
    ($($(#[$docs:meta])* $name:ident => $text:literal,)*) => {
        /// The reason why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum DropReason {
            $($(#[$docs])* $name,)*
        }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns a short name, which is stable.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// Its headers cannot be parsed.
    Malformed => "malformed",
    /// It is not IP, and a stage requires IP.
    NotIp => "not IP",
    /// Its hop limit ran out.
    TtlExpired => "TTL expired",
    /// A filter refused it.
    Filtered => "filtered",
    /// Its source or destination cannot be that of a packet between hosts.
    Martian => "impossible address",
    /// A checksum is wrong.
    ChecksumWrong => "checksum wrong",
    /// It exceeds the rate of a meter.
    Metered => "over the rate",
    /// No route leads to its destination.
    NoRoute => "no route",
    /// The Ethernet address of the next hop is unknown.
    NoNeighbour => "no neighbour",
    /// No stage named its port, and there is no default port.
    NoPort => "no port",
    /// It exceeds the MTU of the outgoing interface.
    TooLong => "longer than the MTU",
    /// It holds several segments, which are not cut here.
    Segments => "uncut segments",
    /// All ports of the outside address are in use.
    NatPorts => "NAT ports exhausted",
    /// An inside host uses all of its share of ports or translations.
    NatHost => "NAT share of a host exhausted",
    /// The table of translations is full.
    NatFull => "NAT table full",
    /// A later fragment whose first one was not seen.
    NatFragment => "NAT fragment without its first",
    /// Its protocol has nothing that could be translated.
    NatProtocol => "NAT cannot translate it",
    /// It belongs to no flow begun from inside.
    NatUnknown => "NAT knows no such flow",
    /// A buffer was full, and is configured to drop.
    BufferFull => "buffer full",
    /// The outgoing interface is down.
    Down => "interface down",
    /// The outgoing interface is gone.
    Gone => "interface gone",
    /// Another packet of its message was lost.
    Incomplete => "message incomplete",
    /// Its message was dropped before it arrived.
    Message => "message dropped",
    /// The user's code dropped it.
    User => "user code",
    /// Too many packets wait for the Ethernet address of its next hop.
    UnresolvedFull => "too many wait for a neighbour",
    /// The kernel describes its segments in a way that is unknown, or that its headers contradict.
    SegmentHeader => "bad segment header",
}

impl DropReason {
    /// Returns its number; numbers start at 0 and have no gaps.
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
