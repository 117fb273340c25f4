//! The server side.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use vigie::{
    net::{UnixListener, UnixStream},
    spawn_local,
    time::{sleep, timeout},
};

/// The maximum number of concurrent clients; further ones are refused.
const READERS_MAX: u32 = 16;
/// The longest line of a client.
const LINE_BYTES_MAX: u64 = 256;
/// The time that a client may take to send a request, or to take its answer.
const READER_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which accepting pauses after a failure: descriptors may be short.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Turns a request into a line of JSON.
pub(crate) type ReplyFn = Rc<dyn Fn(&str) -> String>;

/// Answers clients, until it is dropped.
pub(crate) async fn serve(listener: UnixListener, answer: ReplyFn) {
    let readers = Rc::new(Cell::new(0));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        if readers.get() == READERS_MAX {
            continue;
        }
        readers.set(readers.get() + 1);
        let (readers, answer) = (Rc::clone(&readers), Rc::clone(&answer));
        let reader = spawn_local(async move {
            // Errors only concern this client.
            let _ = timeout(READER_TIMEOUT, converse(stream, &answer)).await;
            readers.set(readers.get() - 1);
        });
        reader.detach();
    }
}

async fn converse(stream: UnixStream, answer: &ReplyFn) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        (&mut stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if line.pop() != Some(b'\n') {
            // The end, or a line without one.
            return Ok(());
        }
        let mut reply = answer(String::from_utf8_lossy(&line).trim()).into_bytes();
        reply.push(b'\n');
        stream.write_all(&reply).await?;
    }
}
