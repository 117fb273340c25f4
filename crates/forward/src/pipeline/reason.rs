//! Why packets are dropped: every drop has a reason, and every reason is counted.

use std::fmt;

macro_rules! reasons {
    ($($(#[$docs:meta])* $name:ident => $text:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$docs])* $name,)*
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns it in a few words, which stay the same.
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
    /// Its headers cannot be read.
    Malformed => "malformed",
    /// It is no IP, and a stage wanted IP.
    NotIp => "not IP",
    /// It may cross no more routers.
    TtlExpired => "TTL expired",
    /// A filter did not want it.
    Filtered => "filtered",
    /// A checksum is wrong.
    ChecksumWrong => "checksum wrong",
    /// More came than the meter allows.
    Metered => "over the rate",
    /// No route leads to its destination.
    NoRoute => "no route",
    /// Nobody has told the Ethernet address of the next hop.
    NoNeighbour => "no neighbour",
    /// No stage said where it goes, and there is no port for the rest.
    NoPort => "no port",
    /// It is longer than what the outgoing interface takes.
    TooLong => "longer than the MTU",
    /// Several segments in one frame, which are not cut here.
    Segments => "uncut segments",
    /// All ports of the address that it was to be translated to are in use.
    NatPorts => "NAT ports exhausted",
    /// The table of translations is full.
    NatFull => "NAT table full",
    /// A later fragment whose first one was not seen.
    NatFragment => "NAT fragment without its first",
    /// A protocol that has nothing that could be translated.
    NatProtocol => "NAT cannot translate it",
    /// Nobody inside has asked for it.
    NatUnknown => "NAT knows no such flow",
    /// A buffer was full, and is configured to drop.
    BufferFull => "buffer full",
    /// The outgoing interface is down.
    Down => "interface down",
    /// The outgoing interface is gone.
    Gone => "interface gone",
    /// A packet of its message was lost.
    Incomplete => "message incomplete",
    /// Its message was dropped before it came.
    Message => "message dropped",
    /// The user's own code did not want it.
    User => "user code",
}

impl Reason {
    /// Returns its number: it counts up from 0 without gaps.
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
