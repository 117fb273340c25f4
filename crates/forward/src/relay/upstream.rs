//! From an accepted connection to a connected pair: the client's header, an upstream, and the header for it.

use std::{future::poll_fn, io, os::fd::OwnedFd, pin::pin, sync::Arc, time::Duration};

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

/// Connects to the first reachable upstream, and sends it the header if configured. Upstreams that have failed lately are
/// tried last.
///
/// `reserved` is a descriptor that holds the upstream's place.
pub(super) async fn connect(
    shared: &RelayShared,
    header: Option<ProxyHeader>,
    mut reserved: Option<OwnedFd>,
) -> Result<(Connection, Arc<UpstreamHealth>), RelayError> {
    let mut attempts = Vec::new();
    for (endpoint, health, time) in targets(shared) {
        let deadline = shared.resources.server.now() + time;
        let attempt = connect_once(shared, endpoint, header, deadline, reserved.take());
        let error = match watched(shared, health, deadline, attempt).await {
            Ok(Some(Ok(connection))) => {
                health.note_reached(|| shared.resources.server.now());
                return Ok((connection, Arc::clone(health)));
            }
            Ok(Some(Err(error))) | Err(error) => error,
            Ok(None) => {
                shared.resources.counters.connects_timed_out.add(1);
                io::ErrorKind::TimedOut.into()
            }
        };
        shared.resources.counters.connects_failed.add(1);
        // If this process lacks resources, the target may be healthy.
        if !is_exhausted(&error) {
            health.note_unreachable(&error, shared.resources.server.now());
        }
        attempts.push((endpoint.clone(), error));
    }
    Err(RelayError::NoUpstream { attempts })
}

/// The upstreams in the order in which to try them, each with the time for it.
fn targets(shared: &RelayShared) -> Vec<(&Endpoint, &Arc<UpstreamHealth>, Duration)> {
    let now = shared.resources.server.now();
    let time = shared.settings.setup_timeout;
    let all = shared.settings.upstreams.iter().zip(&shared.upstream_health);
    let is_only = shared.settings.upstreams.len() == 1;
    let (mut targets, mut last) = (Vec::new(), Vec::new());
    for (endpoint, health) in all {
        match if is_only { Choice::Use } else { health.availability.choose(now) } {
            Choice::Use => targets.push((endpoint, health, time)),
            Choice::Try => targets.push((endpoint, health, time.min(TRIAL))),
            Choice::Avoid => last.push((endpoint, health, time)),
        }
    }
    targets.extend(last);
    targets
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
        let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
        let bytes = header.write(&mut room);
        write_all(&upstream, &room[..bytes]).await?;
    }

    Ok(upstream)
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
