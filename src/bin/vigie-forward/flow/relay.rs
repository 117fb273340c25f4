//! Streams and datagrams.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    rc::Rc,
    sync::Arc,
};

use rustix::thread::CapabilitySet;
use vigie::{
    Instant, JoinHandle, Runtime,
    detect::clock::monotonic_now,
    forward::relay::{
        self as library, Balance, ConnectionTask, FrameMode as LibraryFrameMode, Framing,
        HealthCheckConfig, LengthFormat, RelayHandle, RelayStats, RetryBudget, TargetStats,
        Transfer, UdpRelayHandle, UdpRelayStats, Upstream,
    },
    spawn_local,
};

use super::{
    Drained, Draining, Earlier, EarlierRelay, FlowError, Listener, Local, Prepared, Running,
    StartContext,
    tls::{self, Identities, RelayTls},
};
use crate::{
    access_log,
    config::{
        BalanceChoice, EndpointUri, FileProblems, FrameMode, HostPort, LengthForm, LogChoice,
        Relay, RelayMode, Retries, TargetUri, uses_tls,
    },
    instance::InstanceEvent,
    journal::log,
    kernel::NetlinkCache,
    privileges::{Right, has_given_up},
    stats::{FlowReport, TargetReport},
};

/// The memory for buffers of one flow, in bytes.
const MEMORY_BYTES_MAX: usize = 256 << 20;

/// Binds the sockets, unless there is a listener of an earlier relay.
pub(super) fn prepare(
    name: &str,
    relay: &Relay,
    streams: Option<&Runtime>,
    earlier: Earlier,
) -> Result<Box<dyn Prepared>, FlowError> {
    let missing = || FlowError::InvalidSetting("there is no runtime for streams".to_owned());
    let streams = streams.ok_or_else(missing)?;
    let head = FlowReport {
        name: name.to_owned(),
        kind: "relay".to_owned(),
        side: "host".to_owned(),
        ..FlowReport::default()
    };
    match &relay.listen {
        EndpointUri::Udp(listen) => prepare_datagrams(head, *listen, relay, (streams, earlier)),
        _ => prepare_streams(head, relay, (streams, earlier)),
    }
}

fn endpoint(of: &EndpointUri) -> Option<library::Endpoint> {
    match of {
        EndpointUri::Tcp(address) => Some(library::Endpoint::Tcp(*address)),
        EndpointUri::Unix(path) => Some(library::Endpoint::Unix(path.clone())),
        _ => None,
    }
}

/// Logs that the socket file of a killed instance is taken over.
fn log_if_stale(flow: &str, listen: &EndpointUri) {
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if let EndpointUri::Unix(path) = listen
        && fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(is_refused)
    {
        log(format!(
            "flow `{flow}`: takes over {}, which no process listens on any more",
            path.display()
        ));
    }
}

/// Explains why listening failed; a low port requires a capability.
fn cannot_listen(at: &str, address: Option<SocketAddr>, source: io::Error) -> FlowError {
    match address {
        // Of a port; the message of `source` has other remedies.
        Some(_) if source.kind() == io::ErrorKind::PermissionDenied => {
            let or = if has_given_up(CapabilitySet::NET_BIND_SERVICE) {
                "restart this process, which gave up the right after its start"
            } else {
                "give the program the right (`setcap cap_net_bind_service+ep`)"
            };
            let problem = format!("cannot listen on {at}: {source}, or {or}");
            FlowError::Rights { key: "listen", problem }
        }
        _ => FlowError::Io { what: format!("cannot listen on {at}"), source },
    }
}

/// Returns a target of streams.
fn upstream(to: &TargetUri) -> Option<Upstream> {
    let upstream = match &to.url {
        EndpointUri::TcpName(HostPort { host, port }) => Some(Upstream::named(host, *port)),
        url => endpoint(url).map(Upstream::from),
    };
    Some(upstream?.weight(to.weight))
}

fn read_tls(relay: &Relay) -> Result<RelayTls, FlowError> {
    tls::read(relay, upstream).map_err(|wrong| {
        let (key, problem) = wrong.into_iter().next().unwrap_or_default();
        FlowError::InvalidKey { key, problem }
    })
}

