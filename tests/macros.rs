//! `#[vigie::main]`, `#[vigie::test]`, and what the feature `full` re-exports.

use std::io;

use vigie::io::{AsyncReadExt, AsyncWriteExt};

#[vigie::main(workers = 1)]
async fn twice(/* nothing */) -> io::Result<u32> {
    let half = vigie::spawn(async { 21 }).await?;
    Ok(half * 2)
}

#[test]
fn main_runs_on_a_runtime() {
    assert_eq!(twice().expect("a task gives its result"), 42);
}

#[vigie::test]
async fn a_test_runs_on_its_thread() {
    assert_eq!(vigie::Handle::current().flavor(), vigie::Flavor::UserLevel);
}

#[vigie::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "seen")]
async fn a_test_may_have_workers() {
    assert_eq!(vigie::Handle::current().flavor(), vigie::Flavor::Hybrid);
    panic!("seen");
}

#[vigie::test(simulated, seed = 7)]
async fn an_hour_takes_no_time() {
    let begin = vigie::Instant::now();
    vigie::time::sleep(vigie::time::Duration::from_secs(3600)).await;
    assert_eq!(begin.elapsed().as_secs(), 3600);
}

/// Goal: tasks, channels and blocking closures work in virtual time. Method: a task that answers after a day.
#[vigie::test(simulated)]
async fn a_simulated_test_has_tasks() {
    let begin = vigie::Instant::now();
    let (sender, receiver) = vigie::sync::oneshot::channel();
    let task = vigie::spawn(async {
        vigie::time::sleep(vigie::time::Duration::from_secs(86_400)).await;
        sender.send(vigie::task::spawn_blocking(|| 6).await)
    });
    assert_eq!(receiver.await.expect("it is sent").expect("it ends"), 6);
    assert!(task.await.expect("it ends").is_ok());
    assert_eq!(begin.elapsed().as_secs(), 86_400);
}

vigie::task_local! {
    static NUMBER: u32;
}

#[vigie::test]
async fn tokios_parts_work_in_tasks() {
    let (sender, receiver) = vigie::sync::oneshot::channel();
    let task = vigie::spawn(NUMBER.scope(5, async { sender.send(NUMBER.get()) }));
    let (sent, received) = vigie::join!(task, receiver);
    assert_eq!((sent.expect("it ends"), received), (Ok(()), Ok(5)));

    let never = std::future::pending::<()>();
    vigie::select! {
        () = never => unreachable!(),
        () = vigie::time::sleep(vigie::time::Duration::from_millis(1)) => {}
    }
}

/// Goal: names are looked up on the blocking pool, and sockets take them. Method: `localhost`, in /etc/hosts.
#[vigie::test]
async fn names_are_looked_up() -> io::Result<()> {
    let listener = vigie::net::TcpListener::bind("localhost:0").await?;
    let port = listener.local_addr()?.port();
    let (stream, accepted) =
        vigie::join!(vigie::net::TcpStream::connect(("localhost", port)), listener.accept());
    stream?.write_all(b"ahoy").await?;
    let mut heard = String::new();
    accepted?.0.read_to_string(&mut heard).await?;
    assert_eq!(heard, "ahoy");

    let error = vigie::net::lookup_host("no port").await.expect_err("an address needs a port");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(vigie::net::lookup_host("no.such.name.invalid:1").await.is_err());
    Ok(())
}
