//! The interface to one kind of launcher.

use std::{fmt, future::Future, pin::Pin};

use vigie_detect::Instant;

use super::{Membership, Rank, WorldError, WorldEvent};
use crate::auth::Secret;

/// The result of a call on a [`Bootstrap`]: a boxed future, since setting up is not a hot path.
pub type BootstrapFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorldError>> + Send + 'a>>;

/// Connects the ranks of a world: the interface to one kind of launcher.
///
/// # Implementing
/// Keys hold 1 to [`KEY_BYTES_MAX`](super::wire::KEY_BYTES_MAX) letters, digits, `.`, `-`, `_` and `:`, values at most
/// [`VALUE_BYTES_MAX`](super::wire::VALUE_BYTES_MAX) bytes, since the simplest launchers carry no more. A [`World`](super::World) checks both, and
/// that ranks exist, before it calls. Several tasks may call the methods at once.
///
/// # Contract
/// 1. `membership` never changes.
/// 2. A value that was `put` before its rank entered a barrier is found by `get` after that barrier. An
///    implementation may find it earlier, and may wait for it.
/// 3. `get` of a value whose rank is gone without having put it ends with `None`, not with the deadline.
/// 4. A barrier is passed when every rank has entered it that has neither left nor ended nor been expelled; a
///    rank that passes has been told of all those before.
/// 5. A `get`, `barrier` or `leave` that ends with [`WorldError::TimedOut`], or whose future is dropped, may
///    be repeated: a barrier stays entered, and the next call is for the same one, even if it was passed
///    meanwhile. The value of an interrupted `put` is, or will be, published.
/// 6. Events have one order, and each index always returns the same one; a rank that joins late is told what
///    happened before.
/// 7. Every future ends by its deadline, or when the launcher is lost.
///
/// A launcher that speaks PMI-1 cannot keep all of this contract: a missing value is [`WorldError::NotPut`] instead
/// of being waited for, barriers wait for ranks that have left, and there are no events. A program for every
/// launcher therefore leaves at its end, and not before the others no longer need it.
///
/// # Conformance
/// The unit tests of [`world`](super) hold for every implementation in this crate.
pub trait Bootstrap: Send + Sync + fmt::Debug {
    /// Returns this process's membership.
    fn membership(&self) -> &Membership;

    /// Publishes a value.
    fn put<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> BootstrapFuture<'a, ()>;

    /// Returns the value that `rank` has put; `None` if the rank is gone without having put it.
    fn get<'a>(
        &'a self,
        rank: Rank,
        key: &'a str,
        deadline: Instant,
    ) -> BootstrapFuture<'a, Option<Vec<u8>>>;

    /// Waits for all ranks.
    fn barrier(&self, deadline: Instant) -> BootstrapFuture<'_, ()>;

    /// Returns event number `index`, counted from 0, once it has happened.
    fn event(&self, index: usize) -> BootstrapFuture<'_, WorldEvent>;

    /// Announces that this rank needs the others no longer.
    fn leave(&self, deadline: Instant) -> BootstrapFuture<'_, ()>;

    /// Asks the launcher to end all ranks with `code`, without waiting for long: the caller ends itself next.
    /// The default does nothing, for launchers that notice how this process ends.
    fn abort(&self, code: i32) {
        let _ = code;
    }

    /// Returns the key that this rank shares with each rank and with no third one, by rank. The default is `None`, for launchers
    /// that hand out none.
    fn pair_keys(&self, deadline: Instant) -> BootstrapFuture<'_, Option<Vec<Secret>>> {
        let _ = deadline;
        Box::pin(async { Ok(None) })
    }

    /// Puts a value and returns those of all ranks under this key. The default uses a barrier.
    fn all_gather<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        deadline: Instant,
    ) -> BootstrapFuture<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            self.put(key, value, deadline).await?;
            self.barrier(deadline).await?;
            let mut values = Vec::new();
            for rank in (0..self.membership().size).map(Rank) {
                values.push(self.get(rank, key, deadline).await?);
            }
            Ok(values)
        })
    }
}
