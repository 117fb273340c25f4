//! The formation of a group.

use std::{future::Future, net::SocketAddr, num::NonZeroU32, sync::Arc, thread, time::Duration};

use vigie_detect::{HostThread, Instant, Server};
use vigie_via::{auth, datagram::NodeAddress, message::Communicator, vi::Provider, world::World};

use super::{
    barrier::{MulticastState, NetBarrier},
    bootstrap::{NetBootstrap, Secrets, TcpBootstrap},
    datagrams::{DatagramTransport, NetworkAttachment},
    error::FormationError,
    faults::{Faults, FaultyTransport},
    messages::MessageTransport,
    plan::{PlannerInput, WaitMode},
    transport::Transport,
};
use crate::{
    algorithm::Algorithm,
    deadline::with_deadline,
    error::BarrierError,
    group::{Group, Rank},
    logp::{self, CoreAllocation, LogP},
    member::{Member, MemberConfig, Quorum},
    packet::{GroupId, HEADER_BYTES, Key},
    reduction::Reduction,
};

/// A member's default port.
const PORT: u8 = 47;
/// The time that a test multicast may take to reach all members.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// Time between two test multicasts.
const PROBE_EVERY: Duration = Duration::from_millis(20);
/// Time between two polls for them.
const PROBE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The first bytes of a test multicast; the group's name and the network follow.
const PROBE_MAGIC: [u8; 2] = *b"vP";

/// Typical costs of sockets on one host, by which the algorithm is chosen unless others are given: the sending system
/// call does all the work.
const TYPICAL: LogP = LogP::new(
    Duration::from_nanos(6_000),
    Duration::from_nanos(15_000),
    Duration::from_nanos(1_000),
)
.with_multicast(logp::Multicast::new(Duration::from_nanos(5_000), Duration::from_nanos(900)));

