//! The launcher's signals.

use std::{fs, io, rc::Rc};

use rustix::process::Signal;
use vigie::{
    detect::{Handle, Server},
    detectors::signal::{SignalKind, Signals, signal},
    spawn_local,
};

use crate::{job::JobEvent, mailbox::Mailbox};

/// The signals that are passed on to the ranks.
const PASSED_ON: [Signal; 8] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
];

/// Listens for the signals to pass on. Signals that the launcher inherited as ignored stay ignored, for it and for its
/// ranks: that is the point of `nohup`.
pub(crate) fn listen(server: &Server) -> io::Result<Vec<(i32, Handle<Signals>)>> {
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let mut handles = Vec::new();
    for number in PASSED_ON.map(Signal::as_raw) {
        // SIGCONT cannot be ignored.
        if number != Signal::CONT.as_raw() && ignored & (1 << (number - 1)) != 0 {
            continue;
        }
        let handle = signal(server, SignalKind::from_raw(number)).map_err(io::Error::other)?;
        handles.push((number, handle));
    }
    Ok(handles)
}

/// The maximum number of signals waiting to be passed on; more of them tell a rank nothing new.
const SIGNALS_MAX: usize = 64;

/// Posts each signal.
pub(crate) fn pass_to(mailbox: &Rc<Mailbox<JobEvent>>, handles: Vec<(i32, Handle<Signals>)>) {
    for (number, handle) in handles {
        let mailbox = Rc::clone(mailbox);
        let listener = spawn_local(async move {
            while handle.recv().await.is_ok() {
                let is_signal = |event: &&JobEvent| matches!(event, JobEvent::Signal(_));
                mailbox.post_unless(JobEvent::Signal(number), |events| {
                    events.iter().filter(is_signal).count() >= SIGNALS_MAX
                });
            }
        });
        listener.detach();
    }
}

/// Parses the ignored signals from the text of `/proc/self/status`, one bit each starting with SIGHUP.
fn ignored(status: &str) -> u64 {
    let field = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    field.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns the name of a signal, for messages.
pub(crate) fn name(number: i32) -> String {
    let name = match Signal::from_named_raw(number) {
        Some(Signal::HUP) => "SIGHUP",
        Some(Signal::INT) => "SIGINT",
        Some(Signal::QUIT) => "SIGQUIT",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::FPE) => "SIGFPE",
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::USR1) => "SIGUSR1",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::USR2) => "SIGUSR2",
        Some(Signal::PIPE) => "SIGPIPE",
        Some(Signal::ALARM) => "SIGALRM",
        Some(Signal::TERM) => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ignored signals are found. Method: texts with and without the field.
    #[test]
    fn ignored_signals() {
        assert_eq!(ignored("Name:\tx\nSigBlk:\t0\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored("SigIgn:\tnonsense\n"), 0);
        assert_eq!(ignored(""), 0);
    }
}
