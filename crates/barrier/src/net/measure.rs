//! What a group's transport costs, found by its members: [`NetBarrier::measure`].
//!
//! All members call it at the same place of their programs. Rank 0 leads; the others wait in a barrier meanwhile, which also
//! tells them if rank 0 dies, and answer. What rank 0 has found is told to all. Who does not hear of it does not come to the last
//! barrier, so that all know it there, and asks for as long as a barrier would: then rank 0 is as good as dead, and the group fails
//! at all members. Were it an error at that member alone, the others might [replan](NetBarrier::replan), and it would not.
//!
//! ```text
//!            rank 0                              others
//!   barrier: all are here, and know which measurement this is
//!            probes, one partner at a time       sleep inside of the next barrier; look by themselves if asked to
//!            tells all what was found
//!   barrier: the probes are over
//!                                                ask for what they miss
//!   barrier: all know it
//! ```

use std::{num::NonZeroU32, sync::Arc, task::Waker, thread, time::Duration};

use thiserror::Error;
use vigie_detect::{Instant, Server};

use super::{
    barrier::{NetBarrier, yield_now},
    leader::{Line, lead},
    probe::{Answer, Say},
    watch::{Shared, Want},
};
use crate::{
    algorithm::AlgorithmError,
    error::BarrierError,
    group::Rank,
    local::next_group,
    logp::{Advice, Cores, Measured, PlanError, Report, Spread},
    member::MemberError,
    reduction::Reduction,
    schedule::Target,
    sync::lock,
};

/// The leader is silent for so long: the partner sleeps again.
const SILENCE: Duration = Duration::from_millis(20);
/// Who looks by himself lets the runtime's other tasks run that often.
const BETWEEN_YIELDS: Duration = Duration::from_micros(100);
/// How long a member waits for what the leader has found, before it asks again.
const TRY_TIME: Duration = Duration::from_millis(20);

/// Why a transport was not measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// There is nobody to answer.
    #[error("a group of one member has nobody to measure with")]
    Alone,
    /// Too few probes were answered, at all members alike.
    #[error(
        "too few probes of rank 0 were answered: the network loses too much, or the others were not scheduled; measure again, or give \
         the costs to `NetBuilder::costs`"
    )]
    Unanswered,
    /// The barriers around it were not passed: members are gone, or this one was inside of a barrier.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// No algorithm can be chosen.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The algorithm does not suit the group.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
    /// The algorithm does not carry the reduction.
    #[error(transparent)]
    Member(#[from] MemberError),
}

/// How far a measurement has come, for those who cancel it.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// What the user has called.
    pub(super) call: &'static str,
    /// Which measurement it is.
    number: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Inside of the first barrier.
    Gathering,
    /// Rank 0 probes.
    Leading,
    /// Inside of the second one.
    Following,
    /// All but rank 0 see to it that they know what was found.
    Seeking,
    /// Inside of the last one.
    Ending,
}

impl NetBarrier {
    /// Measures the transport in the manner of [logp-bench]: o_s, L, o_r of a member that looks by itself and of one that
    /// sleeps, g, and what a multicast costs. All members call it at the same place of their programs, outside of a barrier;
    /// rank 0 measures, with up to four of the others one after the other, and all return what it has found.
    /// [`report`](Self::report) expects by it from then on.
    ///
    /// # Cost
    /// Some tenths of a second and three barriers; where much is lost, seconds, and half of the failure timeout at most for who does not
    /// hear what was found. The task of rank 0, that of its partner, and that of who asks for what was found look on and on; they let other tasks run every 100 µs.
    ///
    /// # Cancel safety
    /// Cancel safe: call it again, and it goes on. Until it has returned, the others wait for this member, and its other
    /// barriers are refused ([`BarrierError::Measuring`]). If rank 0's is cancelled, it probes anew.
    ///
    /// # Errors
    /// [`MeasureError`]. If a member dies meanwhile, it is named within the failure timeout, as in any barrier.
    pub async fn measure(&mut self) -> Result<Measured, MeasureError> {
        self.go_on("measure").await
    }

