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
    proxy::{ProxyError, ProxyHeader, ProxyParse},
    relay::RelayShared,
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
/// failed lately are tried last.
///
/// `reserved` is a descriptor that holds the upstream's place.
pub(super) async fn connect(
    shared: &RelayShared,
    client: Option<IpAddr>,
    header: Option<ProxyHeader>,
    mut reserved: Option<OwnedFd>,
) -> Result<(Connection, TargetUse<Endpoint>), RelayError> {
    let server = &shared.resources.server;
    let mut attempts = Vec::new();
    let order = shared.balancer.order(&shared.targets.list(), client, server.now());
    let is_only = order.len() == 1;
    let mut left: VecDeque<_> = order.into_iter().map(|target| (target, is_only)).collect();
    while let Some((target, is_last_resort)) = left.pop_front() {
        let time = shared.settings.setup_timeout;
        let choice =
            if is_last_resort { Choice::Use } else { target.availability().choose(server.now()) };
        let time = match choice {
            Choice::Use => time,
            Choice::Try => time.min(TRIAL),
            Choice::Avoid => {
                left.push_back((target, true));
                continue;
            }
        };
        match attempt(shared, &target, header, time, reserved.take()).await {
            Ok(connected) => return Ok(connected),
            Err(error) => attempts.push((target.address.clone(), error)),
        }
    }
    Err(RelayError::NoUpstream { attempts })
}

/// Tries one target for at most `time`.
async fn attempt(
    shared: &RelayShared,
    target: &Arc<Target<Endpoint>>,
    header: Option<ProxyHeader>,
    time: Duration,
    reserved: Option<OwnedFd>,
) -> Result<(Connection, TargetUse<Endpoint>), io::Error> {
    let (server, counters) = (&shared.resources.server, &shared.resources.counters);
    let deadline = server.now() + time;
    let used = TargetUse::of(target);
    let attempt = connect_once(shared, &target.address, header, deadline, reserved);
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
    health.availability.failed(server.now());
    timeout_at(server, deadline, attempt).await
}

async fn connect_once(
    shared: &RelayShared,
    endpoint: &Endpoint,
    header: Option<ProxyHeader>,
    deadline: Instant,
    reserved: Option<OwnedFd>,
) -> io::Result<Connection> {
    let server = &shared.resources.server;

    // From here on the upstream's descriptor takes its place.
    drop(reserved);
    let mut pause = RETRY_FIRST;
    let upstream = loop {
        match Connection::connect_on(server, endpoint).await {
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

    if let Some(header) = header {
        write_header(&upstream, header).await?;
    }

    Ok(upstream)
}

pub(super) async fn write_header(upstream: &Connection, header: ProxyHeader) -> io::Result<()> {
    let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
    let bytes = header.write(&mut room);
    write_all(upstream, &room[..bytes]).await
}

async fn write_all(stream: &Connection, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let given = poll_fn(|cx| stream.poll_write(cx, bytes)).await?;
        if given == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[given..];
    }
    Ok(())
}
