//! A channel into tasks: plain threads send, tasks receive.
//!
//! The queue is that of [`std::sync::mpsc`]. Waits are served in the order in which they were made; with several
//! waiters each value goes to one. The receiving side exists until its handle and the server are
//! gone.

use std::{collections::VecDeque, fmt, io};

use crate::{
    detector::{
        Arming, Detector, DriverHandle, EmitOutcome, Key, Methods, Mode, Notifier, PollContext,
        SubmitOutcome,
    },
    error::RegisterError,
    server::{Handle, Registration, Server, Wait},
    sync::{
        Arc,
        mpsc::{self, SendError, TryRecvError, TrySendError},
    },
};

/// The detector's side of a channel: created by [`channel()`].
pub struct Receiver<T> {
    queue: mpsc::Receiver<T>,
    /// Taken from the queue, but not by a waiter: one had no room, or left. Oldest first; no more than
    /// were reported to streams and waits at once.
    held: VecDeque<T>,
    notifier: Option<Notifier>,
}

/// The sending side, for any thread. Clones send into the same channel.
pub struct Sender<T> {
    queue: mpsc::SyncSender<T>,
    /// Shared: the last drop notifies, so that receivers learn of the end.
    notifier: Arc<NotifyOnDrop>,
}

struct NotifyOnDrop(Notifier);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// The largest capacity of a channel, 2^24.
const CAPACITY_MAX: usize = 1 << 24;

/// Creates a channel for at most `capacity` values not yet received, 1 to 2^24. The memory for all of them is allocated at once.
///
/// # Errors
/// Same as [`Server::register`].
///
/// # Panics
/// If `capacity` is 0 or above 2^24.
///
/// # Examples
/// ```
/// # use vigie_detect::{Simulation, detectors::channel::channel};
/// # let mut simulation = Simulation::new(7);
/// let (sender, receiver) = channel(simulation.server(), 8)?;
/// sender.try_send(42)?;
/// let received = simulation.block_on(async move { receiver.recv().await })??;
/// assert_eq!(received, Some(42));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn channel<T: Send + 'static>(
    server: &Server,
    capacity: usize,
) -> Result<(Sender<T>, Handle<Receiver<T>>), RegisterError> {
    assert!(
        (1..=CAPACITY_MAX).contains(&capacity),
        "the capacity of a channel is {capacity}: it must be from 1 to {CAPACITY_MAX}"
    );
    let (sender, queue) = mpsc::sync_channel(capacity);
    let receiver = Receiver { queue, held: VecDeque::new(), notifier: None };
    let handle = server.register(receiver, Registration::named("channel"))?;
    let notifier = handle.with_detector(|receiver| receiver.notifier.clone()).flatten();
    let notifier = Arc::new(NotifyOnDrop(notifier.ok_or(RegisterError::ServerClosed)?));
    Ok((Sender { queue: sender, notifier }, handle))
}

impl<T> Sender<T> {
    /// Sends without waiting.
    ///
    /// # Errors
    /// Returns the value if the channel is full or has no receiver any more.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.queue.try_send(value)?;
        self.notifier.0.notify();
        Ok(())
    }

    /// Sends, blocking the calling *thread* while the channel is full: not for tasks.
    ///
    /// # Errors
    /// Returns the value if the channel has no receiver any more.
    pub fn send_blocking(&self, value: T) -> Result<(), SendError<T>> {
        self.queue.send(value)?;
        self.notifier.0.notify();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), notifier: Arc::clone(&self.notifier) }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl<T> Receiver<T> {
    /// Takes the next value; `Some(None)` once all senders are gone and the queue is empty.
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

impl<T: Send + 'static> Handle<Receiver<T>> {
    /// Receives the next value; `None` once all senders are gone and all values are received.
    ///
    /// # Cancel safety
    /// Cancel safe: no value is lost, and the order is kept.
    ///
    /// # Errors
    /// [`WaitError`](crate::WaitError).
    pub fn recv(&self) -> Wait<Receiver<T>, &Self> {
        self.wait(())
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

    fn attach(&mut self, driver: &DriverHandle) -> io::Result<()> {
        self.notifier = Some(driver.notifier());
        Ok(())
    }

    fn submit(&mut self, key: Key, request: &mut (), mode: Mode) -> SubmitOutcome<Option<T>> {
        if mode == Mode::Stream {
            // There may be many values: the next poll delivers them.
            return SubmitOutcome::Queued;
        }
        match self.check(key, request) {
            Some(value) => SubmitOutcome::Ready(value),
            None => SubmitOutcome::Pending,
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

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        while let Some(key) = context.oldest() {
            if context.is_full() {
                context.more();
                return;
            }
            let Some(value) = self.take() else { return };
            if value.is_none() {
                // Every waiter receives the end, each time.
                context.complete(key, None);
                continue;
            }
            match context.emit(key, value) {
                EmitOutcome::Kept | EmitOutcome::Ended => {}
                EmitOutcome::Full(value) | EmitOutcome::Gone(value) => {
                    if let Some(value) = value {
                        self.held.push_front(value);
                    }
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::detector::Flavor;

    /// Goal: a capacity out of range is refused with the number and the range. Method: both bounds, and what is beyond them.
    #[test]
    fn capacities_have_bounds() {
        let made = |capacity| {
            catch_unwind(|| {
                let server = Server::new(Flavor::UserLevel).expect("the kernel gives a server");
                channel::<()>(&server, capacity).map(drop)
            })
        };
        for capacity in [1, CAPACITY_MAX] {
            assert!(matches!(made(capacity), Ok(Ok(()))), "{capacity}");
        }
        for capacity in [0, CAPACITY_MAX + 1, usize::MAX] {
            let message = *made(capacity).expect_err("refused").downcast::<String>().expect("text");
            assert!(message.contains(&format!("{capacity}: it must be from 1 to 16777216")));
        }
    }
}