    /// Begins a measurement, or goes on with one that was cancelled.
    async fn go_on(&mut self, call: &'static str) -> Result<Measured, MeasureError> {
        let progress = match self.progress.clone() {
            Some(progress) if progress.call != call => {
                return Err(BarrierError::Measuring { call: progress.call }.into());
            }
            Some(progress) => progress,
            None => self.begin(call)?,
        };
        self.progress = Some(progress.clone());
        let measured = self.go_through(progress).await;
        self.progress = None;
        measured
    }

    fn begin(&mut self, call: &'static str) -> Result<Progress, MeasureError> {
        if self.group().size() == 1 {
            return Err(MeasureError::Alone);
        }
        let number = {
            let mut engine = lock(&self.shared.engine);
            if let Some(epoch) = engine.entered() {
                return Err(BarrierError::AlreadyEntered { epoch }.into());
            }
            let number = engine.member.epoch();
            engine.probes.begin(number);
            number
        };
        self.enter_empty()?;
        Ok(Progress { call, number, stage: Stage::Gathering })
    }

    /// Nothing is awaited between what a stage does at its end and the next stage.
    async fn go_through(&mut self, progress: Progress) -> Result<Measured, MeasureError> {
        let Progress { call, number, mut stage } = progress;
        let is_leader = self.rank() == Rank(0);
        loop {
            stage = match stage {
                Stage::Gathering => {
                    self.exit().await?;
                    if is_leader {
                        Stage::Leading
                    } else {
                        self.enter_empty()?;
                        Stage::Following
                    }
                }
                Stage::Leading => {
                    self.lead(number).await;
                    self.enter_empty()?;
                    Stage::Following
                }
                Stage::Following => {
                    if is_leader {
                        self.exit().await?;
                        self.enter_empty()?;
                        Stage::Ending
                    } else {
                        self.follow().await?;
                        Stage::Seeking
                    }
                }
                Stage::Seeking => {
                    self.seek(number).await;
                    self.enter_empty()?;
                    Stage::Ending
                }
                Stage::Ending => {
                    self.exit().await?;
                    break;
                }
            };
            self.progress = Some(Progress { call, number, stage });
        }
        let said = {
            let engine = lock(&self.shared.engine);
            let said = engine.probes.costs.clone();
            // Who knows nothing has given up on rank 0, and does not pass the last barrier.
            said.ok_or_else(|| engine.refusal())?
        };
        let (measured, cores) = decode(&said).ok_or(MeasureError::Unanswered)?;
        self.basis.learn(&measured, cores);
        self.waits.clear();
        Ok(measured)
    }

    /// [Measures](Self::measure), chooses the algorithm by what was found, and goes on with it. All members call it at the same
    /// place of their programs, and choose the same. Barriers, and what was counted, begin anew at 0.
    ///
    /// # Cancel safety
    /// As [`measure`](Self::measure).
    ///
    /// # Errors
    /// As [`measure`](Self::measure); the algorithm is as before then.
    pub async fn replan(&mut self) -> Result<Advice, MeasureError> {
        lock(&self.shared.engine).expect_renewal(true);
        let measured = self.go_on("replan").await;
        let renewed = measured.and_then(|_| self.renew());
        lock(&self.shared.engine).expect_renewal(false);
        renewed
    }

    /// Goes on with the best algorithm.
    fn renew(&mut self) -> Result<Advice, MeasureError> {
        let group = self.group();
        let advice = self.basis.plan(group)?;
        let schedule = advice.algorithm.schedule(group)?;
        let now = self.server.now();
        lock(&self.shared.engine).renew(now, advice.algorithm, Arc::new(schedule))?;
        self.number = next_group();
        self.shared.ring();
        Ok(advice)
    }

    /// Returns what barriers of this group should take by the costs of its transport, and what this member's waits took: the
    /// latest thousand since the last measurement. Waits of the split phase do not count.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm, as after shrinking, does not suit the group.
    pub fn report(&self) -> Result<Report, PlanError> {
        let advice = self.basis.expect(self.algorithm(), self.group())?;
        Ok(Report::new(advice, (self.basis.costs, self.basis.is_measured), self.waits.observed()))
    }

