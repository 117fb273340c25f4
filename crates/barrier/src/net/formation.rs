//! How a group is formed.

use std::{future::Future, net::SocketAddr, num::NonZeroU32, sync::Arc, thread, time::Duration};

use siphasher::sip::SipHasher24;
use vigie_detect::{HostThread, Instant, Server};
use vigie_via::{datagram::Node, message::Communicator, vi::Provider, world::World};

use super::{
    barrier::{MulticastState, NetBarrier},
    datagrams::{Datagrams, Interface},
    error::FormationError,
    faults::{Faults, Faulty},
    meeting::{Meeting, Rendezvous, Secrets, within},
    messages::Messages,
    plan::{Basis, Waiting},
    transport::Transport,
};
use crate::{
    algorithm::Algorithm,
    error::BarrierError,
    group::{Group, Rank},
    logp::{self, Cores, LogP},
    member::{Member, Quorum, Settings},
    packet::{GroupId, HEADER_BYTES, Key},
    reduction::Reduction,
};

/// A member's port, unless another is named.
const PORT: u8 = 47;
/// How long a multicast may take to come to all members, when it is tried.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// Between two of them.
const PROBE_EVERY: Duration = Duration::from_millis(20);
/// Between two looks for them.
const PROBE_LOOK: Duration = Duration::from_millis(1);
/// What a probe begins with; the group's name and the network follow.
const PROBE_MAGIC: [u8; 2] = *b"vP";

/// Costs that are typical of sockets on one host, by which the algorithm is chosen unless others are given: a system
/// call to send does all the work.
const TYPICAL: LogP = LogP::new(
    Duration::from_nanos(6_000),
    Duration::from_nanos(15_000),
    Duration::from_nanos(1_000),
)
.with_multicast(logp::Multicast::new(Duration::from_nanos(5_000), Duration::from_nanos(900)));

/// Forms groups: all members with the same settings, apart from their interfaces.
///
/// # Examples
/// ```
/// use vigie_barrier::net::NetBarrier;
/// use vigie_via::{datagram::UdpSettings, world};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let host = vigie_detect::Server::spawn_thread()?;
/// let (_launcher, worlds) = world::local(host.server(), 2)?;
/// let members = worlds.into_iter().zip(1..).map(|(world, last)| {
///     let address = UdpSettings::new([127, 44, 0, last].into()).base_port(24_000);
///     let builder = NetBarrier::builder().server(host.server()).network(address);
///     async move {
///         let mut barrier = builder.form(&world).await?;
///         barrier.wait().await?;
///         Ok::<_, Box<dyn std::error::Error>>(barrier)
///     }
/// });
/// let [one, other] = members.collect::<Vec<_>>().try_into().unwrap_or_else(|_| unreachable!());
/// let (one, other) = tokio::join!(one, other);
/// (one?, other?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder forms nothing by itself"]
pub struct NetBuilder {
    interfaces: Vec<Interface>,
    port: u8,
    name: String,
    server: Option<Server>,
    algorithm: Option<Algorithm>,
    logp: LogP,
    is_measured: bool,
    waiting: Waiting,
    uses_multicast: bool,
    multicast_group: Option<Node>,
    reduction: Option<Reduction>,
    repeat_after: Option<Duration>,
    failure_timeout: Option<Duration>,
    quorum: Quorum,
    formation_timeout: Duration,
    secret: Option<[u8; 32]>,
    faults: Option<Faults>,
}

impl NetBuilder {
    pub(super) const fn new() -> Self {
        Self {
            interfaces: Vec::new(),
            port: PORT,
            name: String::new(),
            server: None,
            algorithm: None,
            logp: TYPICAL,
            is_measured: false,
            waiting: Waiting::Adaptive,
            uses_multicast: true,
            multicast_group: None,
            reduction: None,
            repeat_after: None,
            failure_timeout: Some(Duration::from_secs(10)),
            quorum: Quorum::Majority,
            formation_timeout: Duration::from_secs(30),
            secret: None,
            faults: None,
        }
    }

    /// Adds a network: the first one, and a second one for algorithms that have a use for it.
    pub fn network(mut self, interface: impl Into<Interface>) -> Self {
        self.interfaces.push(interface.into());
        self
    }

    /// Sets the port of datagrams on which the members are, 47 by default. Multicast needs the same at all of them.
    pub const fn port(mut self, number: u8) -> Self {
        self.port = number;
        self
    }

