//! How long a wait looks again and again by itself before it hands over to the scheduler.
//!
//! On a core that nobody else wants, it looks many times in a row: what another core sends back at once is
//! found without a system call. Where others want the core, the answer cannot come before they had it: the
//! wait gives it away after one look (`sched_yield`), a few times, and so finds what those who ran meanwhile
//! have sent at the price of one switch, without a sleep and a wake-up for each message.
//!
//! Which of both is the case, the clock says: a core that nobody wants comes back at once.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use vigie_detect::{
    Engine, EngineHost, EngineWait, RegisterError, Registration, Server, WaitError,
    clock::monotonic_now,
};

/// Looks in a row of one wait: many times what an answer from another core takes, and less than a sleep and
/// a wake-up.
const LOOKS: u32 = 100;

/// Waits in a row that found nothing in all their looks, after which most of them look only once.
const LOSSES_MAX: u32 = 3;

/// One wait of so many still tries, when most of them do not.
const TRY_EVERY: u32 = 16;

/// How often a wait gives a core away that others want, before it sleeps. Together less than the price of a
/// sleep and a wake-up.
const YIELDS: u32 = 8;

/// A core that is back after less was wanted by nobody. One that comes back at once takes 0.25 µs here, one
/// on which another process looked and gave it back 1.4 µs.
const ALONE_NS: u64 = 700;

/// A core that comes back only after more was given to somebody who computes: whoever gives it away again
/// finds messages late.
const COMPUTED_NS: u64 = 200_000;

/// So many waits give no core away after somebody has computed on it.
const PENANCE: u32 = 256;

/// How often a wait among more ranks than cores gives away a core that nobody wants. Together longer than a
/// hop takes whose receiver must be woken up: then both cores are in use when the next one is woken, and the
/// ranks begin to pass the core on.
const YIELDS_ALONE: u32 = 48;

/// Waits that last longer than three quarters of this, on average, find nothing by looking on.
const FAR_NS: u64 = 1_000_000;

/// Waits that last less, on average, are mostly shorter than two sleeps and wake-ups, the peer's and one's
/// own: looking on costs less than sleeping.
const NEAR: Duration = Duration::from_micros(100);

/// Decides, by what came of it lately, whether a wait looks for a while. A wait that loses has spent what
/// handing over costs anyway, so that at worst the cost doubles; a wait that does not try costs nothing.
#[derive(Debug)]
pub(crate) struct Spin {
    /// There are more ranks than cores.
    is_crowded: bool,
    /// Waits in a row that have lost. `Relaxed` here and below: hints.
    losses: AtomicU32,
    /// Others wanted the core when it was last given away: [`SHARED`]. Else, how many waits still do not
    /// give it away.
    core: AtomicU32,
    /// How long waits last that have lost, on average, in nanoseconds, at most [`FAR_NS`].
    usual_ns: AtomicU64,
}

const SHARED: u32 = u32::MAX;

/// What became of the core that was given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Yielded {
    /// Nobody wanted it.
    Alone,
    /// Others ran, and gave it back soon.
    Shared,
    /// Somebody computed.
    Computed,
}

impl Yielded {
    const fn after(nanos: u64) -> Self {
        if nanos < ALONE_NS {
            Self::Alone
        } else if nanos < COMPUTED_NS {
            Self::Shared
        } else {
            Self::Computed
        }
    }
}

/// How a wait gives its core away: how often it did, and what came of it.
#[derive(Debug, Default)]
struct Giving {
    /// When it was back the last time, in nanoseconds. What is done in between counts as well: the clock is
    /// read once for each time.
    since_ns: u64,
    shared: u32,
    alone: u32,
    is_over: bool,
}

impl Giving {
    /// Gives the core away, and says what became of it.
    fn give_away(&mut self) -> Yielded {
        if self.since_ns == 0 {
            self.since_ns = monotonic_now().as_nanos();
        }
        thread::yield_now();
        let now = monotonic_now().as_nanos();
        Yielded::after(now - std::mem::replace(&mut self.since_ns, now))
    }
}

