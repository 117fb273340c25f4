//! What a run gives: times of members, and what happened on the networks.

/// The times of a run by the method of [eth-barrier, §4.3], in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Of each member, by rank, the times of its barriers in order: from entering to leaving.
    members: Vec<Vec<u64>>,
    /// What happened on the networks.
    pub counts: Counts,
    /// When the last member left the last barrier.
    pub total_ns: u64,
}

/// What happened on the networks of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Frames posted: a multicast is one.
    pub sent: u64,
    /// Copies of frames that arrived: a multicast has one for each other member.
    pub delivered: u64,
    /// Copies of frames that were lost on the way.
    pub lost: u64,
    /// Attempts to send that met another one, on hubs.
    pub collisions: u64,
    /// Frames that collided too often and were given up.
    pub given_up: u64,
}

/// What one member saw, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemberTimes {
    /// Its shortest barrier.
    pub min_ns: u64,
    /// The mean of its barriers.
    pub mean_ns: f64,
    /// Its longest barrier.
    pub max_ns: u64,
}

impl Times {
    pub(super) fn new(size: usize) -> Self {
        Self { members: vec![Vec::new(); size], counts: Counts::default(), total_ns: 0 }
    }

    pub(super) fn push(&mut self, index: usize, time_ns: u64) {
        self.members[index].push(time_ns);
    }

    /// Returns how many barriers a member has left.
    pub(super) fn passed(&self, index: usize) -> u32 {
        u32::try_from(self.members[index].len()).unwrap_or(u32::MAX)
    }

    /// Returns what each member saw, by rank.
    pub fn members(&self) -> impl ExactSizeIterator<Item = MemberTimes> {
        self.members.iter().map(|times| MemberTimes {
            min_ns: times.iter().copied().min().unwrap_or(0),
            mean_ns: times.iter().sum::<u64>() as f64 / times.len() as f64,
            max_ns: times.iter().copied().max().unwrap_or(0),
        })
    }

    /// Returns the shortest time of each member, averaged over the members.
    #[must_use]
    pub fn min_ns(&self) -> f64 {
        self.average(|member| member.min_ns as f64)
    }

    /// Returns the mean time of each member, averaged over the members: what the paper quotes.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.average(|member| member.mean_ns)
    }

    /// Returns the longest time of each member, averaged over the members.
    #[must_use]
    pub fn max_ns(&self) -> f64 {
        self.average(|member| member.max_ns as f64)
    }

    /// Returns the sum of all times of all members: what equal runs have equal to the nanosecond.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.members.iter().flatten().sum()
    }

    fn average(&self, of: impl Fn(&MemberTimes) -> f64) -> f64 {
        self.members().map(|member| of(&member)).sum::<f64>() / self.members.len() as f64
    }
}
