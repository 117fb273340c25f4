//! The rendezvous over TCP, for ranks without a common launcher: on hosts of all kinds, in containers, under
//! `ssh`.
//!
//! One process serves it: `vigie-run --listen ADDRESS:PORT`, around the same [hub](super::hub) as for the ranks
//! of one host. Ranks find it through their environment, see the [table](super#the-environment), and call until
//! it answers. Each side proves that it knows the secret, which is never sent; neither is the secret of the
//! [identity](super::Identity), which both derive from it. All later frames are [tagged](seal), but not
//! encrypted.
//!
//! # Lost ranks
//! The rendezvous sees connections, not processes: a rank whose connection ends without leaving is
//! [expelled](super::WorldEvent::Expelled), and the others continue. The loss of a host is noticed after
//! [`SILENCE_TIME`]. A lost rank cannot come back.

pub mod handshake;
pub mod seal;

use std::{
    ffi::OsString,
    fs,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    task::Poll,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send,
        socket_with, sockopt,
    },
};
use vigie_detect::{AsyncFd, Instant, Server, detectors::readiness::Direction};

use self::handshake::{CHALLENGE_BYTES, ClientHandshake, Session, VERDICT_BYTES};
use super::{
    JoinRefusal, Rank, SECRET_FILE_VARIABLE, SECRET_VARIABLE, WorldError,
    attached::Attached,
    socket::{Framed, SocketLink},
};
use crate::auth::{Secret, TAG_BYTES, random};

/// The prefix of the address of a rendezvous over TCP.
pub const SCHEME: &str = "tcp://";

/// A connection without a sign of life for this long counts as lost.
pub const SILENCE_TIME: Duration = Duration::from_secs(25);

/// The parts of [`SILENCE_TIME`]: when the kernel first probes the other side, and how often it repeats that.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;

/// The first and the longest pause of a caller before it calls again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The address to call, and the caller's rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcpRendezvous {
    pub(super) address: SocketAddr,
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) secret: Secret,
}

/// Parses a secret: 32 hexadecimal digits, optionally surrounded by space. `None` if `text` is anything else.
#[must_use]
pub fn parse_secret(text: &str) -> Option<Secret> {
    let digits = text.trim_ascii();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(|number| Secret::new(number.to_be_bytes()))
}

/// Finds the secret of a rendezvous over TCP through the variables that `variable` returns: in one of them, or in
/// the file that the other names.
///
/// # Errors
/// [`WorldError::Environment`].
pub fn find_secret(variable: impl Fn(&str) -> Option<OsString>) -> Result<Secret, WorldError> {
    let bad = |variable, problem: &str| {
        let problem = problem.to_owned();
        WorldError::Environment { variable, problem }
    };
    // The value itself is never printed.
    let what = "it holds no secret, which is 32 hexadecimal digits (`head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'` makes one)";
    if let Some(text) = variable(SECRET_VARIABLE) {
        return text.to_str().and_then(parse_secret).ok_or_else(|| bad(SECRET_VARIABLE, what));
    }
    let path = variable(SECRET_FILE_VARIABLE)
        .ok_or_else(|| bad(SECRET_FILE_VARIABLE, "it is not set, nor is `VIGIE_SECRET`"))?;
    let unread = |error| bad(SECRET_FILE_VARIABLE, &format!("{}: {error}", path.display()));
    let bytes = fs::read(&path).map_err(unread)?;
    let secret = str::from_utf8(&bytes).ok().and_then(parse_secret);
    secret.ok_or_else(|| bad(SECRET_FILE_VARIABLE, &format!("{}: {what}", path.display())))
}

/// Returns the secret of the identity `id`, as the ranks of a rendezvous over TCP derive it.
fn identity_secret(secret: &Secret, id: &[u8; 16]) -> [u8; 32] {
    let half = |which: &[u8]| secret.tag(&[b"identity", which, id]);
    let mut bytes = [0; 2 * TAG_BYTES];
    bytes[..TAG_BYTES].copy_from_slice(&half(b"0"));
    bytes[TAG_BYTES..].copy_from_slice(&half(b"1"));
    bytes
}