/// Reads certificates and keys.
pub(super) fn check_files(relay: &Relay) -> Result<(), FlowError> {
    read_tls(relay).map(drop)
}

/// Returns all that is wrong with certificates and keys.
pub(super) fn file_problems(relay: &Relay) -> FileProblems {
    tls::read(relay, upstream).err().unwrap_or_default()
}

/// Returns warnings of certificates that are not valid or expire soon.
pub(super) fn file_warnings(name: &str, relay: &Relay) -> Vec<String> {
    let read = tls::read(relay, upstream);
    read.map_or_else(|_| Vec::new(), |tls| tls.identities.warn(name, monotonic_now()))
}

fn prepare_streams(
    mut head: FlowReport,
    relay: &Relay,
    (streams, earlier): (&Runtime, Earlier),
) -> Result<Box<dyn Prepared>, FlowError> {
    let no_stream =
        || FlowError::InvalidSetting(format!("{} is not a stream endpoint", relay.listen));
    let mut builder = library::Relay::builder(endpoint(&relay.listen).ok_or_else(no_stream)?);
    match earlier.listener {
        Some(Listener::Streams(listener)) => builder = builder.listener(listener),
        _ => log_if_stale(&head.name, &relay.listen),
    }
    if let Some(EarlierRelay::Streams(earlier)) = &earlier.relay {
        builder = builder.successor_of(earlier);
    }
    builder = limited(builder.name(head.name.as_str()), relay);
    if relay.log == LogChoice::Each {
        let flow = Arc::from(head.name.as_str());
        builder =
            builder.observe(move |record| access_log::offer(&flow, access_log::connection(record)));
    }
    let RelayTls { router, upstreams, identities } = read_tls(relay)?;
    builder = upstreams.into_iter().fold(builder, library::RelayBuilder::upstream);
    if let Some(router) = router {
        builder = builder.tls(router);
    }
    builder = builder.balance(balance(relay.balance)).resolve_every(relay.resolve.0);
    if let Some(check) = relay.check {
        let config = HealthCheckConfig::default().every(check.every.0).timeout(check.timeout.0);
        builder = builder.check(config.rise(check.rise).fall(check.fall));
    }

    if let Some(Retries { percent, min_per_second }) = relay.retries {
        let budget = RetryBudget::default().percent(percent).min_per_second(min_per_second);
        builder = builder.retries(budget);
    }

    let (transfer, path) = match relay.mode {
        RelayMode::Auto => (Transfer::Adaptive, "adaptive"),
        RelayMode::Copy => (Transfer::Copy, "copy"),
        RelayMode::Splice => (Transfer::Splice, "splice"),
    };

    builder = builder.transfer(transfer);
    head.path = path.to_owned();
    if let Some(form) = relay.framed {
        builder = builder.framing(framing(form, relay));
        head.path = "framed".to_owned();
        head.because = match relay.frame_mode {
            FrameMode::Planned => "as the model chose by the measured times of both links",
            FrameMode::StoreAndForward | FrameMode::CutThrough => "as configured",
        }
        .to_owned();
    }

    if relay.proxy_send {
        builder = builder.send_proxy_header();
    }

    for range in &relay.proxy_from {
        builder = builder.trust_proxy_header(range.0);
    }

    let bound = builder.bind_on(streams.server());
    let bound = bound.map_err(|error| match error {
        library::BindError::Listen { endpoint, source } => {
            cannot_listen(&endpoint.to_string(), endpoint.address(), source)
        }
        error => FlowError::InvalidSetting(error.to_string()),
    })?;

    // The port that the kernel chose, if the configured one is 0.
    head.between = format!("{} -> {}", bound.endpoint(), targets(relay));
    let runtime = streams.handle().clone();
    Ok(Box::new(PreparedRelay {
        head,
        relay: BoundRelay::Streams { relay: bound, tls: TlsNames::of(relay) },
        runtime,
        identities,
    }))
}

