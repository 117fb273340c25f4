//! The launcher's end of the rendezvous: sockets around the hub of `vigie-via`, inherited by ranks that were started
//! here, or of ranks that have [called](crate::door).

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
    spawn_local,
    stock::readiness::Direction,
    time::{sleep, timeout},
    via::world::{
        Ending, Identity, Rank, Refusal,
        hub::{Hub, SharedFrame},
        tcp::{handshake::Session, seal::Seal},
        wire::{Decoder, Request, WireError},
    },
    yield_now,
};

use crate::mailbox::{Happening, Mailbox};

/// How long the end of a process may take to be noticed after its connection was closed; one that lives
/// on has cut itself off.
const CLOSED_TIME: Duration = Duration::from_secs(1);

/// How long the last words to ranks may take.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// The rendezvous of a job.
pub(crate) struct Rendezvous {
    hub: RefCell<Hub>,
    lines: RefCell<BTreeMap<Rank, Rc<Line>>>,
    speakers: RefCell<Vec<JoinHandle<()>>>,
    /// Is told when nobody is there any more, or will be.
    mailbox: Rc<Mailbox>,
    is_over: Cell<bool>,
}

/// The connection to one rank.
struct Line {
    rank: Rank,
    socket: AsyncFd<OwnedFd>,
    /// On a network.
    seal: Option<RefCell<Seal>>,
    decoder: RefCell<Decoder>,
    outgoing: RefCell<VecDeque<SharedFrame>>,
    /// Whoever waits for something to send.
    writer: Cell<Option<Waker>>,
    /// Nothing more will be queued.
    is_closing: Cell<bool>,
}

/// What a look at a line has found.
enum Heard {
    Something,
    Nothing,
    End,
}

impl Rendezvous {
    pub(crate) fn new(size: u32, identity: Identity, mailbox: Rc<Mailbox>) -> Rc<Self> {
        Rc::new(Self {
            hub: RefCell::new(Hub::new(size, identity)),
            lines: RefCell::default(),
            speakers: RefCell::default(),
            mailbox,
            is_over: Cell::new(false),
        })
    }

    /// Serves `rank` through `socket`, which must be in non-blocking mode; on a network with the keys of
    /// `session`.
    pub(crate) fn serve(
        self: &Rc<Self>,
        rank: Rank,
        socket: OwnedFd,
        session: Option<&Session>,
    ) -> io::Result<()> {
        let line = Rc::new(Line {
            rank,
            socket: AsyncFd::new(socket)?,
            seal: session.map(|session| RefCell::new(Seal::of_hub(session))),
            decoder: RefCell::new(Decoder::new()),
            outgoing: RefCell::default(),
            writer: Cell::new(None),
            is_closing: Cell::new(false),
        });
        self.lines.borrow_mut().insert(rank, Rc::clone(&line));
        spawn_local(Rc::clone(self).listen(Rc::clone(&line))).detach();
        self.speakers.borrow_mut().push(spawn_local(line.speak()));
        Ok(())
    }

    /// Says why `rank` cannot be let in, if it cannot.
    pub(crate) fn admit(&self, rank: Rank) -> Result<(), Refusal> {
        if self.lines.borrow().contains_key(&rank) {
            Err(Refusal::Taken)
        } else if self.hub.borrow().is_heard(rank) {
            Ok(())
        } else {
            Err(Refusal::TooLate)
        }
    }

    /// Returns the ranks that have not arrived.
    pub(crate) fn missing(&self) -> Vec<Rank> {
        self.hub.borrow().missing()
    }

    /// Returns the ranks that had joined and were lost.
    pub(crate) fn lost(&self) -> Vec<Rank> {
        self.hub.borrow().lost()
    }

    /// Returns the ranks that are gone, or given up, without having joined.
    pub(crate) fn never_joined(&self) -> Vec<Rank> {
        self.hub.borrow().never_joined()
    }

