//! The log of connections and translations: a line of JSON for each, written by a thread of its own.
//!
//! ```text
//!   tasks of relays ──┐ offer: never waits
//!   threads of nat  ──┴▶ queue of 4096 entries ──▶ thread: line.rs, writer.rs ──▶ file, pipe or terminal
//!                          │ full: lost, counted
//! ```
//! What cannot be written stays at the head of the queue, and is tried again every 250 ms, or once a pipe has room: a full disk costs only the
//! entries for which the queue has no room.

mod line;
mod writer;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread::{self, Thread},
    time::{Duration, SystemTime},
};

use thiserror::Error;
use vigie::{Instant, detect::clock::monotonic_now};

pub(crate) use self::line::{EntryKind, connection, translation, utc};
use self::writer::{LineWriter, Output};
use crate::{
    config::LogTarget,
    privileges::{self, DropError},
};

/// The number of entries that wait for the thread.
const QUEUE_ENTRIES: usize = 4096;
/// The bytes that are written at once, unless a line is longer.
const BATCH_BYTES: usize = 32 << 10;
/// The time until a failed write is tried again, and at which an idle thread looks for another file.
const RETRY: Duration = Duration::from_millis(250);
/// The number of calls of [`news`] without loss or trouble until that is over.
const QUIET: u32 = 5;
/// The time for what is left at the end of the process.
const FINISH: Duration = Duration::from_secs(2);

/// The log of this process, once a flow has one.
static LOG: OnceLock<AccessLog> = OnceLock::new();

/// The reason why the log cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum AccessLogError {
    #[error("`log_file`: {} cannot be opened: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("the log's thread cannot start: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Rights(#[from] DropError),
}

/// One line to be.
struct Entry {
    flow: Arc<str>,
    at: SystemTime,
    kind: EntryKind,
}

/// The part that all threads use. The counters are statistics only.
#[derive(Default)]
struct LogState {
    written: AtomicU64,
    lost: AtomicU64,
    is_finishing: AtomicBool,
    /// The number of threads of `offer_all`.
    offering: AtomicUsize,
    /// The file to go on with.
    next: Mutex<Option<Output>>,
    /// Why lines cannot be written at the moment.
    trouble: Mutex<Option<String>>,
}

