//! The costs of a group's transport, measured by its members: [`NetBarrier::measure`].
//!
//! All members call it at the same place of their programs. Rank 0 leads; the others wait in a barrier meanwhile,
//! which also tells them if rank 0 dies, and answer. Rank 0 sends its results to all. A member that does not receive
//! them does not enter the last barrier, so that in that barrier all have them; it asks for as long as a barrier
//! would, then treats rank 0 as dead, and the group fails at all members. If it were an error at that member only,
//! the others might [replan](NetBarrier::replan), and it would not.
//!
//! ```text
//!            rank 0                              others
//!   barrier: all are here, and know which measurement this is
//!            probes, one partner after another   sleep inside the next barrier; poll if asked to
//!            sends the results to all
//!   barrier: the probes are over
//!                                                ask for missing results
//!   barrier: all have the results
//! ```

use std::{num::NonZeroU32, sync::Arc, thread, time::Duration};

use thiserror::Error;
use vigie_detect::Instant;

use super::{
    async_engine::{PollGuard, WaitCondition},
    barrier::{NetBarrier, yield_now},
    leader::{ProbeChannel, lead},
    probe::{ProbeBody, ProbeReply},
};
use crate::{
    algorithm::AlgorithmError,
    error::BarrierError,
    group::{Rank, next_group},
    logp::{Advice, CoreAllocation, MeasuredCosts, Report, Spread},
    member::MemberError,
    schedule::Target,
};

/// After the leader has been silent for this long, the partner sleeps again.
const LEADER_SILENCE: Duration = Duration::from_millis(20);
/// The interval at which a polling member lets the runtime's other tasks run.
const BETWEEN_YIELDS: Duration = Duration::from_micros(100);
/// The time that a member waits for the leader's results before it asks again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why a transport was not measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// There is no other member to answer.
    #[error("a group of one member has no other member to measure with")]
    Alone,
    /// Too few probes were answered; the same error at all members.
    #[error(
        "too few probes of rank 0 were answered: the network loses too much, or the others were not scheduled; measure again, or give \
         the costs to `NetBuilder::costs`"
    )]
    Unanswered,
    /// The barriers of the measurement were not passed: members are gone, or this one was inside a barrier.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// The algorithm does not suit the group.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
    /// The algorithm cannot carry the reduction.
    #[error(transparent)]
    Member(#[from] MemberError),
}

/// The progress of a measurement, in case the call is cancelled.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    /// The method that the user called.
    pub(super) call: &'static str,
    /// The number of the measurement.
    number: u32,
    stage: MeasurementStage,
}

#[derive(Clone, Copy, Debug)]
enum MeasurementStage {
    /// Inside the first barrier.
    Gathering,
    /// Rank 0 probes.
    Leading,
    /// Inside the second one.
    Following,
    /// All but rank 0 make sure that they have the results.
    Seeking,
    /// Inside the last one.
    Ending,
}

impl NetBarrier {
    /// Measures the transport by the method of [logp-bench]: o_s, L, o_r of a polling and of a sleeping member, g,
    /// and the cost of a multicast. All members call it at the same place of their programs, outside a barrier; rank
    /// 0 measures with up to four of the others, one after another, and all return its results.
    /// [`report`](Self::report) uses them for its expectations from then on.
    ///
    /// # Cost
    /// Some tenths of a second and three barriers; seconds on a lossy network, and at most half of the failure
    /// timeout for a member that misses the results. The tasks of rank 0, of its partner, and of a member that asks
    /// for results poll continuously, letting other tasks run every 100 µs.
    ///
    /// # Cancel safety
    /// Cancel safe: call it again, and it continues. Until it has returned, the others wait for this member, whose
    /// other barriers are refused ([`BarrierError::Measuring`]). If rank 0's call is cancelled, it starts probing
    /// again.
    ///
    /// # Errors
    /// [`MeasureError`]. If a member dies meanwhile, it is named within the failure timeout, as in any barrier.
    pub async fn measure(&mut self) -> Result<MeasuredCosts, MeasureError> {
        self.resume("measure").await
    }

