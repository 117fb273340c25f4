//! The socket: its answers, its faults, and readers that are slow or hostile.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener, net::UnixStream},
    path::PathBuf,
    process,
};

use vigie_runtime::{
    BuildError, Runtime,
    metrics::{ServeError, serve},
};

use crate::{
    flavors::{FLAVORS, runtime},
    kit::guard::against_hang,
};

/// A path of its own for each test.
fn path(name: &str) -> PathBuf {
    env::temp_dir().join(format!("vigie-test-{}-{name}.sock", process::id()))
}

fn ask(stream: &UnixStream) -> String {
    let mut writer = stream;
    writer.write_all(b"snapshot\n").expect("it is taken");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    line
}

/// Goal: a runtime of either flavor serves while it lives, to its own user alone, and leaves no file
/// behind. Method: the builder's setter; questions one by one and two in one piece.
#[test]
fn a_runtime_serves_while_it_lives() {
    against_hang(|| {
        for flavor in FLAVORS {
            let path = path(&format!("lives-{flavor}"));
            let builder = Runtime::builder().flavor(flavor).metrics_socket(&path);
            let runtime = builder.build().expect("a runtime");
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let stream = UnixStream::connect(&path).expect("it is served");
            let answer = ask(&stream);
            assert!(answer.starts_with("{\"vigie_metrics\":2,"), "{answer}");
            assert!(answer.ends_with("}\n"), "{answer}");
            assert!(answer.contains(&format!("\"flavor\":\"{flavor}\"")), "{answer}");
            (&stream).write_all(b"snapshot\nsnapshot\n").expect("it is taken");
            let answers: Vec<_> = BufReader::new(&stream).lines().take(2).collect();
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            drop(runtime);
            assert!(!path.exists(), "the socket stays behind");
        }
    });
}

/// Goal: a dead program's socket is replaced; a live one's is not, nor a file that is not a socket; a folder
/// that does not exist is told. Method: one of each.
#[test]
fn what_is_there_is_told_apart() {
    against_hang(|| {
        let runtime = runtime(FLAVORS[1]);
        let path = path("faults");
        drop(UnixListener::bind(&path).expect("a socket"));
        let served = serve(runtime.handle(), &path).expect("the dead one is replaced");
        let again = serve(runtime.handle(), &path);
        assert!(matches!(again, Err(ServeError::InUse { .. })), "{again:?}");
        let built = Runtime::builder().workers(1).metrics_socket(&path).build();
        let is_in_use = matches!(built, Err(BuildError::MetricsSocket(ServeError::InUse { .. })));
        assert!(is_in_use, "{built:?}");
        ask(&UnixStream::connect(&path).expect("the first one still serves"));
        drop(served);
        assert!(!path.exists());

        fs::write(&path, "precious").expect("a file");
        let refused = serve(runtime.handle(), &path);
        assert!(matches!(refused, Err(ServeError::NotASocket { .. })), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "precious");
        fs::remove_file(&path).expect("it is ours");

        for (bad, cause) in [
            ("/no/such/folder/socket".to_owned(), "the folder must exist"),
            (format!("/tmp/{}", "x".repeat(200)), "at most 107 bytes"),
        ] {
            let refused = serve(runtime.handle(), bad).expect_err("it cannot be");
            assert!(matches!(refused, ServeError::Io { .. }), "{refused:?}");
            assert!(refused.to_string().ends_with(cause), "{refused}");
        }
    });
}

/// Goal: no user who can read the folder keeps a socket from being made in it. Method: lock the folder, as
/// every user that can open it may.
#[test]
fn a_locked_folder_is_no_hindrance() {
    against_hang(|| {
        let runtime = runtime(FLAVORS[0]);
        let folder = env::temp_dir().join(format!("vigie-test-{}-locked", process::id()));
        fs::create_dir(&folder).expect("a folder");
        let held = fs::File::open(&folder).expect("it can be read");
        held.lock().expect("no other thread has it");
        let served = serve(runtime.handle(), folder.join("metrics.sock"));
        drop(served.expect("it serves all the same"));
        drop(held);
        fs::remove_dir(&folder).expect("nothing is left in it");
    });
}

