//! The launcher's end of the rendezvous: sockets around the hub of `vigie-via`, inherited by ranks started here, or
//! accepted from ranks that have [called](crate::listener).

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    io, mem,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use vigie::{
    JoinHandle,
    detect::AsyncFd,
    detectors::readiness::Direction,
    spawn_local,
    time::{sleep, timeout},
    via::{
        Secret,
        auth::random,
        world::{
            Identity, JoinRefusal, Rank, RankExit,
            hub::{Hub, SharedFrame},
            tcp::{handshake::Session, seal::Seal},
            wire::{Decoder, HubRequest, WireError},
        },
    },
    yield_now,
};

use crate::{job::JobEvent, mailbox::Mailbox};

/// The time after closing its connection that a process may take to end; one that lives longer has cut itself off.
const CLOSED_TIME: Duration = Duration::from_secs(1);

/// The time limit for writing the final frames to ranks.
const FINAL_FLUSH_TIME: Duration = Duration::from_secs(2);

/// The rendezvous of a job.
pub(crate) struct Rendezvous {
    hub: RefCell<Hub>,
    connections: RefCell<BTreeMap<Rank, Rc<RankConnection>>>,
    writers: RefCell<Vec<JoinHandle<()>>>,
    /// Notified when all ranks have departed and none will come.
    mailbox: Rc<Mailbox<JobEvent>>,
    is_over: Cell<bool>,
}

/// The connection to one rank.
struct RankConnection {
    rank: Rank,
    socket: AsyncFd<OwnedFd>,
    /// For a connection over a network.
    seal: Option<RefCell<Seal>>,
    decoder: RefCell<Decoder>,
    outgoing: RefCell<VecDeque<SharedFrame>>,
    /// The task that waits for frames to send.
    writer: Cell<Option<Waker>>,
    /// No more frames will be queued.
    is_closing: Cell<bool>,
}

/// The result of one read of a connection.
enum ReadOutcome {
    Something,
    Nothing,
    End,
}

impl Rendezvous {
    pub(crate) fn new(
        size: u32,
        identity: Identity,
        mailbox: Rc<Mailbox<JobEvent>>,
    ) -> io::Result<Rc<Self>> {
        let hub = Hub::new(size, identity).pair_keys_from(Secret::new(random()?));
        Ok(Rc::new(Self {
            hub: RefCell::new(hub),
            connections: RefCell::default(),
            writers: RefCell::default(),
            mailbox,
            is_over: Cell::new(false),
        }))
    }

    /// Serves `rank` through `socket`, which must be non-blocking; on a network with the keys of `session`.
    pub(crate) fn serve(
        self: &Rc<Self>,
        rank: Rank,
        socket: OwnedFd,
        session: Option<&Session>,
    ) -> io::Result<()> {
        let connection = Rc::new(RankConnection {
            rank,
            socket: AsyncFd::new(socket)?,
            seal: session.map(|session| RefCell::new(Seal::of_hub(session))),
            decoder: RefCell::new(Decoder::new()),
            outgoing: RefCell::default(),
            writer: Cell::new(None),
            is_closing: Cell::new(false),
        });
        self.connections.borrow_mut().insert(rank, Rc::clone(&connection));
        spawn_local(Rc::clone(self).listen(Rc::clone(&connection))).detach();
        self.writers.borrow_mut().push(spawn_local(connection.write_frames()));
        Ok(())
    }

    /// Returns an error if `rank` cannot be admitted.
    pub(crate) fn admit(&self, rank: Rank) -> Result<(), JoinRefusal> {
        if self.connections.borrow().contains_key(&rank) {
            Err(JoinRefusal::Taken)
        } else if self.hub.borrow().is_heard(rank) {
            Ok(())
        } else {
            Err(JoinRefusal::TooLate)
        }
    }

    /// Returns the ranks that have not arrived.
    pub(crate) fn missing(&self) -> Vec<Rank> {
        self.hub.borrow().missing()
    }

    /// Returns the ranks for which `rank` waits in a barrier, or waited when it ended.
    pub(crate) fn awaited_by(&self, rank: Rank) -> Vec<Rank> {
        self.hub.borrow().awaited_by(rank)
    }

    /// Returns the ranks that had joined and were lost.
    pub(crate) fn lost(&self) -> Vec<Rank> {
        self.hub.borrow().lost()
    }

    /// Returns the ranks that are gone, or were given up, without having joined.
    pub(crate) fn never_joined(&self) -> Vec<Rank> {
        self.hub.borrow().never_joined()
    }

    /// Stops waiting for ranks that have not arrived: the others continue, or, if `is_end`, are told that the job ends.
    pub(crate) fn give_up(&self, is_end: bool) {
        if is_end {
            self.hub.borrow_mut().dissolve();
        } else {
            for rank in self.missing() {
                self.hub.borrow_mut().expel(rank, "it has not arrived in time");
            }
        }
        self.deliver();
        if is_end {
            self.connections.borrow().values().for_each(|connection| connection.close());
        }
    }

    /// Waits until the final frames are written, for a limited time.
    pub(crate) async fn flush_final_frames(&self) {
        let writers = mem::take(&mut *self.writers.borrow_mut());
        let all = async {
            for writer_task in writers {
                // It can only have failed by the end of the runtime.
                drop(writer_task.await);
            }
        };
        // A rank that has not read them by then had enough time.
        let _ = timeout(FINAL_FLUSH_TIME, all).await;
    }

