//! The meeting point of ranks on many hosts, and its secret.

use std::{
    env,
    ffi::OsString,
    io,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use tokio::io::AsyncReadExt;
use vigie::{
    net::TcpStream,
    time::timeout,
    via::{
        software_nic::Secret,
        world::{
            RENDEZVOUS_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE, WorldError,
            tcp::{
                SCHEME, find_secret,
                handshake::{CHALLENGE_BYTES, Challenger},
            },
        },
    },
};

use crate::job::RunError;

/// The meeting point of ranks on many hosts.
pub(crate) struct RendezvousAddress {
    address: SocketAddr,
    secret_file: Option<PathBuf>,
}

impl RendezvousAddress {
    /// Ranks started here find the secret where the launcher did.
    pub(crate) fn new(address: SocketAddr, secret_file: Option<&Path>) -> Self {
        // Unchanged if it cannot be made absolute: reading it reports the error.
        let secret_file = secret_file
            .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()));
        Self { address, secret_file }
    }

    /// Passes it to a rank's environment.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env(RENDEZVOUS_VARIABLE, format!("{SCHEME}{}", self.address));
        if let Some(path) = &self.secret_file {
            command.env_remove(SECRET_VARIABLE).env(SECRET_FILE_VARIABLE, path);
        }
    }
}

/// The time limit of one [`probe`].
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects to a rendezvous without joining it. Returns the problem if none answers at this address.
pub(crate) async fn probe(address: SocketAddr) -> Result<(), String> {
    let challenge = async {
        let mut challenge = [0; CHALLENGE_BYTES];
        TcpStream::connect(address).await?.read_exact(&mut challenge).await?;
        Ok::<_, io::Error>(challenge)
    };
    let challenge = match timeout(PROBE_TIMEOUT, challenge).await {
        Ok(Ok(challenge)) => challenge,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {PROBE_TIMEOUT:?}")),
    };
    let is_challenge = challenge
        .last_chunk()
        .is_some_and(|&nonce| Challenger::new(nonce).challenge() == challenge);
    is_challenge.then_some(()).ok_or_else(|| "something else is served there".to_owned())
}

/// Returns whether every user of this host may read a file.
pub(crate) fn is_public(file: &Path) -> bool {
    /// Readable by users other than the owner and the group.
    const OTHERS_READ: u32 = 0o004;
    file.metadata().is_ok_and(|found| found.is_file() && found.mode() & OTHERS_READ != 0)
}

/// Reads the secret, from a file that the user names or as a rank would.
pub(crate) fn secret(file: Option<&Path>) -> Result<Secret, RunError> {
    let found = find_secret(|variable| match file {
        None => env::var_os(variable),
        Some(path) => (variable == SECRET_FILE_VARIABLE).then(|| OsString::from(path)),
    });
    found.map_err(|error| match error {
        WorldError::Environment { variable, problem } => {
            // Use the name that the user gave.
            match file {
                Some(_) => RunError::Secret { place: "--secret-file", problem },
                None => RunError::Secret {
                    place: variable,
                    problem: format!(
                        "{problem}; name the file with the shared secret by --secret-file"
                    ),
                },
            }
        }
        error => RunError::Secret { place: "the secret", problem: error.to_string() },
    })
}