    /// Begins a measurement, or continues a cancelled one.
    async fn resume(&mut self, call: &'static str) -> Result<MeasuredCosts, MeasureError> {
        let progress = match self.progress.clone() {
            Some(progress) if progress.call != call => {
                return Err(BarrierError::Measuring { call: progress.call }.into());
            }
            Some(progress) => progress,
            None => self.begin(call)?,
        };
        self.progress = Some(progress.clone());
        let measured = self.run_stages(progress).await;
        self.progress = None;
        measured
    }

    fn begin(&mut self, call: &'static str) -> Result<Measurement, MeasureError> {
        if self.group().size() == 1 {
            return Err(MeasureError::Alone);
        }
        let number = self.with(|engine| {
            if let Some(epoch) = engine.entered() {
                return Err(BarrierError::AlreadyEntered { epoch });
            }
            let number = engine.member.epoch();
            engine.probes.begin(number);
            Ok(number)
        })?;
        self.enter_empty()?;
        Ok(Measurement { call, number, stage: MeasurementStage::Gathering })
    }

    /// There is no await between the end of one stage and the next stage.
    async fn run_stages(&mut self, progress: Measurement) -> Result<MeasuredCosts, MeasureError> {
        let Measurement { call, number, mut stage } = progress;
        let is_leader = self.rank() == Rank(0);
        loop {
            stage = match stage {
                MeasurementStage::Gathering => {
                    self.exit().await?;
                    if is_leader {
                        MeasurementStage::Leading
                    } else {
                        self.enter_empty()?;
                        MeasurementStage::Following
                    }
                }
                MeasurementStage::Leading => {
                    self.lead(number).await;
                    self.enter_empty()?;
                    MeasurementStage::Following
                }
                MeasurementStage::Following => {
                    if is_leader {
                        self.exit().await?;
                        self.enter_empty()?;
                        MeasurementStage::Ending
                    } else {
                        self.wait_for_leader().await?;
                        MeasurementStage::Seeking
                    }
                }
                MeasurementStage::Seeking => {
                    self.request_costs(number).await;
                    self.enter_empty()?;
                    MeasurementStage::Ending
                }
                MeasurementStage::Ending => {
                    self.exit().await?;
                    break;
                }
            };
            self.progress = Some(Measurement { call, number, stage });
        }

        let said = self.with(|engine| {
            let said = engine.probes.costs.clone();
            // A member without results has given up on rank 0, and does not pass the last barrier.
            said.ok_or_else(|| engine.refusal())
        })?;
        let (measured, cores) = decode(&said).ok_or(MeasureError::Unanswered)?;
        self.planner_input.learn(&measured, cores);
        self.waits.clear();
        Ok(measured)
    }

    /// [Measures](Self::measure), chooses the algorithm by the results, and switches to it. All members call it at
    /// the same place of their programs, and make the same choice. The numbers of barriers and all counters restart
    /// at 0.
    ///
    /// # Cancel safety
    /// The same as [`measure`](Self::measure).
    ///
    /// # Errors
    /// The errors of [`measure`](Self::measure); the algorithm then stays the same.
    pub async fn replan(&mut self) -> Result<Advice, MeasureError> {
        self.with(|engine| engine.expect_renewal(true));
        let measured = self.resume("replan").await;
        let renewed = measured.and_then(|_| self.renew());
        self.with(|engine| engine.expect_renewal(false));
        renewed
    }

    /// Switches to the best algorithm.
    fn renew(&mut self) -> Result<Advice, MeasureError> {
        let group = self.group();
        let advice = self.planner_input.plan(group)?;
        let schedule = advice.algorithm.schedule(group)?;
        let now = self.server.now();
        self.with_host(|engine| engine.renew(now, advice.algorithm, Arc::new(schedule)))?;
        self.number = next_group();
        Ok(advice)
    }

    /// Returns the expected time of this group's barriers, given the costs of its transport, and the observed times
    /// of this member's waits: the latest thousand since the last measurement. Split-phase waits do not count.
    ///
    /// # Errors
    /// [`AlgorithmError`] if the algorithm does not suit the group, for example after shrinking.
    pub fn report(&self) -> Result<Report, AlgorithmError> {
        let advice = self.planner_input.expect(self.algorithm(), self.group())?;
        Ok(Report::new(
            advice,
            (self.planner_input.costs, self.planner_input.is_measured),
            self.waits.observed(),
        ))
    }

