//! The place of a process in its world, and the world's identity.

use std::{fmt, io};

use crate::auth::random;

/// One of the processes of a world, counted from 0.
///
/// ```
/// use vigie_via::{message::SourceFilter, world::Rank};
///
/// let rank = Rank::from(3);
/// assert!(rank == 3 && u32::from(rank) == 3);
/// assert_eq!(rank.to_string(), "rank 3");
/// assert_eq!(SourceFilter::from(rank), SourceFilter::Rank(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "programs compute with ranks")]
pub struct Rank(pub u32);

impl Rank {
    /// Returns the rank as an index into a slice.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl From<u32> for Rank {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<Rank> for u32 {
    fn from(rank: Rank) -> Self {
        rank.0
    }
}

impl PartialEq<u32> for Rank {
    fn eq(&self, number: &u32) -> bool {
        self.0 == *number
    }
}

impl PartialEq<Rank> for u32 {
    fn eq(&self, rank: &Rank) -> bool {
        *self == rank.0
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Identifies a world, and lets its ranks authenticate each other. Random, and known only to its ranks.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Differs from world to world; not secret.
    pub id: [u8; 16],
    /// Proves to another rank that this one belongs to the world. Do not print or store it.
    pub secret: [u8; 32],
}

impl Identity {
    /// Makes an identity whose secret its ranks get from elsewhere, as at a rendezvous over [TCP](super::tcp).
    ///
    /// # Errors
    /// The kernel's.
    pub fn random_without_secret() -> io::Result<Self> {
        Ok(Self { secret: [0; 32], ..Self::random()? })
    }

    /// Makes the identity of a new world, from the kernel's random numbers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn random() -> io::Result<Self> {
        Ok(Self { id: random()?, secret: random()? })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("id", &format_args!("{:032x}", u128::from_be_bytes(self.id)))
            .finish_non_exhaustive()
    }
}

/// A process's place in its world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Membership {
    /// The process's rank; less than `size`.
    pub rank: Rank,
    /// The number of ranks, at least 1.
    pub size: u32,
    /// The world's identity.
    pub identity: Identity,
}

impl Membership {
    /// Returns a membership, for implementers of [`Bootstrap`](super::Bootstrap).
    #[must_use]
    pub const fn new(rank: Rank, size: u32, identity: Identity) -> Self {
        Self { rank, size, identity }
    }
}