/// The processors of the machine: a rank that is pinned to one of them says nothing of the others'.
fn processor_count() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let online = list.ok().and_then(|list| count_of_list(&list));
    online.unwrap_or_else(|| thread::available_parallelism().map_or(1, Into::into))
}

/// The size of a list like "0-3,8".
fn count_of_list(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

impl Default for Spin {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Spin {
    pub(crate) const fn new(is_crowded: bool) -> Self {
        Self {
            is_crowded,
            losses: AtomicU32::new(0),
            core: AtomicU32::new(0),
            usual_ns: AtomicU64::new(FAR_NS),
        }
    }

    /// For waits among so many ranks of this host.
    pub(crate) fn among(rank_count: u32) -> Self {
        Self::new(usize::try_from(rank_count).is_ok_and(|ranks| ranks > processor_count()))
    }

    /// Takes note of how long a wait lasted that had lost.
    pub(crate) fn lasted(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(FAR_NS).min(FAR_NS);
        let before = self.usual_ns.load(Ordering::Relaxed);
        self.usual_ns.store(before - before / 4 + nanos / 4, Ordering::Relaxed);
    }

    fn usual(&self) -> Duration {
        Duration::from_nanos(self.usual_ns.load(Ordering::Relaxed))
    }

    /// Returns how long a wait that has lost does well to look on, letting other tasks run in between:
    /// nothing, unless the core is free and such waits end soon.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_crowded || self.core.load(Ordering::Relaxed) != 0 || self.usual() > NEAR {
            Duration::ZERO
        } else {
            (self.usual() * 2).min(NEAR)
        }
    }

    /// Calls `look` until it finds something, or for long enough.
    #[inline]
    pub(crate) fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        self.until_idle(false, || Look::from(look()))
    }

    /// As [`until`](Self::until), and goes on for as long as something moves. `is_patient`: the wait has
    /// [`patience`](Self::patience), and looks on whether or not waits have lost.
    #[inline]
    pub(crate) fn until_idle<T>(
        &self,
        is_patient: bool,
        look: impl FnMut() -> Look<T>,
    ) -> Option<T> {
        self.until_idle_giving(is_patient, look, Giving::give_away)
    }

    #[inline]
    fn until_idle_giving<T>(
        &self,
        is_patient: bool,
        mut look: impl FnMut() -> Look<T>,
        mut give_away: impl FnMut(&mut Giving) -> Yielded,
    ) -> Option<T> {
        let mut moves = match look() {
            Look::Found(found) => return Some(found),
            Look::Moved => true,
            Look::Nothing => false,
        };
        let losses = self.losses.load(Ordering::Relaxed);
        if !moves
            && !is_patient
            && (losses >= LOSSES_MAX || self.is_crowded)
            && self.is_vain(losses)
        {
            return None;
        }
        let first = if self.gives_first() { LOOKS } else { 0 };
        let mut looks = first;
        let mut giving = Giving::default();
        loop {
            if !moves {
                if looks < LOOKS {
                    std::hint::spin_loop();
                } else if !self.gives(&mut giving, &mut give_away) {
                    break;
                }
            }
            looks += 1;
            moves = match look() {
                Look::Found(found) => {
                    if losses != 0 {
                        self.losses.store(0, Ordering::Relaxed);
                    }
                    return Some(found);
                }
                Look::Moved => {
                    looks = first;
                    true
                }
                Look::Nothing => false,
            };
        }
        self.losses.store(losses.saturating_add(1), Ordering::Relaxed);
        None
    }

    /// Returns whether this wait does not try, after what became of those before.
    #[cold]
    fn is_vain(&self, losses: u32) -> bool {
        let is_hopeless = if self.is_crowded {
            self.usual_ns.load(Ordering::Relaxed) > FAR_NS / 4 * 3
        } else {
            losses >= LOSSES_MAX
        };
        if !is_hopeless {
            return false;
        }
        self.losses.store(losses.wrapping_add(1).max(LOSSES_MAX), Ordering::Relaxed);
        !losses.is_multiple_of(TRY_EVERY)
    }

    /// Returns whether a wait gives the core away after its first look.
    #[inline]
    fn gives_first(&self) -> bool {
        self.is_crowded || self.core.load(Ordering::Relaxed) == SHARED
    }

    /// Gives the core away before the next look, unless that was done often enough.
    #[cold]
    fn gives(
        &self,
        giving: &mut Giving,
        mut give_away: impl FnMut(&mut Giving) -> Yielded,
    ) -> bool {
        let core = self.core.load(Ordering::Relaxed);
        if giving.is_over {
            return false;
        }
        if core != SHARED && core > 0 {
            self.core.store(core - 1, Ordering::Relaxed);
            return false;
        }
        let core = match give_away(giving) {
            Yielded::Alone => {
                giving.alone += 1;
                0
            }
            Yielded::Shared => {
                giving.shared += 1;
                SHARED
            }
            Yielded::Computed => PENANCE,
        };
        self.core.store(core, Ordering::Relaxed);
        let alone_max = if self.is_crowded { YIELDS_ALONE } else { 1 };
        giving.is_over = core == PENANCE || giving.alone >= alone_max || giving.shared >= YIELDS;
        true
    }
}

