//! What messages cost where no cache line moves: both endpoints are in one thread.
//!
//! ```text
//! cargo run --release -p vigie-via --example one_process
//! valgrind --tool=callgrind target/release/examples/one_process 100
//! ```
//!
//! Prints nanoseconds for each message, the least of many windows of 64. Its argument is the number of windows, 2000 by default.

use std::{error::Error, time::Duration};

use vigie_detect::{Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::{
    message::{Communicator, Endpoint},
    protocol::{EngineConfig, EngineEvent, MessageEngine, SendMode},
    shm::Shm,
    vi::Provider,
};

const WINDOW: u32 = 64;
const SIZES: [usize; 5] = [8, 64, 256, 1024, 4096];

type Failure = Box<dyn Error>;

/// Waits until an endpoint is connected.
async fn connected(endpoint: &Endpoint<Shm>) -> Result<(), Failure> {
    loop {
        match endpoint.next_event().await? {
            EngineEvent::Requested { request, rank: Some(rank), .. } => {
                endpoint.with(|engine| engine.accept(request, rank))?;
            }
            EngineEvent::Connected { .. } => return Ok(()),
            event => return Err(format!("not connected: {event:?}").into()),
        }
    }
}

/// Returns two ranks that are connected to each other.
async fn pair() -> Result<[Communicator<Shm>; 2], Failure> {
    let server = Server::current()?;
    let endpoint = |rank| -> Result<Endpoint<Shm>, Failure> {
        let mut nic = Shm::open()?;
        nic.listen(b"pair")?;
        Ok(Endpoint::new(&server, MessageEngine::new(nic, rank, 2, EngineConfig::default())?)?)
    };
    let (one, other) = (endpoint(0)?, endpoint(1)?);
    let address = other.with(|engine| engine.nic().address());
    let deadline = Instant::now() + Duration::from_secs(5);
    one.with(|engine| engine.connect(1, &address, b"pair", deadline))?;
    connected(&other).await?;
    connected(&one).await?;
    Ok([one.communicator(), other.communicator()])
}

/// The least time of each call, in nanoseconds.
#[derive(Default)]
struct Least([Option<f64>; 5]);

impl Least {
    fn note(&mut self, call: usize, began: Instant) -> Instant {
        let now = Instant::now();
        let each = (now - began).as_secs_f64() * 1e9 / f64::from(WINDOW);
        let least = self.0[call].get_or_insert(each);
        *least = least.min(each);
        now
    }
}

async fn measure(windows: u32) -> Result<(), Failure> {
    let [one, other] = pair().await?;
    println!("     bytes      send recv_into start_recv start_send  wait_into");
    for size in SIZES {
        let (bytes, mut into) = (vec![1; size], vec![0; size]);
        let mut least = Least::default();
        for _ in 0..windows {
            let mut began = Instant::now();
            for _ in 0..WINDOW {
                one.send(1, 0, &bytes).await?;
            }
            began = least.note(0, began);
            for _ in 0..WINDOW {
                other.recv_into(0, 0, &mut into[..]).await?;
            }
            began = least.note(1, began);
            let mut receives: Vec<_> = (0..WINDOW).map(|_| other.start_recv(0, 0)).collect();
            began = least.note(2, began);
            for _ in 0..WINDOW {
                one.start_send(1, 0, SendMode::Standard, bytes.clone())?.wait().await?;
            }
            began = least.note(3, began);
            for receive in &mut receives {
                receive.wait_into(&mut into[..]).await?;
            }
            least.note(4, began);
        }
        let row: String = least.0.iter().flatten().map(|each| format!("{each:>11.1}")).collect();
        println!("{size:>10}{row}");
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let windows = std::env::args().nth(1).map_or(Ok(2000), |count| count.parse())?;
    Runtime::builder().flavor(Flavor::UserLevel).build()?.block_on(measure(windows))
}
