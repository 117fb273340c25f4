//! The results of a run: times of members, and counts of what happened on the networks.

/// The times of a run by the method of [eth-barrier, §4.3], in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// By rank, the times of each member's barriers in order: from entering to leaving.
    members: Vec<Vec<u64>>,
    /// Counts of what happened on the networks.
    pub counts: Counts,
    /// The time at which the last member left the last barrier.
    pub total_ns: u64,
}

/// Counts of what happened on the networks during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Frames posted; a multicast counts once.
    pub sent: u64,
    /// Copies of frames that arrived; a multicast counts once per other member.
    pub delivered: u64,
    /// Copies of frames that were lost on the way.
    pub lost: u64,
    /// Attempts to send that collided, on hubs.
    pub collisions: u64,
    /// Frames that were dropped after too many collisions.
    pub given_up: u64,
}

/// The times of one member, in nanoseconds.
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

    /// Returns how many barriers the run had.
    #[must_use]
    pub fn barriers(&self) -> u32 {
        self.passed(0)
    }

    /// Returns how many barriers a member has left.
    pub(super) fn passed(&self, index: usize) -> u32 {
        u32::try_from(self.members[index].len()).unwrap_or(u32::MAX)
    }

    /// Returns the times of each member, by rank.
    #[must_use]
    pub fn members(&self) -> impl ExactSizeIterator<Item = MemberTimes> {
        self.members.iter().map(|times| MemberTimes {
            min_ns: times.iter().copied().min().unwrap_or(0),
            mean_ns: times.iter().sum::<u64>() as f64 / times.len() as f64,
            max_ns: times.iter().copied().max().unwrap_or(0),
        })
    }

    /// Returns the shortest time of each member, averaged over the members.
    #[must_use]
    pub fn mean_min_ns(&self) -> f64 {
        self.average(|member| member.min_ns as f64)
    }

    /// Returns the mean time of each member, averaged over the members: the value that the paper quotes.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.average(|member| member.mean_ns)
    }

    /// Returns the longest time of each member, averaged over the members.
    #[must_use]
    pub fn mean_max_ns(&self) -> f64 {
        self.average(|member| member.max_ns as f64)
    }

    /// Returns the sum of all times of all members, which is the same to the nanosecond in equal runs.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.members.iter().flatten().sum()
    }

    fn average(&self, of: impl Fn(&MemberTimes) -> f64) -> f64 {
        self.members().map(|member| of(&member)).sum::<f64>() / self.members.len() as f64
    }
}

/// Runs of the same cluster that differ by their seeds. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Runs {
    /// Each run, by seed.
    pub runs: Vec<Times>,
}

impl Runs {
    /// Creates it from the runs, by seed.
    #[must_use]
    pub const fn new(runs: Vec<Times>) -> Self {
        Self { runs }
    }

    /// Returns the shortest times, averaged over the runs.
    #[must_use]
    pub fn mean_min_ns(&self) -> f64 {
        self.average(Times::mean_min_ns)
    }

    /// Returns the mean times, averaged over the runs.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.average(Times::mean_ns)
    }

    /// Returns the longest times, averaged over the runs.
    #[must_use]
    pub fn mean_max_ns(&self) -> f64 {
        self.average(Times::mean_max_ns)
    }

    /// Returns the standard deviation of the runs' mean times; 0 for a single run.
    #[must_use]
    pub fn deviation_ns(&self) -> f64 {
        let others = (self.runs.len() as f64 - 1.0).max(1.0);
        let mean_ns = self.mean_ns();
        let squares = self.runs.iter().map(|times| (times.mean_ns() - mean_ns).powi(2));
        (squares.sum::<f64>() / others).sqrt()
    }

    fn average(&self, of: impl Fn(&Times) -> f64) -> f64 {
        self.runs.iter().map(of).sum::<f64>() / self.runs.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_those_of_the_method() {
        // Goal: least, mean and greatest are of each member, and then averaged. Method: two members by hand, two runs.
        let mut times = Times::new(2);
        for (index, time_ns) in [(0, 10), (0, 30), (1, 100), (1, 140)] {
            times.push(index, time_ns);
        }
        assert_eq!((times.mean_min_ns(), times.mean_ns(), times.mean_max_ns()), (55.0, 70.0, 85.0));
        assert_eq!((times.sum_ns(), times.passed(1)), (280, 2));
        let mut other = Times::new(1);
        other.push(0, 74);
        let runs = Runs::new(vec![times.clone(), other]);
        assert_eq!((runs.mean_ns(), runs.mean_min_ns()), (72.0, 64.5));
        assert!((runs.deviation_ns() - 8_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Runs::new(vec![times]).deviation_ns(), 0.0);
    }
}