/// Applies who may connect, how often and for how long.
fn limited(mut builder: library::RelayBuilder, relay: &Relay) -> library::RelayBuilder {
    let connections = usize::try_from(relay.connections_max).unwrap_or(usize::MAX);
    builder = builder
        .setup_timeout(relay.connect.0)
        .idle_timeout(Some(relay.idle.0))
        .memory_bytes_max(MEMORY_BYTES_MAX)
        .connections_max(connections);
    builder = relay.allow.iter().fold(builder, |builder, range| builder.allow(range.0));
    builder = relay.deny.iter().fold(builder, |builder, range| builder.deny(range.0));
    if let Some(max) = relay.per_source_max {
        builder = builder.per_source_max(usize::try_from(max).unwrap_or(usize::MAX));
    }
    builder
}

/// The targets as text.
fn targets(relay: &Relay) -> String {
    let to: Vec<_> = relay.to.iter().map(TargetUri::to_string).collect();
    to.join(" | ")
}

const fn balance(choice: BalanceChoice) -> Balance {
    match choice {
        BalanceChoice::First => Balance::First,
        BalanceChoice::RoundRobin => Balance::RoundRobin,
        BalanceChoice::LeastConnections => Balance::LeastConnections,
        BalanceChoice::RandomTwo => Balance::RandomTwo,
        BalanceChoice::Hash => Balance::Hash,
    }
}

fn framing(form: LengthForm, relay: &Relay) -> Framing {
    let format = match form {
        LengthForm::U16Be => LengthFormat::U16Be,
        LengthForm::U32Be => LengthFormat::U32Be,
        LengthForm::U32Le => LengthFormat::U32Le,
        LengthForm::U64Be => LengthFormat::U64Be,
        LengthForm::Varint => LengthFormat::Varint,
    };
    let mode = match relay.frame_mode {
        FrameMode::Planned => LibraryFrameMode::Planned,
        FrameMode::StoreAndForward => LibraryFrameMode::StoreAndForward,
        FrameMode::CutThrough => LibraryFrameMode::CutThrough,
    };
    Framing::new(format).mode(mode).message_bytes_max(relay.message_max)
}

fn prepare_datagrams(
    mut head: FlowReport,
    listen: SocketAddr,
    relay: &Relay,
    (streams, earlier): (&Runtime, Earlier),
) -> Result<Box<dyn Prepared>, FlowError> {
    let mut upstreams = relay.to.iter().filter_map(|to| {
        let upstream = match &to.url {
            EndpointUri::Udp(address) => Upstream::<SocketAddr>::from(*address),
            EndpointUri::UdpName(HostPort { host, port }) => Upstream::named(host, *port),
            _ => return None,
        };
        Some(upstream.weight(to.weight))
    });
    let first = upstreams.next();
    let first =
        first.ok_or_else(|| FlowError::InvalidSetting("datagrams go to udp://".to_owned()))?;
    let sessions = usize::try_from(relay.connections_max).unwrap_or(usize::MAX);
    let builder = upstreams.fold(library::UdpRelay::builder(listen, first), |builder, upstream| {
        builder.upstream(upstream)
    });
    let builder = builder.balance(balance(relay.balance)).resolve_every(relay.resolve.0);
    let mut builder =
        builder.name(head.name.as_str()).expire_after(relay.idle.0).sessions_max(sessions);
    builder = relay.allow.iter().fold(builder, |builder, range| builder.allow(range.0));
    builder = relay.deny.iter().fold(builder, |builder, range| builder.deny(range.0));
    if let Some(max) = relay.per_source_max {
        builder = builder.per_source_max(usize::try_from(max).unwrap_or(usize::MAX));
    }
    if relay.log == LogChoice::Each {
        let flow = Arc::from(head.name.as_str());
        builder =
            builder.observe(move |record| access_log::offer(&flow, access_log::connection(record)));
    }
    if let Some(Listener::Datagrams(listener)) = earlier.listener {
        builder = builder.listener(listener);
    }
    if let Some(EarlierRelay::Datagrams(earlier)) = &earlier.relay {
        builder = builder.successor_of(earlier);
    }
    let bound = builder.bind_on(streams.server()).map_err(|error| match error {
        library::BindError::ListenUdp { address, source } => {
            cannot_listen(&format!("udp://{address}"), Some(address), source)
        }
        error => FlowError::InvalidSetting(error.to_string()),
    })?;
    head.path = "datagrams".to_owned();
    head.between = format!("udp://{} -> {}", bound.address(), targets(relay));
    Ok(Box::new(PreparedRelay {
        head,
        relay: BoundRelay::Datagrams(bound),
        runtime: streams.handle().clone(),
        identities: Identities::default(),
    }))
}