/// Goal: of several that find the same dead socket one replaces it, and serves; nothing else is left.
/// Method: four threads at once, many times.
#[test]
fn a_dead_socket_is_replaced_once() {
    against_hang(|| {
        let runtime = runtime(FLAVORS[1]);
        let folder = env::temp_dir().join(format!("vigie-test-{}-dead", process::id()));
        fs::create_dir(&folder).expect("a folder");
        let path = folder.join("metrics.sock");
        for _ in 0..50 {
            drop(UnixListener::bind(&path).expect("a socket"));
            let begin = std::sync::Barrier::new(4);
            let served: Vec<_> = std::thread::scope(|scope| {
                let serve_one = || {
                    begin.wait();
                    serve(runtime.handle(), &path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(serve_one)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            let refused = |served: &Result<_, _>| matches!(served, Err(ServeError::InUse { .. }));
            assert_eq!(served.iter().filter(|served| refused(served)).count(), 3, "{served:?}");
            assert_eq!(served.iter().filter(|served| served.is_ok()).count(), 1, "{served:?}");
            ask(&UnixStream::connect(&path).expect("it is served"));
        }
        fs::remove_dir(&folder).expect("nothing is left in it");
    });
}

/// Goal: a lock file that is not ours, or no file, neither keeps a socket from being made nor is removed.
/// Method: a folder, and a link to another file, in its place.
#[test]
fn a_foreign_lock_is_passed_over() {
    against_hang(|| {
        let runtime = runtime(FLAVORS[1]);
        let folder = env::temp_dir().join(format!("vigie-test-{}-foreign-lock", process::id()));
        fs::create_dir(&folder).expect("a folder");
        let (path, lock) = (folder.join("metrics.sock"), folder.join("metrics.sock.lock"));
        fs::create_dir(&lock).expect("a folder");
        drop(serve(runtime.handle(), &path).expect("it serves all the same"));
        fs::remove_dir(&lock).expect("it is still there");
        let precious = folder.join("precious");
        fs::write(&precious, "precious").expect("a file");
        std::os::unix::fs::symlink(&precious, &lock).expect("a link");
        drop(serve(runtime.handle(), &path).expect("it serves all the same"));
        fs::remove_file(&lock).expect("it is still there");
        assert_eq!(fs::read_to_string(&precious).expect("it is still there"), "precious");
        fs::remove_file(&precious).expect("it is ours");
        fs::remove_dir(&folder).expect("nothing is left in it");
    });
}

/// Goal: a socket that another program has put in the place of ours is not removed. Method: replace it.
#[test]
fn a_foreign_socket_is_left_alone() {
    against_hang(|| {
        let runtime = runtime(FLAVORS[0]);
        let path = path("foreign");
        let served = serve(runtime.handle(), &path).expect("it serves");
        fs::remove_file(&path).expect("it is ours");
        let foreign = UnixListener::bind(&path).expect("a socket");
        drop(served);
        assert!(path.exists());
        drop(foreign);
        fs::remove_file(&path).expect("it is ours");
    });
}

/// Goal: nonsense is answered and ends the connection; readers that take nothing or send nothing, and
/// more of them than are served, harm no other one. Method: one of each kind, and then a good one.
#[test]
fn bad_readers_harm_nobody() {
    against_hang(|| {
        let runtime = runtime(FLAVORS[1]);
        let path = path("bad");
        let served = serve(runtime.handle(), &path).expect("it serves");
        let connect = || UnixStream::connect(&path).expect("it listens");
        for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[b'x'; 1000], b"\xff\n"] {
            let mut stream = connect();
            stream.write_all(nonsense).expect("it is taken");
            let mut answer = Vec::new();
            // A reset is what the rest of a long request may give.
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(answer.contains("\"error\":\"unknown request"), "{answer}");
        }
        // One that asks without end and takes nothing.
        let greedy = connect();
        greedy.set_nonblocking(true).expect("it is a socket");
        while (&greedy).write(b"snapshot\n").is_ok() {}
        let silent: Vec<_> = (0..6).map(|_| connect()).collect();
        let good = connect();
        assert!(ask(&good).starts_with("{\"vigie_metrics\":2,\"pid\""));
        let mut surplus = String::new();
        connect().read_to_string(&mut surplus).expect("an answer");
        assert!(surplus.contains("too many readers"), "{surplus}");
        assert!(ask(&good).starts_with("{\"vigie_metrics\":2,\"pid\""));
        drop((greedy, silent, served));
        assert!(!path.exists());
    });
}
