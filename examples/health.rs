//! A web service whose `/work` computes for 200 ms and whose `/health` is probed meanwhile, on vigie and on tokio.
//!
//! Eight clients keep `/work` busy, on a machine with fewer cores than that. An orchestrator would probe `/health` and
//! restart the service if it does not answer in time; here a thread does, every 5 ms for five seconds. The service is
//! the same on both runtimes: hyper, with handlers that compute where they stand.
//!
//! ```text
//! cargo run --release --example health --features hyper
//! cargo run --release --example health --features hyper -- health.svg    # also draws the probes over time
//! ```
#![expect(
    clippy::disallowed_methods,
    reason = "the clients are plain threads, and tokio has no clock of ours"
)]

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

const WORK: Duration = Duration::from_millis(200);
const WORKING_CLIENTS: usize = 8;
const PROBED: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_millis(5);
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// When a probe was sent, since the first one, and how long its answer took.
type Probe = (Duration, Duration);

async fn answer(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    if request.uri().path() == "/work" {
        let began = Instant::now();
        while began.elapsed() < WORK {}
    }
    Ok(Response::new("done".to_owned()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let drawing = drawing(env::args().skip(1))?;
    if let Some(path) = &drawing {
        // An error comes before five seconds of measuring.
        fs::File::create(path).map_err(|error| format!("{path}: {error}"))?;
    }
    println!(
        "/health beside {WORKING_CLIENTS} clients that keep /work busy, {WORK:?} of computing each"
    );
    println!("            probes     median        p99    slowest");
    let runs = [("vigie", on_vigie()?), ("tokio", on_tokio()?)];
    for (name, probes) in &runs {
        let mut times: Vec<_> = probes.iter().map(|probe| probe.1).collect();
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!(
            "{name:12} {:5} {:>10.1?} {:>10.1?} {:>10.1?}",
            times.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    if let Some(path) = drawing {
        fs::write(&path, draw(&runs)).map_err(|error| format!("{path}: {error}"))?;
        println!("drawn to {path}");
    }
    Ok(())
}

/// Takes the file to draw to from the arguments. Another argument is not a file to overwrite.
fn drawing(mut arguments: impl Iterator<Item = String>) -> Result<Option<String>, String> {
    match (arguments.next(), arguments.next()) {
        (None, _) => Ok(None),
        (Some(path), None) if path.ends_with(".svg") => Ok(Some(path)),
        (Some(other), _) => Err(format!(
            "`{other}`: the only argument is the name of a file to draw to, and ends in .svg"
        )),
    }
}

fn on_vigie() -> Result<Vec<Probe>, Box<dyn Error>> {
    let runtime = vigie::Runtime::builder().build()?;
    let listener = runtime.block_on(vigie::net::TcpListener::bind(ANY_PORT))?;
    let address = listener.local_addr()?;
    let served = vigie::http::serve(listener, vigie::http::service_fn(answer));
    runtime.spawn(async move { served.await }).detach();
    measure(address)
}

fn on_tokio() -> Result<Vec<Probe>, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind(ANY_PORT))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    });
    let probes = measure(address);
    runtime.shutdown_background();
    probes
}

/// Probes `/health` while other clients keep `/work` busy.
fn measure(address: SocketAddr) -> Result<Vec<Probe>, Box<dyn Error>> {
    for _ in 0..WORKING_CLIENTS {
        let mut client = TcpStream::connect(address)?;
        // Until the runtime ends.
        thread::spawn(move || while ask(&mut client, "/work").is_ok() {});
    }
    let mut client = TcpStream::connect(address)?;
    client.set_nodelay(true)?;
    ask(&mut client, "/health")?;
    let (began, mut probes) = (Instant::now(), Vec::new());
    while began.elapsed() < PROBED {
        let sent = began.elapsed();
        ask(&mut client, "/health")?;
        probes.push((sent, began.elapsed() - sent));
        thread::sleep(PROBE_EVERY);
    }
    Ok(probes)
}

fn ask(client: &mut TcpStream, path: &str) -> Result<(), Box<dyn Error>> {
    write!(client, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let (mut answer, mut length) = ([0; 1024], 0);
    while !answer[..length].ends_with(b"done") {
        match client.read(&mut answer[length..])? {
            0 => return Err("the service has closed the connection".into()),
            count => length += count,
        }
    }
    Ok(())
}

/// Draws each run's probes over time, on a logarithmic scale from 10 µs to 10 s.
fn draw(runs: &[(&str, Vec<Probe>)]) -> String {
    let x = |sent: Duration| 70.0 + 600.0 * sent.as_secs_f64() / PROBED.as_secs_f64();
    let y = |time: Duration| 300.0 - 45.0 * (time.as_secs_f64().max(1e-5).log10() + 5.0);
    let mut svg = String::from(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 780 345' font-family='sans-serif' font-size='13'>\n\
         <style>text{fill:#333}.grid{stroke:#8884}.vigie{stroke:#0a7ea4}.tokio{stroke:#d2571e}\
         @media(prefers-color-scheme:dark){text{fill:#ddd}.vigie{stroke:#4cc3ea}.tokio{stroke:#ff8f57}}</style>\n",
    );
    for (step, label) in
        ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"].iter().enumerate()
    {
        let y = 300 - 45 * step;
        let _ = writeln!(
            svg,
            "<path class='grid' d='M70 {y}H670'/><text x='62' y='{}' text-anchor='end'>{label}</text>",
            y + 4
        );
    }
    for (index, (name, probes)) in runs.iter().enumerate() {
        let mut dots = String::new();
        for &(sent, time) in probes {
            let _ = write!(dots, "M{:.1} {:.1}h0", x(sent), y(time));
        }
        let _ = writeln!(
            svg,
            "<path class='{name}' fill='none' stroke-width='4' stroke-linecap='round' d='{dots}'/>"
        );
        let y = 130 + 26 * index;
        let _ = writeln!(
            svg,
            "<path class='{name}' stroke-width='8' stroke-linecap='round' d='M695 {y}h0'/><text x='706' y='{}'>{name}</text>",
            y + 5
        );
    }
    svg + "<text x='370' y='330' text-anchor='middle'>time of a /health probe over 5 s, beside 8 clients of /work (200 ms of computing each)</text>\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a word that is not a drawing's name is refused, and never a file to overwrite. Method: lists of arguments.
    #[test]
    fn arguments() {
        let parse = |words: &[&str]| drawing(words.iter().map(|&word| word.to_owned()));
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&["health.svg"]), Ok(Some("health.svg".to_owned())));
        for refused in [&["--help"][..], &["Cargo.toml"], &["a.svg", "b.svg"], &[""]] {
            assert!(parse(refused).is_err_and(|message| message.contains(".svg")), "{refused:?}");
        }
    }
}
