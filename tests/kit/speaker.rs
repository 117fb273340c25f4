//! A child that speaks by lines of its output, and is spoken to by lines of its input.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
};

use super::guard::HANG;

/// The child. It is killed when this is dropped, so that none outlives a test that fails.
pub(crate) struct Speaker {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Speaker {
    /// Starts the child.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the child starts");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (said, lines) = mpsc::channel();
        // It reads until the end, so that the child never waits for room.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Self { input: process.stdin.take(), process, lines }
    }

    /// Waits for the next line with this beginning, and returns the rest of it.
    ///
    /// # Panics
    /// Panics if the child ends before, or hangs.
    #[track_caller]
    pub(crate) fn line(&self, beginning: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(HANG);
            let line =
                line.unwrap_or_else(|error| panic!("no line begins with {beginning:?}: {error}"));
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Says a line.
    #[track_caller]
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{line}").expect("the child lives");
    }

    /// Returns the number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns how the child has ended, or `None` if it runs.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("a child")
    }

    /// Kills the child, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a child");
        self.process.wait().expect("a child");
    }

    /// Closes the child's input.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    /// Closes the child's input, and returns how the child ends.
    ///
    /// # Panics
    /// Panics if the child hangs.
    pub(crate) fn finish(mut self) -> ExitStatus {
        self.close();
        // The output ends with the child.
        loop {
            match self.lines.recv_timeout(HANG) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the child hangs"),
            }
        }
        self.process.wait().expect("a child")
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
