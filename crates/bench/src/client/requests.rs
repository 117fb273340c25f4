//! Clients that make a service compute: each sends a request on a new connection, waits for the answer,
//! and begins again.

use std::net::SocketAddr;
use std::process;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::connections::{connect, exchange};
use crate::error::{BenchError, Failure};
use crate::process::{Child, Message, Role};
use crate::server::COMPUTE_FIRST;

/// How long an answer may take: on a system with ten times as many requests as cores, some seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Clients that load a service, in a process of ordinary priority.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Requests {
    pub(crate) address: SocketAddr,
    pub(crate) clients: u32,
}

impl Role for Requests {
    const NAME: &'static str = "requests";
}

impl Requests {
    /// Starts the process; dropping what is returned ends it.
    pub(crate) fn start(self) -> Result<Child, BenchError> {
        Child::start_computing(&self)
    }
}

/// Sends requests until the process is killed.
pub(crate) fn request(plan: &Requests) -> Result<(), Failure> {
    let address = plan.address;
    let others: Vec<_> =
        (0..plan.clients).map(|_| thread::spawn(move || request_for_ever(address))).collect();
    Message::Computing { process: process::id() }.print();
    for client in others {
        client
            .join()
            .map_err(|_panic| Failure::because("sending requests", "a client panicked"))??;
    }
    Ok(())
}

fn request_for_ever(address: SocketAddr) -> Result<(), Failure> {
    let message = COMPUTE_FIRST.to_le_bytes();
    loop {
        let mut stream = connect(address, ANSWER_TIMEOUT)?;
        exchange(&mut stream, message, ANSWER_TIMEOUT)?;
    }
}
