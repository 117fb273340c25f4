//! A new process takes over the listeners of one that runs, so that no client is refused while the program is replaced.
//!
//! ```text
//!   new process            stats socket            running process
//!     takeover ─────────────────▶
//!     ◀───────── a line and a descriptor for each listener, then an empty line
//!   sets its flows up, and accepts beside the other one
//!     taken FLOW ───────────────▶       for each of its flows whose listener was taken
//!     taken ────────────────────▶       accepts no more, drains, ends
//!     ◀─────────────────────────
//! ```
//! If the connection ends before that, nothing changes for the running process.

use std::{
    io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
    },
};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vigie::{detect::Interest, net::UnixStream};

use crate::config::{EndpointUri, FlowConfig, has_port_zero};

/// The requests.
pub(crate) const TAKEOVER: &str = "takeover";
pub(crate) const TAKEN: &str = "taken";

/// The longest description of a listener.
const LINE_BYTES_MAX: usize = 1024;
/// The time that the running process may take for each answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why nothing was taken over.
#[derive(Debug, Error)]
pub(crate) enum TakeoverError {
    #[error("the instance at {} does not pass its listeners on: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the instance at {} refuses to pass its listeners on: {reason}", path.display())]
    Refused { path: PathBuf, reason: String },
}

/// A listener that passes from process to process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedListener {
    /// The flow that has it; `None`: the metrics.
    pub(crate) flow: Option<String>,
    /// Its endpoint, as it was configured.
    pub(crate) listen: String,
}

#[derive(Deserialize)]
struct ErrorReply {
    error: String,
}

/// Sends listeners to a process that takes over.
pub(crate) async fn hand_out(
    stream: &UnixStream,
    listeners: &[(HandedListener, OwnedFd)],
) -> io::Result<()> {
    for (listener, fd) in listeners {
        let mut line = serde_json::to_vec(listener).map_err(io::Error::other)?;
        line.push(b'\n');
        let send = || send(stream.as_fd(), &line, fd.as_fd());
        stream.async_io(Interest::Writable, send).await?;
    }
    Ok(())
}

/// Sends a line with a descriptor. Lines are so short that the kernel takes all or nothing.
fn send(to: BorrowedFd<'_>, line: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let _ = control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(line)], &mut control, flags)?;
    Ok(())
}

/// Receives what was sent by one call, and its descriptor.
fn receive(from: &StdUnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut line = vec![0; LINE_BYTES_MAX];
    let mut parts = [IoSliceMut::new(&mut line)];
    // The kernel ends a call behind bytes that have a descriptor.
    let received = recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    line.truncate(received.bytes);
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((line, fd))
}

/// The running process whose listeners are taken over.
#[derive(Debug)]
pub(crate) struct Predecessor {
    path: PathBuf,
    stream: StdUnixStream,
    listeners: Vec<(HandedListener, OwnedFd)>,
    /// Its flows whose listeners were taken.
    taken: Vec<String>,
}

impl Predecessor {
    /// Asks the process whose stats socket is `path` for its listeners. Returns `None` if no process listens there.
    pub(crate) fn find(path: &Path) -> Result<Option<Self>, TakeoverError> {
        let failed = |source| TakeoverError::Io { path: path.to_owned(), source };
        let stream = match StdUnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        writeln!(&stream, "{TAKEOVER}").map_err(failed)?;
        let mut listeners = Vec::new();
        loop {
            let (line, fd) = receive(&stream).map_err(failed)?;
            match fd {
                Some(fd) => {
                    let listener = serde_json::from_slice(&line);
                    listeners.push((listener.map_err(|error| failed(error.into()))?, fd));
                }
                None if line == b"\n" => break,
                None => {
                    let ErrorReply { error: reason } =
                        serde_json::from_slice(&line).map_err(|error| failed(error.into()))?;
                    return Err(TakeoverError::Refused { path: path.to_owned(), reason });
                }
            }
        }
        Ok(Some(Self { path: path.to_owned(), stream, listeners, taken: Vec::new() }))
    }

