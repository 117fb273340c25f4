//! Barriers of tasks and threads that reduce a value of each member along.

use std::sync::{Arc, Mutex};

use super::{TaskBarrier, TaskMember, ThreadBarrier, ThreadMember};
use crate::{
    error::{BarrierError, Passed},
    group::Rank,
    reduction::Reduction,
    sync::lock,
};

/// A member whose barriers reduce a value: made by [`TaskBarrier::reducing`] and [`ThreadBarrier::reducing`].
///
/// ```
/// use std::thread;
/// use vigie_barrier::{
///     Group, Reduction,
///     local::ThreadBarrier,
///     reduction::{Builtin, Element},
/// };
///
/// let largest = Reduction::builtin(Builtin::Max, Element::U64, 1)?;
/// let threads: Vec<_> = ThreadBarrier::new(Group::new(4)?)
///     .reducing(largest)
///     .map(|mut member| {
///         let own = u64::from(member.rank().0).to_le_bytes();
///         thread::spawn(move || member.reduce(&own).map(|(_, value)| value))
///     })
///     .collect();
/// for thread in threads {
///     assert_eq!(thread.join().expect("no panic")?, 3_u64.to_le_bytes());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
/// That of the plain barrier, which this does not touch, and for each member two locks that nobody contends for and one
/// fold over the values of all: right for some dozens of members and short values. The values are folded in the order of
/// ranks, so that all members have the same result to the last bit.
#[derive(Debug)]
#[must_use = "dropping a member leaves the group"]
pub struct Reducing<M> {
    member: M,
    rank: Rank,
    table: Arc<Table>,
    /// Which of the two places of each member is for the present barrier: who writes into one has passed the barrier
    /// after the one in which it was read, so that all have read it.
    turn: usize,
    /// The value for the present barrier stands in the table.
    has_given: bool,
}

#[derive(Debug)]
struct Table {
    reduction: Reduction,
    /// By rank.
    places: Vec<[Mutex<Vec<u8>>; 2]>,
}

impl TaskBarrier {
    /// Returns the members, as [`into_members`](Self::into_members) does, with a value that is reduced in each barrier.
    #[must_use = "members that are dropped have left the group"]
    pub fn reducing(
        self,
        reduction: Reduction,
    ) -> impl ExactSizeIterator<Item = Reducing<TaskMember>> {
        let members: Vec<_> = self.into_members().collect();
        let table = Table::new(reduction, members.len());
        members.into_iter().map(move |member| Reducing::new(member.rank(), member, &table))
    }
}

impl ThreadBarrier {
    /// Returns the members, as [`into_members`](Self::into_members) does, with a value that is reduced in each barrier.
    #[must_use = "members that are dropped have left the group"]
    pub fn reducing(
        self,
        reduction: Reduction,
    ) -> impl ExactSizeIterator<Item = Reducing<ThreadMember>> {
        let members: Vec<_> = self.into_members().collect();
        let table = Table::new(reduction, members.len());
        members.into_iter().map(move |member| Reducing::new(member.rank(), member, &table))
    }
}

impl<M> Reducing<M> {
    fn new(rank: Rank, member: M, table: &Arc<Table>) -> Self {
        Self { member, rank, table: Arc::clone(table), turn: 0, has_given: false }
    }

    /// Returns which member this is.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Puts the value into the table, unless the one of this barrier stands there already.
    fn give(&mut self, value: &[u8]) -> Result<(), BarrierError> {
        let expected = self.table.reduction.bytes();
        if value.len() != expected {
            return Err(BarrierError::Value { expected, found: value.len() });
        }
        if !self.has_given {
            let place = lock(&self.table.places[self.rank.index()][self.turn]);
            { place }.copy_from_slice(value);
            self.has_given = true;
        }
        Ok(())
    }

    /// All have entered: folds what all have given.
    fn take(&mut self) -> Vec<u8> {
        // The barrier is over, even if a function of the user's panics below.
        let turn = self.turn;
        self.turn = 1 - turn;
        self.has_given = false;
        let mut values = self.table.places.iter().map(|places| lock(&places[turn]));
        let mut result = values.next().map_or_else(Vec::new, |first| first.clone());
        for value in values {
            self.table.reduction.reduce(&mut result, &value);
        }
        result
    }
}

impl Reducing<ThreadMember> {
    /// Enters with a value, and blocks the thread until all have. Returns the result, the same at all members.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::Value`]: this member has not entered then.
    pub fn reduce(&mut self, value: &[u8]) -> Result<(Passed, Vec<u8>), BarrierError> {
        self.give(value)?;
        let passed = self.member.wait()?;
        Ok((passed, self.take()))
    }
}

impl Reducing<TaskMember> {
    /// Enters with a value, and waits until all have. Returns the result, the same at all members.
    ///
    /// # Cancel safety
    /// Cancel safe: if it was polled, the member has entered with this value; the next call waits for the same barrier,
    /// and its own value does not count.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::Value`]: this member has not entered then.
    pub async fn reduce(&mut self, value: &[u8]) -> Result<(Passed, Vec<u8>), BarrierError> {
        self.give(value)?;
        let passed = self.member.wait().await?;
        Ok((passed, self.take()))
    }
}

impl Table {
    fn new(reduction: Reduction, size: usize) -> Arc<Self> {
        let bytes = reduction.bytes();
        let place = || [0; 2].map(|_| Mutex::new(vec![0; bytes]));
        Arc::new(Self { reduction, places: (0..size).map(|_| place()).collect() })
    }
}
