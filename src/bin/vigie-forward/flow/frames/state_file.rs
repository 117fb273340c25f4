//! The file in which a flow keeps its translations for the next start.
//!
//! It is written beside its old version and renamed, so that it is always a whole one, however the process ends. It is locked, since of
//! two flows with one file each would replace the translations of the other.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use vigie::{
    Instant,
    detect::clock::monotonic_now,
    forward::tables::{NatFlow, NatTable},
    spawn_blocking, spawn_local,
};

use super::locked_file::{LockedFile, LockedFileError};
use crate::{flow::FlowError, journal::log};

/// The interval between writes.
const EVERY: Duration = Duration::from_secs(10);

/// A state file, and when it is written.
#[derive(Debug)]
pub(super) struct StateFile {
    flow: String,
    path: PathBuf,
    next_at: Instant,
    /// True if it could not be written the last time, which was said.
    has_failed: Rc<Cell<bool>>,
    /// True while it is being written.
    is_busy: Rc<Cell<bool>>,
    file: SharedFile,
}

/// The file, for the thread that writes it; `None` once it has been written for the last time.
#[derive(Clone, Debug)]
struct SharedFile(Arc<Mutex<Option<LockedFile>>>);

impl SharedFile {
    /// A panic leaves the file as it was, or replaced.
    fn lock(&self) -> MutexGuard<'_, Option<LockedFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateFile {
    /// Takes over the translations of the file, if there is one. What is wrong with it is said, and the table then begins empty.
    ///
    /// # Errors
    /// Another flow has the file.
    pub(super) fn restore(
        flow: &str,
        path: &Path,
        table: &NatTable,
        keeps: impl Fn(&NatFlow) -> bool,
    ) -> Result<Self, FlowError> {
        let nothing = |error: &dyn std::fmt::Display| {
            log(format!("flow `{flow}`: no translations of before: {}: {error}", path.display()));
        };
        let file = match LockedFile::open(path) {
            Ok(file) => file,
            Err(LockedFileError::InUse { holder }) => {
                return Err(FlowError::StateInUse { path: path.to_owned(), holder });
            }
            Err(LockedFileError::Io(error)) => {
                nothing(&error);
                LockedFile::later(path)
            }
        };
        let now = monotonic_now();
        match file.read() {
            // There was none.
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => match table.restore(&bytes, file.age(), keeps, now) {
                Ok((restored, 0)) => {
                    log(format!("flow `{flow}`: goes on with {restored} translations of before"));
                }
                Ok((restored, left)) => log(format!(
                    "flow `{flow}`: goes on with {restored} translations of before; {left} have expired, or have no place in its \
                     settings"
                )),
                Err(error) => log(format!(
                    "flow `{flow}`: no translations of before, since of {} {error}",
                    path.display()
                )),
            },
            Err(error) => nothing(&error),
        }
        Ok(Self {
            flow: flow.to_owned(),
            path: path.to_owned(),
            next_at: now + EVERY,
            has_failed: Rc::default(),
            is_busy: Rc::default(),
            file: SharedFile(Arc::new(Mutex::new(Some(file)))),
        })
    }

    /// Writes the file if it is due, on another thread.
    pub(super) fn tick(&mut self, table: &NatTable, now: Instant) {
        if now < self.next_at || self.is_busy.get() {
            return;
        }
        self.next_at = now + EVERY;
        self.is_busy.set(true);
        let (is_busy, has_failed) = (Rc::clone(&self.is_busy), Rc::clone(&self.has_failed));
        let (flow, path, table) = (self.flow.clone(), self.path.clone(), table.clone());
        let file = self.file.clone();
        spawn_local(async move {
            let write = move || match &mut *file.lock() {
                Some(file) => file.replace(&table.save(now)),
                None => Ok(()),
            };
            if let Ok(written) = spawn_blocking(write).await {
                tell(&flow, &path, &has_failed, written);
            }
            is_busy.set(false);
        })
        .detach();
    }

    /// Writes the file for the last time, and frees it: another flow may have it as soon as this returns.
    pub(super) fn end(self, table: &NatTable) {
        if let Some(mut file) = self.file.lock().take() {
            let written = file.replace(&table.save(monotonic_now()));
            tell(&self.flow, &self.path, &self.has_failed, written);
        }
    }
}

/// Says when the file can no longer be written, and when it can again.
fn tell(flow: &str, path: &Path, has_failed: &Cell<bool>, written: Result<(), LockedFileError>) {
    match written {
        Err(error) if !has_failed.replace(true) => log(format!(
            "flow `{flow}`: its translations are not kept: {}: {error}; it tries again every {} s",
            path.display(),
            EVERY.as_secs()
        )),
        Ok(()) if has_failed.replace(false) => {
            log(format!("flow `{flow}`: its translations are kept again"));
        }
        Ok(()) | Err(_) => {}
    }
}