    /// Its process, and the number of its listeners.
    pub(crate) fn describe(&self) -> String {
        let pid = socket_peercred(&self.stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        format!("process {pid} at {}", self.path.display())
    }

    /// Takes the listener for a flow, which is as in a reload: of the same endpoint, and for port 0 of the same name.
    pub(crate) fn listener_of(&mut self, flow: &FlowConfig) -> Option<OwnedFd> {
        let listen = flow.kind.listen()?;
        let (own, needs_name) = (listen.to_string(), has_port_zero(listen));
        let at = self.listeners.iter().position(|(one, _)| {
            let name = one.flow.as_ref();
            one.listen == own && name.is_some_and(|name| !needs_name || *name == flow.name)
        })?;
        let (listener, fd) = self.listeners.swap_remove(at);
        self.taken.extend(listener.flow);
        Some(fd)
    }

    /// Takes the listener of the metrics.
    pub(crate) fn metrics_listener(&mut self, endpoint: &EndpointUri) -> Option<OwnedFd> {
        let own = endpoint.to_string();
        let is_meant = |one: &HandedListener| one.flow.is_none() && one.listen == own;
        let at = self.listeners.iter().position(|(one, _)| is_meant(one))?;
        Some(self.listeners.swap_remove(at).1)
    }

    /// Lets it accept no more, and end. Blocks until it has understood that.
    pub(crate) fn end(self) -> Result<(), TakeoverError> {
        let Self { path, stream, taken, .. } = self;
        let ended = || {
            let names: String = taken.iter().map(|name| format!("{TAKEN} {name}\n")).collect();
            writeln!(&stream, "{names}{TAKEN}")?;
            let mut answer = String::new();
            match BufReader::new(&stream).read_line(&mut answer)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            }
        };
        ended().map_err(|source| TakeoverError::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;
    use crate::config::parse;

    /// Goal: whatever a process says that is asked for its listeners, it is understood or refused with a reason, and
    /// nothing waits once it has gone. Method: 400 answers by seed: a right one that was cut, changed, doubled or replaced, with descriptors or without, and then the end.
    #[test]
    fn any_answer_is_read_safely() {
        let name = format!("vigie-forward-answers-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let right = [
            &b"{\"flow\":\"a\",\"listen\":\"tcp://127.0.0.1:0\"}\n"[..],
            b"{\"flow\":null,\"listen\":\"unix:/c\"}\n",
            b"{\"error\":\"it drains\"}\n",
            b"\n",
        ];
        let null = std::fs::File::open("/dev/null").unwrap();
        let running = thread::spawn(move || {
            for seed in 0..400 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let (stream, _) = socket.accept().unwrap();
                BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                for _ in 0..rng.usize(..4) {
                    let mut line = right[rng.usize(..right.len())].to_vec();
                    let at = rng.usize(..line.len());
                    match rng.u8(..6) {
                        0 => line.truncate(at + 1),
                        1 => line[at] = rng.u8(..),
                        2 => line = line.repeat(rng.usize(1..40)),
                        3 => line = (0..=at).map(|_| rng.u8(..)).collect(),
                        _ => {}
                    }
                    // It may have been refused already.
                    let sent = if rng.bool() {
                        send(stream.as_fd(), &line, null.as_fd())
                    } else {
                        (&stream).write_all(&line)
                    };
                    drop(sent);
                }
            }
        });
        let (mut found, mut reasons) = (0, std::collections::BTreeSet::new());
        for seed in 0..400 {
            match Predecessor::find(&path) {
                Ok(old) => {
                    found += 1;
                    drop(old.unwrap().end());
                }
                Err(TakeoverError::Refused { reason, .. }) => drop(reasons.insert(reason)),
                Err(TakeoverError::Io { source, .. }) => {
                    assert_ne!(source.kind(), io::ErrorKind::WouldBlock, "{seed}");
                    reasons.insert(source.to_string());
                }
            }
        }
        running.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(
            found > 0 && reasons.len() > 10 && reasons.contains("it drains"),
            "{found} {reasons:?}"
        );
    }

    /// Goal: the descriptors that arrive are those that were sent, and each flow gets that of its endpoint, once; at port 0 that of its
    /// name; an error is told. Method: both sides of a connection, with listeners at ports that the kernel chose.
    #[test]
    fn each_flow_gets_its_listener() {
        let name = format!("vigie-forward-takeover-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let any = "tcp://127.0.0.1:0";
        let of = |flow: Option<&str>, listen: &str| HandedListener {
            flow: flow.map(str::to_owned),
            listen: listen.to_owned(),
        };
        let handed =
            [of(Some("a"), any), of(None, any), of(Some("b"), any), of(Some("c"), "unix:/c")];
        let handed = handed.map(|one| (one, TcpListener::bind("127.0.0.1:0").unwrap()));
        let addresses = handed.each_ref().map(|(_, socket)| socket.local_addr().unwrap());
        let sent = handed.map(|(one, socket)| (one, OwnedFd::from(socket)));
        let running = thread::spawn(move || {
            let (mut stream, _) = socket.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), TAKEOVER);
            for (one, fd) in &sent {
                let line = serde_json::to_string(one).unwrap() + "\n";
                send(stream.as_fd(), line.as_bytes(), fd.as_fd()).unwrap();
            }
            stream.write_all(b"\n").unwrap();
            let taken: Vec<_> = lines.by_ref().map_while(Result::ok).take(3).collect();
            stream.write_all(b"{}\n").unwrap();
            let (mut stream, _) = socket.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            stream.write_all(b"{\"error\":\"it drains\"}\n").unwrap();
            drop(lines);
            taken
        });
        let flows = "[[relay]]\nname = 'b'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://[::1]:9'\n\
                     [[relay]]\nname = 'x'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://[::1]:9'\n\
                     [[relay]]\nname = 'y'\nlisten = 'unix:/c'\nto = 'tcp://[::1]:9'\n";
        let flows = parse("f", flows).unwrap().flows;
        let mut old = Predecessor::find(&path).unwrap().unwrap();
        let address = |fd: OwnedFd| TcpListener::from(fd).local_addr().unwrap();
        let found = [0, 1, 2, 2].map(|at| old.listener_of(&flows[at]).map(address));
        assert_eq!(found, [Some(addresses[2]), None, Some(addresses[3]), None]);
        let metrics = flows[0].kind.listen().unwrap();
        assert_eq!(old.metrics_listener(metrics).map(address), Some(addresses[1]));
        assert!(old.metrics_listener(metrics).is_none());
        old.end().unwrap();
        let refused = Predecessor::find(&path).unwrap_err().to_string();
        assert!(refused.contains("it drains"), "{refused}");
        assert_eq!(running.join().unwrap(), ["taken b", "taken c", "taken"]);
        assert!(Predecessor::find(&path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
    }
}