enum BoundRelay {
    Streams { relay: library::Relay, tls: TlsNames },
    Datagrams(library::UdpRelay),
}

/// A relay that listens, but does not accept yet.
struct PreparedRelay {
    head: FlowReport,
    relay: BoundRelay,
    runtime: vigie::Handle,
    identities: Identities,
}

impl Prepared for PreparedRelay {
    fn rights(&self) -> Vec<Right> {
        Vec::new()
    }

    fn start(self: Box<Self>, context: &StartContext<'_>) -> Result<Box<dyn Running>, FlowError> {
        let Self { head, relay, runtime, identities } = *self;
        let connections = runtime.clone();
        let spawn = move |connection| connections.spawn::<ConnectionTask>(connection).detach();
        let listens = |at: &str| log(format!("flow `{}` listens at {at}", head.name));
        let (handle, serving) = match relay {
            BoundRelay::Streams { relay, tls } => {
                listens(&relay.endpoint().to_string());
                let handle = AnyRelayHandle::Streams { handle: relay.handle(), tls };
                (handle, runtime.spawn(async move { relay.serve(spawn).await.map(|all| all.cut) }))
            }
            BoundRelay::Datagrams(relay) => {
                listens(&format!("udp://{}", relay.address()));
                let handle = AnyRelayHandle::Datagrams(relay.handle());
                (handle, runtime.spawn(async move { relay.serve(spawn).await.map(|()| 0) }))
            }
        };

        let ended = Rc::new(RefCell::new(None));
        let (name, result, mailbox) =
            (head.name.clone(), Rc::clone(&ended), Rc::clone(context.mailbox));
        let watcher = spawn_local(async move {
            let said = match serving.await {
                Ok(served) => served,
                Err(error) => Err(io::Error::other(error)),
            };
            if let Err(error) = &said {
                mailbox.post(InstanceEvent::Failed { flow: name, problem: error.to_string() });
            }
            result.replace(Some(said.unwrap_or(0)));
        });

        Ok(Box::new(RunningRelay { head, handle, watcher, ended, identities }))
    }
}

/// What a relay's report says of TLS.
struct TlsNames {
    is_used: bool,
    /// Whether there are targets of the relay itself.
    has_own: bool,
    /// The first name of each route with targets of its own.
    routes: Vec<String>,
}

impl TlsNames {
    fn of(relay: &Relay) -> Self {
        let routes = relay.route.iter().filter(|route| !route.to.is_empty());
        let routes = routes.map(|route| route.names.first().cloned().unwrap_or_default()).collect();
        Self { is_used: uses_tls(relay), has_own: !relay.to.is_empty(), routes }
    }
}

enum AnyRelayHandle {
    Streams { handle: RelayHandle, tls: TlsNames },
    Datagrams(UdpRelayHandle),
}

/// A running relay.
struct RunningRelay {
    head: FlowReport,
    handle: AnyRelayHandle,
    watcher: JoinHandle<()>,
    /// The number of connections cut, once it has ended.
    ended: Rc<RefCell<Option<u64>>>,
    identities: Identities,
}

impl Running for RunningRelay {
    fn report(&self) -> FlowReport {
        let certificates = self.identities.report();
        FlowReport { certificates, ..self.handle.report(&self.head) }
    }

    fn tick(&mut self, _: Option<&NetlinkCache>, now: Instant) {
        self.identities.warn(&self.head.name, now).iter().for_each(log);
    }

