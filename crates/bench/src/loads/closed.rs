//! The clients of a load that send the next request as soon as the last is answered: a thread for
//! each, at ordinary priority, since they take part in the load and measure nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use serde::{Deserialize, Serialize};

use super::behaviour::Behaviour;
use super::mix::Mix;
use super::paced::open;
use super::wire::{Hello, REQUEST_BYTES, Request};
use crate::child::{self, Message};
use crate::compute::note_operation;
use crate::error::Failure;
use crate::limits;
use crate::realtime::Priority;
use crate::system::threads::STACK_BYTES;

/// Which server is to be asked without pause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClosedClients {
    pub(super) address: SocketAddr,
    pub(super) mix: Mix,
}

impl ClosedClients {
    /// Tells whether a mix has such clients.
    pub(super) fn are_in(mix: &Mix) -> bool {
        mix.behaviours.iter().any(|behaviour| asked(behaviour).is_some())
    }

    /// Sends in this process until it is killed; each answer is an operation.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        limits::allow_connections(self.mix.connections())?;
        let mut streams = Vec::new();
        for (clients, hello, time_ns) in self.mix.behaviours.iter().filter_map(asked) {
            for _ in 0..clients {
                let stream = open(self.address, hello)?;
                stream.set_read_timeout(None).map_err(Failure::io("connecting"))?;
                streams.push((stream, Request { due_ns: 0, time_ns }));
            }
        }
        let priority = Priority::Ordinary { reason: "it takes part in the load".to_owned() };
        Message::Ready { priority }.print();
        child::wait_for_go();
        for (stream, request) in streams {
            let client = thread::Builder::new().stack_size(STACK_BYTES);
            let started = client.spawn(move || ask(stream, request));
            started.map(drop).map_err(Failure::io("starting a thread"))?;
        }
        loop {
            thread::park();
        }
    }
}

/// How many clients ask for what.
const fn asked(behaviour: &Behaviour) -> Option<(u32, Hello, u64)> {
    match *behaviour {
        Behaviour::Flood { clients, step_us } => Some((clients, Hello::Compute, step_us * 1_000)),
        Behaviour::BlockingHandlers { clients, sleep_us } => {
            Some((clients, Hello::Block, sleep_us * 1_000))
        }
        _ => None,
    }
}

fn ask(mut stream: TcpStream, request: Request) {
    let mut answer = [0; REQUEST_BYTES];
    while stream.write_all(&request.to_bytes()).is_ok() && stream.read_exact(&mut answer).is_ok() {
        note_operation();
    }
}
