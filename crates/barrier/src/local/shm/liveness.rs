//! Liveness sockets, which wake a member that sleeps in its scheduler and show when a member has ended.
//!
//! Each member has a pair of connected Unix sockets. It keeps one end; all others have the other end, its liveness
//! socket. A byte sent into the liveness socket wakes it. When its process ends, for whatever reason, the kernel
//! closes the kept end, and every copy of its liveness socket hangs up. So no process has to be asked whether a
//! member is alive, no process id can be mistaken for another process, and the others learn it from the kernel.
//!
//! A hostile member may shut down another member's liveness socket, which makes that member look gone, or fill it,
//! which wakes that member. Both only cause delays.

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

/// The maximum number of hang-ups taken in one poll.
const EVENTS_MAX: usize = 32;

/// Creates the two ends: the one to keep, and the liveness socket.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A member's own end, and the liveness sockets of all others.
#[derive(Debug)]
pub(super) struct LivenessSockets {
    own: OwnedFd,
    others: Vec<Option<OwnedFd>>,
    /// Readable when another liveness socket has hung up.
    hang_ups: OwnedFd,
    /// For each member, whether its liveness socket has hung up, and the number of those that have: raised after the
    /// member's own entry (release), read before it (acquire).
    are_gone: Box<[AtomicU32]>,
    gone_count: AtomicU32,
}

impl LivenessSockets {
    /// Takes this member's own end and the liveness sockets of all others, by rank.
    pub(super) fn new(own: OwnedFd, others: Vec<Option<OwnedFd>>) -> io::Result<Self> {
        let hang_ups = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (rank, socket) in (0_u64..).zip(&others) {
            if let Some(socket) = socket {
                // Hang-ups are reported without being requested.
                let data = epoll::EventData::new_u64(rank);
                epoll::add(&hang_ups, socket, data, epoll::EventFlags::empty())?;
            }
        }
        let are_gone = others.iter().map(|_| AtomicU32::new(0)).collect();
        Ok(Self { own, others, hang_ups, are_gone, gone_count: AtomicU32::new(0) })
    }

    /// The end that becomes readable when another member wakes this one.
    pub(super) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// The descriptor that becomes readable when a member is gone.
    pub(super) fn hang_ups(&self) -> BorrowedFd<'_> {
        self.hang_ups.as_fd()
    }

    /// Wakes a member that sleeps in its scheduler.
    pub(super) fn wake(&self, rank: Rank) {
        if let Some(Some(socket)) = self.others.get(rank.index()) {
            // A full liveness socket wakes its owner already; one that has hung up is noticed elsewhere.
            let _ = rustix::net::send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Drains the received bytes, so that the next wake is visible again.
    pub(super) fn drain_wakes(&self) {
        let mut bytes = [MaybeUninit::uninit(); 8];
        // As many as a kernel queue holds, and no more: a hostile member may keep waking.
        for _ in 0..64 {
            if rustix::net::recv(&self.own, &mut bytes, RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }

    /// Checks which members are gone. Returns whether there is a new one.
    pub(super) fn poll_hang_ups(&self) -> io::Result<bool> {
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
                if let (Some(Some(socket)), Some(gone)) =
                    (self.others.get(rank), self.are_gone.get(rank))
                {
                    // Several threads may find the same one.
                    let _ = epoll::delete(&self.hang_ups, socket);
                    if gone.swap(1, Ordering::AcqRel) == 0 {
                        self.gone_count.fetch_add(1, Ordering::Release);
                        is_news = true;
                    }
                }
            }
        }
    }

    /// Returns whether any member is known to be gone.
    #[inline]
    pub(super) fn has_gone(&self) -> bool {
        self.gone_count.load(Ordering::Acquire) > 0
    }

    /// Returns the members known to be gone.
    pub(super) fn gone(&self) -> impl Iterator<Item = Rank> {
        let all = (0..).map(Rank).zip(&self.are_gone);
        all.filter(|(_, gone)| gone.load(Ordering::Acquire) != 0).map(|(rank, _)| rank)
    }

    /// Tells the others that this member leaves.
    pub(super) fn leave(&self) {
        // It fails if all others are gone.
        let _ = rustix::net::shutdown(&self.own, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wake is seen by its receiver only, and a leaving member is found once, by rank. Method: three members
    /// of this process.
    #[test]
    fn wakes_and_ends_are_reported() {
        let pairs: Vec<_> = (0..3).map(|_| pair().unwrap()).collect();
        let all: Vec<LivenessSockets> = (0..3)
            .map(|own| {
                let socket =
                    |other: usize| (other != own).then(|| pairs[other].1.try_clone().unwrap());
                LivenessSockets::new(
                    pairs[own].0.try_clone().unwrap(),
                    (0..3).map(socket).collect(),
                )
                .unwrap()
            })
            .collect();
        drop(pairs);
        let is_woken = |sockets: &LivenessSockets| {
            let fd = rustix::event::PollFd::from_borrowed_fd(
                sockets.own(),
                rustix::event::PollFlags::IN,
            );
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut [fd], Some(&now)).unwrap() > 0
        };
        all[0].wake(Rank(2));
        assert!(is_woken(&all[2]) && !is_woken(&all[1]));
        all[2].drain_wakes();
        assert!(!is_woken(&all[2]));
        assert!(!all[0].poll_hang_ups().unwrap() && !all[0].has_gone());
        all[1].leave();
        for sockets in [&all[0], &all[2]] {
            assert!(sockets.poll_hang_ups().unwrap() && sockets.has_gone());
            assert!(sockets.gone().eq([Rank(1)]));
            assert!(!sockets.poll_hang_ups().unwrap(), "told twice");
        }
        all[0].wake(Rank(1));
    }
}