/// Forms groups: all members need the same settings, except for their interfaces.
///
/// # Examples
/// ```
/// use vigie_barrier::net::NetBarrier;
/// use vigie_via::{datagram::UdpConfig, world};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let host = vigie_detect::Server::spawn_thread()?;
/// let (_launcher, worlds) = world::local(host.server(), 2)?;
/// let members = worlds.into_iter().zip(1..).map(|(world, last)| {
///     let address = UdpConfig::new([127, 44, 0, last].into()).base_port(24_000);
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
    attachments: Vec<NetworkAttachment>,
    port: u8,
    name: String,
    server: Option<Server>,
    algorithm: Option<Algorithm>,
    logp: LogP,
    is_measured: bool,
    wait_mode: WaitMode,
    uses_multicast: bool,
    multicast_group: Option<NodeAddress>,
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
            attachments: Vec::new(),
            port: PORT,
            name: String::new(),
            server: None,
            algorithm: None,
            logp: TYPICAL,
            is_measured: false,
            wait_mode: WaitMode::Adaptive,
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

    /// Adds a network: the first one, and a second one for algorithms that can use it.
    pub fn network(mut self, attachment: impl Into<NetworkAttachment>) -> Self {
        self.attachments.push(attachment.into());
        self
    }

    /// Sets the datagram port of the members, 47 by default. Multicast needs the same port at all of them.
    pub const fn port(mut self, number: u8) -> Self {
        self.port = number;
        self
    }

    /// Sets a name that distinguishes the barriers of one world; empty by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the server that hosts the barrier: by default the current one, or else a separate host thread.
    pub fn server(mut self, server: &Server) -> Self {
        self.server = Some(server.clone());
        self
    }

    /// Sets the algorithm. By default the planner chooses it, using typical costs or [given](Self::costs) ones.
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Sets the costs by which the planner chooses; the same at all members.
    pub const fn costs(mut self, costs: LogP) -> Self {
        self.logp = costs;
        self
    }

    /// [Measures](NetBarrier::measure) the transport when the group is formed, and chooses the algorithm by the
    /// result, unless one was set. This takes some tenths of a second. A group [over messages](Self::over) is formed
    /// without measuring, and measures when it [replans](NetBarrier::replan).
    pub const fn measure_costs(mut self) -> Self {
        self.is_measured = true;
        self
    }

    /// Sets how members wait: by default they poll for a while, then sleep.
    pub const fn wait_mode(mut self, wait_mode: WaitMode) -> Self {
        self.wait_mode = wait_mode;
        self
    }

    /// Disables multicast: packets for everyone are sent to each member separately.
    pub const fn unicast_only(mut self) -> Self {
        self.uses_multicast = false;
        self
    }

    /// Sets the multicast address, or the group address on Ethernet. By default it is derived from the group's name.
    pub const fn multicast_group(mut self, group: NodeAddress) -> Self {
        self.multicast_group = Some(group);
        self
    }

    /// Sets the reduction. Default: none.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = Some(reduction);
        self
    }

    /// Sets how long a member waits before it asks for what it misses, as [`MemberConfig::repeat_after`]. By
    /// default 10 ms; on one host, 10 ms for each member that shares a processor, up to 200 ms, and at most a 32nd of
    /// the failure timeout.
    pub const fn repeat_after(mut self, time: Duration) -> Self {
        self.repeat_after = Some(time);
        self
    }

    /// Sets the time within which a dead member is known to all others, as [`MemberConfig::failure_timeout`]: 10 s
    /// by default.
    pub const fn failure_timeout(mut self, time: Duration) -> Self {
        self.failure_timeout = Some(time);
        self
    }

    /// Sets how many members must be left after a failure for [`shrink`](NetBarrier::shrink) to form a smaller group:
    /// [`Quorum::Majority`] by default, since silence may mean a split network.
    pub const fn quorum(mut self, quorum: Quorum) -> Self {
        self.quorum = quorum;
        self
    }

    /// Sets how long members wait for each other while the group is formed, 30 s by default.
    pub const fn formation_timeout(mut self, time: Duration) -> Self {
        self.formation_timeout = time;
        self
    }

    /// Sets the secret of members that [meet](Self::form_at) at an address. Without it, any process that reaches the
    /// address may become a member, and any process that listens there can forge packets.
    pub const fn secret(mut self, secret: [u8; 32]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Deliberately loses, duplicates and delays packets: for tests.
    pub const fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Forms the group of all ranks of a world, which exchange addresses through its launcher.
    ///
    /// # Cancel safety
    /// Not cancel safe: the other members rely on this one.
    ///
    /// # Errors
    /// [`FormationError`].
    pub async fn form(mut self, world: &World) -> Result<NetBarrier, FormationError> {
        let host = self.host()?;
        let name = std::mem::take(&mut self.name);
        let bootstrap = NetBootstrap::World { world: world.clone(), name };
        let deadline = host.0.now() + self.formation_timeout;
        self.form_with(bootstrap, host, deadline).await
    }

    /// Forms a group whose members meet at an address, over TCP: rank 0 listens there.
    ///
    /// # Cancel safety
    /// The same as [`form`](Self::form).
    ///
    /// # Errors
    /// [`FormationError`].
    pub async fn form_at(
        self,
        address: SocketAddr,
        rank: Rank,
        size: u32,
    ) -> Result<NetBarrier, FormationError> {
        let group = Group::new(size)?;
        if !group.contains(rank) {
            return Err(FormationError::Rank { rank, size });
        }
        if self.secret.is_none() && size > 1 && !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "a barrier is formed without a secret: whoever reaches this address can join it; set `NetBuilder::secret`"
            );
        }
        let host = self.host()?;
        let deadline = host.0.now() + self.formation_timeout;
        let tcp =
            TcpBootstrap::start(&host.0, address, (rank, size), self.secret, deadline).await?;
        self.form_with(NetBootstrap::Tcp(Box::new(tcp)), host, deadline).await
    }

    /// Creates a barrier of the ranks of a communicator, whose messages carry its packets. Nothing is exchanged: all
    /// ranks must call this at the same place in the order in which they [duplicate](Communicator::duplicate) the
    /// communicator.
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
        let messages = MessageTransport::new(communicator).map_err(|error| {
            BarrierError::io("duplicating the communicator")(std::io::Error::other(error))
        })?;
        let is_simulated = host.0.is_virtual();
        let cores = if is_simulated { CoreAllocation::Dedicated } else { shared_cores() };
        let planner_input = self.planner_input(false, cores);
        let algorithm = self.choose(group, &planner_input)?;
        // Only the connected ranks send messages, and other communicators are separate.
        let config = self.config(GroupId(0), None, group, cores);
        self.finish(
            host,
            (own, group),
            (algorithm, MulticastState::Unused, planner_input),
            config,
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

    async fn form_with(
        mut self,
        mut bootstrap: NetBootstrap,
        host: (Server, Option<HostThread>),
        deadline: Instant,
    ) -> Result<NetBarrier, FormationError> {
        let (own, size) = (bootstrap.rank(), bootstrap.size());
        let group = Group::new(size)?;
        match self.attachments.len() {
            0 => return Err(FormationError::NoNetwork),
            1 | 2 => {}
            count => return Err(FormationError::TooManyNetworks { count }),
        }

        let mut datagrams =
            DatagramTransport::open(own, std::mem::take(&mut self.attachments), self.port)?;
        self.check_length(&datagrams)?;

        let own_info = MemberInfo::new(self.digest(), &datagrams, host.0.is_virtual());
        let infos = bootstrap.all_gather("address", &own_info.encode(), deadline).await?;
        let all: Vec<MemberInfo> = MemberInfo::decode_all(&infos)?;
        let differs = all.iter().position(|other| other.digest != own_info.digest);
        if let Some(rank) = differs.and_then(|rank| u32::try_from(rank).ok()) {
            return Err(FormationError::Different { rank: Rank(rank) });
        }

        let addresses: Vec<Vec<u8>> = all.iter().map(|other| other.address.clone()).collect();
        datagrams.connect(&addresses).map_err(|rank| FormationError::Address { rank })?;
        if all.iter().filter(|other| other.stack == own_info.stack).count() == 1 {
            datagrams.disable_loopback()?;
        }

        let secrets = bootstrap.secrets();
        let is_wanted =
            self.uses_multicast && size > 1 && self.algorithm.is_none_or(Algorithm::is_multicast);
        let multicast = if is_wanted {
            try_multicast(
                &mut bootstrap,
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
        if let (MulticastState::Unavailable { why }, Rank(0)) = (&multicast, own) {
            tracing::warn!(
                why,
                "multicast does not work, so packets are sent to each member separately"
            );
        }

        let is_one_host = all.iter().all(|other| other.host == own_info.host);
        let cores = all.iter().map(|other| other.cores).min().and_then(NonZeroU32::new);
        let cores =
            cores.filter(|_| is_one_host).map_or(CoreAllocation::Dedicated, CoreAllocation::Shared);
        let planner_input = self.planner_input(multicast == MulticastState::Works, cores);
        let algorithm = self.choose(group, &planner_input)?;

        let Secrets { id, key } = secrets;
        let config = self.config(id, Some(key), group, cores);
        let (is_measured, is_fixed) = (self.is_measured && size > 1, self.algorithm.is_some());
        let planned = (algorithm, multicast, planner_input);
        let datagrams = Box::new(datagrams);
        let mut barrier = self.finish(host, (own, group), planned, config, datagrams)?;

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
        (algorithm, multicast, planner_input): (Algorithm, MulticastState, PlannerInput),
        config: MemberConfig,
        transport: Box<dyn Transport>,
    ) -> Result<NetBarrier, FormationError> {
        let schedule = Arc::new(algorithm.schedule(group)?);
        let member = Member::new(schedule, own, config)?;
        let transport = match self.faults {
            Some(faults) => Box::new(FaultyTransport::new(transport, faults, own)),
            None => transport,
        };
        Ok(NetBarrier::new(host, (algorithm, multicast), planner_input, member, transport)?)
    }

    fn planner_input(&self, has_multicast: bool, cores: CoreAllocation) -> PlannerInput {
        PlannerInput {
            costs: self.logp,
            is_measured: false,
            cores,
            has_multicast,
            has_reduction: self.reduction.is_some(),
            wait_mode: self.wait_mode,
        }
    }

    fn choose(
        &self,
        group: Group,
        planner_input: &PlannerInput,
    ) -> Result<Algorithm, FormationError> {
        if let Some(algorithm) = self.algorithm {
            algorithm.check(group)?;
            return Ok(algorithm);
        }
        Ok(planner_input.plan(group).map_or(Algorithm::Central, |advice| advice.algorithm))
    }

    fn config(
        &self,
        id: GroupId,
        key: Option<Key>,
        group: Group,
        cores: CoreAllocation,
    ) -> MemberConfig {
        let mut config = MemberConfig::new(id);
        // On one host, all members that wait for a late one would ask at once, and keep it from arriving.
        let crowd = match cores {
            CoreAllocation::Shared(cores) => group.size().div_ceil(cores.get()).clamp(1, 20),
            CoreAllocation::Dedicated => 1,
        };
        let patient = config.repeat_after * crowd;
        config = config.key(key);
        config = config.repeat_after(self.repeat_after.unwrap_or_else(|| {
            // The state machine needs some questions within the timeout.
            self.failure_timeout.map_or(patient, |timeout| patient.min(timeout / 32))
        }));
        config = config.failure_timeout(self.failure_timeout);
        config = config.quorum(self.quorum);
        config = config.reduction(self.reduction.clone());
        config
    }

    fn check_length(&self, datagrams: &DatagramTransport) -> Result<(), FormationError> {
        const TAG_BYTES: usize = 8;
        let value = self.reduction.as_ref().map_or(0, Reduction::bytes);
        let (needed, max) = (HEADER_BYTES + TAG_BYTES + value, datagrams.packet_bytes_max());
        if needed > max { Err(FormationError::TooLong { needed, max }) } else { Ok(()) }
    }

    /// A number derived from everything that must be the same at all members.
    fn digest(&self) -> u64 {
        let text = format!(
            "{:?} {:?} {:?} {:?} {:?} {} {:?} {} {:?} {} {:?}",
            self.algorithm,
            self.repeat_after,
            self.failure_timeout,
            self.quorum,
            // A user's function counts only by its length and counting.
            self.reduction,
            self.uses_multicast,
            self.multicast_group,
            self.attachments.len(),
            self.logp,
            self.is_measured,
            self.wait_mode,
        );
        auth::digest(text.as_bytes())
    }
}

/// Rank 0 sends a multicast, and all others report whether it has arrived.
async fn try_multicast(
    bootstrap: &mut NetBootstrap,
    datagrams: &mut DatagramTransport,
    (id, wanted): (GroupId, Option<NodeAddress>),
    server: &Server,
    deadline: Instant,
) -> Result<MulticastState, FormationError> {
    let joined = match datagrams.multicast_obstacle() {
        Some(multicast_obstacle) => multicast_obstacle.to_owned(),
        None => match datagrams.join(id, wanted) {
            Ok(()) => String::new(),
            Err(error) => format!("joining a multicast group failed: {error}"),
        },
    };
    let all = bootstrap.all_gather("joined", joined.as_bytes(), deadline).await?;
    if let Some(why) = first_of(&all) {
        return Ok(MulticastState::Unavailable { why });
    }
    let probes: Vec<Vec<u8>> = (0..datagrams.network_count()).map(|net| probe(id, net)).collect();
    let heard = if bootstrap.rank() == Rank(0) {
        match send_probes(datagrams, &probes) {
            Ok(()) => String::new(),
            Err(error) => format!(
                "sending a multicast failed: {error}; is there a route for multicast (`ip route add 224.0.0.0/4 dev …`), and does a \
                 filter forbid it?"
            ),
        }
    } else {
        receive_probes(datagrams, &probes, server).await?
    };
    let gather = bootstrap.all_gather("heard", heard.as_bytes(), deadline);
    let is_sender = heard.is_empty();
    let all = retry_every(server, gather, || {
        if is_sender {
            // Members that have received it ignore the copies.
            let _ = send_probes(datagrams, &probes);
        }
    });
    let all = all.await?;
    Ok(first_of(&all).map_or(MulticastState::Works, |why| MulticastState::Unavailable { why }))
}

/// Awaits `future`, calling `again` at intervals until it is done.
async fn retry_every<T>(
    server: &Server,
    future: impl Future<Output = T>,
    mut again: impl FnMut(),
) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Some(done) = with_deadline(server, server.now() + PROBE_EVERY, future.as_mut()).await
        {
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
    datagrams: &mut DatagramTransport,
    probes: &[Vec<u8>],
) -> Result<(), vigie_via::datagram::DatagramError> {
    probes.iter().enumerate().try_for_each(|(net, probe)| datagrams.multicast_on(net, probe))
}

/// Waits for a probe on each network. Returns what is wrong, or an empty text.
async fn receive_probes(
    datagrams: &mut DatagramTransport,
    probes: &[Vec<u8>],
    server: &Server,
) -> Result<String, FormationError> {
    let until = server.now() + PROBE_TIME;
    let mut heard = vec![false; probes.len()];
    loop {
        datagrams.receive_all(|net, is_multicast, packet| {
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
        server.timers().wait(server.now() + PROBE_POLL_INTERVAL).await?;
    }
}

/// Returns the first objection, with its rank.
fn first_of(infos: &[Vec<u8>]) -> Option<String> {
    let (rank, why) = (0..).map(Rank).zip(infos).find(|(_, why)| !why.is_empty())?;
    Some(format!("{rank}: {}", String::from_utf8_lossy(why)))
}

fn shared_cores() -> CoreAllocation {
    let cores = thread::available_parallelism().map_or(1, Into::into);
    let cores = u32::try_from(cores).ok().and_then(NonZeroU32::new);
    cores.map_or(CoreAllocation::Dedicated, CoreAllocation::Shared)
}

/// The facts that a member tells the others about itself.
struct MemberInfo {
    digest: u64,
    /// Differs between hosts.
    host: u64,
    /// Differs between network namespaces, too.
    stack: u64,
    cores: u32,
    address: Vec<u8>,
}

impl MemberInfo {
    fn new(digest: u64, datagrams: &DatagramTransport, is_simulated: bool) -> Self {
        let digest = digest ^ u64::try_from(datagrams.network_count()).unwrap_or(0);
        let address = datagrams.address();
        if is_simulated {
            // A node is a host with one core, on whatever machine the simulation runs.
            let host = auth::digest(&address);
            return Self { digest, host, stack: host, cores: 1, address };
        }
        // If the kernel gives no id, this member counts as a host of its own.
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| {
            vigie_detect::clock::monotonic_now().as_nanos().to_le_bytes().to_vec()
        });
        // If the namespace is unknown, members of one host count as sharing one stack.
        let stack = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let stack = stack.into_os_string().into_encoded_bytes();
        let cores = thread::available_parallelism().map_or(1, Into::into);
        Self {
            digest,
            host: auth::digest(&boot),
            stack: auth::digest(&[boot, stack].concat()),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            address,
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

    fn decode_all(infos: &[Vec<u8>]) -> Result<Vec<Self>, FormationError> {
        let one = |(rank, infos): (u32, &Vec<u8>)| {
            Self::decode(infos).ok_or(FormationError::Address { rank: Rank(rank) })
        };
        (0..).zip(infos).map(one).collect()
    }

    fn decode(infos: &[u8]) -> Option<Self> {
        let (digest, rest) = infos.split_first_chunk::<8>()?;
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
