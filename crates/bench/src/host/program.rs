//! Programs that are installed here or built at first use: started, waited for, ended.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::{now, sleep};
use crate::error::{BenchError, Failure};

/// Time between two looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The time limit for a program to end after it was asked to.
const FAREWELL: Duration = Duration::from_secs(3);

/// The last lines of what a program said against itself, for errors.
const LINES_SHOWN: usize = 4;

/// The folder of the user's cache in which a program that is built at first use is kept.
pub(crate) fn cache(name: &str) -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_else(env::temp_dir).join("vigie-bench").join(name)
}

/// Writes a file, with its folder, unless it is there already: what is written anew is built anew. Returns whether it wrote.
pub(crate) fn write_if_new(path: &Path, text: &str) -> Result<bool, BenchError> {
    let error = |source| BenchError::File { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(error)?;
    }
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(false);
    }
    fs::write(path, text).map_err(error)?;
    Ok(true)
}

/// Runs a program to its end, and returns its output. It is killed if it takes longer than
/// `timeout`, or if the wait for it is given up.
pub(crate) fn output_of(command: Command, timeout: Duration) -> Result<String, BenchError> {
    Program::start(command)?.finish(timeout)
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Program {
    process: process::Child,
    said: [thread::JoinHandle<String>; 2],
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Result<Self, BenchError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = |source| BenchError::Start { role: "peer", source };
        let mut process = command.spawn().map_err(start)?;
        let output = process.stdout.take().expect("invariant: standard output was asked for");
        let errors = process.stderr.take().expect("invariant: standard error was asked for");
        Ok(Self { process, said: [reader(output), reader(errors)] })
    }

    pub(crate) fn finish(mut self, timeout: Duration) -> Result<String, BenchError> {
        let begun = now();
        let failed = |failure| BenchError::Failed { role: "peer", failure };
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => {
                    let [output, errors] = self.said.map(|said| said.join().unwrap_or_default());
                    if status.success() {
                        return Ok(output);
                    }
                    let lines: Vec<_> = errors.lines().rev().take(LINES_SHOWN).collect();
                    let lines: Vec<_> = lines.into_iter().rev().collect();
                    let what = format!("it ended ({status}): {}", lines.join(" | "));
                    return Err(failed(Failure::runtime(what)));
                }
                Ok(None) if begun.elapsed() > timeout => {
                    end(&mut self.process);
                    return Err(BenchError::Silent { role: "peer", waited: timeout });
                }
                Ok(None) => sleep(LOOK),
                Err(error) => return Err(failed(Failure::io("waiting for a peer")(error))),
            }
        }
    }
}

/// Asks a program to end, so that a launcher ends its ranks too, and ends it if it does not.
fn end(process: &mut process::Child) {
    if let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let begun = now();
    while begun.elapsed() < FAREWELL {
        if let Ok(Some(_)) = process.try_wait() {
            return;
        }
        sleep(LOOK);
    }
    // Both fail only if it has ended meanwhile.
    let _ = process.kill();
    let _ = process.wait();
}

/// Reads all that a program says, on a thread of its own, so that no pipe fills up.
fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output read before an error is still useful.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A directory of this process's own, removed with everything in it.
#[derive(Debug)]
pub(crate) struct TempDir {
    path: PathBuf,
}

impl TempDir {
    pub(crate) fn create() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vigie-bench-{}-{count}", process::id());
        let path = env::temp_dir().join(name);
        // Fails if another user has made it, who could then also change what is built there.
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What cannot be removed stays in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// An error and its source in one line.
pub(crate) fn describe(error: &BenchError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Tells whether a program can be started by its name.
pub(crate) fn is_installed(program: &str) -> bool {
    let Some(path) = env::var_os("PATH") else { return false };
    env::split_paths(&path).any(|folder| folder.join(OsStr::new(program)).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_tells_why_and_one_that_hangs_is_ended() {
        // Goal: neither a bad exit nor a hang is lost or waited for. Method: a shell.
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let output = output_of(shell("echo played"), Duration::from_secs(60));
        assert_eq!(output.unwrap(), "played\n");
        let error = output_of(shell("echo why >&2; exit 3"), Duration::from_secs(60));
        assert!(error.unwrap_err().to_string().contains("why"));
        let error = output_of(shell("exec sleep 600"), Duration::from_millis(20));
        assert!(matches!(error.unwrap_err(), BenchError::Silent { .. }));
    }

    #[test]
    fn a_folder_leaves_nothing() {
        // Goal: the directory goes with its owner, whatever is in it. Method: a file in it.
        let folder = TempDir::create().unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("file"), "text").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
