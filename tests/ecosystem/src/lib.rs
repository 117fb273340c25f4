//! What the tests share: the programs of `src/bin`, and curl.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A service of `src/bin`, in a process of its own, which ends when this is dropped.
pub struct Service {
    child: Child,
    /// Where it listens, as it says in its first line.
    pub address: String,
}

impl Service {
    pub fn start(program: &str, arguments: &[&OsStr]) -> Self {
        let mut command = Command::new(program);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim().to_owned() }
    }

    pub fn port(&self) -> &str {
        self.address.rsplit_once(':').unwrap().1
    }

    /// Tells it by SIGTERM to end, and returns whether it ended as a success.
    pub fn terminate(mut self) -> bool {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What curl prints, and whether it succeeded.
pub fn curl<S: AsRef<OsStr>>(arguments: &[S]) -> (String, bool) {
    let mut command = Command::new("curl");
    let output = command.args(["-sS", "--max-time", "30"]).args(arguments).output();
    let output = output.expect("curl is installed");
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.success())
}

/// A certificate and its key in files, which are removed when this is dropped.
pub struct PemFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl PemFiles {
    pub fn write(certificate: String, key: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = |what| {
            env::temp_dir().join(format!("vigie-{}-{number}-{what}.pem", std::process::id()))
        };
        let files = Self { certificate: path("certificate"), key: path("key") };
        fs::write(&files.certificate, certificate).unwrap();
        fs::write(&files.key, key).unwrap();
        files
    }
}

impl Drop for PemFiles {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.certificate);
        let _ = fs::remove_file(&self.key);
    }
}
