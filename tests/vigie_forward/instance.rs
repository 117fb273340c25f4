//! `vigie-forward` as a process: started, spoken to, ended, always within a bound.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

/// Nothing here takes as long, unless it hangs.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_vigie-forward");

/// A folder of one test, removed when it is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vigie-forward-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder of our own");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("it is ours");
        path
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.0).expect("it is there");
        let names = files.map(|file| file.expect("readable").file_name());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A forwarder that runs. Killed when it is dropped.
pub(crate) struct Instance {
    child: Child,
    exit: OwnedFd,
    lines: Receiver<String>,
    /// What it has said so far.
    pub(crate) said: Vec<String>,
}

pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) said: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| {
            panic!("{:?}, signal {:?}\n{}", self.status, self.status.signal(), self.said)
        })
    }
}

impl Instance {
    /// Starts one whose stats socket is in the folder.
    pub(crate) fn start(folder: &Folder, arguments: &[&str]) -> Self {
        Self::of(Command::new(PROGRAM).args(arguments), folder)
    }

    /// Gives its threads a real-time priority, if this user may: then other programs do not keep it from a processor. The threads that it
    /// starts later have it, too.
    pub(crate) fn goes_before_others(&self) {
        let id = self.child.id().to_string();
        let mut command = Command::new("chrt");
        let command = command.args(["--all-tasks", "--fifo", "--pid", "1", &id]);
        match command.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            failed => eprintln!("no real-time priority: {failed:?}"),
        }
    }

    pub(crate) fn of(command: &mut Command, folder: &Folder) -> Self {
        command.env("XDG_RUNTIME_DIR", &folder.0);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("a pidfd");
        let from = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, exit, lines, said: Vec::new() }
    }

    /// Waits until it says something with these words. Returns the line.
    #[track_caller]
    pub(crate) fn until(&mut self, words: &str) -> String {
        if let Some(line) = self.said.iter().find(|line| line.contains(words)) {
            return line.clone();
        }
        loop {
            match self.lines.recv_timeout(BOUND) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.contains(words) {
                        return line;
                    }
                }
                Err(error) => {
                    let what =
                        if error == RecvTimeoutError::Timeout { "is silent" } else { "ended" };
                    panic!("it {what}, and has not said `{words}`:\n{}", self.said.join("\n"));
                }
            }
        }
    }

    /// Waits until it forwards.
    #[track_caller]
    pub(crate) fn ready(mut self) -> Self {
        self.until("forwards; ");
        self
    }

    /// Returns where a flow listens.
    #[track_caller]
    pub(crate) fn address(&mut self, flow: &str) -> SocketAddr {
        let line = self.until(&format!("flow `{flow}` listens at"));
        let address = line.rsplit(['/', ' ']).next().expect("a word");
        address.parse().expect("with a port")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let bound = Timespec { tv_sec: BOUND.as_secs().cast_signed(), tv_nsec: 0 };
        let mut polled = [PollFd::new(&self.exit, PollFlags::IN)];
        let ended = poll(&mut polled, Some(&bound));
        assert_eq!(ended, Ok(1), "it has not ended in time:\n{}", self.said.join("\n"));
        let status = self.child.wait().expect("it is ours");
        while let Ok(line) = self.lines.recv_timeout(BOUND) {
            self.said.push(line);
        }
        Ended { status, said: self.said.join("\n") }
    }

    /// Asks for its end, and waits for it.
    #[track_caller]
    pub(crate) fn end(self) -> Ended {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a program to its end. Returns its code, standard output and standard error.
#[track_caller]
pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(PROGRAM);
    run_command(command.args(arguments).env("XDG_RUNTIME_DIR", &folder.0))
}

#[track_caller]
pub(crate) fn run_command(command: &mut Command) -> (i32, String, String) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("a pidfd");
    let (mut output, mut errors) =
        (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let errors = thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).map(|_| text)
    });
    let reader = thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let bound = Timespec { tv_sec: BOUND.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&bound));
    if ended != Ok(1) {
        drop(child.kill());
    }
    let status = child.wait().expect("it is ours");
    let text = |thread: thread::JoinHandle<std::io::Result<String>>| {
        thread.join().expect("it does not panic").expect("text")
    };
    let (output, errors) = (text(reader), text(errors));
    assert_eq!(ended, Ok(1), "it has not ended in time:\n{output}{errors}");
    (status.code().unwrap_or_else(|| panic!("{status:?}\n{errors}")), output, errors)
}

/// Reads one number of a flow from the instance's report.
#[track_caller]
pub(crate) fn counter(socket: &Path, flow: &str, name: &str) -> u64 {
    let report = report(socket);
    let flows = report["flows"].as_array().expect("a list");
    let found = flows.iter().find(|one| one["name"] == flow).expect("the flow");
    let value = if found[name].is_u64() { &found[name] } else { &found["counters"][name] };
    value.as_u64().unwrap_or_else(|| panic!("no number `{name}` in {found}"))
}

/// Asks for the instance's report.
#[track_caller]
pub(crate) fn report(socket: &Path) -> serde_json::Value {
    let mut command = Command::new(PROGRAM);
    let (code, output, errors) =
        run_command(command.args(["stats", "--json", "--socket"]).arg(socket));
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(&output).expect("JSON")
}