    fn reload(&self) -> Vec<String> {
        self.identities.reload(&self.head.name)
    }

    fn listener(&self) -> Option<Listener> {
        match &self.handle {
            AnyRelayHandle::Streams { handle, .. } => handle.listener().map(Listener::Streams),
            AnyRelayHandle::Datagrams(handle) => Some(Listener::Datagrams(handle.listener())),
        }
    }

    fn relay(&self) -> Option<EarlierRelay> {
        Some(match &self.handle {
            AnyRelayHandle::Streams { handle, .. } => EarlierRelay::Streams(handle.clone()),
            AnyRelayHandle::Datagrams(handle) => EarlierRelay::Datagrams(handle.clone()),
        })
    }

    fn hand_over(&self, deadline: Instant) -> Local<'static, ()> {
        let time = deadline.saturating_duration_since(monotonic_now());
        match &self.handle {
            AnyRelayHandle::Streams { handle, .. } => {
                let handle = handle.clone();
                Box::pin(async move { handle.hand_over(time).await })
            }
            AnyRelayHandle::Datagrams(handle) => {
                let handle = handle.clone();
                Box::pin(async move { handle.hand_over(time).await })
            }
        }
    }

    fn drain(self: Box<Self>, deadline: Instant) -> Draining {
        let Self { head, handle, watcher, ended, .. } = *self;
        let time = deadline.saturating_duration_since(monotonic_now());
        match &handle {
            AnyRelayHandle::Streams { handle, .. } => handle.drain(time),
            AnyRelayHandle::Datagrams(handle) => handle.drain(time),
        }
        let ended = Box::pin(async move {
            // It does not panic, and is never aborted.
            let _ = watcher.await;
            Drained { cut: ended.take().unwrap_or(0) }
        });
        Draining { report: Box::new(move || handle.report(&head)), ended }
    }
}

impl AnyRelayHandle {
    fn report(&self, head: &FlowReport) -> FlowReport {
        let (has_own, routes) = match self {
            Self::Streams { tls, .. } => (tls.has_own, tls.routes.as_slice()),
            Self::Datagrams(_) => (true, &[][..]),
        };
        let (mut report, targets, rules) = match self {
            Self::Streams { handle, tls } => {
                (of_streams(head, &handle.stats(), tls.is_used), handle.targets(), handle.access())
            }
            Self::Datagrams(handle) => {
                (of_datagrams(head, &handle.stats()), handle.targets(), handle.access())
            }
        };
        for rule in rules {
            let name = format!("rule: {} {}", rule.action, rule.network);
            // A network may be given twice, of which only the first decides.
            *report.counters.entry(name).or_default() += rule.hits;
        }
        let sentence = sentence(&report);
        let targets: Vec<_> = targets.into_iter().map(|target| of_target(target, routes)).collect();
        let is_available = |route: &Option<&String>| {
            targets.iter().any(|one| one.route.as_ref() == *route && one.is_available())
        };
        let groups = has_own.then_some(None).into_iter().chain(routes.iter().map(Some));
        let without = groups.filter(|route| !is_available(route));
        let without_target = without.map(|route| route.cloned().unwrap_or_default()).collect();
        FlowReport { targets, without_target, sentence, ..report }
    }
}

