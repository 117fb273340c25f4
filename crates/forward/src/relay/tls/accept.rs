//! The handshakes of a relayed connection, with its client and with its target.

use std::{future::poll_fn, io};

use super::{
    error::TlsError,
    hello::{ClientHello, HELLO_BYTES_MAX, HelloError, HelloParse},
    origination::TlsOrigination,
    stream::TlsStream,
    termination::{TlsAction, TlsRouter},
};
use crate::relay::{
    buffers::FLOOR_BYTES,
    connection::Connection,
    error::{Peer, RelayError},
    peer_stream::PendingClient,
    resources::RelayResources,
    shared::{Opening, RelayShared},
    stream::RelayStream,
    wait::timeout_at,
};

/// Reads which server the client wants, and does the handshake if TLS ends here: both within the set-up time-out.
pub(in crate::relay) async fn accept(
    shared: &RelayShared,
    router: &TlsRouter,
    client: &mut PendingClient,
) -> Result<Opening, RelayError> {
    let RelayResources { server, counters, .. } = &shared.resources;
    let deadline = server.now() + shared.settings.setup_timeout;
    let accepted = timeout_at(server, deadline, accept_at_leisure(shared, router, client)).await;
    let failed = |source| RelayError::Failed { peer: Peer::Client, source };
    let accepted = accepted.map_err(failed)?.unwrap_or(Err(TlsError::TimedOut));
    match &accepted {
        Ok(opening) if opening.first.is_empty() => counters.tls_clients_ok.add(1),
        Ok(_) => counters.tls_passed_through.add(1),
        Err(error) => error.count_client(counters),
    }
    Ok(accepted?)
}

async fn accept_at_leisure(
    shared: &RelayShared,
    router: &TlsRouter,
    client: &mut PendingClient,
) -> Result<Opening, TlsError> {
    let mut first = Vec::new();
    let hello = read_hello(client.connection(), &mut first).await;
    let chosen = hello.and_then(|hello| router.choose(hello.server_name.as_deref()));
    let (action, own) = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            refuse(client.connection(), &error).await;
            return Err(error);
        }
    };
    let group = own.map_or(0, |index| index + 1);
    let TlsAction::Terminate(termination) = action else {
        return Ok(Opening { group, first, ..Opening::default() });
    };
    let machine = TlsStream::accepting(termination, &first, shared.resources.buffers.clone())?;
    client.wrap(|socket| TlsStream::new(socket, machine)).handshake().await?;
    Ok(Opening { group, ..Opening::default() })
}

/// Reads the client's first message, and what comes with it.
async fn read_hello(client: &Connection, bytes: &mut Vec<u8>) -> Result<ClientHello, TlsError> {
    loop {
        match ClientHello::read(bytes)? {
            HelloParse::Complete(hello) => return Ok(hello),
            HelloParse::Incomplete => {}
        }
        // Not full: that would be too long.
        let known = bytes.len();
        bytes.resize((known + FLOOR_BYTES).min(HELLO_BYTES_MAX), 0);
        let read = poll_fn(|cx| client.poll_read(cx, &mut bytes[known..])).await;
        let read = read.map_err(|_| TlsError::Closed)?;
        bytes.truncate(known + read);
        if read == 0 {
            return Err(TlsError::Closed);
        }
    }
}

/// Says why there will be no handshake, by an alert [rfc8446, §6].
async fn refuse(client: &Connection, error: &TlsError) {
    let description = match error {
        TlsError::Hello(HelloError::NotTls) => 10,
        TlsError::Hello(HelloError::Long) => 22,
        TlsError::Hello(HelloError::Malformed) => 50,
        TlsError::NoRoute { .. } => 112,
        _ => return,
    };
    let alert = [21, 3, 3, 0, 2, 2, description];
    // So few bytes fit into an empty queue; if not, nothing is lost.
    let _ = poll_fn(|cx| client.poll_write(cx, &alert)).await;
}

/// Does the handshake with a target.
pub(in crate::relay) async fn connect(
    origination: &TlsOrigination,
    socket: Connection,
    resources: &RelayResources,
) -> io::Result<TlsStream> {
    let machine = TlsStream::connecting(origination, resources.buffers.clone());
    let handshake = async {
        let stream = TlsStream::new(socket, machine?);
        stream.handshake().await?;
        Ok::<_, TlsError>(stream)
    };
    match handshake.await {
        Ok(stream) => {
            resources.counters.tls_upstreams_ok.add(1);
            Ok(stream)
        }
        Err(error) => {
            error.count_upstream(&resources.counters);
            Err(error.into())
        }
    }
}
