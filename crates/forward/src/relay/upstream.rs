//! From an accepted connection to a connected pair: the client's header, an upstream, the header for it.

use std::{future::poll_fn, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use vigie_detect::Instant;

use super::{
    connection::Connection,
    endpoint::Endpoint,
    error::{Peer, RelayError},
    health::Health,
    proxy::{ProxyError, ProxyHeader, ProxyParse},
    relay::Shared,
    transport::Transport,
    wait::{at_most, is_exhausted, until},
};

/// The first pause before what failed for want of descriptors, or at a full queue, is tried again; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(100);

/// Reads the header that a trusted client begins with, and not a byte beyond it.
pub(super) async fn accept_header(
    shared: &Shared,
    client: &Connection,
) -> Result<ProxyHeader, RelayError> {
    let server = &shared.means.server;
    let deadline = server.now() + shared.settings.connect_timeout;
    let ended = until(server, deadline, read_header(client)).await;
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

/// Connects to the first upstream that can be reached, and sends it the header if it is to have one.
///
/// `place` is a descriptor that is held in the place of the upstream's.
pub(super) async fn connect(
    shared: &Shared,
    header: Option<ProxyHeader>,
    mut place: Option<OwnedFd>,
) -> Result<(Connection, Arc<Health>), RelayError> {
    let mut attempts = Vec::new();
    for (endpoint, health) in shared.settings.upstreams.iter().zip(&shared.healths) {
        let deadline = shared.means.server.now() + shared.settings.connect_timeout;
        let attempt = connect_once(shared, endpoint, header, deadline, place.take());
        let error = match until(&shared.means.server, deadline, attempt).await {
            Ok(Some(Ok(connection))) => {
                health.note_reached(|| shared.means.server.now());
                return Ok((connection, Arc::clone(health)));
            }
            Ok(Some(Err(error))) | Err(error) => error,
            Ok(None) => {
                shared.means.counters.connects_timed_out.add(1);
                io::ErrorKind::TimedOut.into()
            }
        };
        shared.means.counters.connects_failed.add(1);
        // Where we are short of something, the target may be well.
        if !is_exhausted(&error) {
            health.note_unreachable(&error, shared.means.server.now());
        }
        attempts.push((endpoint.clone(), error));
    }
    Err(RelayError::NoUpstream { attempts })
}

async fn connect_once(
    shared: &Shared,
    endpoint: &Endpoint,
    header: Option<ProxyHeader>,
    deadline: Instant,
    place: Option<OwnedFd>,
) -> io::Result<Connection> {
    let server = &shared.means.server;
    // From here on the place is the upstream's.
    drop(place);
    let mut pause = RETRY_FIRST;
    let upstream = loop {
        match Connection::connect_on(server, endpoint).await {
            Ok(upstream) => break upstream,
            // Another connection may end; a Unix listener may accept those before us.
            Err(error)
                if (is_exhausted(&error) || error.kind() == io::ErrorKind::WouldBlock)
                    && server.now() < deadline =>
            {
                if is_exhausted(&error) {
                    shared.means.pipes.close_free();
                }
                at_most(server, pause, shared.ended.notified()).await?;
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
