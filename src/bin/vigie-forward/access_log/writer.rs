//! Lines that reach a file, pipe or terminal as a whole or not at all, as far as that is possible.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    },
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionbio,
};

use super::AccessLogError;
use crate::config::LogTarget;

/// Where lines go.
#[derive(Debug)]
pub(super) enum Output {
    Stdout,
    Stderr,
    File(File),
}

/// Opens the file or pipe that log lines are written to. A file that does not exist is created, readable by this user and its group; a named
/// pipe need not have a reader yet.
pub(super) fn open(target: &LogTarget) -> Result<Output, AccessLogError> {
    Ok(match target {
        LogTarget::Stdout => Output::Stdout,
        LogTarget::Stderr => Output::Stderr,
        LogTarget::File(path) => {
            let failed = |source| AccessLogError::Open { path: path.clone(), source };
            Output::File(open_file(path).map_err(failed)?)
        }
    })
}

fn open_file(path: &Path) -> io::Result<File> {
    let is_pipe = fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640);
    if is_pipe {
        // With its reading end open, too, it has a reader always, and is merely full without another one.
        let file = options.read(true).open(path)?;
        ioctl_fionbio(&file, true)?;
        return Ok(file);
    }
    // It is read for its last byte. Some files can be written and not read.
    let readable = options.clone().read(true).open(path);
    readable.or_else(|_| options.open(path))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            // Unlike std's, these keep nothing back, and their errors are told.
            Self::Stdout => Ok(rustix::io::write(io::stdout().as_fd(), bytes)?),
            Self::Stderr => Ok(rustix::io::write(io::stderr().as_fd(), bytes)?),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An output whose length tells whether another process has cut it.
pub(super) trait Measured {
    /// Returns its length in bytes, if it has one.
    fn length_bytes(&self) -> Option<u64>;

    /// Returns true if its last line has no newline: a process that was killed, or a full disk, may have left a part.
    fn ends_within_line(&self) -> bool;
}

impl Measured for Output {
    fn length_bytes(&self) -> Option<u64> {
        let Self::File(file) = self else { return None };
        file.metadata().ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
    }

    fn ends_within_line(&self) -> bool {
        let Self::File(file) = self else { return false };
        let last_at = self.length_bytes().and_then(|length| length.checked_sub(1));
        let mut last = [0];
        last_at.is_some_and(|at| file.read_exact_at(&mut last, at).is_ok() && last != *b"\n")
    }
}

/// Keeps lines until they are written.
#[derive(Debug)]
pub(super) struct LineWriter<W> {
    output: W,
    pending: Vec<u8>,
    /// The first bytes of `pending` that are written: a part of a line, after an error.
    done: usize,
    /// The length of the output after an error.
    length_bytes: Option<u64>,
    written: u64,
    /// True until the output is known to be at the beginning of a line.
    is_new: bool,
}

impl LineWriter<Output> {
    /// Waits until the output has room, or for `at_most`.
    pub(super) fn wait_for_room(&self, at_most: Duration) {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let output = match &self.output {
            Output::Stdout => stdout.as_fd(),
            Output::Stderr => stderr.as_fd(),
            Output::File(file) => file.as_fd(),
        };
        let at_most = Timespec::try_from(at_most).ok();
        let _ = poll(&mut [PollFd::from_borrowed_fd(output, PollFlags::OUT)], at_most.as_ref());
    }
}

impl<W: Write + Measured> LineWriter<W> {
    pub(super) const fn new(output: W) -> Self {
        Self { output, pending: Vec::new(), done: 0, length_bytes: None, written: 0, is_new: true }
    }

    /// Adds a line, which ends with its only newline.
    pub(super) fn push(&mut self, line: &str) {
        self.pending.extend_from_slice(line.as_bytes());
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) const fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of lines written since the last call.
    pub(super) const fn take_written(&mut self) -> u64 {
        std::mem::replace(&mut self.written, 0)
    }