    /// Sends probes until it knows enough, and sends the results to all.
    async fn lead(&self, number: u32) {
        let size = self.group().size();
        let found = {
            let _guard = PollGuard::begin(&self.host, true);
            lead(&mut Prober::new(self), size).await
        };
        let found = found.ok().and_then(|(readings, lost)| readings.fit(lost));
        let said = found.map_or(Vec::new(), |found| encode(&found, self.planner_input.cores));
        self.with(|engine| {
            engine.probes.costs = Some(said.clone());
            engine.send_probe(Target::Everyone, number, ProbeBody::Costs(&said));
        });
    }

    /// Waits inside a barrier for the leader, and polls when asked to.
    async fn wait_for_leader(&self) -> Result<(), BarrierError> {
        while !self.poll_for_leader().await? {
            self.sleep(WaitCondition::ExitOrPoll).await?;
        }
        Ok(())
    }

    /// Gets the results, or gives up on rank 0 as a barrier would.
    async fn request_costs(&self, number: u32) {
        let _guard = PollGuard::begin(&self.host, true);
        let mut prober = Prober::new(self);
        let (silence_max, step) = self.with(|engine| {
            let config = engine.member.config();
            (config.silence_max(), RETRY_INTERVAL.min(config.interval_max()))
        });
        // Like a barrier, it counts by questions and not by the clock: a process that was stopped has asked nothing
        // meanwhile.
        let mut asked = Duration::ZERO;
        while !prober.has_costs() && !prober.has_failed() {
            let is_silent = silence_max.is_some_and(|most| asked >= most);
            let now = self.server.now();
            let has_given_up = self.with(|engine| {
                let gives_up = is_silent || engine.has_announced_leave(Rank(0));
                if gives_up {
                    engine.report_dead(now, Rank(0));
                }
                gives_up
            });
            if has_given_up {
                return;
            }
            asked += step;
            prober.send(Target::Member(Rank(0)), number, ProbeBody::CostsRequest);
            let until = prober.now() + step;
            while prober.now() < until && !prober.has_costs() {
                prober.pause().await;
                prober.poll();
            }
            // Packets that arrived while this process was stopped.
            prober.poll();
        }
    }

    /// Polls for as long as the leader wants this member to. Returns whether the leader is done.
    async fn poll_for_leader(&self) -> Result<bool, BarrierError> {
        let _guard = PollGuard::begin(&self.host, true);
        let mut prober = Prober::new(self);
        let (mut heard, mut heard_at) = (0, prober.now());
        loop {
            let now = prober.now();
            let is_done = self.with(|engine| {
                if let Some(exit) = engine.take_exit() {
                    return Some(exit.map(|_| true));
                }
                if engine.probes.pings != heard {
                    (heard, heard_at) = (engine.probes.pings, now);
                }
                engine.probes.is_poll_wanted &= now - heard_at < LEADER_SILENCE;
                (!engine.probes.is_poll_wanted).then_some(Ok(false))
            });
            if let Some(is_done) = is_done {
                return is_done;
            }
            prober.pause().await;
            prober.poll();
        }
    }

    /// Enters with a value of zeros if the group reduces.
    fn enter_empty(&mut self) -> Result<u32, BarrierError> {
        let bytes = self.with(|engine| engine.member.config().value_bytes());
        self.enter(self.server.now(), &vec![0; bytes])
    }
}

/// The member's transport, for probes.
struct Prober<'a> {
    barrier: &'a NetBarrier,
    yielded_at: Instant,
}

impl<'a> Prober<'a> {
    fn new(barrier: &'a NetBarrier) -> Self {
        Self { barrier, yielded_at: barrier.server.now() }
    }

    fn has_costs(&self) -> bool {
        self.barrier.with(|engine| engine.probes.costs.is_some())
    }
}

