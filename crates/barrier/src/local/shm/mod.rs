//! Barriers of processes of one host, over shared memory.

mod doors;
mod meeting;
mod member;
mod segment;
mod wire;

pub use self::{
    meeting::{FormError, Meeting, MeetingPoint, NameError},
    member::ShmMember,
};