    /// Sets a name that tells the barriers of one world apart; empty by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets which server hosts the barrier: by default the current one, or else a host thread of its own.
    pub fn server(mut self, server: &Server) -> Self {
        self.server = Some(server.clone());
        self
    }

    /// Sets the algorithm. By default the planner chooses it, by typical costs or those that are [given](Self::costs).
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Sets the costs by which the planner chooses: the same at all members.
    pub const fn costs(mut self, costs: LogP) -> Self {
        self.logp = costs;
        self
    }

    /// [Measures](NetBarrier::measure) the transport when the group is formed, and chooses the algorithm by that, unless one
    /// was set. It takes some tenths of a second. A group [over messages](Self::over) is formed at once, and measures when
    /// it [plans anew](NetBarrier::replan).
    pub const fn measure_costs(mut self) -> Self {
        self.is_measured = true;
        self
    }

    /// Sets how members wait: by default they look by themselves for a while, and sleep then.
    pub const fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// Does without multicast: packets for everyone go to each by itself.
    pub const fn unicast_only(mut self) -> Self {
        self.uses_multicast = false;
        self
    }

    /// Sets the multicast address, or group address of Ethernet. By default one that is made of the group's name.
    pub const fn multicast_group(mut self, group: Node) -> Self {
        self.multicast_group = Some(group);
        self
    }