    /// Sends probes until it knows enough, and tells all.
    async fn lead(&self, number: u32) {
        let size = self.group().size();
        let found = {
            let _looking = Looking::begin(&self.shared);
            lead(&mut Prober::new(self), size).await
        };
        let found = found.ok().and_then(|(readings, lost)| readings.fit(lost));
        let said = found.map_or(Vec::new(), |found| encode(&found, self.basis.cores));
        let mut engine = lock(&self.shared.engine);
        engine.probes.costs = Some(said.clone());
        engine.send_probe(Target::Everyone, number, Say::Costs(&said));
    }

    /// Waits inside of a barrier for the leader, and looks by itself when it is to.
    async fn follow(&self) -> Result<(), BarrierError> {
        while !self.is_led().await? {
            self.handle.wait(Want::Turn).await?;
        }
        Ok(())
    }

    /// Learns what was found, or gives up on rank 0 as a barrier would.
    async fn seek(&self, number: u32) {
        let _looking = Looking::begin(&self.shared);
        let mut prober = Prober::new(self);
        let (silence_max, step) = {
            let engine = lock(&self.shared.engine);
            let settings = engine.member.settings();
            (settings.silence_max(), TRY_TIME.min(settings.interval_max()))
        };
        // As barriers do, by what was asked and not by the clock: who was stopped meanwhile has asked nobody.
        let mut asked = Duration::ZERO;
        while !prober.knows() && !prober.has_failed() {
            let is_silent = silence_max.is_some_and(|most| asked >= most);
            {
                let mut engine = lock(&self.shared.engine);
                if is_silent || engine.has_said_farewell(Rank(0)) {
                    return engine.report_dead(self.server.now(), Rank(0));
                }
            }
            asked += step;
            prober.send(Target::Member(Rank(0)), number, Say::Want);
            let until = prober.now() + step;
            while prober.now() < until && !prober.knows() {
                prober.pause().await;
                prober.look();
            }
            // What came while this process was stopped.
            prober.look();
        }
    }

    /// Looks for as long as the leader wants this member to. Returns whether the leader is done.
    async fn is_led(&self) -> Result<bool, BarrierError> {
        let _looking = Looking::begin(&self.shared);
        let mut prober = Prober::new(self);
        let (mut heard, mut heard_at) = (0, prober.now());
        loop {
            {
                let mut engine = lock(&prober.shared.engine);
                if let Some(exit) = engine.take_exit() {
                    return exit.map(|_| true);
                }
                let now = prober.server.now();
                if engine.probes.pings != heard {
                    (heard, heard_at) = (engine.probes.pings, now);
                }
                engine.probes.is_attended &= now - heard_at < SILENCE;
                if !engine.probes.is_attended {
                    return Ok(false);
                }
            }
            prober.pause().await;
            prober.look();
        }
    }

    /// Enters with a value of zeros, if the group reduces.
    fn enter_empty(&mut self) -> Result<u32, BarrierError> {
        let bytes = {
            let engine = lock(&self.shared.engine);
            engine.member.settings().reduction.as_ref().map_or(0, Reduction::bytes)
        };
        self.enter(&vec![0; bytes])
    }
}

/// Keeps the host from looking too.
struct Looking(Arc<Shared>);

impl Looking {
    fn begin(shared: &Arc<Shared>) -> Self {
        lock(&shared.engine).is_looked_at = true;
        Self(Arc::clone(shared))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        lock(&self.0.engine).is_looked_at = false;
        self.0.ring();
    }
}

/// The member's transport, for probes.
struct Prober {
    shared: Arc<Shared>,
    server: Server,
    waker: Waker,
    yielded_at: Instant,
}

impl Prober {
    fn new(barrier: &NetBarrier) -> Self {
        Self {
            shared: Arc::clone(&barrier.shared),
            server: barrier.server.clone(),
            waker: barrier.waker.clone(),
            yielded_at: barrier.server.now(),
        }
    }

    fn knows(&self) -> bool {
        lock(&self.shared.engine).probes.costs.is_some()
    }
}

