//! What the kernel knows of the network, and what becomes of it: interfaces, routes, neighbours.
//!
//! ```text
//!  routing socket ──▶ message.rs ──▶ Event ──▶ picture.rs ──▶ Change ──▶ tables of the flows
//!      follow.rs ───────────────────▶ Dump ───────┘
//! ```
//! [`Picture`] does no I/O: events and dumps in, changes out. [`Follower`] puts sockets around it.

mod follow;
mod message;
mod picture;

#[cfg(test)]
pub(crate) use self::picture::Interface;
pub(crate) use self::picture::Own;
pub(crate) use self::{
    follow::{FollowError, Follower, snapshot},
    picture::{Change, Picture, Prefix, Target},
};