    /// Writes all lines. After an error, the next call goes on behind the last byte written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if let (true, Some(before)) = (self.done > 0, self.length_bytes)
            && self.output.length_bytes() < Some(before)
        {
            // Another process has emptied the file to make room, and the line's first part is gone: it begins again.
            self.done = 0;
        }
        if self.is_new && self.output.ends_within_line() {
            self.output.write_all(b"\n")?;
        }
        self.is_new = false;
        loop {
            let Some(rest) = self.pending.get(self.done..).filter(|rest| !rest.is_empty()) else {
                return Ok(());
            };
            match self.output.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.note_written(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.length_bytes = self.output.length_bytes();
                    return Err(error);
                }
            }
        }
    }

    /// Forgets whole lines that are written.
    fn note_written(&mut self, count: usize) {
        self.done += count;
        let whole = self.pending.iter().take(self.done).rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |at| at + 1);
        let lines = self.pending.drain(..whole).filter(|byte| *byte == b'\n').count();
        self.written += lines as u64;
        self.done -= whole;
    }

    /// Goes on with another output. A line of which the old one has a part is lost. Returns how many are.
    pub(super) fn replace(&mut self, output: W) -> u64 {
        self.output = output;
        self.is_new = true;
        if self.done == 0 {
            return 0;
        }
        let end = self.pending.iter().position(|byte| *byte == b'\n');
        self.pending.drain(..end.map_or(self.pending.len(), |at| at + 1));
        self.done = 0;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for some bytes.
    #[derive(Debug, Default)]
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.bytes.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Measured for Disk {
        fn length_bytes(&self) -> Option<u64> {
            Some(self.bytes.len() as u64)
        }

        fn ends_within_line(&self) -> bool {
            self.bytes.last().is_some_and(|last| *last != b'\n')
        }
    }

    fn filled(room: usize) -> LineWriter<Disk> {
        let mut writer = LineWriter::new(Disk { bytes: Vec::new(), room });
        ["one\n", "two\n", "three\n"].into_iter().for_each(|line| writer.push(line));
        writer
    }

    /// Goal: wherever the disk becomes full, all lines are whole once there is room again, and each counts once. Method: every amount of room
    /// that is too little.
    #[test]
    fn lines_go_on_behind_a_full_disk() {
        for room in 0..14 {
            let mut writer = filled(room);
            let full = writer.flush().unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
            let before = writer.take_written();
            writer.output.room = 100;
            writer.flush().unwrap();
            assert_eq!(writer.output.bytes, b"one\ntwo\nthree\n", "{room}");
            assert_eq!(before + writer.take_written(), 3, "{room}");
            assert!(writer.is_empty());
        }
    }

    /// Goal: another file begins with a whole line, also if the old one is emptied; a line that is in two files is lost, and counted. Method: every
    /// amount of room that is too little.
    #[test]
    fn another_file_begins_with_a_line() {
        for room in 0..14 {
            let mut writer = filled(room);
            writer.flush().unwrap_err();
            let cut = writer.replace(Disk { bytes: Vec::new(), room: 100 });
            writer.flush().unwrap();
            assert_eq!(cut + writer.take_written(), 3, "{room}");
            let text = String::from_utf8(writer.output.bytes).unwrap();
            assert!(text.lines().all(|line| ["one", "two", "three"].contains(&line)), "{text}");

            let mut writer = filled(room);
            writer.flush().unwrap_err();
            writer.output = Disk { bytes: Vec::new(), room: 100 };
            writer.flush().unwrap();
            assert_eq!(writer.take_written(), 3, "{room}");
            let text = String::from_utf8(writer.output.bytes).unwrap();
            assert!(text.lines().all(|line| ["one", "two", "three"].contains(&line)), "{text}");
        }
    }

    /// Goal: the part of a line that is lost when the same full file is opened again stays on a line of its own, however late there is room.
    /// Method: every amount of room that is too little; the disk is still full for the first write.
    #[test]
    fn the_same_file_goes_on_with_a_line() {
        for room in 0..14 {
            let mut writer = filled(room);
            writer.flush().unwrap_err();
            let bytes = writer.output.bytes.clone();
            let part = bytes.rsplit(|byte| *byte == b'\n').next().unwrap().to_vec();
            let cut = writer.replace(Disk { bytes, room: 0 });
            // All lines may have been written but for the last newline.
            writer.push("four\n");
            writer.flush().unwrap_err();
            writer.output.room = 100;
            writer.flush().unwrap();
            assert_eq!(cut + writer.take_written(), 4, "{room}");
            let text = String::from_utf8(writer.output.bytes).unwrap();
            let part = String::from_utf8(part).unwrap();
            let known = ["one", "two", "three", "four"];
            let others: Vec<_> = text.lines().filter(|line| !known.contains(line)).collect();
            assert!(others.iter().all(|line| *line == part && !part.is_empty()), "{text}");
        }
    }
}
