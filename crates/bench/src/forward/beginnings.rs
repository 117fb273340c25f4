//! Datagrams of flows that begin at full rate: how many come late.
//!
//! *Question*: where packets of a flow can take two ways, the host's and a program's, does one overtake another? *Method*:
//! sockets of the client send numbered datagrams, of which pauses between them are drawn from a seed, all from one core; a
//! datagram is late if one with a higher number has come before it. The kernel's own forwarding has one way.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use crate::error::Failure;
use crate::host::{Namespace, allowed, enter, pin};

/// How many flows begin, and how many datagrams each has.
const FLOWS: u32 = 40;
const DATAGRAMS: u32 = 200;
/// The longest pause between two datagrams, in turns of a loop: some 20 µs.
const PAUSE_MAX: u32 = 600;
/// A flow is over when nothing has come for so long.
const SILENCE: Duration = Duration::from_millis(50);

/// Opens a socket in a namespace; port 0 is any.
pub(super) fn socket_in(host: &Namespace, port: u16) -> Result<UdpSocket, Failure> {
    let path = host.path();
    let open = move || {
        enter(&path)?;
        UdpSocket::bind(("0.0.0.0", port)).map_err(Failure::io("opening a socket"))
    };
    thread::spawn(open).join().expect("invariant: it does not panic")
}

/// Lets flows begin, one after the other. Returns how many of their datagrams came late.
///
/// # Errors
/// [`Failure`]; also if nothing of a flow comes.
pub(super) fn late(
    (client, server): (&Namespace, &Namespace),
    server_address: &str,
    seed: u64,
) -> Result<u64, Failure> {
    let receiver = socket_in(server, 0)?;
    let failed = || Failure::io("numbering datagrams");
    receiver.set_read_timeout(Some(SILENCE)).map_err(failed())?;
    let to = (server_address, receiver.local_addr().map_err(failed())?.port());
    let mut late = 0;
    for flow in 0..FLOWS {
        let sender = socket_in(client, 0)?;
        let mut chance = fastrand::Rng::with_seed(seed ^ u64::from(flow));
        thread::scope(|scope| {
            let send = || {
                pin(allowed().get(..1).unwrap_or_default())?;
                for number in 0..DATAGRAMS {
                    // Those for which there is no room are lost.
                    let _ = sender.send_to(&number.to_le_bytes(), to);
                    (0..chance.u32(..PAUSE_MAX)).for_each(|_| std::hint::spin_loop());
                }
                Ok(())
            };
            scope.spawn(send).join().expect("invariant: it does not panic")
        })?;
        let (mut highest, mut number) = (None, [0; 4]);
        while receiver.recv(&mut number).is_ok() {
            let number = Some(u32::from_le_bytes(number));
            late += u64::from(number < highest);
            highest = highest.max(number);
        }
        if highest.is_none() {
            let silence = std::io::Error::other("no datagram of a flow has come");
            return Err(failed()(silence));
        }
    }
    Ok(late)
}
