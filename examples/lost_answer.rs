//! A shop on hyper whose clients try again, and the bug that a lost answer causes: found in a simulated world, by one number.
//!
//! Shop and client are an ordinary service: nothing of the simulation is in them. The world puts them on two nodes, and cuts the
//! way back from the shop for a moment. Run it:
//!
//! ```text
//! cargo run --release --example lost_answer --features hyper-client
//! ```
//!
//! Expected output:
//!
//! ```text
//! seed 2 sells something twice: ["/0", .., "/3", "/4", "/4", "/5", ..]
//! the same run again: the same orders, the same trace
//! with an idempotent shop, 200 seeds pass
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use vigie::net::TcpListener;
use vigie::simulation::{self, Link, World};
use vigie::{http, spawn, time};

type BoxError = Box<dyn Error + Send + Sync>;
type Orders = Arc<Mutex<Vec<String>>>;

/// The service: each POST is an order. An idempotent shop knows an order again.
async fn shop(orders: Orders, is_idempotent: bool) -> Result<(), BoxError> {
    let sell = move |request: Request<Incoming>| {
        let orders = Arc::clone(&orders);
        async move {
            let order = request.uri().path().to_owned();
            let mut orders = orders.lock().expect("no panic");
            if !is_idempotent || !orders.contains(&order) {
                orders.push(order);
            }
            Ok::<_, Infallible>(Response::new("sold".to_owned()))
        }
    };
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    Ok(http::serve(listener, http::service_fn(sell)).await?)
}

/// The client: an order that is not confirmed within a second is sent again.
async fn buy(count: u32) -> Result<(), BoxError> {
    let client = http::client::<String>();
    for number in 0..count {
        loop {
            let request = Request::post(format!("http://shop/{number}")).body(String::new())?;
            match time::timeout(Duration::from_secs(1), client.request(request)).await {
                Ok(Ok(response)) if response.status().is_success() => break,
                _ => time::sleep(Duration::from_millis(100)).await,
            }
        }
        time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Returns what a shop has sold in a world.
fn sold(world: &mut World, is_idempotent: bool) -> Vec<String> {
    world.default_link(Link::new().delay(Duration::from_millis(20)).loss(0.01));
    let orders = Orders::default();
    let stock = Arc::clone(&orders);
    let shop = world.node("shop").run(move || shop(Arc::clone(&stock), is_idempotent));
    let client = world.main();
    let seed = world.seed();
    let bought = world.block_on(async {
        // Less than a second suffices, if it falls on the wrong moment.
        let mut random = fastrand::Rng::with_seed(seed);
        let (begin, length) = (random.u64(..5000), random.u64(..1500));
        spawn(async move {
            time::sleep(Duration::from_millis(begin)).await;
            shop.cut_to(&client);
            time::sleep(Duration::from_millis(length)).await;
            shop.heal(&client);
        })
        .detach();
        time::sleep(Duration::from_millis(100)).await;
        time::timeout(Duration::from_secs(60), buy(20)).await
    });
    bought.expect("a minute suffices").expect("the shop answers");
    orders.lock().expect("no panic").clone()
}

/// Returns what the careless shop sells with a seed, and the trace of all that happened there.
fn run(seed: u64) -> (Vec<String>, u64) {
    let mut world = World::new(seed);
    (sold(&mut world, false), world.trace_hash())
}

fn main() -> Result<(), Box<dyn Error>> {
    let found = (0..200).map(|seed| (seed, run(seed))).find(|(_, (orders, _))| orders.len() > 20);
    let (seed, twice) = found.ok_or("no seed shows it")?;
    println!("seed {seed} sells something twice: {:?}", twice.0);
    assert_eq!(twice, run(seed));
    println!("the same run again: the same orders, the same trace");
    let all: Vec<_> = (0..20).map(|number| format!("/{number}")).collect();
    simulation::for_each_seed(200, |world| assert_eq!(sold(world, true), all));
    println!("with an idempotent shop, 200 seeds pass");
    Ok(())
}