impl Line for Prober {
    fn now(&self) -> Instant {
        self.server.now()
    }

    fn next_number(&mut self) -> u32 {
        let number = &mut lock(&self.shared.engine).probes.number;
        *number = number.wrapping_add(1);
        *number
    }

    fn send(&mut self, to: Target, number: u32, say: Say<'_>) {
        lock(&self.shared.engine).send_probe(to, number, say);
    }

    fn look(&mut self) {
        lock(&self.shared.engine).look(self.server.now(), &self.waker);
    }

    fn answer(&mut self) -> Option<Answer> {
        lock(&self.shared.engine).probes.next_answer()
    }

    fn has_failed(&self) -> bool {
        lock(&self.shared.engine).has_failed()
    }

    async fn pause(&mut self) {
        if self.now() - self.yielded_at < BETWEEN_YIELDS {
            return thread::yield_now();
        }
        yield_now().await;
        self.yielded_at = self.now();
    }
}

/// Writes down what was found, and the cores by which all are to plan.
fn encode(measured: &Measured, cores: Cores) -> Vec<u8> {
    let cores = match cores {
        Cores::Own => 0,
        Cores::Shared(cores) => cores.get(),
    };
    let mut bytes = Vec::new();
    for number in [cores, measured.ports, measured.lost] {
        bytes.extend(number.to_le_bytes());
    }
    for (_, spread) in measured.parameters() {
        for time in [spread.median, spread.p90] {
            bytes.extend(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
        }
        bytes.extend(spread.samples.to_le_bytes());
    }
    bytes
}

/// Reads what [`encode`] has written; nothing is that nothing was found.
fn decode(bytes: &[u8]) -> Option<(Measured, Cores)> {
    fn number(bytes: &mut &[u8]) -> Option<u32> {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*number))
    }
    fn time(bytes: &mut &[u8]) -> Option<Duration> {
        let (nanos, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(Duration::from_nanos(u64::from_le_bytes(*nanos)))
    }
    let mut rest = bytes;
    let (cores, ports, lost) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
    let mut spreads = [Spread::default(); 7];
    for spread in &mut spreads {
        *spread =
            Spread { median: time(&mut rest)?, p90: time(&mut rest)?, samples: number(&mut rest)? };
    }
    let cores = NonZeroU32::new(cores).map_or(Cores::Own, Cores::Shared);
    rest.is_empty().then(|| (Measured::of_parameters(spreads, ports, lost), cores))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        net::{IpAddr, Ipv4Addr},
        os::fd::BorrowedFd,
        process,
        sync::atomic::{AtomicU32, Ordering},
    };

    use vigie_via::{datagram::UdpSettings, world};

    use super::*;
    use crate::{
        member::Quorum,
        net::{
            probe::{COSTS, may_be_probe},
            transport::Transport,
        },
        schedule::Network,
    };

    /// Nothing here takes as long, unless it hangs.
    const BOUND: Duration = Duration::from_secs(120);

    /// Loses what the leader has found, so many times.
    struct Deaf {
        inner: Box<dyn Transport>,
        left: Arc<AtomicU32>,
    }

    impl Transport for Deaf {
        fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()> {
            self.inner.send(to, network, packet)
        }

        fn receive(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
            let Self { inner, left } = self;
            inner.receive(waker, &mut |packet| {
                let is_found = may_be_probe(packet) && packet.get(3) == Some(&COSTS);
                let lose = |left: u32| left.checked_sub(1);
                if !is_found
                    || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose).is_err()
                {
                    take(packet);
                }
            })
        }

        fn arm(&mut self, waker: &Waker) -> io::Result<bool> {
            self.inner.arm(waker)
        }

        fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
            self.inner.descriptors()
        }

        fn next_dead(&mut self) -> Option<Rank> {
            self.inner.next_dead()
        }

        fn shrink(&mut self, survivors: &[Rank]) {
            self.inner.shrink(survivors);
        }
    }

    /// Runs `body` at each of three members, the last of which loses what the leader has found `count` times.
    fn play<F>(place: u8, count: u32, body: impl Fn(NetBarrier) -> F) -> (Vec<F::Output>, u32)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let left = Arc::new(AtomicU32::new(count));
        let host = Server::spawn_thread().expect("a host thread");
        let (_launcher, worlds) = world::local(host.server(), 3).expect("a world");
        let [.., third, fourth] = process::id().to_be_bytes();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let playing = async {
            let groups: Vec<_> = (1..)
                .zip(worlds)
                .map(|(own, world)| {
                    let address = Ipv4Addr::new(127, third, fourth, place + own);
                    let network = UdpSettings::new(IpAddr::V4(address)).base_port(16_000);
                    let builder = NetBarrier::builder().server(host.server()).network(network);
                    let builder =
                        builder.quorum(Quorum::Any).failure_timeout(Duration::from_secs(4));
                    tokio::spawn(async move { builder.form(&world).await.expect("all are here") })
                })
                .collect();
            let mut members = Vec::new();
            for group in groups {
                let barrier = group.await.expect("no panic");
                if barrier.rank() == Rank(2) {
                    let left = Arc::clone(&left);
                    lock(&barrier.shared.engine).wrap(|inner| Box::new(Deaf { inner, left }));
                }
                members.push(tokio::spawn(body(barrier)));
            }
            let mut found = Vec::new();
            for member in members {
                found.push(member.await.expect("no panic"));
            }
            found
        };
        let done = runtime.block_on(async { tokio::time::timeout(BOUND, playing).await });
        // Tasks that hang are not waited for.
        runtime.shutdown_background();
        let found = done.expect("it hangs");
        (found, count - left.load(Ordering::Relaxed))
    }

    /// Goal: a member that does not hear what was found holds the others up and keeps asking; all go on with one
    /// algorithm. Method: it loses that more often than it would be asked for in a second, and then barriers.
    #[test]
    fn who_misses_what_was_found_asks_on() {
        let (found, lost) = play(10, 60, |mut barrier| async move {
            let advice = barrier.replan().await.expect("all know it");
            for _ in 0..10 {
                barrier.wait().await.expect("one group");
            }
            drop(barrier.leave(Duration::from_secs(10)).await);
            advice.algorithm
        });
        assert_eq!(lost, 60);
        assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
    }

    /// Goal: where what was found never comes to a member, the group fails at all of them, and goes on without rank 0. Method: it
    /// loses all of that, and nothing else.
    #[test]
    fn who_never_hears_what_was_found_gives_up_on_rank_0() {
        let (_, lost) = play(20, u32::MAX, |mut barrier| async move {
            let own = barrier.rank();
            let error = barrier.replan().await.expect_err("not all know it");
            let MeasureError::Barrier(error) = error else { panic!("{own}: {error}") };
            assert_eq!(error.lost(), [Rank(0)], "{own}: {error}");
            if own == Rank(0) {
                barrier.shrink().await.expect_err("the others go on without it");
                return;
            }
            assert_eq!(barrier.shrink().await.expect("they agree"), [Rank(1), Rank(2)]);
            for _ in 0..10 {
                barrier.wait().await.expect("one group");
            }
            drop(barrier.leave(Duration::from_secs(10)).await);
        });
        assert!(lost > 10);
    }

    /// Goal: what the leader says is what the others read, and anything shorter or longer says nothing. Method: known
    /// values, cut at every place.
    #[test]
    fn findings_are_read_as_written() {
        let mut spreads = [Spread::default(); 7];
        for (spread, micros) in spreads.iter_mut().zip(1..) {
            spread.median = Duration::from_micros(micros);
            spread.p90 = Duration::from_micros(micros * 10);
            spread.samples = u32::try_from(micros).expect("small");
        }
        let measured = Measured::of_parameters(spreads, 7, 3);
        assert_eq!(measured.parameters().map(|(_, spread)| spread), spreads);
        for cores in [Cores::Own, Cores::Shared(NonZeroU32::MIN)] {
            let mut bytes = encode(&measured, cores);
            assert_eq!(decode(&bytes), Some((measured, cores)));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), None);
            }
            bytes.push(0);
            assert_eq!(decode(&bytes), None);
        }
    }
}
