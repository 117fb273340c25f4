//! From an accepted connection to a connected pair: the client's header, an upstream, and the header for it.

use std::{
    collections::VecDeque, future::poll_fn, io, net::IpAddr, os::fd::OwnedFd, pin::pin, sync::Arc,
    time::Duration,
};

use vigie_detect::Instant;

use super::{
    availability::{Choice, TRIAL},
    connection::Connection,
    endpoint::Endpoint,
    error::{Peer, RelayError},
    health::UpstreamHealth,
    own_listener,
    peer_stream::PeerStream,
    proxy::{ProxyError, ProxyHeader, ProxyParse},
    shared::{Opening, RelayShared},
    stream::RelayStream,
    target::{Target, TargetUse},
    wait::{is_exhausted, timeout, timeout_at},
};

/// The first pause before retrying after a lack of descriptors or a full queue; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(100);

/// Reads the header that a trusted client sends first, and no byte beyond it.
pub(super) async fn accept_header(
    shared: &RelayShared,
    client: &Connection,
) -> Result<ProxyHeader, RelayError> {
    let server = &shared.resources.server;
    let deadline = server.now() + shared.settings.setup_timeout;
    let ended = timeout_at(server, deadline, read_header(client)).await;
    let failed = |source| RelayError::Failed { peer: Peer::Client, source };
    ended.map_err(failed)?.unwrap_or_else(|| Err(ProxyError::Late.into()))
}

async fn read_header(client: &Connection) -> Result<ProxyHeader, RelayError> {
    let mut bytes = Vec::new();
    let mut received = 0;
    loop {
        let needed = match ProxyHeader::read(&bytes[..received])? {
            ProxyParse::Complete(header, _) => return Ok(header),
            ProxyParse::Needs(needed) => needed,
        };
        bytes.resize(needed, 0);
        let taken = poll_fn(|cx| client.poll_read(cx, &mut bytes[received..])).await;
        match taken.map_err(|source| RelayError::Failed { peer: Peer::Client, source })? {
            0 => return Err(ProxyError::Truncated { received }.into()),
            taken => received += taken,
        }
    }
}

/// Connects to the first reachable upstream in the order of the policy, and sends it the header if configured. Upstreams that have
/// failed lately are tried last, and after a failure others are tried within the budget of retries.
///
/// `reserved` is a descriptor that holds the upstream's place.
pub(super) async fn connect(
    shared: &RelayShared,
    client: Option<IpAddr>,
    opening: &Opening,
    mut reserved: Option<OwnedFd>,
) -> Result<(PeerStream, TargetUse<Endpoint>), RelayError> {
    let (server, counters) = (&shared.resources.server, &shared.resources.counters);
    let mut attempts = Vec::new();
    let group = &shared.groups[opening.group];
    group.retries.note_connection(server.now());
    let order = group.balancer.order(&group.targets.list(), client, server.now());
    let is_only = order.len() == 1;
    let mut left: VecDeque<_> = order.into_iter().map(|target| (target, is_only)).collect();
    while let Some((target, is_last_resort)) = left.pop_front() {
        let time = shared.settings.setup_timeout;
        let choice =
            if is_last_resort { Choice::Use } else { target.availability().choose(server.now()) };
        let time = match choice {
            Choice::Use if !is_last_resort && is_presumed(shared, &target) => time.min(TRIAL),
            Choice::Use => time,
            Choice::Try => time.min(TRIAL),
            Choice::Avoid => {
                left.push_back((target, true));
                continue;
            }
        };
        match attempt(shared, &target, opening, time, reserved.take()).await {
            Ok(connected) => return Ok(connected),
            Err(error) => attempts.push((target.address.clone(), error)),
        }
        if !left.is_empty() {
            if !group.retries.take(server.now()) {
                return Err(RelayError::OverRetryBudget { attempts });
            }
            counters.retries.add(1);
        }
    }
    Err(RelayError::NoUpstream { attempts })
}

/// Returns whether there are checks, and none of this target has ended yet.
fn is_presumed(shared: &RelayShared, target: &Target<Endpoint>) -> bool {
    shared.settings.check.is_some() && target.is_unchecked()
}

