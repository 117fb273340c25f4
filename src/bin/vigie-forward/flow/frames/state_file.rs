//! The file in which a flow keeps its translations for the next start.
//!
//! It is written beside its old version and renamed, so that it is always a whole one, however the process ends.

use std::{
    cell::Cell,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use vigie::{
    Instant,
    detect::clock::monotonic_now,
    forward::tables::{NatFlow, NatTable},
    spawn_blocking, spawn_local,
};

use crate::journal::log;

/// How often it is written.
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
}

impl StateFile {
    /// Takes over the translations of the file, if there is one. What is wrong with it is said, and the table then begins empty.
    pub(super) fn restore(
        flow: &str,
        path: &Path,
        table: &NatTable,
        keeps: impl Fn(&NatFlow) -> bool,
    ) -> Self {
        let bytes = match fs::read(path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                log(format!(
                    "flow `{flow}`: no translations of before: {}: {error}",
                    path.display()
                ));
                None
            }
        };
        if let Some(bytes) = bytes {
            // A clock that was set back makes them younger, which only lets them live longer.
            let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            let age = written.and_then(|written| written.elapsed().ok()).unwrap_or_default();
            match table.restore(&bytes, age, keeps, monotonic_now()) {
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
            }
        }
        Self {
            flow: flow.to_owned(),
            path: path.to_owned(),
            next_at: monotonic_now() + EVERY,
            has_failed: Rc::default(),
            is_busy: Rc::default(),
        }
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
        spawn_local(async move {
            let to = path.clone();
            let written = spawn_blocking(move || write(&to, &table.save(now))).await;
            if let Ok(written) = written {
                tell(&flow, &path, &has_failed, written);
            }
            is_busy.set(false);
        })
        .detach();
    }

    /// Writes the file now: it may be read as soon as this returns.
    pub(super) fn write_now(&self, table: &NatTable) {
        let written = write(&self.path, &table.save(monotonic_now()));
        tell(&self.flow, &self.path, &self.has_failed, written);
    }
}

/// Writes a new file, and puts it in the place of the old one.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    let written = write();
    if written.is_err() {
        // What was written of it takes room on a full disk.
        let _ = fs::remove_file(&new);
    }
    written
}

/// Says when the file can no longer be written, and when it can again.
fn tell(flow: &str, path: &Path, has_failed: &Cell<bool>, written: io::Result<()>) {
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
