//! The launcher's end of the rendezvous: sockets around the hub of `vigie-via`.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io::{self, Read},
    net::Shutdown,
    os::unix::net::UnixStream,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use rustix::net::{SendFlags, send};
use vigie::{
    detect::AsyncFd,
    spawn_local,
    stock::readiness::Direction,
    time::sleep,
    via::world::{
        Ending, Identity, Rank,
        hub::{Hub, SharedFrame},
        wire::{Decoder, Request, WireError},
    },
    yield_now,
};

/// How long the end of a process may take to be noticed after its connection was closed; one that lives
/// on has cut itself off.
const CLOSED_TIME: Duration = Duration::from_secs(1);

/// The rendezvous of a job.
pub(crate) struct Rendezvous {
    hub: RefCell<Hub>,
    lines: RefCell<Vec<Rc<Line>>>,
}

/// The connection to one rank.
struct Line {
    rank: Rank,
    socket: AsyncFd<UnixStream>,
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
    pub(crate) fn new(size: u32) -> io::Result<Rc<Self>> {
        let hub = RefCell::new(Hub::new(size, Identity::random()?));
        Ok(Rc::new(Self { hub, lines: RefCell::default() }))
    }

    /// Serves the next rank through `socket`, which must be in non-blocking mode.
    pub(crate) fn serve(self: &Rc<Self>, socket: UnixStream) -> io::Result<()> {
        let mut lines = self.lines.borrow_mut();
        let line = Rc::new(Line {
            rank: Rank(u32::try_from(lines.len()).unwrap_or(u32::MAX)),
            socket: AsyncFd::new(socket)?,
            decoder: RefCell::new(Decoder::new()),
            outgoing: RefCell::default(),
            writer: Cell::new(None),
            is_closing: Cell::new(false),
        });
        lines.push(Rc::clone(&line));
        spawn_local(Rc::clone(self).listen(Rc::clone(&line))).detach();
        spawn_local(line.speak()).detach();
        Ok(())
    }

    /// Handles what a rank that has ended said before, and tells the others of its end.
    pub(crate) fn end(&self, index: usize, ending: Ending) {
        let Some(line) = self.lines.borrow().get(index).cloned() else { return };
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
                    sleep(CLOSED_TIME).await;
                    self.expel(&line, "the connection was closed without leaving");
                }
            }
        }
        line.close();
    }

    /// Reads once.
    fn hear(&self, line: &Line) -> Heard {
        let mut buffer = [0; 4096];
        match line.socket.try_io(Direction::Read, |mut socket| socket.read(&mut buffer)) {
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
        while let Some(frame) = decoder.next_frame()? {
            hub.handle(line.rank, Request::decode(frame)?);
        }
        Ok(())
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
            let Some((rank, frame)) = transmission else { return };
            let Some(line) = lines.get(rank.index()) else { continue };
            line.queue(frame);
            let mut hub = self.hub.borrow_mut();
            if line.outgoing.borrow().len() > hub.backlog_max() {
                // It would not fetch the reason either.
                hub.expel(rank, "it does not fetch what it has asked for");
                line.cut();
            }
        }
    }
}

/// How often at most the connection of a rank that has ended is read: as much as a socket holds.
const ENDED_READS_MAX: usize = 1024;

impl Line {
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
        drop(self.socket.as_inner().shutdown(Shutdown::Both));
    }

    fn wake(&self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Writes what is queued, until the line is closed and the rest is written or nobody reads it.
    async fn speak(self: Rc<Self>) {
        while let Some(frame) = self.next().await {
            let mut rest = &frame[..];
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