/// What a look has seen.
pub(crate) enum Look<T> {
    Found(T),
    /// Not yet, but something came nearer.
    Moved,
    Nothing,
}

impl<T> From<Option<T>> for Look<T> {
    #[inline]
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Nothing, Self::Found)
    }
}

/// An engine at a detection server, whose waits look by themselves before they hand over. Clones are the same one; each
/// learns for itself how long to look.
pub(crate) struct SpinHost<E: Engine> {
    host: EngineHost<E>,
    spin: Spin,
}

impl<E: Engine> SpinHost<E> {
    pub(crate) fn new(
        server: &Server,
        name: &'static str,
        engine: E,
    ) -> Result<Self, RegisterError> {
        let host = EngineHost::new(server, engine, Registration::named(name))?;
        Ok(Self { host, spin: Spin::default() })
    }

    /// As [`EngineHost::wait`]. Cancel safe: what came for it goes to others.
    #[inline]
    pub(crate) const fn wait(&self, want: E::Want) -> SpinWait<'_, E> {
        SpinWait { host: self, want, wait: None }
    }
}

impl<E: Engine> Deref for SpinHost<E> {
    type Target = EngineHost<E>;

    #[inline]
    fn deref(&self) -> &EngineHost<E> {
        &self.host
    }
}

impl<E: Engine> Clone for SpinHost<E> {
    fn clone(&self) -> Self {
        Self { host: self.host.clone(), spin: Spin::default() }
    }
}

impl<E: Engine> fmt::Debug for SpinHost<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)
    }
}

/// A wait that looks inline before it hands over.
pub(crate) struct SpinWait<'a, E: Engine> {
    host: &'a SpinHost<E>,
    want: E::Want,
    wait: Option<EngineWait<'a, E>>,
}

impl<E: Engine> Unpin for SpinWait<'_, E> {}

