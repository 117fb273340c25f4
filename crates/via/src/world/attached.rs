//! A rank attached to a [`Hub`](super::hub::Hub), over any link that carries its frames.

use std::fmt;

use vigie_detect::{Handle, Instant, Timers};

use super::{
    Bootstrap, BootstrapFuture, Membership, Rank, WorldError, WorldEvent,
    error::Listed,
    hub::GETS_MAX,
    member::Member,
    waiting::{DeadlineWait, HubLink},
    wire::{MISSING_MAX, PAIR_KEY_BYTES, PAIR_KEYS, PAIR_KEYS_MAX},
};
use crate::auth::Secret;

/// A rank and its link.
pub(super) struct Attached<L> {
    link: L,
    timers: Handle<Timers>,
    membership: Membership,
}

impl<L: HubLink<StateMachine = Member>> Attached<L> {
    /// Greets the hub.
    pub(super) async fn greet(
        link: L,
        timers: Handle<Timers>,
        deadline: Instant,
    ) -> Result<Self, WorldError> {
        link.act(|member| {
            member.greet();
            Ok(())
        })?;
        let wait = DeadlineWait { link: &link, timers: &timers, deadline };
        let what = || "the launcher's welcome".to_owned();
        let membership = wait.until(what, |member, _| member.membership.clone()).await?;
        Ok(Self { link, timers, membership })
    }

    /// Makes a rank from a link whose hub has already answered the greeting.
    pub(super) const fn greeted(link: L, timers: Handle<Timers>, membership: Membership) -> Self {
        Self { link, timers, membership }
    }

    /// Completes an identity whose secret is not sent.
    pub(super) fn with_secret(mut self, secret: impl FnOnce(&[u8; 16]) -> [u8; 32]) -> Self {
        let identity = &mut self.membership.identity;
        identity.secret = secret(&identity.id);
        self
    }

    /// Asks for the pair keys of all ranks, as many as may be asked for at once, and adds them to `keys`. Returns `false` if there
    /// are none.
    async fn add_pair_keys(
        &self,
        keys: &mut Vec<Secret>,
        deadline: Instant,
    ) -> Result<bool, WorldError> {
        let from = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let firsts = (from..self.membership.size).step_by(PAIR_KEYS_MAX).take(GETS_MAX).map(Rank);
        self.link.act(|member| {
            firsts.clone().try_for_each(|first| member.ask(Some(first), PAIR_KEYS))
        })?;
        let what = || "the launcher's keys of pairs".to_owned();
        for first in firsts {
            let answer = |member: &mut Member, _| member.answer(first, PAIR_KEYS);
            let Some(value) = self.waiting(deadline).until(what, answer).await? else {
                return Ok(false);
            };
            let (chunks, rest) = value.as_chunks::<PAIR_KEY_BYTES>();
            let left = self.membership.size.saturating_sub(first.0) as usize;
            if !rest.is_empty() || chunks.len() != left.min(PAIR_KEYS_MAX) {
                return Err(WorldError::Disorder("it told pair keys of another length"));
            }
            keys.extend(chunks.iter().map(|key| Secret::new(*key)));
        }
        Ok(true)
    }

    /// Describes what barrier `round` waits for, as far as this rank knows.
    fn awaited(&self, round: u32) -> String {
        if let Some(ranks) = self.link.awaited().filter(|ranks| !ranks.is_empty()) {
            return format!("these ranks came to barrier {round}: {}", list(&ranks));
        }
        // This closure does not fail.
        let (gone, heard) = self.link.act(|member| Ok(member.gone_and_heard())).unwrap_or_default();
        let heard = match Vec::from_iter(heard).as_slice() {
            [] => "no other rank has been heard from".to_owned(),
            heard => format!("values have come from: {}", list(heard)),
        };
        let gone = match Vec::from_iter(gone).as_slice() {
            [] => String::new(),
            gone => format!("; gone, and not waited for: {}", list(gone)),
        };
        format!(
            "all ranks came to barrier {round}; only the launcher knows which are missing; {heard}{gone}"
        )
    }

    const fn waiting(&self, deadline: Instant) -> DeadlineWait<'_, L> {
        DeadlineWait { link: &self.link, timers: &self.timers, deadline }
    }

    async fn get_all(
        &self,
        key: &str,
        deadline: Instant,
    ) -> Result<Vec<Option<Vec<u8>>>, WorldError> {
        self.link.act(|member| member.ask(None, key))?;
        let what = || {
            // This closure does not fail.
            let ranks = self.link.act(|member| Ok(member.unanswered(key))).unwrap_or_default();
            format!("these ranks had put a value for `{key}`: {}", list(&ranks))
        };
        self.waiting(deadline).until(what, |member, _| member.answers(key)).await
    }
}

impl<L: HubLink<StateMachine = Member>> Bootstrap for Attached<L> {
    fn membership(&self) -> &Membership {
        &self.membership
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> BootstrapFuture<'a, ()> {
        Box::pin(async move {
            self.link.act(|member| member.put(key, value))?;
            let what = || format!("the value for `{key}` could be sent");
            self.waiting(deadline).until(what, |_, is_sent| is_sent.then_some(())).await
        })
    }

    fn get<'a>(
        &'a self,
        rank: Rank,
        key: &'a str,
        deadline: Instant,
    ) -> BootstrapFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.link.act(|member| member.ask(Some(rank), key))?;
            let what = || format!("the value of {rank} for `{key}`");
            self.waiting(deadline).until(what, |member, _| member.answer(rank, key)).await
        })
    }

    fn barrier(&self, deadline: Instant) -> BootstrapFuture<'_, ()> {
        Box::pin(async move {
            let round = self.link.act(Member::enter)?;
            let what = || self.awaited(round);
            let check = |member: &mut Member, _| member.pass(round).then_some(());
            self.waiting(deadline).until(what, check).await
        })
    }

    fn event(&self, index: usize) -> BootstrapFuture<'_, WorldEvent> {
        Box::pin(async move {
            let what = || "something happened to a rank".to_owned();
            self.waiting(Instant::MAX).until(what, |member, _| member.event(index)).await
        })
    }

    fn leave(&self, deadline: Instant) -> BootstrapFuture<'_, ()> {
        Box::pin(async move {
            self.link.act(Member::leave)?;
            let what = || "the launcher could be told that this rank leaves".to_owned();
            self.waiting(deadline).until(what, |_, is_sent| is_sent.then_some(())).await
        })
    }

    fn pair_keys(&self, deadline: Instant) -> BootstrapFuture<'_, Option<Vec<Secret>>> {
        Box::pin(async move {
            let mut keys = Vec::new();
            while keys.len() < self.membership.size as usize {
                if !self.add_pair_keys(&mut keys, deadline).await? {
                    return Ok(None);
                }
            }
            Ok(Some(keys))
        })
    }

    fn all_gather<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> BootstrapFuture<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            self.link.act(|member| member.put(key, value))?;
            self.get_all(key, deadline).await
        })
    }
}

/// Lists ranks, but not too many.
fn list(ranks: &[Rank]) -> String {
    let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    Listed { count, ranks: &ranks[..ranks.len().min(MISSING_MAX)] }.to_string()
}

impl<L: fmt::Debug> fmt::Debug for Attached<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("membership", &self.membership)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