    /// Sets what is reduced along. Default nothing.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = Some(reduction);
        self
    }

    /// Sets after how long a member asks for what it misses: as [`Settings::repeat_after`]. By default 10 ms; on one
    /// host, 10 ms for each member that shares a processor, up to 200 ms, and at most a 32nd of the failure timeout.
    pub const fn repeat_after(mut self, time: Duration) -> Self {
        self.repeat_after = Some(time);
        self
    }

    /// Sets within which time a dead member is known to all others, as [`Settings::failure_timeout`]: 10 s by default.
    pub const fn failure_timeout(mut self, time: Duration) -> Self {
        self.failure_timeout = Some(time);
        self
    }

    /// Sets how many must be left after a failure, so that [`shrink`](NetBarrier::shrink) makes a smaller group of them:
    /// [`Quorum::Majority`] by default, since silence may be a network that has fallen apart.
    pub const fn quorum(mut self, quorum: Quorum) -> Self {
        self.quorum = quorum;
        self
    }

    /// Sets how long members wait for each other when the group is formed, 30 s by default.
    pub const fn formation_timeout(mut self, time: Duration) -> Self {
        self.formation_timeout = time;
        self
    }

    /// Sets what members must know that [meet](Self::meet) at an address. Without it, everybody who reaches the address
    /// may become a member, and everybody who listens there can forge packets.
    pub const fn secret(mut self, secret: [u8; 32]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Loses, doubles and delays packets on purpose: for tests.
    pub const fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Forms the group of all ranks of a world, who exchange addresses through its launcher.
    ///
    /// # Cancel safety
    /// Not cancel safe: the members count on each other.
    ///
    /// # Errors
    /// [`FormationError`].
    pub async fn form(mut self, world: &World) -> Result<NetBarrier, FormationError> {
        let host = self.host()?;
        let name = std::mem::take(&mut self.name);
        let meeting = Meeting::World { world: world.clone(), name };
        let deadline = host.0.now() + self.formation_timeout;
        self.form_at(meeting, host, deadline).await
    }

    /// Forms a group whose members meet at an address, over TCP: rank 0 listens there.
    ///
    /// # Cancel safety
    /// As [`form`](Self::form).
    ///
    /// # Errors
    /// [`FormationError`].
    pub async fn meet(
        self,
        place: SocketAddr,
        rank: Rank,
        size: u32,
    ) -> Result<NetBarrier, FormationError> {
        let group = Group::new(size)?;
        if !group.contains(rank) {
            return Err(FormationError::Rank { rank, size });
        }
        let host = self.host()?;
        let deadline = host.0.now() + self.formation_timeout;
        let rendezvous =
            Rendezvous::meet(&host.0, place, (rank, size), self.secret, deadline).await?;
        self.form_at(Meeting::Address(Box::new(rendezvous)), host, deadline).await
    }

    /// Makes a barrier of the ranks of a communicator, whose messages carry its packets. Nothing is exchanged: all
    /// ranks do this in the same order in which they [duplicate](Communicator::duplicate) it.
    ///
    /// # Errors
    /// [`FormationError`].
    pub fn over<P: Provider>(
        self,
        communicator: &Communicator<P>,
    ) -> Result<NetBarrier, FormationError> {
        let host = self.host()?;
        let own = Rank(communicator.rank());
        let group = Group::new(communicator.size())?;
        let messages = Messages::new(communicator).map_err(|error| {
            BarrierError::io("duplicating the communicator")(std::io::Error::other(error))
        })?;
        let cores = shared_cores();
        let basis = self.basis(false, cores);
        let algorithm = self.choose(group, &basis)?;
        // Messages come from the connected ranks alone, and those of other communicators are apart.
        let settings = self.settings(GroupId(0), None, group, cores);
        self.finish(
            host,
            (own, group),
            (algorithm, MulticastState::Unused, basis),
            settings,
            Box::new(messages),
        )
    }

    fn host(&self) -> Result<(Server, Option<HostThread>), FormationError> {
        if let Some(server) = &self.server {
            return Ok((server.clone(), None));
        }
        if let Ok(server) = Server::current() {
            return Ok((server, None));
        }
        let host = Server::spawn_thread().map_err(FormationError::Host)?;
        Ok((host.server().clone(), Some(host)))
    }

    async fn form_at(
        mut self,
        mut meeting: Meeting,
        host: (Server, Option<HostThread>),
        deadline: Instant,
    ) -> Result<NetBarrier, FormationError> {
        let (own, size) = (meeting.rank(), meeting.size());
        let group = Group::new(size)?;
        match self.interfaces.len() {
            0 => return Err(FormationError::NoNetwork),
            1 | 2 => {}
            count => return Err(FormationError::Networks { count }),
        }
        let mut datagrams = Datagrams::open(own, std::mem::take(&mut self.interfaces), self.port)?;
        self.check_length(&datagrams)?;
        let here = Here::new(self.digest(), &datagrams);
        let said = meeting.all_gather("address", &here.encode(), deadline).await?;
        let all: Vec<Here> = Here::decode_all(&said)?;
        let differs = all.iter().position(|other| other.digest != here.digest);
        if let Some(rank) = differs.and_then(|rank| u32::try_from(rank).ok()) {
            return Err(FormationError::Different { rank: Rank(rank) });
        }
        let addresses: Vec<Vec<u8>> = all.iter().map(|other| other.address.clone()).collect();
        datagrams.connect(&addresses).map_err(|rank| FormationError::Address { rank })?;
        if all.iter().filter(|other| other.stack == here.stack).count() == 1 {
            datagrams.quiet_loop()?;
        }
        let secrets = meeting.secrets();
        let is_wanted =
            self.uses_multicast && size > 1 && self.algorithm.is_none_or(Algorithm::is_multicast);
        let multicast = if is_wanted {
            try_multicast(
                &mut meeting,
                &mut datagrams,
                (secrets.id, self.multicast_group),
                &host.0,
                deadline,
            )
            .await?
        } else {
            MulticastState::Unused
        };
        if multicast != MulticastState::Works {
            datagrams.use_unicast();
        }
        if let (MulticastState::Blocked { why }, Rank(0)) = (&multicast, own) {
            tracing::warn!(why, "multicast does not work, so each member is sent to by itself");
        }
        let is_one_host = all.iter().all(|other| other.host == here.host);
        let cores = all.iter().map(|other| other.cores).min().and_then(NonZeroU32::new);
        let cores = cores.filter(|_| is_one_host).map_or(Cores::Own, Cores::Shared);
        let basis = self.basis(multicast == MulticastState::Works, cores);
        let algorithm = self.choose(group, &basis)?;
        let Secrets { id, key } = secrets;
        let settings = self.settings(id, Some(key), group, cores);
        let (is_measured, is_fixed) = (self.is_measured && size > 1, self.algorithm.is_some());
        let planned = (algorithm, multicast, basis);
        let datagrams = Box::new(datagrams);
        let mut barrier = self.finish(host, (own, group), planned, settings, datagrams)?;
        match (is_measured, is_fixed) {
            (true, true) => drop(barrier.measure().await?),
            (true, false) => drop(barrier.replan().await?),
            (false, _) => {}
        }
        Ok(barrier)
    }

    fn finish(
        self,
        host: (Server, Option<HostThread>),
        (own, group): (Rank, Group),
        (algorithm, multicast, basis): (Algorithm, MulticastState, Basis),
        settings: Settings,
        transport: Box<dyn Transport>,
    ) -> Result<NetBarrier, FormationError> {
        let schedule = Arc::new(algorithm.schedule(group)?);
        let member = Member::new(schedule, own, settings)?;
        let transport = match self.faults {
            Some(faults) => Box::new(Faulty::new(transport, faults, own)),
            None => transport,
        };
        Ok(NetBarrier::new(host, (algorithm, multicast), basis, member, transport)?)
    }

    fn basis(&self, has_multicast: bool, cores: Cores) -> Basis {
        Basis {
            costs: self.logp,
            is_measured: false,
            cores,
            has_multicast,
            has_reduction: self.reduction.is_some(),
            waiting: self.waiting,
        }
    }

    fn choose(&self, group: Group, basis: &Basis) -> Result<Algorithm, FormationError> {
        if let Some(algorithm) = self.algorithm {
            algorithm.check(group)?;
            return Ok(algorithm);
        }
        Ok(basis.plan(group).map_or(Algorithm::Central, |advice| advice.algorithm))
    }

    fn settings(&self, id: GroupId, key: Option<Key>, group: Group, cores: Cores) -> Settings {
        let mut settings = Settings::new(id);
        // On one host, those who wait for somebody late would all ask at once, and keep him from coming.
        let crowd = match cores {
            Cores::Shared(cores) => group.size().div_ceil(cores.get()).clamp(1, 20),
            Cores::Own => 1,
        };
        let patient = settings.repeat_after * crowd;
        settings.key = key;
        settings.repeat_after = self.repeat_after.unwrap_or_else(|| {
            // The machine wants some questions within the timeout.
            self.failure_timeout.map_or(patient, |timeout| patient.min(timeout / 32))
        });
        settings.failure_timeout = self.failure_timeout;
        settings.quorum = self.quorum;
        settings.reduction = self.reduction.clone();
        settings
    }

    fn check_length(&self, datagrams: &Datagrams) -> Result<(), FormationError> {
        const TAG_BYTES: usize = 8;
        let value = self.reduction.as_ref().map_or(0, Reduction::bytes);
        let (needed, max) = (HEADER_BYTES + TAG_BYTES + value, datagrams.packet_bytes_max());
        if needed > max { Err(FormationError::TooLong { needed, max }) } else { Ok(()) }
    }

    /// What must be the same at all members, as a number.
    fn digest(&self) -> u64 {
        let text = format!(
            "{:?} {:?} {:?} {:?} {:?} {} {:?} {} {:?} {} {:?}",
            self.algorithm,
            self.repeat_after,
            self.failure_timeout,
            self.quorum,
            // A function of the user's counts by its length and counting alone.
            self.reduction,
            self.uses_multicast,
            self.multicast_group,
            self.interfaces.len(),
            self.logp,
            self.is_measured,
            self.waiting,
        );
        SipHasher24::new_with_keys(0, 0).hash(text.as_bytes())
    }
}

