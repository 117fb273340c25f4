//! A channel into tasks: plain threads send, tasks receive by waiting on a handle.
//!
//! The queue is crossbeam's. Waits are served in the order in which they were made; with several
//! waiters each value goes to one. The receiving side is gone when its handle and the server are.

use std::{collections::VecDeque, fmt, io};

use crossbeam::channel::{self, TryRecvError, TrySendError};

use crate::{
    detector::{Arming, Bell, Detector, Emitted, Key, Methods, Mode, Round, Site, Submitted},
    error::RegisterError,
    server::{Handle, Registration, Server},
    sync::Arc,
};

/// The detector's side of a channel: made by [`channel()`].
pub struct Receiver<T> {
    queue: channel::Receiver<T>,
    /// Taken from the queue, but by no waiter: one had no room, or left. Oldest first; at most as many
    /// as were reported to streams and waits at a time.
    held: VecDeque<T>,
    bell: Option<Bell>,
}

/// The sending side, for any thread. Clones send into the same channel.
pub struct Sender<T> {
    queue: channel::Sender<T>,
    /// Shared: the last drop rings, so that receivers learn of the end.
    bell: Arc<RingOnDrop>,
}

struct RingOnDrop(Bell);

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Makes a channel for at most `capacity` values that nobody has received yet, at least 1.
///
/// # Errors
/// As [`Server::register`].
///
/// # Examples
/// ```
/// # use vigie_detect::{Simulation, stock::channel::channel};
/// # let mut simulation = Simulation::new(7);
/// let (sender, receiver) = channel(simulation.server(), 8)?;
/// sender.try_send(42)?;
/// let received = simulation.block_on(async move { receiver.wait(()).await })??;
/// assert_eq!(received, Some(42));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn channel<T: Send + 'static>(
    server: &Server,
    capacity: usize,
) -> Result<(Sender<T>, Handle<Receiver<T>>), RegisterError> {
    let (sender, queue) = channel::bounded(capacity.max(1));
    let receiver = Receiver { queue, held: VecDeque::new(), bell: None };
    let handle = server.register(receiver, Registration::named("channel"))?;
    let bell = handle.with_detector(|receiver| receiver.bell.clone()).flatten();
    let bell = Arc::new(RingOnDrop(bell.ok_or(RegisterError::ServerClosed)?));
    Ok((Sender { queue: sender, bell }, handle))
}

impl<T> Sender<T> {
    /// Sends without waiting.
    ///
    /// # Errors
    /// Gives the value back if the channel is full or nobody can receive any more.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.queue.try_send(value)?;
        self.bell.0.ring();
        Ok(())
    }

    /// Sends, blocking the calling *thread* while the channel is full: not for tasks.
    ///
    /// # Errors
    /// Gives the value back if nobody can receive any more.
    pub fn send_blocking(&self, value: T) -> Result<(), channel::SendError<T>> {
        self.queue.send(value)?;
        self.bell.0.ring();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("len", &self.queue.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("len", &self.queue.len()).finish_non_exhaustive()
    }
}

impl<T> Receiver<T> {
    /// The next value; `Some(None)` once all senders are gone and the queue is empty.
    fn take(&mut self) -> Option<Option<T>> {
        if let Some(value) = self.held.pop_front() {
            return Some(Some(value));
        }
        match self.queue.try_recv() {
            Ok(value) => Some(Some(value)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(None),
        }
    }
}

impl<T: Send + 'static> Detector for Receiver<T> {
    type Request = ();
    /// A value, or `None` at the end: all senders are gone.
    type Event = Option<T>;

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, site: &Site) -> io::Result<()> {
        self.bell = Some(site.bell());
        Ok(())
    }

    fn submit(&mut self, key: Key, request: &mut (), mode: Mode) -> Submitted<Option<T>> {
        if mode == Mode::Stream {
            // Many values may be there: the next round hands them out.
            return Submitted::Queued;
        }
        match self.check(key, request) {
            Some(value) => Submitted::Ready(value),
            None => Submitted::Pending,
        }
    }

    fn check(&mut self, _: Key, (): &mut ()) -> Option<Option<T>> {
        self.take()
    }

    fn unclaimed(&mut self, event: Option<T>) -> Option<Option<T>> {
        // Newest first; they go before the queue's.
        if let Some(event) = event {
            self.held.push_front(event);
        }
        None
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        while let Some(key) = round.oldest() {
            if round.is_full() {
                round.more();
                return;
            }
            let Some(value) = self.take() else { return };
            if value.is_none() {
                // The end is for every waiter, and each time.
                round.complete(key, None);
                continue;
            }
            match round.emit(key, value) {
                Emitted::Kept | Emitted::Ended => {}
                Emitted::Full(value) | Emitted::Gone(value) => {
                    if let Some(value) = value {
                        self.held.push_front(value);
                    }
                    return;
                }
            }
        }
    }
}
