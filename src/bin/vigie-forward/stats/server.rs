//! The server side.

use std::{cell::Cell, future::poll_fn, io, rc::Rc, task::Context, time::Duration};

use vigie::{
    net::{UnixListener, UnixStream},
    spawn_local,
    time::{sleep, timeout},
};

/// The maximum number of concurrent clients; further ones are refused.
const READERS_MAX: u32 = 16;
/// The longest line of a client.
const LINE_BYTES_MAX: usize = 256;
/// How long a client may take to send a request, or to take its answer.
const READER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long accepting pauses after a failure: descriptors may be short.
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
            let _ = timeout(READER_TIMEOUT, converse(&stream, &answer)).await;
            readers.set(readers.get() - 1);
        });
        reader.detach();
    }
}

async fn converse(stream: &UnixStream, answer: &ReplyFn) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let said: Vec<u8> = line.drain(..=end).collect();
            let mut reply = answer(String::from_utf8_lossy(&said).trim()).into_bytes();
            reply.push(b'\n');
            write_all(stream, &reply).await?;
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut buffer = [0; LINE_BYTES_MAX];
        let count =
            when_ready(|cx| stream.poll_read_ready(cx), || stream.try_read(&mut buffer)).await?;
        if count == 0 {
            return Ok(());
        }
        line.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count =
            when_ready(|cx| stream.poll_write_ready(cx), || stream.try_write(bytes)).await?;
        bytes = bytes.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// Retries until it does not block.
async fn when_ready<T>(
    mut ready: impl FnMut(&Context<'_>) -> std::task::Poll<io::Result<()>>,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        poll_fn(|cx| ready(cx)).await?;
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
