//! Barriers of tasks and threads that also reduce a value of each member.

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
/// The cost of the plain barrier, which is unchanged, plus two uncontended locks and one fold over all values per
/// member: suited to some dozens of members and short values. The values are folded in the order of ranks, so all
/// members have the same result to the last bit.
#[derive(Debug)]
#[must_use = "dropping a member leaves the group"]
pub struct Reducing<M> {
    member: M,
    rank: Rank,
    values: Arc<ValueSlots>,
    /// The one of each member's two slots that is for the present barrier. A member that writes into a slot has passed the
    /// barrier after the one in which the slot was read, so all members have read it.
    parity: usize,
    /// The value for the present barrier is in the table.
    has_put: bool,
}

#[derive(Debug)]
struct ValueSlots {
    reduction: Reduction,
    /// By rank.
    slots: Vec<[Mutex<Vec<u8>>; 2]>,
}

impl TaskBarrier {
    /// Returns the members, as [`into_members`](Self::into_members) does, with a value that each barrier reduces.
    #[must_use = "members that are dropped have left the group"]
    pub fn reducing(
        self,
        reduction: Reduction,
    ) -> impl ExactSizeIterator<Item = Reducing<TaskMember>> {
        let members: Vec<_> = self.into_members().collect();
        let values = ValueSlots::new(reduction, members.len());
        members.into_iter().map(move |member| Reducing::new(member.rank(), member, &values))
    }
}

impl ThreadBarrier {
    /// Returns the members, as [`into_members`](Self::into_members) does, with a value that each barrier reduces.
    #[must_use = "members that are dropped have left the group"]
    pub fn reducing(
        self,
        reduction: Reduction,
    ) -> impl ExactSizeIterator<Item = Reducing<ThreadMember>> {
        let members: Vec<_> = self.into_members().collect();
        let values = ValueSlots::new(reduction, members.len());
        members.into_iter().map(move |member| Reducing::new(member.rank(), member, &values))
    }
}

impl<M> Reducing<M> {
    fn new(rank: Rank, member: M, values: &Arc<ValueSlots>) -> Self {
        Self { member, rank, values: Arc::clone(values), parity: 0, has_put: false }
    }

    /// Returns this member's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Puts the value into the table, unless the one for this barrier is there already.
    fn put(&mut self, value: &[u8]) -> Result<(), BarrierError> {
        let expected = self.values.reduction.bytes();
        if value.len() != expected {
            return Err(BarrierError::Value { expected, found: value.len() });
        }
        if !self.has_put {
            let slot = lock(&self.values.slots[self.rank.index()][self.parity]);
            { slot }.copy_from_slice(value);
            self.has_put = true;
        }
        Ok(())
    }

    /// All have entered: folds their values.
    fn fold(&mut self) -> Vec<u8> {
        // The barrier is over, even if the user's function panics below.
        let parity = self.parity;
        self.parity = 1 - parity;
        self.has_put = false;
        let mut all = self.values.slots.iter().map(|slots| lock(&slots[parity]));
        let mut result = all.next().map_or_else(Vec::new, |first| first.clone());
        for value in all {
            self.values.reduction.reduce(&mut result, &value);
        }
        result
    }
}

impl Reducing<ThreadMember> {
    /// Enters with a value, and blocks the thread until all members have. Returns the result, the same at all
    /// members.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::Value`], in which case this member has not entered.
    pub fn reduce(&mut self, value: &[u8]) -> Result<(Passed, Vec<u8>), BarrierError> {
        self.put(value)?;
        let passed = self.member.wait()?;
        Ok((passed, self.fold()))
    }
}

impl Reducing<TaskMember> {
    /// Enters with a value, and waits until all members have. Returns the result, the same at all members.
    ///
    /// # Cancel safety
    /// Cancel safe: once polled, the member has entered with this value. The next call waits for the same barrier and
    /// ignores its own value.
    ///
    /// # Errors
    /// [`BarrierError::Lost`]; [`BarrierError::Value`], in which case this member has not entered.
    pub async fn reduce(&mut self, value: &[u8]) -> Result<(Passed, Vec<u8>), BarrierError> {
        self.put(value)?;
        let passed = self.member.wait().await?;
        Ok((passed, self.fold()))
    }
}

impl ValueSlots {
    fn new(reduction: Reduction, size: usize) -> Arc<Self> {
        let bytes = reduction.bytes();
        let slot = || [0; 2].map(|_| Mutex::new(vec![0; bytes]));
        Arc::new(Self { reduction, slots: (0..size).map(|_| slot()).collect() })
    }
}