/// Lets rank 0 send a multicast, and all others say whether it has come.
async fn try_multicast(
    meeting: &mut Meeting,
    datagrams: &mut Datagrams,
    (id, wanted): (GroupId, Option<Node>),
    server: &Server,
    deadline: Instant,
) -> Result<MulticastState, FormationError> {
    let joined = match datagrams.obstacle() {
        Some(obstacle) => obstacle.to_owned(),
        None => match datagrams.join(id, wanted) {
            Ok(()) => String::new(),
            Err(error) => format!("joining a multicast group failed: {error}"),
        },
    };
    let all = meeting.all_gather("joined", joined.as_bytes(), deadline).await?;
    if let Some(why) = first_of(&all) {
        return Ok(MulticastState::Blocked { why });
    }
    let probes: Vec<Vec<u8>> = (0..datagrams.networks()).map(|net| probe(id, net)).collect();
    let heard = if meeting.rank() == Rank(0) {
        match send_probes(datagrams, &probes) {
            Ok(()) => String::new(),
            Err(error) => format!(
                "sending a multicast failed: {error}; is there a route for multicast (`ip route add 224.0.0.0/4 dev …`), and does a \
                 filter forbid it?"
            ),
        }
    } else {
        hear_probes(datagrams, &probes, server).await?
    };
    let gather = meeting.all_gather("heard", heard.as_bytes(), deadline);
    let is_sender = heard.is_empty();
    let all = repeating(server, gather, || {
        if is_sender {
            // Those who have heard it do not mind.
            let _ = send_probes(datagrams, &probes);
        }
    });
    let all = all.await?;
    Ok(first_of(&all).map_or(MulticastState::Works, |why| MulticastState::Blocked { why }))
}