impl LogState {
    /// Goes on with another file, if there is one.
    fn adopt_next(&self, writer: &mut LineWriter<Output>) {
        if let Some(next) = self.next.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let cut = writer.replace(next);
            self.lost.fetch_add(cut, Ordering::Relaxed);
        }
    }

    fn set_trouble(&self, error: Option<&io::Error>) {
        let text = error.map(io::Error::to_string);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct AccessLog {
    target: LogTarget,
    state: Arc<LogState>,
    queue: SyncSender<Entry>,
    writer: Thread,
    ended: Mutex<Receiver<()>>,
    told: Mutex<Told>,
}

impl AccessLog {
    /// Waits for room. Late entries are lost.
    fn offer_until(&self, mut entry: Entry, until: Instant) {
        loop {
            match self.queue.try_send(entry) {
                Err(TrySendError::Full(back)) if monotonic_now() < until => entry = back,
                Ok(()) => return,
                Err(_) => {
                    self.state.lost.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// What `news` has said, and seen.
#[derive(Default)]
struct Told {
    is_bad: bool,
    lost: u64,
    /// The number of calls since the last loss or trouble.
    quiet: u32,
}

/// Opens the log, unless it is open. Its thread has no rights.
pub(crate) fn open(target: &LogTarget) -> Result<(), AccessLogError> {
    if LOG.get().is_some() {
        return Ok(());
    }
    let output = writer::open(target)?;
    let state = Arc::new(LogState::default());
    let (queue, entries) = sync_channel(QUEUE_ENTRIES);
    let (end, ended) = sync_channel(1);
    let (tell, told) = sync_channel(1);
    let of_thread = Arc::clone(&state);
    let body = move || {
        let given_up = privileges::give_up_all_of_thread();
        let may_run = given_up.is_ok();
        let _ = tell.send(given_up);
        if may_run {
            write_all(&of_thread, &entries, LineWriter::new(output));
        }
        let _ = end.send(());
    };
    let thread = thread::Builder::new().name("log".to_owned()).spawn(body);
    let writer = thread.map_err(AccessLogError::Thread)?.thread().clone();
    told.recv().map_err(|error| AccessLogError::Thread(io::Error::other(error)))??;
    let (target, ended) = (target.clone(), Mutex::new(ended));
    let _ = LOG.set(AccessLog { target, state, queue, writer, ended, told: Mutex::default() });
    Ok(())
}

/// Returns its place, if it is open.
pub(crate) fn target() -> Option<&'static LogTarget> {
    LOG.get().map(|log| &log.target)
}

/// Adds an entry, unless the queue is full: then it is lost, and counted. Never waits.
pub(crate) fn offer(flow: &Arc<str>, kind: EntryKind) {
    let Some(log) = LOG.get() else { return };
    let entry = Entry { flow: Arc::clone(flow), at: SystemTime::now(), kind };
    if log.queue.try_send(entry).is_err() {
        log.state.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// As [`offer`], of many at once: a thread of their own waits for room, for at most 2 s in all.
pub(crate) fn offer_all(
    flow: Arc<str>,
    kinds: impl ExactSizeIterator<Item = EntryKind> + Send + 'static,
) {
    let Some(log) = LOG.get() else { return };
    let (at, until, count) = (SystemTime::now(), monotonic_now() + FINISH, kinds.len() as u64);
    let body = move || {
        for kind in kinds {
            log.offer_until(Entry { flow: Arc::clone(&flow), at, kind }, until);
        }
        // Release: pairs with the acquire of `write_all`, which then sees the entries.
        log.state.offering.fetch_sub(1, Ordering::Release);
    };
    log.state.offering.fetch_add(1, Ordering::Relaxed);
    if thread::Builder::new().name("log-offer".to_owned()).spawn(body).is_err() {
        log.state.offering.fetch_sub(1, Ordering::Relaxed);
        log.state.lost.fetch_add(count, Ordering::Relaxed);
    }
}

/// Opens the file again, which may have been renamed. Returns what went wrong: then the old one stays in use.
pub(crate) fn reopen() -> Result<(), AccessLogError> {
    let Some(log) = LOG.get().filter(|log| matches!(log.target, LogTarget::File(_))) else {
        return Ok(());
    };
    let output = writer::open(&log.target)?;
    *log.state.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
    log.writer.unpark();
    Ok(())
}

/// Returns the numbers of lines written and lost, if there is a log.
pub(crate) fn counts() -> Option<(u64, u64)> {
    let state = &LOG.get()?.state;
    Some((state.written.load(Ordering::Relaxed), state.lost.load(Ordering::Relaxed)))
}

/// Says, with where the lines go, once when lines cannot be written or are lost, and once when that is over. Call it about every second.
pub(crate) fn news(say: impl FnOnce(&str, &LogTarget)) {
    let Some(log) = LOG.get() else { return };
    let (trouble, lost) = (log.state.trouble(), log.state.lost.load(Ordering::Relaxed));
    let mut told = log.told.lock().unwrap_or_else(PoisonError::into_inner);
    let is_quiet = trouble.is_none() && lost == told.lost;
    told.quiet = if is_quiet { told.quiet.saturating_add(1) } else { 0 };
    told.lost = lost;
    let was_bad = told.is_bad;
    // Losses in every other second are one trouble.
    told.is_bad = told.quiet == 0 || (was_bad && told.quiet < QUIET);
    match (was_bad, told.is_bad) {
        (false, true) => {
            let why = trouble.unwrap_or_else(|| "it takes them too slowly".to_owned());
            let said = format!(
                "lines for {} cannot be written: {why}; up to {QUEUE_ENTRIES} wait, and further ones are lost (`log_lines_lost`)",
                log.target
            );
            say(&said, &log.target);
        }
        (true, false) => {
            let said = format!("lines for {} are written again; {lost} were lost", log.target);
            say(&said, &log.target);
        }
        _ => {}
    }
}

/// Writes what is left, for at most 2 s. Returns what is to be said if not all was written.
pub(crate) fn finish() -> Option<String> {
    let log = LOG.get()?;
    log.state.is_finishing.store(true, Ordering::Release);
    log.writer.unpark();
    let ended = log.ended.lock().unwrap_or_else(PoisonError::into_inner);
    let is_late = ended.recv_timeout(FINISH).is_err();
    let lost = log.state.lost.load(Ordering::Relaxed);
    let left = if is_late { ", and those that still waited" } else { "" };
    (is_late || lost > 0).then(|| format!("lines for {}: {lost} were lost{left}", log.target))
}

/// The thread: writes entries until the process ends.
fn write_all(state: &LogState, entries: &Receiver<Entry>, mut writer: LineWriter<Output>) {
    loop {
        state.adopt_next(&mut writer);
        // Acquire, both: entries that were offered before the end are seen below.
        let is_finishing = state.is_finishing.load(Ordering::Acquire)
            && state.offering.load(Ordering::Acquire) == 0;
        if writer.is_empty() {
            match entries.recv_timeout(if is_finishing { Duration::ZERO } else { RETRY }) {
                Ok(entry) => writer.push(&line::text(&entry)),
                Err(RecvTimeoutError::Timeout) if is_finishing => return,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        while writer.pending_bytes() < BATCH_BYTES {
            match entries.try_recv() {
                Ok(entry) => writer.push(&line::text(&entry)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        // What was offered after SIGHUP belongs into the new file.
        state.adopt_next(&mut writer);
        let flushed = writer.flush();
        state.written.fetch_add(writer.take_written(), Ordering::Relaxed);
        // A full pipe is no trouble unless lines are lost.
        let is_full = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        state.set_trouble(flushed.as_ref().err().filter(|error| !is_full(error)));
        match flushed {
            Ok(()) => {}
            Err(error) if is_full(&error) => writer.wait_for_room(RETRY),
            Err(_) => thread::park_timeout(RETRY),
        }
    }
}
