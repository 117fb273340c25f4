//! Cluster launchers: PMI-1, the protocol by which MPICH's Hydra (`mpiexec.hydra`) and Slurm
//! (`srun --mpi=pmi2`, which answers both versions) connect ranks.
//!
//! The protocol is text on an inherited socket, `PMI_FD`; `PMI_RANK` and `PMI_SIZE` identify this process.
//! Values are put into a key-value space of the launcher and can be read after a barrier.
//!
//! # Limits of such launchers
//! They do not report the fate of other ranks: [`Bootstrap::event`] only ends with the launcher. A barrier
//! waits for all ranks, including those that have left; a value that is not there yet is
//! [`WorldError::NotPut`] and is not waited for. Hydra ends all ranks when one fails; so does Slurm, if
//! started with `--kill-on-bad-exit`.

mod client;
mod error;
mod line;

use std::{os::unix::net::UnixStream, time::Duration};

use vigie_detect::{Handle, Instant, Server, Timers};

use self::client::Client;
pub use self::error::PmiError;
use super::{
    Bootstrap, BootstrapFuture, Identity, Membership, Rank, WorldError, WorldEvent,
    socket::SocketLink,
    waiting::{DeadlineWait, HubLink},
};

/// The time that a rank that has asked the launcher to end it waits before it ends itself.
const ABORT_TIME: Duration = Duration::from_secs(2);

/// A rank of a launcher that speaks PMI-1.
#[derive(Debug)]
pub(super) struct Pmi {
    link: SocketLink<UnixStream, Client>,
    timers: Handle<Timers>,
    membership: Membership,
}

/// Greets the launcher at the other end of `socket`, which must be in non-blocking mode.
pub(super) async fn join(
    server: &Server,
    socket: UnixStream,
    (rank, size): (Rank, u32),
    deadline: Instant,
) -> Result<Pmi, WorldError> {
    let mut client = Client::new(rank, size, Identity::random()?);
    client.greet();
    let link = SocketLink::new(server, socket, client)?;
    let timers = server.timers().clone();
    let waiting = DeadlineWait { link: &link, timers: &timers, deadline };
    let what = || "all ranks have joined".to_owned();
    let membership = waiting.until(what, |client, _| client.membership.clone()).await?;
    Ok(Pmi { link, timers, membership })
}

impl Pmi {
    const fn waiting(&self, deadline: Instant) -> DeadlineWait<'_, SocketLink<UnixStream, Client>> {
        DeadlineWait { link: &self.link, timers: &self.timers, deadline }
    }
}

impl Bootstrap for Pmi {
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
            let said = self.link.act(|client| client.put(key, value))?;
            let what = || format!("the launcher took the value for `{key}`");
            let check = |client: &mut Client, _| client.is_put(said).then_some(());
            self.waiting(deadline).until(what, check).await
        })
    }

    fn get<'a>(
        &'a self,
        rank: Rank,
        key: &'a str,
        deadline: Instant,
    ) -> BootstrapFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.link.act(|client| client.ask(rank, key))?;
            let what = || format!("the value of {rank} for `{key}`");
            let check = |client: &mut Client, _| client.answer(rank, key);
            self.waiting(deadline).until(what, check).await?.map(Some)
        })
    }

    fn barrier(&self, deadline: Instant) -> BootstrapFuture<'_, ()> {
        Box::pin(async move {
            let round = self.link.act(Client::enter)?;
            let what = || {
                format!(
                    "all ranks came to barrier {round}; this launcher does not say which are missing"
                )
            };
            let check = |client: &mut Client, _| client.pass(round).then_some(());
            self.waiting(deadline).until(what, check).await
        })
    }

    fn event(&self, _: usize) -> BootstrapFuture<'_, WorldEvent> {
        Box::pin(async move {
            let what = || "something happened to a rank".to_owned();
            self.waiting(Instant::MAX).until(what, |_, _| None).await
        })
    }

    fn leave(&self, deadline: Instant) -> BootstrapFuture<'_, ()> {
        Box::pin(async move {
            self.link.act(Client::leave)?;
            let what = || "the launcher took note that this rank leaves".to_owned();
            let check = |client: &mut Client, _| client.has_left().then_some(());
            self.waiting(deadline).until(what, check).await
        })
    }

    fn abort(&self, code: i32) {
        // This closure does not fail.
        drop(self.link.act(|client| {
            client.abort(code);
            Ok(())
        }));
        if self.link.pump() {
            self.link.wait_for_end(ABORT_TIME);
        }
    }
}

#[cfg(test)]
mod tests;
