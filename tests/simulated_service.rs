//! An HTTP service on hyper and its client, unchanged, in a simulated world.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
};
use vigie::{
    http,
    net::TcpListener,
    simulation::{self, Link, World},
    spawn, time,
};

/// A body of many frames.
struct Numbers(u32);

impl Body for Numbers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0 == 0 {
            return Poll::Ready(None);
        }
        self.0 -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(self.0.to_le_bytes().repeat(40))))))
    }
}

async fn answer(_: Request<Incoming>) -> Result<Response<Numbers>, Infallible> {
    time::sleep(Duration::from_millis(30)).await;
    Ok(Response::new(Numbers(500)))
}

async fn body_of(response: Response<Incoming>) -> Vec<u8> {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        bytes.extend_from_slice(frame.expect("it is sent").data_ref().expect("data"));
    }
    bytes
}

fn get(path: &str) -> Request<String> {
    Request::get(format!("http://server{path}")).body(String::new()).expect("a request")
}

/// Goal: hyper's server and client work unchanged over a bad network, and a run is a function of its seed. Method: four clients
/// that read long answers over a link that loses a twentieth; the runs of 16 seeds, of which two are compared.
#[test]
fn hyper_runs_unchanged() {
    simulation::for_each_seed(16, |world| {
        world.default_link(Link::new().jitter(Duration::from_millis(5)).loss(0.05));
        world.node("server").run(|| async {
            let listener = TcpListener::bind("0.0.0.0:80").await.expect("a port");
            http::serve(listener, http::service_fn(answer)).await
        });
        world.block_on(async {
            time::sleep(Duration::from_millis(1)).await;
            let client = http::client::<String>();
            let tasks: Vec<_> = (0..4)
                .map(|_| {
                    let client = client.clone();
                    spawn(async move {
                        let response = client.request(get("/")).await.expect("an answer");
                        body_of(response).await
                    })
                })
                .collect();
            let expected: Vec<u8> =
                (0..500_u32).rev().flat_map(|number| number.to_le_bytes().repeat(40)).collect();
            for task in tasks {
                assert!(task.await.expect("no panic") == expected);
            }
        });
    });
}

/// Goal: a graceful shutdown answers what has come, in the simulation as elsewhere. Method: the shutdown at a drawn moment around
/// that of ten requests on ten connections, by 40 seeds: each is answered or its connection refused or closed, and those that the
/// server has begun are answered; both ends occur.
#[test]
fn a_graceful_shutdown_answers_what_has_come() {
    let (mut answered, mut refused) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed);
        let begun = Arc::new(AtomicU64::new(0));
        let ended = Arc::new(Mutex::new(None));
        let moment = Duration::from_millis(fastrand::Rng::with_seed(seed).u64(..60));
        let (count, end) = (Arc::clone(&begun), Arc::clone(&ended));
        world.node("server").run(move || {
            let (count, end) = (Arc::clone(&count), Arc::clone(&end));
            async move {
                let listener = TcpListener::bind("0.0.0.0:80").await.expect("a port");
                let service = http::service_fn(move |request| {
                    count.fetch_add(1, Ordering::Relaxed);
                    answer(request)
                });
                let serve =
                    http::serve(listener, service).with_graceful_shutdown(time::sleep(moment));
                let result = serve.await;
                *end.lock().expect("no panic") = Some(result.is_ok());
            }
        });
        let good = world.block_on(async {
            let tasks: Vec<_> = (0..10_u64)
                .map(|number| {
                    spawn(async move {
                        time::sleep(Duration::from_millis(1 + number * 5)).await;
                        let response = http::client().request(get("/")).await?;
                        assert_eq!(body_of(response).await.len(), 80_000);
                        Ok::<_, hyper_util::client::legacy::Error>(())
                    })
                })
                .collect();
            let mut good = 0;
            for task in tasks {
                good += u64::from(task.await.expect("no panic").is_ok());
            }
            time::sleep(Duration::from_secs(20)).await;
            good
        });
        assert_eq!(good, begun.load(Ordering::Relaxed), "seed {seed}");
        assert_eq!(*ended.lock().expect("no panic"), Some(true), "seed {seed}");
        answered += good;
        refused += 10 - good;
    }
    assert!(answered > 50 && refused > 50, "{answered} answered, {refused} refused");
}

/// Goal: the attribute runs a test in virtual time with sockets, and an error of the test is its result. Method: it.
#[vigie::test(simulated, seed = 9)]
async fn the_attribute_simulates_sockets() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:80").await?;
    let begin = vigie::Instant::now();
    let wait = time::timeout(Duration::from_secs(3600), listener.accept()).await;
    assert!(wait.is_err());
    assert_eq!(begin.elapsed(), Duration::from_secs(3600));
    Ok(())
}
