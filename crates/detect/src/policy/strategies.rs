//! The strategies that a scheduler may use for a detector, and their order of preference: the table
//! flavor × method → strategy.

use std::fmt;

use super::strategy::Strategy;
use crate::detector::{Flavor, Methods};

/// A [`Strategy`] without its parameters, as in a cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StrategyKind {
    /// [`Strategy::CheckEach`].
    CheckEach,
    /// [`Strategy::PollGroup`].
    PollGroup,
    /// [`Strategy::Sleep`].
    Sleep,
    /// [`Strategy::PollThenSleep`].
    PollThenSleep,
    /// [`Strategy::Block`]: a helper thread blocks for as long as requests are pending.
    Block,
    /// [`Strategy::Block`], where the call starts only when nothing else is runnable; while tasks
    /// run, the handle is polled at their switches.
    BlockWhenIdle,
    /// [`Strategy::Signal`].
    Signal,
}

impl StrategyKind {
    /// Returns whether `strategy` is of this kind, whatever its parameters.
    #[must_use]
    pub const fn is_of(self, strategy: Strategy) -> bool {
        matches!(
            (self, strategy),
            (Self::CheckEach, Strategy::CheckEach { .. })
                | (Self::PollGroup, Strategy::PollGroup { .. })
                | (Self::Sleep, Strategy::Sleep { .. })
                | (Self::PollThenSleep, Strategy::PollThenSleep { .. })
                | (Self::Block | Self::BlockWhenIdle, Strategy::Block)
                | (Self::Signal, Strategy::Signal)
        )
    }
}

impl fmt::Display for StrategyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CheckEach => "check-each",
            Self::PollGroup => "poll-group",
            Self::Sleep => "sleep",
            Self::PollThenSleep => "poll-then-sleep",
            Self::Block => "block",
            Self::BlockWhenIdle => "block-when-idle",
            Self::Signal => "signal",
        })
    }
}

/// The strategies that a scheduler may use for one detector, in order of preference: returned by
/// [`strategies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategies {
    watches: [Option<StrategyKind>; KINDS_MAX],
}

/// No set of methods allows more: blocking has only one of its two forms.
const KINDS_MAX: usize = 6;

impl Strategies {
    /// Returns the preferred strategy; `None` only for a detector without any method.
    #[must_use]
    pub const fn preferred(&self) -> Option<StrategyKind> {
        self.watches[0]
    }

    /// Iterates over the strategies in order of preference.
    pub fn iter(&self) -> impl Iterator<Item = StrategyKind> + use<> {
        self.watches.into_iter().flatten()
    }

    /// Returns whether a handle may be watched by `strategy`.
    #[must_use]
    pub fn allow(&self, strategy: Strategy) -> bool {
        self.iter().any(|watch| watch.is_of(strategy))
    }

    /// Returns whether blocking calls must wait until nothing else is runnable.
    #[must_use]
    pub fn block_only_when_idle(&self) -> bool {
        self.iter().any(|watch| watch == StrategyKind::BlockWhenIdle)
    }
}