/// Prepares a connection for a rendezvous, so that the loss of the other side's host is noticed, and small
/// messages do not wait for larger ones.
///
/// # Errors
/// The kernel's.
pub fn set_socket_options(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    let silence_ms = u32::try_from(SILENCE_TIME.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, silence_ms)?)
}

/// Calls the rendezvous until it answers, and joins its world.
pub(super) async fn join(
    server: &Server,
    place: TcpRendezvous,
    deadline: Instant,
) -> Result<Attached<SocketLink<OwnedFd, Framed>>, WorldError> {
    let mut pause = PAUSE_MIN;
    loop {
        let mut problem = "it does not answer".to_owned();
        match before(server, deadline, call(server, &place)).await? {
            Some(Ok((socket, session))) => {
                let link = SocketLink::new(server, socket, Framed::sealed(&session))?;
                let attached = Attached::greet(link, server.timers().clone(), deadline).await?;
                return Ok(attached.with_secret(|id| identity_secret(&place.secret, id)));
            }
            Some(Err(CallError::Refused(why))) => return Err(WorldError::Refused { why }),
            // It may not have started yet, or have too many callers.
            Some(Err(CallError::Io(error))) => problem = error.to_string(),
            None => {}
        }
        let again = server.now() + pause;
        if again >= deadline {
            let what =
                format!("the rendezvous at {SCHEME}{} was reached: {problem}", place.address);
            return Err(WorldError::TimedOut { what });
        }
        server.timers().wait(again).await.map_err(io::Error::from)?;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// The reason why a call failed.
#[derive(Debug)]
enum CallError {
    Refused(JoinRefusal),
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for CallError {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

/// Calls once.
async fn call(server: &Server, place: &TcpRendezvous) -> Result<(OwnedFd, Session), CallError> {
    let family = if place.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_options(&socket)?;
    match connect(&socket, &place.address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = AsyncFd::new_on(server, socket)?;
    socket.ready(Direction::Write).await?;
    sockopt::socket_error(&socket)??;
    let caller = ClientHandshake::new(place.secret.clone(), place.rank, place.size, random()?);
    let challenge = read_exact::<CHALLENGE_BYTES>(&socket).await?;
    let foreign = || io::Error::new(io::ErrorKind::InvalidData, "something else is served there");
    let (answer, answered) = caller.answer(&challenge).ok_or_else(foreign)?;
    let sent =
        socket.async_io(Direction::Write, |socket| Ok(send(socket, &answer, SendFlags::NOSIGNAL)?));
    if sent.await? != answer.len() {
        // An empty socket accepts so few bytes as a whole.
        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
    }
    let verdict = read_exact::<VERDICT_BYTES>(&socket).await?;
    let session = answered.read(&verdict).map_err(CallError::Refused)?;
    Ok((socket.into_inner(), session))
}

async fn read_exact<const N: usize>(socket: &AsyncFd<OwnedFd>) -> io::Result<[u8; N]> {
    let (mut bytes, mut count) = ([0; N], 0);
    while count < N {
        let read = socket.async_io(Direction::Read, |socket| {
            let (read, _) = recv(socket, &mut bytes[count..], RecvFlags::empty())?;
            Ok(read)
        });
        match read.await? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
            read => count += read,
        }
    }
    Ok(bytes)
}

/// Waits for `future`; `None` if the deadline comes first.
async fn before<T>(
    server: &Server,
    deadline: Instant,
    future: impl Future<Output = T>,
) -> io::Result<Option<T>> {
    let (mut future, mut timer) = (pin!(future), pin!(server.timers().wait(deadline)));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(Some(output)));
        }
        timer.as_mut().poll(cx).map(|ended| ended.map(|_| None).map_err(io::Error::from))
    })
    .await
}

#[cfg(test)]
mod tests;
