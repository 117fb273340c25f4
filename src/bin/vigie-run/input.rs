//! The standard input, which only rank 0 gets.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    process::{ChildStdin, Stdio},
    thread,
};

use rustix::{
    process::getpgrp,
    termios::{isatty, tcgetpgrp},
};

/// The input of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The launcher's own standard input: a pipe or a file, which then has one reader.
    Own,
    /// A pipe from the launcher, which reads its terminal: ranks lead process groups of their own, so the kernel would
    /// stop them if they read it (SIGTTIN).
    Terminal,
    /// None: the launcher runs in the background of its terminal.
    Nothing,
}

impl Input {
    pub(crate) fn find() -> Self {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            Self::Own
        } else if tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp()) {
            Self::Terminal
        } else {
            Self::Nothing
        }
    }

    pub(crate) fn stdio(self) -> Stdio {
        match self {
            Self::Own => Stdio::inherit(),
            Self::Terminal => Stdio::piped(),
            Self::Nothing => Stdio::null(),
        }
    }
}

/// Copies the terminal's input to rank 0, until either ends. On a thread of its own: non-blocking mode would affect all
/// users of the terminal.
pub(crate) fn pass_on(to: ChildStdin) -> io::Result<()> {
    let mut to = File::from(OwnedFd::from(to));
    thread::Builder::new().name("vigie-run-input".to_owned()).spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    })?;
    Ok(())
}