impl<E: Engine> Future for SpinWait<'_, E> {
    type Output = Result<E::Found, WaitError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(wait) = &mut this.wait {
            return Pin::new(wait).poll(cx);
        }
        let SpinHost { host, spin } = this.host;
        if let Some(found) = spin.until(|| host.look(&this.want)) {
            return Poll::Ready(Ok(found));
        }
        Pin::new(this.wait.insert(host.wait(this.want.clone()))).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks, and what the core was given away for, of one wait that finds something at its look
    /// `found_at`.
    fn wait(spin: &Spin, found_at: u32, yielded: Yielded) -> (bool, u32, u32) {
        let (mut looks, mut yields) = (0, 0);
        let look = || {
            looks += 1;
            Look::from((looks == found_at).then_some(()))
        };
        let found = spin.until_idle_giving(false, look, |_| {
            yields += 1;
            yielded
        });
        (found.is_some(), looks, yields)
    }

    /// Goal: what is there costs one look, what comes soon is found, waits that lose stop trying, and one
    /// that wins makes them try again. Method: count the looks, on a core that nobody else wants.
    #[test]
    fn looking_must_pay() {
        let spin = Spin::default();
        let looks_until = |found_at| {
            let (is_found, looks, _) = wait(&spin, found_at, Yielded::Alone);
            (is_found, looks)
        };
        assert_eq!(looks_until(1), (true, 1));
        assert_eq!(looks_until(10), (true, 10));
        for _ in 0..LOSSES_MAX {
            assert_eq!(looks_until(u32::MAX), (false, LOOKS + 2));
        }
        let tries = (0..TRY_EVERY * 4).filter(|_| looks_until(u32::MAX).1 > 1).count();
        assert_eq!(tries, 4, "one of {TRY_EVERY}");
        let wins = (0..TRY_EVERY).filter(|_| looks_until(10).0).count();
        assert!(wins > 0, "it tries again");
        assert_eq!(looks_until(10), (true, 10));
    }

    /// Goal: a core that others want is given away after one look, not too often, and kept again once nobody
    /// wants it. Method: count looks and yields.
    #[test]
    fn a_shared_core_is_given_away() {
        let spin = Spin::default();
        assert_eq!(wait(&spin, LOOKS + 4, Yielded::Shared), (true, LOOKS + 4, 3));
        assert!(spin.gives_first());
        assert_eq!(wait(&spin, 3, Yielded::Shared), (true, 3, 2), "one look, then one for each");
        assert_eq!(wait(&spin, u32::MAX, Yielded::Shared), (false, 1 + YIELDS, YIELDS));
        assert_eq!(wait(&spin, u32::MAX, Yielded::Alone), (false, 2, 1));
        assert!(!spin.gives_first());
        assert_eq!(wait(&spin, 10, Yielded::Alone), (true, 10, 0));
    }

    /// Goal: whoever shares its core with somebody who computes gives it away once in a while only. Method:
    /// count yields of many waits.
    #[test]
    fn a_core_is_not_given_to_somebody_who_computes() {
        let spin = Spin::new(true);
        spin.usual_ns.store(0, Ordering::Relaxed);
        let waits = 4 * (PENANCE + 1);
        let yields: u32 = (0..waits).map(|_| wait(&spin, u32::MAX, Yielded::Computed).2).sum();
        assert_eq!(yields, 4);
    }

    /// Goal: among more ranks than cores, waits give away also a core that nobody wants, unless they last
    /// long. Method: count yields, and tell how long waits lasted.
    #[test]
    fn ranks_without_cores_give_first() {
        let spin = Spin::among(u32::MAX);
        let is_eager = |spin: &Spin| {
            (0..TRY_EVERY).all(|_| wait(spin, u32::MAX, Yielded::Alone).2 == YIELDS_ALONE)
        };
        assert!(!is_eager(&spin), "nothing is known yet");
        (0..20).for_each(|_| spin.lasted(Duration::from_micros(100)));
        assert!(is_eager(&spin));
        (0..20).for_each(|_| spin.lasted(Duration::from_secs(1)));
        assert!(!is_eager(&spin));
    }

    /// Goal: a pinned rank does not take the machine for one core, whatever the list looks like. Method: lists.
    #[test]
    fn processors_are_counted() {
        for (list, count) in
            [("0\n", Some(1)), ("0-1", Some(2)), ("0-3,8,10-11", Some(7)), ("", None)]
        {
            assert_eq!(count_of_list(list), count, "{list}");
        }
    }

    /// Goal: waits look on where they usually end soon, never where they last long or the core is wanted.
    /// Method: tell how long they lasted.
    #[test]
    fn patience_must_pay() {
        let spin = Spin::default();
        assert_eq!(spin.patience(), Duration::ZERO);
        (0..40).for_each(|_| spin.lasted(Duration::from_micros(30)));
        assert!(spin.patience() >= Duration::from_micros(50) && spin.patience() <= NEAR);
        wait(&spin, LOOKS + 2, Yielded::Shared);
        assert_eq!(spin.patience(), Duration::ZERO, "others want the core");
        wait(&spin, 2, Yielded::Alone);
        assert!(spin.patience() > Duration::ZERO);
        (0..20).for_each(|_| spin.lasted(Duration::from_millis(2)));
        assert_eq!(spin.patience(), Duration::ZERO);
    }
}