/// Explains a relay in one sentence.
fn sentence(of: &FlowReport) -> String {
    let FlowReport { name, between, path, because, counters, .. } = of;
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    let percent = |part: u64, all: u64| part.saturating_mul(100).checked_div(all);
    let (spliced, copied) = (count("bytes_spliced"), count("bytes_copied"));
    let (cut, messages) = (count("messages_cut_through"), count("messages"));
    let how = match path.as_str() {
        "adaptive" => {
            const WHY: &str =
                "a stream that fills its buffers is spliced where that is measured to be faster";
            match percent(spliced, spliced.saturating_add(copied)) {
                Some(_)
                    if spliced == 0 && count("tls_clients_ok") + count("tls_upstreams_ok") > 0 =>
                {
                    "all bytes were copied, as those of TLS are".to_owned()
                }
                Some(_) if spliced == 0 => format!("all bytes were copied; {WHY}"),
                Some(0) => format!("less than 1 % of the bytes were spliced; {WHY}"),
                Some(share) => format!("{share} % of the bytes were spliced; {WHY}"),
                None => format!("no bytes yet; {WHY}"),
            }
        }
        "framed" => match percent(cut, messages) {
            Some(share) => format!(
                "of {messages} messages {share} % were cut through and the others stored first, {because}"
            ),
            None => format!("no messages yet; they are stored first or cut through, {because}"),
        },
        "copy" | "splice" => format!("bytes move by {path}, as configured"),
        _ => "datagrams are copied".to_owned(),
    };
    format!(
        "`{name}` ({between}) is relayed between sockets on the host, since no interface forwards streams: {how}."
    )
}

fn of_streams(head: &FlowReport, stats: &RelayStats, has_tls: bool) -> FlowReport {
    FlowReport {
        units: stats.accepted,
        bytes: stats.bytes_up.saturating_add(stats.bytes_down),
        dropped: stats.denied
            + stats.over_source_max
            + stats.refused
            + stats.over_retry_budget
            + stats.reset
            + stats.timed_out
            + stats.malformed
            + stats.tls_clients_failed
            + stats.cut,
        counters: owned(stats.named().filter(|(name, _)| has_tls || !name.starts_with("tls_"))),
        ..head.clone()
    }
}

fn of_datagrams(head: &FlowReport, stats: &UdpRelayStats) -> FlowReport {
    FlowReport {
        units: stats.datagrams_up.saturating_add(stats.datagrams_down),
        bytes: stats.bytes_up.saturating_add(stats.bytes_down),
        dropped: stats.denied
            + stats.over_source_max
            + stats.dropped
            + stats.refused
            + stats.overflowed,
        counters: owned(stats.named()),
        ..head.clone()
    }
}

fn of_target(stats: TargetStats, routes: &[String]) -> TargetReport {
    TargetReport {
        target: stats.target,
        host: stats.host,
        route: stats.route.and_then(|route| routes.get(route).cloned()),
        weight: stats.weight,
        state: stats.state.to_string(),
        active: stats.active,
        connections: stats.connections,
        failures: stats.failures,
        checks_failed: stats.checks_failed,
    }
}

fn owned(counters: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counters.map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each kind of relay is one sentence with what was measured. Method: reports by hand.
    #[test]
    fn relays_are_explained() {
        let said = |path: &str, counters: &[(&str, u64)]| {
            let counters = counters.iter().map(|(name, count)| ((*name).to_owned(), *count));
            sentence(&FlowReport {
                name: "web".to_owned(),
                kind: "relay".to_owned(),
                between: "a -> b".to_owned(),
                path: path.to_owned(),
                because: "as configured".to_owned(),
                counters: counters.collect(),
                ..FlowReport::default()
            })
        };
        for (said, words) in [
            (said("adaptive", &[("bytes_spliced", 3), ("bytes_copied", 1)]), "75 % of the bytes"),
            (said("adaptive", &[("bytes_copied", 9)]), "all bytes were copied; "),
            (
                said("adaptive", &[("bytes_copied", 9), ("tls_clients_ok", 1)]),
                "as those of TLS are",
            ),
            (said("adaptive", &[("bytes_spliced", 1), ("bytes_copied", 999)]), "less than 1 %"),
            (said("adaptive", &[]), "no bytes yet"),
            (
                said("framed", &[("messages", 4), ("messages_cut_through", 1)]),
                "of 4 messages 25 % were cut through and the others stored first, as configured",
            ),
            (said("framed", &[]), "no messages yet"),
            (said("splice", &[]), "by splice, as configured"),
            (said("datagrams", &[]), "datagrams are copied"),
        ] {
            assert!(said.contains(words), "{said}");
            assert!(said.starts_with("`web` (a -> b) is relayed") && said.ends_with('.'), "{said}");
        }
    }
}