/// Returns the strategies by which a scheduler of `flavor` may watch a detector that offers `methods`,
/// in order of preference.
///
/// | method alone | user-level | hybrid | kernel-level |
/// | --- | --- | --- | --- |
/// | check | check-each, poll-group | check-each, poll-group | check-each, poll-group |
/// | group | poll-group | poll-group | poll-group |
/// | notify | sleep, poll-then-sleep | sleep, poll-then-sleep | sleep, poll-then-sleep |
/// | block | block | block | block |
/// | signal | signal | signal | signal |
///
/// The simulated flavor has the strategies of the user-level one.
///
/// If a detector offers several methods, their cells are joined in this order:
/// - methods that announce events come first: *notify*, announced by the poller, which wakes the
///   scheduler directly; then the *signal*, "preferred to active polling" on every flavor;
/// - *block* precedes polling on the hybrid and the kernel-level flavor, where a helper thread "will leave
///   the others undisturbed". On the user-level flavor it also follows the signal, but as
///   [`StrategyKind::BlockWhenIdle`] if the detector can also be polled: while tasks run, their one thread
///   polls at its switches, and a call starts only when nothing else is runnable. A detector that can only
///   block is blocked on at all times, since there is no other way to see its events;
/// - polling comes last: *group* before *check*.
///
/// # Source
/// [bouge02, §3.3], and §2.1 for blocking calls on the user-level flavor. *Deviation:* every blocking
/// call is made on a helper kernel thread, on the user-level flavor too. In 2002 such a scheduler had
/// no second thread, and had to make the call itself or not at all; and a host inside a foreign call
/// hears neither its other detectors nor other threads.
///
/// # Examples
/// ```
/// use vigie_detect::{Flavor, Methods, StrategyKind, strategies};
///
/// let both = Methods::GROUP | Methods::BLOCK;
/// assert_eq!(strategies(Flavor::Hybrid, both).preferred(), Some(StrategyKind::Block));
/// assert_eq!(strategies(Flavor::UserLevel, both).preferred(), Some(StrategyKind::BlockWhenIdle));
/// ```
#[must_use]
pub fn strategies(flavor: Flavor, methods: Methods) -> Strategies {
    let block = match flavor {
        Flavor::UserLevel | Flavor::Simulated { .. } if methods.can_poll() => {
            StrategyKind::BlockWhenIdle
        }
        _ => StrategyKind::Block,
    };
    let polling = if methods.contains(Methods::GROUP) {
        [StrategyKind::PollGroup, StrategyKind::CheckEach]
    } else {
        [StrategyKind::CheckEach, StrategyKind::PollGroup]
    };
    let order = [
        StrategyKind::Sleep,
        StrategyKind::PollThenSleep,
        StrategyKind::Signal,
        block,
        polling[0],
        polling[1],
    ];
    let mut watches = [None; KINDS_MAX];
    let open = order.into_iter().filter(|watch| match watch {
        StrategyKind::CheckEach => methods.contains(Methods::CHECK),
        StrategyKind::PollGroup => methods.can_poll(),
        StrategyKind::Sleep | StrategyKind::PollThenSleep => methods.contains(Methods::NOTIFY),
        StrategyKind::Block | StrategyKind::BlockWhenIdle => methods.contains(Methods::BLOCK),
        StrategyKind::Signal => methods.contains(Methods::SIGNAL),
    });
    for (place, watch) in watches.iter_mut().zip(open) {
        *place = Some(watch);
    }
    Strategies { watches }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::Frequency;

    const POLLED: [StrategyKind; 2] = [StrategyKind::CheckEach, StrategyKind::PollGroup];
    const SLEPT_ON: [StrategyKind; 2] = [StrategyKind::Sleep, StrategyKind::PollThenSleep];

    /// Goal: each cell of the documented table is what the function returns. Method: a test for each,
    /// with its content written out.
    macro_rules! cells {
        ($($name:ident: $flavor:ident, $method:ident => $watches:expr;)*) => {$(
            #[test]
            fn $name() {
                let found: Vec<_> = strategies(Flavor::$flavor, Methods::$method).iter().collect();
                assert_eq!(found, $watches);
            }
        )*};
    }

    cells! {
        user_level_check: UserLevel, CHECK => POLLED;
        user_level_group: UserLevel, GROUP => [StrategyKind::PollGroup];
        user_level_notify: UserLevel, NOTIFY => SLEPT_ON;
        user_level_block: UserLevel, BLOCK => [StrategyKind::Block];
        user_level_signal: UserLevel, SIGNAL => [StrategyKind::Signal];
        hybrid_check: Hybrid, CHECK => POLLED;
        hybrid_group: Hybrid, GROUP => [StrategyKind::PollGroup];
        hybrid_notify: Hybrid, NOTIFY => SLEPT_ON;
        hybrid_block: Hybrid, BLOCK => [StrategyKind::Block];
        hybrid_signal: Hybrid, SIGNAL => [StrategyKind::Signal];
        kernel_level_check: KernelLevel, CHECK => POLLED;
        kernel_level_group: KernelLevel, GROUP => [StrategyKind::PollGroup];
        kernel_level_notify: KernelLevel, NOTIFY => SLEPT_ON;
        kernel_level_block: KernelLevel, BLOCK => [StrategyKind::Block];
        kernel_level_signal: KernelLevel, SIGNAL => [StrategyKind::Signal];
    }

    const FLAVORS: [Flavor; 3] = [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel];

    fn all_sets() -> impl Iterator<Item = Methods> {
        let single =
            [Methods::CHECK, Methods::GROUP, Methods::NOTIFY, Methods::BLOCK, Methods::SIGNAL];
        (1u32..32).map(move |bits| {
            let chosen = single.iter().zip(0..).filter(|&(_, bit)| bits & 1 << bit != 0);
            chosen.map(|(&method, _)| method).reduce(|all, one| all | one).expect("not empty")
        })
    }

    /// Goal: the order in which cells are joined is the documented one. Method: all sets of methods on
    /// all flavors; announced before signalled before blocked before polled, each exactly where its
    /// method is offered.
    #[test]
    fn joined_cells_are_in_order() {
        for (flavor, methods) in FLAVORS.into_iter().flat_map(|f| all_sets().map(move |m| (f, m))) {
            let found: Vec<_> = strategies(flavor, methods).iter().collect();
            let rank = |watch: &StrategyKind| match watch {
                StrategyKind::Sleep => 0,
                StrategyKind::PollThenSleep => 1,
                StrategyKind::Signal => 2,
                StrategyKind::Block | StrategyKind::BlockWhenIdle => 3,
                StrategyKind::CheckEach | StrategyKind::PollGroup => 4,
            };
            assert!(found.is_sorted_by_key(rank), "{flavor} {methods:?}: {found:?}");
            let waits_for_idleness = flavor == Flavor::UserLevel
                && methods.contains(Methods::BLOCK)
                && methods.can_poll();
            assert_eq!(
                strategies(flavor, methods).block_only_when_idle(),
                waits_for_idleness,
                "{flavor} {methods:?}"
            );
        }
    }

    /// Goal: the table allows a strategy exactly where the methods offer it: a flavor takes no method
    /// away. Method: all strategies, sets of methods and flavors.
    #[test]
    fn what_is_offered_is_allowed() {
        let every = Frequency::Time(Duration::from_micros(50));
        let all = [
            Strategy::CheckEach { every },
            Strategy::PollGroup { every },
            Strategy::Sleep { every },
            Strategy::PollThenSleep { every, spin: Duration::from_micros(10) },
            Strategy::Block,
            Strategy::Signal,
        ];
        for (flavor, methods) in FLAVORS.into_iter().flat_map(|f| all_sets().map(move |m| (f, m))) {
            for strategy in all {
                assert_eq!(
                    strategies(flavor, methods).allow(strategy),
                    strategy.is_offered_by(methods),
                    "{flavor} {methods:?} {strategy}"
                );
            }
        }
    }
}