    /// Handles the last frames of a rank that has ended, and tells the others of its end.
    pub(crate) fn end(&self, rank: Rank, ending: RankExit) {
        let Some(connection) = self.connections.borrow().get(&rank).cloned() else {
            self.hub.borrow_mut().end(rank, ending);
            return self.deliver();
        };
        // Bounded: the rank writes no more, unless it has given its connection to another process.
        for _ in 0..ENDED_READS_MAX {
            if !matches!(self.read_once(&connection), ReadOutcome::Something) {
                break;
            }
        }
        self.hub.borrow_mut().end(connection.rank, ending);
        connection.close();
        self.deliver();
    }

    /// Reads from a rank until its connection ends.
    async fn listen(self: Rc<Self>, connection: Rc<RankConnection>) {
        while self.hub.borrow().is_heard(connection.rank) {
            match self.read_once(&connection) {
                // The others get their turn, however much this one sends.
                ReadOutcome::Something => yield_now().await,
                ReadOutcome::Nothing => match connection.socket.ready(Direction::Read).await {
                    Ok(_) => {}
                    Err(_) => return,
                },
                ReadOutcome::End => {
                    if connection.seal.is_none() {
                        sleep(CLOSED_TIME).await;
                    }
                    self.expel(&connection, "the connection was closed without leaving");
                }
            }
        }
        connection.close();
    }

    /// Reads once.
    fn read_once(&self, connection: &RankConnection) -> ReadOutcome {
        let mut buffer = [0; 4096];
        match connection.receive(&mut buffer) {
            Ok(0) => ReadOutcome::End,
            Ok(count) => {
                connection.decoder.borrow_mut().feed(&buffer[..count]);
                if let Err(error) = self.handle_frames(connection) {
                    self.expel(connection, &error.to_string());
                }
                self.deliver();
                ReadOutcome::Something
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => ReadOutcome::Something,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReadOutcome::Nothing,
            Err(_) => ReadOutcome::End,
        }
    }

    fn handle_frames(&self, connection: &RankConnection) -> Result<(), WireError> {
        let mut decoder = connection.decoder.borrow_mut();
        let mut hub = self.hub.borrow_mut();
        loop {
            let frame = match &connection.seal {
                Some(seal) => seal.borrow_mut().open(&mut decoder)?,
                None => decoder.next_frame()?,
            };
            let Some(frame) = frame else { return Ok(()) };
            hub.handle(connection.rank, HubRequest::decode(frame)?);
        }
    }

    fn expel(&self, connection: &RankConnection, why: &str) {
        self.hub.borrow_mut().expel(connection.rank, why);
        self.deliver();
    }

    /// Queues the hub's frames, each on its connection.
    fn deliver(&self) {
        let connections = self.connections.borrow();
        loop {
            let transmission = self.hub.borrow_mut().poll_transmit();
            let Some((rank, frame)) = transmission else { break };
            let Some(connection) = connections.get(&rank) else { continue };
            connection.queue(frame);
            let mut hub = self.hub.borrow_mut();
            if connection.outgoing.borrow().len() > hub.backlog_max() {
                // It would not read the reason either.
                hub.expel(rank, "it does not fetch what it has asked for");
                connection.cut();
            }
        }
        if self.hub.borrow().is_over() && !self.is_over.replace(true) {
            self.mailbox.post(JobEvent::AllDeparted);
        }
    }
}

/// The maximum number of reads from the connection of a rank that has ended: as much as a socket holds.
const ENDED_READS_MAX: usize = 1024;

impl RankConnection {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.try_io(Direction::Read, |socket| {
            let (count, _) = recv(socket, buffer, RecvFlags::empty())?;
            Ok(count)
        })
    }

    fn queue(&self, frame: SharedFrame) {
        self.outgoing.borrow_mut().push_back(frame);
        self.wake();
    }

    fn close(&self) {
        self.is_closing.set(true);
        self.wake();
    }

    /// Closes immediately, discarding unsent frames.
    fn cut(&self) {
        self.outgoing.borrow_mut().clear();
        self.close();
        self.shut();
    }

    fn shut(&self) {
        // Fails if the rank has closed it already.
        let _ = shutdown(self.socket.as_inner(), Shutdown::Both);
    }

    fn wake(&self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Writes queued frames, until the connection is closed and the rest is written, or the reader is gone.
    async fn write_frames(self: Rc<Self>) {
        while let Some(frame) = self.next().await {
            let tag = self.seal.as_ref().map(|seal| seal.borrow_mut().tag(&frame));
            let bytes = [&frame[..], tag.as_ref().map_or(&[][..], |tag| &tag[..])].concat();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let sent = self.socket.async_io(Direction::Write, |socket| {
                    Ok(send(socket, rest, SendFlags::NOSIGNAL)?)
                });
                match sent.await {
                    Ok(count) => rest = &rest[count..],
                    // The end of the process is noticed elsewhere; further frames are bounded.
                    Err(_) => return,
                }
            }
        }
        // So that an expelled rank sees the end at once; for one that has left or ended it makes no difference.
        self.shut();
    }

    async fn next(&self) -> Option<SharedFrame> {
        poll_fn(|cx| {
            if let Some(frame) = self.outgoing.borrow_mut().pop_front() {
                return Poll::Ready(Some(frame));
            }
            if self.is_closing.get() {
                return Poll::Ready(None);
            }
            self.writer.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}