/// Awaits `future`, and calls `again` every now and then until it is done.
async fn repeating<T>(
    server: &Server,
    future: impl Future<Output = T>,
    mut again: impl FnMut(),
) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Some(done) = within(server, server.now() + PROBE_EVERY, future.as_mut()).await {
            return done;
        }
        again();
    }
}

fn probe(id: GroupId, net: usize) -> Vec<u8> {
    let net = u8::try_from(net).unwrap_or(u8::MAX);
    [&PROBE_MAGIC[..], &[net], &id.0.to_le_bytes()].concat()
}

fn send_probes(
    datagrams: &mut Datagrams,
    probes: &[Vec<u8>],
) -> Result<(), vigie_via::datagram::DatagramError> {
    probes.iter().enumerate().try_for_each(|(net, probe)| datagrams.multicast_on(net, probe))
}

/// Waits for a probe on each network. Returns what is wrong, or nothing.
async fn hear_probes(
    datagrams: &mut Datagrams,
    probes: &[Vec<u8>],
    server: &Server,
) -> Result<String, FormationError> {
    let until = server.now() + PROBE_TIME;
    let mut heard = vec![false; probes.len()];
    loop {
        datagrams.take_all(|net, is_multicast, packet| {
            if is_multicast && probes.get(net).is_some_and(|probe| probe == packet) {
                heard[net] = true;
            }
        })?;
        if heard.iter().all(|heard| *heard) {
            return Ok(String::new());
        }
        if server.now() >= until {
            return Ok("a multicast of rank 0 does not arrive: on a bridge or switch with IGMP snooping but without a querier, turn \
                       snooping off (`ip link set br0 type bridge mcast_snooping 0`) or a querier on; else see to filters and routes \
                       (`ip route add 224.0.0.0/4 dev …`)"
                .to_owned());
        }
        server.timers().wait(server.now() + PROBE_LOOK).await?;
    }
}

/// Returns the first objection, with its rank.
fn first_of(said: &[Vec<u8>]) -> Option<String> {
    let (rank, why) = (0..).map(Rank).zip(said).find(|(_, why)| !why.is_empty())?;
    Some(format!("{rank}: {}", String::from_utf8_lossy(why)))
}

fn shared_cores() -> Cores {
    let cores = thread::available_parallelism().map_or(1, Into::into);
    let cores = u32::try_from(cores).ok().and_then(NonZeroU32::new);
    cores.map_or(Cores::Own, Cores::Shared)
}

/// What a member says of itself.
struct Here {
    digest: u64,
    /// Differs from host to host.
    host: u64,
    /// Differs from network namespace to network namespace, too.
    stack: u64,
    cores: u32,
    address: Vec<u8>,
}

impl Here {
    fn new(digest: u64, datagrams: &Datagrams) -> Self {
        // A kernel that does not tell is a host of its own.
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| {
            vigie_detect::clock::monotonic_now().as_nanos().to_le_bytes().to_vec()
        });
        // Without its name, members of one host count as of one stack.
        let stack = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let stack = stack.into_os_string().into_encoded_bytes();
        let hash = |bytes: &[u8]| SipHasher24::new_with_keys(0, 0).hash(bytes);
        let cores = thread::available_parallelism().map_or(1, Into::into);
        Self {
            digest: digest ^ u64::try_from(datagrams.networks()).unwrap_or(0),
            host: hash(&boot),
            stack: hash(&[boot, stack].concat()),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            address: datagrams.address(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [
            &self.digest.to_le_bytes()[..],
            &self.host.to_le_bytes(),
            &self.stack.to_le_bytes(),
            &self.cores.to_le_bytes(),
            &self.address,
        ]
        .concat()
    }

    fn decode_all(said: &[Vec<u8>]) -> Result<Vec<Self>, FormationError> {
        let one = |(rank, said): (u32, &Vec<u8>)| {
            Self::decode(said).ok_or(FormationError::Address { rank: Rank(rank) })
        };
        (0..).zip(said).map(one).collect()
    }

    fn decode(said: &[u8]) -> Option<Self> {
        let (digest, rest) = said.split_first_chunk::<8>()?;
        let (host, rest) = rest.split_first_chunk::<8>()?;
        let (stack, rest) = rest.split_first_chunk::<8>()?;
        let (cores, address) = rest.split_first_chunk::<4>()?;
        Some(Self {
            digest: u64::from_le_bytes(*digest),
            host: u64::from_le_bytes(*host),
            stack: u64::from_le_bytes(*stack),
            cores: u32::from_le_bytes(*cores),
            address: address.to_vec(),
        })
    }
}