    /// Waits no longer for ranks that have not arrived: the others go on, or are told that this is the end.
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
            self.lines.borrow().values().for_each(|line| line.close());
        }
    }

    /// Waits until the last words are said, for a while.
    pub(crate) async fn farewell(&self) {
        let speakers = mem::take(&mut *self.speakers.borrow_mut());
        let all = async {
            for speaker in speakers {
                // It cannot have failed otherwise than by the end of the runtime.
                drop(speaker.await);
            }
        };
        // Who does not listen by then has had time enough.
        let _ = timeout(FAREWELL_TIME, all).await;
    }

    /// Handles what a rank that has ended said before, and tells the others of its end.
    pub(crate) fn end(&self, rank: Rank, ending: Ending) {
        let Some(line) = self.lines.borrow().get(&rank).cloned() else {
            self.hub.borrow_mut().end(rank, ending);
            return self.deliver();
        };
        // Bounded: nobody writes any more, unless the rank has given its connection away.
        for _ in 0..ENDED_READS_MAX {
            if !matches!(self.hear(&line), Heard::Something) {
                break;
            }
        }
        self.hub.borrow_mut().end(line.rank, ending);
        line.close();
        self.deliver();
    }

    /// Reads from a rank until nobody listens to it any more.
    async fn listen(self: Rc<Self>, line: Rc<Line>) {
        while self.hub.borrow().is_heard(line.rank) {
            match self.hear(&line) {
                // The others have their turn, however much this one says.
                Heard::Something => yield_now().await,
                Heard::Nothing => match line.socket.ready(Direction::Read).await {
                    Ok(_) => {}
                    Err(_) => return,
                },
                Heard::End => {
                    if line.seal.is_none() {
                        sleep(CLOSED_TIME).await;
                    }
                    self.expel(&line, "the connection was closed without leaving");
                }
            }
        }
        line.close();
    }

    /// Reads once.
    fn hear(&self, line: &Line) -> Heard {
        let mut buffer = [0; 4096];
        match line.receive(&mut buffer) {
            Ok(0) => Heard::End,
            Ok(count) => {
                line.decoder.borrow_mut().feed(&buffer[..count]);
                if let Err(error) = self.handle_frames(line) {
                    self.expel(line, &error.to_string());
                }
                self.deliver();
                Heard::Something
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Heard::Something,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }

    fn handle_frames(&self, line: &Line) -> Result<(), WireError> {
        let mut decoder = line.decoder.borrow_mut();
        let mut hub = self.hub.borrow_mut();
        loop {
            let frame = match &line.seal {
                Some(seal) => seal.borrow_mut().open(&mut decoder)?,
                None => decoder.next_frame()?,
            };
            let Some(frame) = frame else { return Ok(()) };
            hub.handle(line.rank, Request::decode(frame)?);
        }
    }

    fn expel(&self, line: &Line, why: &str) {
        self.hub.borrow_mut().expel(line.rank, why);
        self.deliver();
    }

    /// Queues what the hub has to say, each frame at its line.
    fn deliver(&self) {
        let lines = self.lines.borrow();
        loop {
            let transmission = self.hub.borrow_mut().poll_transmit();
            let Some((rank, frame)) = transmission else { break };
            let Some(line) = lines.get(&rank) else { continue };
            line.queue(frame);
            let mut hub = self.hub.borrow_mut();
            if line.outgoing.borrow().len() > hub.backlog_max() {
                // It would not fetch the reason either.
                hub.expel(rank, "it does not fetch what it has asked for");
                line.cut();
            }
        }
        if self.hub.borrow().is_over() && !self.is_over.replace(true) {
            self.mailbox.post(Happening::Dispersed);
        }
    }
}

/// How often at most the connection of a rank that has ended is read: as much as a socket holds.
const ENDED_READS_MAX: usize = 1024;

impl Line {
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

    /// Closes at once, whatever is still to be sent.
    fn cut(&self) {
        self.outgoing.borrow_mut().clear();
        self.close();
        self.shut();
    }

    fn shut(&self) {
        // One whose rank has closed it already is shut.
        let _ = shutdown(self.socket.as_inner(), Shutdown::Both);
    }

    fn wake(&self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Writes what is queued, until the line is closed and the rest is written or nobody reads it.
    async fn speak(self: Rc<Self>) {
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
                    // The end of its process is noticed elsewhere; more frames are bounded.
                    Err(_) => return,
                }
            }
        }
        // So that a rank that was expelled sees the end at once; one that has left or ended does not care.
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
