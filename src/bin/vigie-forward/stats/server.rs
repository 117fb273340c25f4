//! The server side.

use std::{cell::Cell, collections::VecDeque, io, os::fd::OwnedFd, rc::Rc, time::Duration};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use vigie::{
    JoinHandle,
    net::{UnixListener, UnixStream},
    spawn_local,
    time::{sleep, timeout},
};

use crate::takeover::{self, HandedListener, TAKEN, TAKEOVER};

/// The maximum number of concurrent clients; a further one takes the place of the oldest that does not take over: it may be silent.
const READERS_MAX: usize = 16;
/// The longest line of a client.
const LINE_BYTES_MAX: u64 = 256;
/// The number of flows that one client may take over.
const FLOWS_MAX: usize = 65_536;
/// The time that a client may take to send a request, or to take its answer.
const READER_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which accepting pauses after a failure: descriptors may be short.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The answers of an instance.
pub(crate) trait Answers {
    /// Turns a request into a line of JSON.
    fn answer(&self, line: &str) -> String;

    /// Returns its listeners, for a process that takes over; or why not.
    fn listeners(&self) -> Result<Vec<(HandedListener, OwnedFd)>, String>;

    /// Process `pid` has taken over the listeners of these flows. Returns a line of JSON.
    fn taken(&self, pid: i32, flows: Vec<String>) -> String;
}

/// Answers clients, until it is dropped.
pub(crate) async fn serve(listener: UnixListener, answers: Rc<dyn Answers>) {
    let mut readers = VecDeque::<ConnectedClient>::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        readers.retain(|(reader, _)| !reader.is_finished());
        if readers.len() == READERS_MAX {
            // A process that takes over keeps its place.
            let oldest = readers.iter().position(|(_, takes_over)| !takes_over.get());
            let Some((reader, _)) = oldest.and_then(|oldest| readers.remove(oldest)) else {
                continue;
            };
            reader.abort();
        }
        let (answers, takes_over) = (Rc::clone(&answers), Rc::new(Cell::new(false)));
        let is_taking = Rc::clone(&takes_over);
        let reader = spawn_local(async move {
            // Errors only concern this client.
            let _ = timeout(READER_TIMEOUT, converse(stream, &*answers, &is_taking)).await;
        });
        readers.push_back((reader, takes_over));
    }
}

/// A client, and whether it has been handed the listeners.
type ConnectedClient = (JoinHandle<()>, Rc<Cell<bool>>);

async fn converse(
    stream: UnixStream,
    answers: &dyn Answers,
    takes_over: &Cell<bool>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut taken = Vec::new();
    loop {
        let mut line = Vec::new();
        (&mut stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if line.pop() != Some(b'\n') {
            // The end, or the start of a line that never ends.
            if line.len() as u64 + 1 == LINE_BYTES_MAX {
                let error = format!("a line has at most {LINE_BYTES_MAX} bytes");
                let reply = serde_json::json!({ "error": error }).to_string() + "\n";
                stream.write_all(reply.as_bytes()).await?;
            }
            return Ok(());
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        if let Some(flow) = line.strip_prefix(TAKEN).and_then(|rest| rest.strip_prefix(' ')) {
            taken.push(flow.to_owned());
            if taken.len() > FLOWS_MAX {
                return Ok(());
            }
            continue;
        }
        let mut reply = match line {
            TAKEN => {
                let pid = stream.get_ref().peer_cred()?.pid().unwrap_or(0);
                answers.taken(pid, std::mem::take(&mut taken))
            }
            TAKEOVER => match answers.listeners() {
                Ok(listeners) => {
                    takes_over.set(true);
                    takeover::hand_out(stream.get_ref(), &listeners).await?;
                    String::new()
                }
                Err(error) => serde_json::json!({ "error": error }).to_string(),
            },
            line => answers.answer(line),
        };
        reply.push('\n');
        stream.write_all(reply.as_bytes()).await?;
    }
}
