//! A rank that is attached to a [`Hub`](super::hub::Hub), over whatever carries its frames.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::Poll,
};

use vigie_detect::{Handle, Instant, Timers};

use super::{
    Answer, Bootstrap, Event, Membership, Rank, WorldError, member::Member, wire::Request,
};

/// What carries frames between a rank and its hub.
pub(super) trait Link: Send + Sync + fmt::Debug {
    /// Changes or asks what this rank knows, under its lock, and says what `act` returns.
    fn act<T>(
        &self,
        act: impl FnOnce(&mut Member) -> Result<(T, Option<Request>), WorldError>,
    ) -> Result<T, WorldError>;

    /// Sends what is to be said and hears what has come, without waiting; wakes those who wait for it.
    /// Returns whether everything is sent.
    fn pump(&self) -> bool;

    /// Waits until there may be something to hear.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until something may be said.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// A rank and its link.
pub(super) struct Attached<L> {
    link: L,
    timers: Handle<Timers>,
    membership: Membership,
}

impl<L: Link> Attached<L> {
    /// Greets the hub.
    pub(super) async fn greet(
        link: L,
        timers: Handle<Timers>,
        deadline: Instant,
    ) -> Result<Self, WorldError> {
        link.act(|_| Ok(((), Some(Member::hello()))))?;
        let wait = Waiting { link: &link, timers: &timers, deadline };
        let what = || "the launcher's welcome".to_owned();
        let membership = wait.until(what, |member, _| member.membership.clone()).await?;
        Ok(Self { link, timers, membership })
    }

    /// Takes a link whose hub has answered the greeting already.
    pub(super) const fn greeted(link: L, timers: Handle<Timers>, membership: Membership) -> Self {
        Self { link, timers, membership }
    }

    const fn waiting(&self, deadline: Instant) -> Waiting<'_, L> {
        Waiting { link: &self.link, timers: &self.timers, deadline }
    }

    async fn get_all(
        &self,
        key: &str,
        deadline: Instant,
    ) -> Result<Vec<Option<Vec<u8>>>, WorldError> {
        self.link.act(|member| Ok(((), member.ask(None, key)?)))?;
        let what = || format!("the values of all ranks for `{key}`");
        self.waiting(deadline).until(what, |member, _| member.answers(key)).await
    }
}

impl<L: Link> Bootstrap for Attached<L> {
    fn membership(&self) -> &Membership {
        &self.membership
    }

    fn put<'a>(&'a self, key: &'a str, value: &'a [u8], deadline: Instant) -> Answer<'a, ()> {
        Box::pin(async move {
            self.link.act(|member| Ok(((), Some(member.put(key, value)?))))?;
            let what = || format!("the value for `{key}` could be sent");
            self.waiting(deadline).until(what, |_, is_sent| is_sent.then_some(())).await
        })
    }

    fn get<'a>(
        &'a self,
        rank: Rank,
        key: &'a str,
        deadline: Instant,
    ) -> Answer<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.link.act(|member| Ok(((), member.ask(Some(rank), key)?)))?;
            let what = || format!("the value of {rank} for `{key}`");
            self.waiting(deadline).until(what, |member, _| member.answer(rank, key)).await
        })
    }

    fn barrier(&self, deadline: Instant) -> Answer<'_, ()> {
        Box::pin(async move {
            let round = self.link.act(Member::enter)?;
            let what = || format!("all ranks came to barrier {round}");
            let check = |member: &mut Member, _| member.pass(round).then_some(());
            self.waiting(deadline).until(what, check).await
        })
    }

    fn event(&self, index: usize) -> Answer<'_, Event> {
        Box::pin(async move {
            let what = || "something happened to a rank".to_owned();
            self.waiting(Instant::MAX).until(what, |member, _| member.event(index)).await
        })
    }

    fn leave(&self, deadline: Instant) -> Answer<'_, ()> {
        Box::pin(async move {
            self.link.act(|member| Ok(((), member.leave()?)))?;
            let what = || "the launcher could be told that this rank leaves".to_owned();
            self.waiting(deadline).until(what, |_, is_sent| is_sent.then_some(())).await
        })
    }

    fn all_gather<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> Answer<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            self.link.act(|member| Ok(((), Some(member.put(key, value)?))))?;
            self.get_all(key, deadline).await
        })
    }
}

impl<L: fmt::Debug> fmt::Debug for Attached<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("membership", &self.membership)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// How to wait.
struct Waiting<'a, L> {
    link: &'a L,
    timers: &'a Handle<Timers>,
    deadline: Instant,
}

impl<L: Link> Waiting<'_, L> {
    /// Waits until `check` returns something. Several tasks may wait at once: whoever hears something
    /// wakes all others, and each looks for what is its own.
    async fn until<T>(
        &self,
        what: impl Fn() -> String,
        mut check: impl FnMut(&mut Member, bool) -> Option<T>,
    ) -> Result<T, WorldError> {
        let mut place = Place { link: self.link, waiter: None };
        let mut timer = pin!(self.timers.wait(self.deadline));
        loop {
            let is_sent = self.link.pump();
            let (found, seen) = self.link.act(|member| {
                let found = check(member, is_sent);
                if found.is_none() {
                    member.check()?;
                }
                Ok(((found, member.generation), None))
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            let mut readable = pin!(self.link.readable());
            let mut writable = pin!(self.link.writable());
            let is_late = poll_fn(|cx| {
                if place.has_moved(seen, cx.waker()) {
                    return Poll::Ready(Ok(false));
                }
                if let Poll::Ready(ready) = readable.as_mut().poll(cx) {
                    return Poll::Ready(ready.map(|()| false));
                }
                if !is_sent && let Poll::Ready(ready) = writable.as_mut().poll(cx) {
                    return Poll::Ready(ready.map(|()| false));
                }
                if self.deadline == Instant::MAX {
                    return Poll::Pending;
                }
                timer.as_mut().poll(cx).map(|ended| ended.map(|()| true).map_err(io::Error::from))
            });
            if is_late.await? {
                return Err(WorldError::TimedOut { what: what() });
            }
        }
    }
}

/// A waiter's place at its link, given up when it is dropped.
struct Place<'a, L: Link> {
    link: &'a L,
    waiter: Option<u64>,
}

impl<L: Link> Place<'_, L> {
    /// Returns whether something was heard since generation `seen`; if not, it wakes `waker`.
    fn has_moved(&mut self, seen: u64, waker: &std::task::Waker) -> bool {
        let waiter = &mut self.waiter;
        let has_moved = self.link.act(|member| {
            let has_moved = member.generation != seen;
            if !has_moved {
                member.wait(waiter, waker);
            }
            Ok((has_moved, None))
        });
        // Nothing above fails; and looking once more is right whatever happens.
        has_moved.unwrap_or(true)
    }
}

impl<L: Link> Drop for Place<'_, L> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            // Nothing in there fails.
            drop(self.link.act(|member| {
                member.forget(waiter);
                Ok(((), None))
            }));
        }
    }
}
