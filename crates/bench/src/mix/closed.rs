//! The clients of a load that send the next request as soon as the last is answered: a thread for
//! each, at ordinary priority, since they take part in the load and measure nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use serde::{Deserialize, Serialize};

use super::behaviour::Behaviour;
use super::draw::Mix;
use super::paced::open;
use super::wire::{Hello, REQUEST_BYTES, Request};
use crate::compute::note_operation;
use crate::error::Failure;
use crate::host::Priority;
use crate::host::limits;
use crate::process::{Message, Role, wait_for_go};
use crate::system::blocking_calls::STACK_BYTES;

/// Which server is to be asked without pause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClosedClients {
    pub(crate) address: SocketAddr,
    pub(crate) mix: Mix,
}

impl Role for ClosedClients {
    const NAME: &'static str = "closed clients";
}

impl ClosedClients {
    /// Tells whether a mix has such clients.
    pub(crate) fn are_in(mix: &Mix) -> bool {
        mix.behaviours.iter().any(|behaviour| closed_load(behaviour).is_some())
    }

    /// Sends in this process until it is killed; each answer is an operation.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        limits::allow_connections(self.mix.connections())?;
        let mut streams = Vec::new();
        for closed_load in self.mix.behaviours.iter().filter_map(closed_load) {
            for _ in 0..closed_load.clients {
                let stream = open(self.address, closed_load.hello)?;
                stream.set_read_timeout(None).map_err(Failure::io("connecting"))?;
                streams.push((stream, closed_load));
            }
        }
        let priority = Priority::Ordinary { reason: "it takes part in the load".to_owned() };
        Message::Ready { priority }.print();
        wait_for_go();
        for (stream, closed_load) in streams {
            let client = thread::Builder::new().stack_size(STACK_BYTES);
            let started = client.spawn(move || closed_load.ask(stream));
            started.map(drop).map_err(Failure::io("starting a thread"))?;
        }
        loop {
            thread::park();
        }
    }
}

/// How many clients ask for what.
#[derive(Clone, Copy, Debug)]
struct ClosedLoad {
    clients: u32,
    hello: Hello,
    request: Request,
    in_flight: u32,
}

const fn closed_load(behaviour: &Behaviour) -> Option<ClosedLoad> {
    let (clients, hello, step_us, in_flight) = match *behaviour {
        Behaviour::Flood { clients, step_us, in_flight } => {
            (clients, Hello::Compute, step_us, in_flight)
        }
        Behaviour::BlockingHandlers { clients, sleep_us } => (clients, Hello::Block, sleep_us, 1),
        _ => return None,
    };
    let request = Request { due_ns: 0, time_ns: step_us * 1_000 };
    Some(ClosedLoad { clients, hello, request, in_flight })
}

impl ClosedLoad {
    /// Sends a request for each answer, until the server has gone.
    fn ask(self, mut stream: TcpStream) {
        let requests = self.request.to_bytes().repeat(self.in_flight as usize);
        let mut answers = vec![0; requests.len()];
        let mut is_open = stream.write_all(&requests).is_ok();
        // Bytes of an answer whose rest is still to come.
        let mut part = 0;
        while is_open {
            let Ok(count @ 1..) = stream.read(&mut answers) else { return };
            let whole = (part + count) / REQUEST_BYTES;
            part = (part + count) % REQUEST_BYTES;
            (0..whole).for_each(|_| note_operation());
            is_open = stream.write_all(&requests[..whole * REQUEST_BYTES]).is_ok();
        }
    }
}