impl ProbeChannel for Prober<'_> {
    fn now(&self) -> Instant {
        self.barrier.server.now()
    }

    fn next_number(&mut self) -> u32 {
        self.barrier.with(|engine| {
            let number = &mut engine.probes.number;
            *number = number.wrapping_add(1);
            *number
        })
    }

    fn send(&mut self, to: Target, number: u32, body: ProbeBody<'_>) {
        self.barrier.with(|engine| engine.send_probe(to, number, body));
    }

    fn poll(&mut self) {
        let now = self.now();
        self.barrier.host.post(|async_engine| async_engine.poll(now));
    }

    fn reply(&mut self) -> Option<ProbeReply> {
        self.barrier.with(|engine| engine.probes.next_reply())
    }

    fn has_failed(&self) -> bool {
        self.barrier.with(|engine| engine.has_failed())
    }

    async fn pause(&mut self) {
        if self.now() - self.yielded_at < BETWEEN_YIELDS {
            return thread::yield_now();
        }
        yield_now().await;
        self.yielded_at = self.now();
    }
}

/// Encodes the results, and the cores by which all are to plan.
fn encode(measured: &MeasuredCosts, cores: CoreAllocation) -> Vec<u8> {
    let cores = match cores {
        CoreAllocation::Dedicated => 0,
        CoreAllocation::Shared(cores) => cores.get(),
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

/// Decodes what [`encode`] has written; an empty slice means no results.
fn decode(bytes: &[u8]) -> Option<(MeasuredCosts, CoreAllocation)> {
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
    let cores = NonZeroU32::new(cores).map_or(CoreAllocation::Dedicated, CoreAllocation::Shared);
    rest.is_empty().then(|| (MeasuredCosts::of_parameters(spreads, ports, lost), cores))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        net::{IpAddr, Ipv4Addr},
        os::fd::BorrowedFd,
        process,
        sync::atomic::{AtomicU32, Ordering},
        task::Waker,
    };

    use vigie_detect::{ArmOutcome, Server};
    use vigie_via::{datagram::UdpConfig, world};

    use super::*;
    use crate::{
        member::Quorum,
        net::{
            probe::{COSTS, is_probe},
            transport::Transport,
        },
        schedule::Network,
    };

    /// Nothing here takes as long, unless it hangs.
    const BOUND: Duration = Duration::from_secs(120);

    /// Loses the leader's results that many times.
    struct LosesCosts {
        inner: Box<dyn Transport>,
        left: Arc<AtomicU32>,
    }

    impl Transport for LosesCosts {
        fn send(&mut self, to: Target, network: Network, packet: &[u8]) -> io::Result<()> {
            self.inner.send(to, network, packet)
        }

        fn recv_each(&mut self, waker: &Waker, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
            let Self { inner, left } = self;
            inner.recv_each(waker, &mut |packet| {
                let is_found = is_probe(packet) && packet.get(3) == Some(&COSTS);
                let lose = |left: u32| left.checked_sub(1);
                if !is_found
                    || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose).is_err()
                {
                    take(packet);
                }
            })
        }

        fn arm(&mut self, waker: &Waker) -> io::Result<ArmOutcome> {
            self.inner.arm(waker)
        }

        fn descriptors(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
            self.inner.descriptors(each);
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
                    let network = UdpConfig::new(IpAddr::V4(address)).base_port(16_000);
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
                    barrier
                        .with(|engine| engine.wrap(|inner| Box::new(LosesCosts { inner, left })));
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

    /// Goal: if the results never reach a member, the group fails at all members, and continues without rank 0. Method: it
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

    /// Goal: the others read what the leader has written, and anything shorter or longer is ignored. Method: known
    /// values, cut at every place.
    #[test]
    fn findings_are_read_as_written() {
        let mut spreads = [Spread::default(); 7];
        for (spread, micros) in spreads.iter_mut().zip(1..) {
            spread.median = Duration::from_micros(micros);
            spread.p90 = Duration::from_micros(micros * 10);
            spread.samples = u32::try_from(micros).expect("small");
        }
        let measured = MeasuredCosts::of_parameters(spreads, 7, 3);
        assert_eq!(measured.parameters().map(|(_, spread)| spread), spreads);
        for cores in [CoreAllocation::Dedicated, CoreAllocation::Shared(NonZeroU32::MIN)] {
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
