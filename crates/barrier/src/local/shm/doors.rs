//! Doors: how a member that sleeps in its scheduler is woken, and how the end of one is noticed.
//!
//! Each member has a pair of connected Unix sockets. One end it keeps; the other one, its door, all others have.
//! A byte into the door wakes it. When its process ends, however that happens, the kernel closes the end that it
//! kept, and every door of it hangs up. So nobody has to be asked whether a member lives, no process number can
//! stand for another process, and the others learn it from the kernel itself.
//!
//! A member that is hostile may shut the door of another, which then looks as if it were gone; or fill it, which
//! wakes that one. Both delay, no more.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::epoll,
    net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType},
};

use crate::{
    group::Rank,
    sync::{AtomicU32, Ordering},
};

/// Hang-ups that one look takes.
const EVENTS_MAX: usize = 32;

/// Makes the two ends: the one to keep, and the door.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A member's own end, and the doors of all others.
#[derive(Debug)]
pub(super) struct Doors {
    own: OwnedFd,
    others: Vec<Option<OwnedFd>>,
    /// Readable when a door has hung up that was not known to have.
    hang_ups: OwnedFd,
    /// For each member, whether its door has hung up, and how many have: raised after the member's own
    /// (release), read before it (acquire).
    are_gone: Box<[AtomicU32]>,
    gone_count: AtomicU32,
}

impl Doors {
    /// Takes this member's own end and the doors of all others, by rank.
    pub(super) fn new(own: OwnedFd, others: Vec<Option<OwnedFd>>) -> io::Result<Self> {
        let hang_ups = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (rank, door) in (0_u64..).zip(&others) {
            if let Some(door) = door {
                // Hang-ups are told without being asked for.
                let data = epoll::EventData::new_u64(rank);
                epoll::add(&hang_ups, door, data, epoll::EventFlags::empty())?;
            }
        }
        let are_gone = others.iter().map(|_| AtomicU32::new(0)).collect();
        Ok(Self { own, others, hang_ups, are_gone, gone_count: AtomicU32::new(0) })
    }

    /// The end that becomes readable when somebody knocks.
    pub(super) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// The descriptor that becomes readable when somebody is gone.
    pub(super) fn hang_ups(&self) -> BorrowedFd<'_> {
        self.hang_ups.as_fd()
    }

    /// Wakes a member that sleeps in its scheduler.
    pub(super) fn knock(&self, rank: Rank) {
        if let Some(Some(door)) = self.others.get(rank.index()) {
            // A door that is full is open to the one behind it already; one that has hung up is noticed
            // elsewhere.
            let _ = rustix::net::send(door, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Takes in what was knocked: the next knock shows again.
    pub(super) fn answer(&self) {
        let mut bytes = [MaybeUninit::uninit(); 8];
        // As many as a queue of the kernel holds, and no more: a hostile member may knock on and on.
        for _ in 0..64 {
            if rustix::net::recv(&self.own, &mut bytes, RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }

    /// Looks who is gone. Returns whether that was news.
    pub(super) fn look(&self) -> io::Result<bool> {
        let mut is_news = false;
        loop {
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let (events, _) = match epoll::wait(&self.hang_ups, &mut events[..], Some(&timeout)) {
                Ok(events) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if events.is_empty() {
                return Ok(is_news);
            }
            for event in events.iter() {
                let Ok(rank) = usize::try_from(event.data.u64()) else { continue };
                if let (Some(Some(door)), Some(gone)) =
                    (self.others.get(rank), self.are_gone.get(rank))
                {
                    // Several threads may find the same.
                    let _ = epoll::delete(&self.hang_ups, door);
                    if gone.swap(1, Ordering::AcqRel) == 0 {
                        self.gone_count.fetch_add(1, Ordering::Release);
                        is_news = true;
                    }
                }
            }
        }
    }

    /// Returns whether anybody is known to be gone.
    #[inline]
    pub(super) fn has_gone(&self) -> bool {
        self.gone_count.load(Ordering::Acquire) > 0
    }

    /// Returns who is known to be gone.
    pub(super) fn gone(&self) -> impl Iterator<Item = Rank> {
        let all = (0..).map(Rank).zip(&self.are_gone);
        all.filter(|(_, gone)| gone.load(Ordering::Acquire) != 0).map(|(rank, _)| rank)
    }

    /// Lets the others know that this member leaves.
    pub(super) fn leave(&self) {
        // It fails if all others are gone.
        let _ = rustix::net::shutdown(&self.own, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a knock is seen by whom it is for, and one who leaves is found once, by name. Method: three members
    /// of this process.
    #[test]
    fn knocks_and_ends_are_told() {
        let pairs: Vec<_> = (0..3).map(|_| pair().unwrap()).collect();
        let all: Vec<Doors> = (0..3)
            .map(|own| {
                let door =
                    |other: usize| (other != own).then(|| pairs[other].1.try_clone().unwrap());
                Doors::new(pairs[own].0.try_clone().unwrap(), (0..3).map(door).collect()).unwrap()
            })
            .collect();
        drop(pairs);
        let is_knocked = |doors: &Doors| {
            let fd =
                rustix::event::PollFd::from_borrowed_fd(doors.own(), rustix::event::PollFlags::IN);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut [fd], Some(&now)).unwrap() > 0
        };
        all[0].knock(Rank(2));
        assert!(is_knocked(&all[2]) && !is_knocked(&all[1]));
        all[2].answer();
        assert!(!is_knocked(&all[2]));
        assert!(!all[0].look().unwrap() && !all[0].has_gone());
        all[1].leave();
        for doors in [&all[0], &all[2]] {
            assert!(doors.look().unwrap() && doors.has_gone());
            assert!(doors.gone().eq([Rank(1)]));
            assert!(!doors.look().unwrap(), "told twice");
        }
        all[0].knock(Rank(1));
    }
}
