//! Several ranks in one process, for tests and for programs started without a launcher.

use std::{
    fmt, future, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vigie_detect::Server;

use super::{
    Identity, Rank, RankExit, WorldError,
    attached::Attached,
    hub::Hub,
    member::Member,
    waiting::{HubLink, StateMachine},
    wire::Decoder,
};
use crate::auth::{Secret, random};

/// Makes the launcher and the ranks of [`local`](fn@super::local), by rank.
pub(super) fn attached(
    server: &Server,
    size: u32,
) -> io::Result<(LocalLauncher, Vec<Attached<LocalLink>>)> {
    if size == 0 {
        let what = "a world has at least one rank";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let state = LocalState {
        hub: Hub::new(size, Identity::random()?).pair_keys_from(Secret::new(random()?)),
        members: (0..size).map(|_| Member::default()).collect(),
    };
    let launcher = LocalLauncher { state: Arc::new(Mutex::new(state)) };
    let mut ranks = Vec::new();
    for rank in (0..size).map(Rank) {
        let link = LocalLink { launcher: launcher.clone(), rank };
        let greeted = link
            .act(|member| {
                member.greet();
                Ok(())
            })
            .and_then(|()| link.act(|member| Ok(member.membership.clone())));
        // The hub answers at once.
        let membership = greeted.map_err(io::Error::other)?;
        let membership = membership.ok_or(io::ErrorKind::NotConnected)?;
        ranks.push(Attached::greeted(link, server.timers().clone(), membership));
    }
    Ok((launcher, ranks))
}

/// Acts as the launcher of a [`local`](fn@super::local) world: reports how ranks end. Clones share the launcher.
#[derive(Clone)]
pub struct LocalLauncher {
    state: Arc<Mutex<LocalState>>,
}

struct LocalState {
    hub: Hub,
    members: Vec<Member>,
}

impl LocalLauncher {
    /// Tells all others that `rank` has ended.
    pub fn end(&self, rank: Rank, ending: RankExit) {
        let mut state = self.lock();
        if let Some(member) = state.members.get_mut(rank.index()) {
            member.lose();
        }
        state.hub.end(rank, ending);
        Self::deliver(state);
    }

    /// Cuts `rank` off, as a launcher does with a rank that breaks its rules.
    pub fn expel(&self, rank: Rank, why: &str) {
        let mut state = self.lock();
        state.hub.expel(rank, why);
        Self::deliver(state);
    }

    /// Acts as if the launcher itself had ended.
    pub fn vanish(&self) {
        let mut state = self.lock();
        state.members.iter_mut().for_each(Member::lose);
        Self::deliver(state);
    }

    fn lock(&self) -> MutexGuard<'_, LocalState> {
        // No foreign code runs under this lock, so a poisoned one says nothing about what it holds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the hub's frames, and wakes the ranks that received one: without the lock.
    fn deliver(mut state: MutexGuard<'_, LocalState>) {
        while let Some((rank, bytes)) = state.hub.poll_transmit() {
            let Some(member) = state.members.get_mut(rank.index()) else { continue };
            let mut decoder = Decoder::new();
            decoder.feed(&bytes);
            while let Ok(Some(frame)) = decoder.next_frame() {
                member.receive(frame);
            }
        }
        let waiters =
            state.members.iter_mut().flat_map(|member| member.waiters().take()).collect::<Vec<_>>();
        drop(state);
        for (_, waker) in waiters {
            waker.wake();
        }
    }
}

impl fmt::Debug for LocalLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLauncher").finish_non_exhaustive()
    }
}

/// A rank's link to the hub in this process.
#[derive(Debug)]
pub(super) struct LocalLink {
    launcher: LocalLauncher,
    rank: Rank,
}

impl HubLink for LocalLink {
    type StateMachine = Member;

    fn act<T>(
        &self,
        act: impl FnOnce(&mut Member) -> Result<T, WorldError>,
    ) -> Result<T, WorldError> {
        let mut state = self.launcher.lock();
        let member = &mut state.members[self.rank.index()];
        let result = act(member)?;
        let said = std::mem::take(&mut member.said);
        if !said.is_empty() {
            for request in said {
                state.hub.handle(self.rank, request);
            }
            LocalLauncher::deliver(state);
        }
        Ok(result)
    }

    fn awaited(&self) -> Option<Vec<Rank>> {
        Some(self.launcher.lock().hub.awaited_by(self.rank))
    }

    fn pump(&self) -> bool {
        true
    }

    /// A sender wakes the ranks that it reaches.
    async fn readable(&self) -> io::Result<()> {
        future::pending().await
    }

    async fn writable(&self) -> io::Result<()> {
        future::pending().await
    }
}