/// Tries one target for at most `time`.
async fn attempt(
    shared: &RelayShared,
    target: &Arc<Target<Endpoint>>,
    opening: &Opening,
    time: Duration,
    reserved: Option<OwnedFd>,
) -> Result<(PeerStream, TargetUse<Endpoint>), io::Error> {
    let (server, counters) = (&shared.resources.server, &shared.resources.counters);
    let deadline = server.now() + time;
    let used = TargetUse::of(target);
    let attempt = connect_once(shared, target, opening, deadline, reserved);
    let error = match watched(shared, &target.health, deadline, attempt).await {
        Ok(Some(Ok(connection))) => {
            target.health.note_reached(|| server.now());
            target.counters.connections.add(1);
            return Ok((connection, used));
        }
        Ok(Some(Err(error))) | Err(error) => error,
        Ok(None) => {
            counters.connects_timed_out.add(1);
            io::ErrorKind::TimedOut.into()
        }
    };
    counters.connects_failed.add(1);
    // If this process lacks resources, the target may be healthy.
    if !is_exhausted(&error) {
        target.failed(&error, server.now());
    }
    Err(error)
}

/// Waits for an attempt. While it takes long, other connections avoid the target.
async fn watched<T>(
    shared: &RelayShared,
    health: &UpstreamHealth,
    deadline: Instant,
    attempt: impl Future<Output = T>,
) -> io::Result<Option<T>> {
    let server = &shared.resources.server;
    let mut attempt = pin!(attempt);
    let slow = (server.now() + TRIAL).min(deadline);
    if let Some(ended) = timeout_at(server, slow, attempt.as_mut()).await? {
        return Ok(Some(ended));
    }
    if slow == deadline {
        return Ok(None);
    }
    health.availability().failed(server.now());
    timeout_at(server, deadline, attempt).await
}

async fn connect_once(
    shared: &RelayShared,
    target: &Target<Endpoint>,
    opening: &Opening,
    deadline: Instant,
    reserved: Option<OwnedFd>,
) -> io::Result<PeerStream> {
    let server = &shared.resources.server;

    // From here on the upstream's descriptor takes its place.
    drop(reserved);
    let mut pause = RETRY_FIRST;
    let upstream = loop {
        match connect_to(shared, target).await {
            Ok(upstream) => break upstream,
            // Another connection may end; a Unix listener may accept earlier ones.
            Err(error)
                if (is_exhausted(&error) || error.kind() == io::ErrorKind::WouldBlock)
                    && server.now() < deadline =>
            {
                if is_exhausted(&error) {
                    shared.resources.pipes.close_free();
                }
                timeout(server, pause, shared.ended.notified()).await?;
                pause = (pause * 2).min(RETRY_LAST);
            }
            Err(error) => return Err(error),
        }
    };

    let upstream = introduce(shared, target, upstream, opening.header).await?;
    write_all(&upstream, &opening.first).await?;
    Ok(upstream)
}

/// Connects to a target, unless the relay itself listens there.
pub(super) async fn connect_to(
    shared: &RelayShared,
    target: &Target<Endpoint>,
) -> io::Result<Connection> {
    let (server, address) = (&shared.resources.server, &target.address);
    let Some((own, to)) = shared.own_address.zip(address.address()) else {
        return Connection::connect_on(server, address).await;
    };
    let depends_on_host = own_listener::depends_on_host(server, own, to)?;
    if depends_on_host && !target.own_address.admits(to) {
        return Err(own_listener::refusal(own));
    }
    let connection = Connection::connect_on(server, address).await?;
    if let (true, Connection::Tcp(stream)) = (depends_on_host, &connection)
        && !target.own_address.accepts(stream.local_addr()?, to)
    {
        return Err(own_listener::refusal(own));
    }
    Ok(connection)
}

/// Sends the header, and begins TLS.
pub(super) async fn introduce(
    shared: &RelayShared,
    target: &Target<Endpoint>,
    upstream: Connection,
    header: Option<ProxyHeader>,
) -> io::Result<PeerStream> {
    if let Some(header) = header {
        let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
        let bytes = header.write(&mut room);
        write_all(&upstream, &room[..bytes]).await?;
    }
    #[cfg(feature = "tls")]
    if let Some(origination) = &target.tls {
        let stream = super::tls::connect(origination, upstream, &shared.resources).await?;
        return Ok(PeerStream::Tls(Box::new(stream)));
    }
    #[cfg(not(feature = "tls"))]
    let _ = (shared, target);
    Ok(PeerStream::Plain(upstream))
}

async fn write_all(stream: &impl RelayStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let given = poll_fn(|cx| stream.poll_write(cx, bytes)).await?;
        if given == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[given..];
    }
    Ok(())
}
