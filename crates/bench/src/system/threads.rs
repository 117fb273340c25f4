//! Kernel threads: a thread for each task, which waits in calls that block.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::process;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::async_system::{AsyncSystem, BoxedTask, Sockets};
use super::blocking_calls::{self, STACK_BYTES};
use crate::clock;
use crate::error::Failure;
use crate::process::Message;

/// Threads, and nothing that schedules them but the kernel.
#[derive(Debug)]
pub(crate) struct KernelThreads(());

/// Wakes a thread that waits for another task.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on the calling thread, which sleeps while it waits.
fn run<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

impl AsyncSystem for KernelThreads {
    fn start(_workers: usize) -> Result<Self, Failure> {
        Ok(Self(()))
    }

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        run(future)
    }

    /// Starts a thread, or ends the process with the reason.
    fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || run(future)) {
            let failure = Failure::io("starting a thread (see `ulimit -u`)")(error);
            Message::Failed { failure }.print();
            process::exit(0);
        }
    }

    fn spawner() -> impl Fn(BoxedTask) + Send + 'static {
        Self::spawn
    }

    async fn call<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
        future.await
    }

    async fn yield_now() {
        thread::yield_now();
    }

    async fn sleep(duration: Duration) {
        clock::sleep(duration);
    }
}

impl Sockets for KernelThreads {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        blocking_calls::listen()
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        blocking_calls::accept(listener)
    }

    async fn connect(address: SocketAddr) -> io::Result<Self::Stream> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn read(stream: &mut Self::Stream, buffer: &mut [u8]) -> io::Result<usize> {
        stream.read(buffer)
    }

    async fn write_all(stream: &mut Self::Stream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(bytes)
    }
}
