//! Files, child processes, signals and the standard streams.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{fs, io, process::Stdio};

use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt};
use vigie_runtime::{
    Flavor, Runtime,
    fs::{self as vfs, File, OpenOptions},
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    spawn, time,
};

use crate::kit::folder::Folder;

/// Runs the test on each flavor.
fn on_each_flavor(test: impl AsyncFn(&Folder) -> io::Result<()>) {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
        let folder = Folder::new();
        if let Err(error) = runtime.block_on(test(&folder)) {
            panic!("on {flavor:?}: {error}");
        }
    }
}

// ------------------------------------------------------------------------------------------ files

#[test]
fn what_is_written_is_read() {
    on_each_flavor(async |folder| {
        let path = folder.path("file");
        let mut file = OpenOptions::new().read(true).write(true).create(true).open(&path).await?;
        let mut expected = Vec::new();
        for part in 0..100_u8 {
            let bytes = vec![part; usize::from(part) * 50];
            file.write_all(&bytes).await?;
            expected.extend(bytes);
        }
        file.flush().await?;
        assert_eq!(vfs::read(&path).await?, expected);

        assert_eq!(file.seek(io::SeekFrom::Start(5)).await?, 5);
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).await?;
        assert_eq!(rest, expected[5..]);
        assert_eq!(file.seek(io::SeekFrom::End(-3)).await?, expected.len() as u64 - 3);
        assert_eq!(file.read(&mut [0; 9]).await?, 3);
        assert_eq!(file.read(&mut [0; 9]).await?, 0, "the end");

        let mut middle = [0; 64];
        assert_eq!(file.read_at(&mut middle, 100_000).await?, 64);
        assert_eq!(middle, expected[100_000..100_064]);
        assert_eq!(file.stream_position().await?, expected.len() as u64, "`read_at` moves nothing");
        Ok(())
    });
}

/// Goal: operations of one file keep their order, also where some run on threads. Method: random operations on a file
/// and on a model in memory.
#[test]
fn a_file_is_as_its_model() {
    for seed in 0..20 {
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().expect("a runtime");
        let folder = Folder::new();
        let result: io::Result<()> = runtime.block_on(async {
            let mut rng = fastrand::Rng::with_seed(seed);
            let options = OpenOptions::new().read(true).write(true).create(true).clone();
            let mut file = options.open(folder.path("file")).await?;
            file.set_max_buf_size(rng.usize(1..300));
            let mut model = io::Cursor::new(Vec::new());
            for _ in 0..200 {
                match rng.u8(..5) {
                    0 | 1 => {
                        let bytes = vec![rng.u8(..); rng.usize(..500)];
                        file.write_all(&bytes).await?;
                        io::Write::write_all(&mut model, &bytes)?;
                    }
                    2 => {
                        let (mut seen, mut expected) = (vec![0; rng.usize(1..500)], vec![0; 500]);
                        let count = file.read(&mut seen).await?;
                        let from = usize::try_from(model.position()).expect("small");
                        let left = model.get_ref().len().saturating_sub(from);
                        assert!(count <= left && (count > 0) == (left > 0), "seed {seed}");
                        io::Read::read_exact(&mut model, &mut expected[..count])?;
                        assert_eq!(seen[..count], expected[..count], "seed {seed}");
                    }
                    3 => {
                        let to = rng.u64(..model.get_ref().len() as u64 + 1);
                        assert_eq!(file.seek(io::SeekFrom::Start(to)).await?, to, "seed {seed}");
                        model.set_position(to);
                    }
                    _ => {
                        // A read that is dropped has taken nothing.
                        let mut room = [0; 100];
                        let polled = time::timeout(time::Duration::ZERO, file.read(&mut room));
                        if let Ok(count) = polled.await {
                            model.set_position(model.position() + count? as u64);
                        }
                    }
                }
            }
            file.flush().await?;
            assert_eq!(fs::read(folder.path("file"))?, *model.get_ref(), "seed {seed}");
            Ok(())
        });
        result.expect("no operation fails");
    }
}

/// Goal: what asks about a file sees the writes before it, also without a flush. Method: lengths right after writes.
#[test]
fn a_write_is_seen_without_a_flush() {
    on_each_flavor(async |folder| {
        let mut file = File::create(folder.path("file")).await?;
        for round in 1..200 {
            file.write_all(&[1; 5000]).await?;
            file.sync_data().await?;
            assert_eq!(fs::metadata(folder.path("file"))?.len(), round * 5000);
            assert_eq!(file.metadata().await?.len(), round * 5000);
        }
        Ok(())
    });
}

#[test]
fn errors_of_files_come_to_their_owner() {
    on_each_flavor(async |folder| {
        let error = File::open(folder.path("none")).await.expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let path = folder.path("read-only");
        vfs::write(&path, "x").await?;
        let mut file = File::open(&path).await?;
        // The write may only be begun; the flush says that it failed.
        let failed = match file.write(b"y").await {
            Ok(_) => file.flush().await,
            Err(error) => Err(error),
        };
        assert_eq!(failed.expect_err("opened to read").raw_os_error(), Some(9), "EBADF");
        Ok(())
    });
}

#[test]
fn a_directory_is_read_whole() {
    on_each_flavor(async |folder| {
        for number in 0..100 {
            vfs::write(folder.path(format!("{number}")), "").await?;
        }
        vfs::create_dir(folder.path("directory")).await?;
        let (mut files, mut directories) = (0, 0);
        let mut entries = vfs::read_dir(folder.path("")).await?;
        while let Some(entry) = entries.next_entry().await? {
            assert_eq!(entry.path(), folder.path(entry.file_name()));
            match entry.file_type().await?.is_dir() {
                true => directories += 1,
                false => files += 1,
            }
        }
        assert_eq!((files, directories), (100, 1));
        Ok(())
    });
}

/// Goal: what has no position is read in order. Method: a FIFO as a file.
#[test]
fn a_fifo_is_read_in_order() {
    on_each_flavor(async |folder| {
        let path = folder.path("fifo");
        let mkfifo = Command::new("mkfifo").arg(&path).status().await?;
        assert!(mkfifo.success());
        let writer = path.clone();
        let writing =
            vigie_runtime::spawn_blocking(move || fs::write(writer, "abcdefgh".repeat(9)));
        let mut file = File::open(&path).await?;
        let mut seen = String::new();
        while seen.len() < 72 {
            let mut bytes = [0; 5];
            let count = file.read(&mut bytes).await?;
            assert!(count > 0, "{seen}");
            seen.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
        }
        assert_eq!(seen, "abcdefgh".repeat(9));
        writing.await??;
        Ok(())
    });
}

// -------------------------------------------------------------------------------- child processes

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    command
}

#[test]
fn a_child_is_run_to_its_end() {
    on_each_flavor(async |_| {
        assert_eq!(shell("exit 3").status().await?.code(), Some(3));
        let output = shell("echo out; echo err >&2").output().await?;
        assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
        let error = Command::new("/no/such/program").spawn().expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        Ok(())
    });
}

/// Goal: a child that writes more than a pipe holds before it reads does not hang, and its input ends.
#[test]
fn a_child_is_spoken_to() {
    on_each_flavor(async |_| {
        let mut command = Command::new("cat");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().expect("piped");
        let sent: Vec<u8> = (0..300_000_u32).map(|it| it.to_le_bytes()[0]).collect();
        let written = sent.clone();
        let writing = spawn(async move { input.write_all(&written).await });
        let output = child.wait_with_output().await?;
        writing.await??;
        assert!(output.status.success());
        assert_eq!(output.stdout, sent);
        Ok(())
    });
}

fn exists(id: u32) -> bool {
    fs::exists(format!("/proc/{id}")).expect("/proc is there")
}

/// Goal: children are killed where that is asked for, and reaped in any case. Method: their entries in /proc, of which a
/// child that is not reaped keeps one.
#[test]
fn dropped_children_leave_nothing() {
    on_each_flavor(async |_| {
        let mut forgotten = Command::new("true").spawn()?;
        let killed = Command::new("sleep").arg("1000").kill_on_drop(true).spawn()?;
        let mut waited = Command::new("sleep").arg("1000").spawn()?;
        let id = |child: &Child| child.id().expect("it runs");
        let ids = [id(&forgotten), id(&killed), id(&waited)];
        assert!(forgotten.start_kill().is_ok());
        drop((forgotten, killed));
        // A wait that is dropped changes nothing.
        let wait = time::timeout(time::Duration::from_millis(1), waited.wait()).await;
        assert!(wait.is_err());
        assert!(waited.try_wait()?.is_none());
        waited.kill().await?;
        assert_eq!(waited.id(), None);
        assert!(waited.start_kill().is_err());
        while ids.into_iter().any(exists) {
            time::sleep(time::Duration::from_millis(1)).await;
        }
        Ok(())
    });
}

/// Goal: a runtime ends although a task waits for a child that never ends; the child lives on, unless it is to be killed with its handle.
/// Method: one of each sort.
#[test]
fn a_child_that_never_ends_holds_up_no_shutdown() {
    for flavor in [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel] {
        let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
        let start = |is_killed| {
            let _entered = runtime.enter();
            let mut command = Command::new("sleep");
            let mut child = command.arg("1000").kill_on_drop(is_killed).spawn().expect("a child");
            let id = child.id().expect("it runs");
            runtime.spawn(async move { child.wait().await }).detach();
            id
        };
        let (left, killed) = (start(false), start(true));
        runtime.block_on(async { time::sleep(time::Duration::from_millis(1)).await });
        drop(runtime);
        let state = |id: u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
        };
        while !matches!(state(killed), None | Some('Z')) {
            std::thread::yield_now();
        }
        assert!(!matches!(state(left), None | Some('Z')), "{flavor}: it was not to be killed");
        let id = rustix::process::Pid::from_raw(left.cast_signed()).expect("a process");
        rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it runs");
    }
}

// --------------------------------------------------------------------------------------- signals

#[test]
fn a_signal_is_received() {
    on_each_flavor(async |_| {
        let mut winch = signal(SignalKind::window_change())?;
        let id = std::process::id();
        assert!(shell(&format!("kill -WINCH {id}")).status().await?.success());
        assert_eq!(winch.recv().await, Some(()));
        let error = signal(SignalKind::from_raw(9)).expect_err("SIGKILL cannot be caught");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        Ok(())
    });
}

/// Writes until that is an error: while another test starts a process, that one has the other end until it executes its program.
async fn error_of_writes(to: &mut (impl AsyncWrite + Unpin)) -> io::Error {
    loop {
        match to.write_all(b"ahoy").await {
            Ok(()) => time::sleep(time::Duration::from_millis(1)).await,
            Err(error) => return error,
        }
    }
}

/// Goal: a write to a peer that is gone is an error of that write: a socket raises no SIGPIPE, whatever the program does with it; a pipe
/// does, as anywhere, and std has let the program ignore it. Method: a handler for SIGPIPE, and writes to a socket and to a child.
#[test]
fn a_peer_that_is_gone_ends_no_program() {
    on_each_flavor(async |_| {
        let mut raised = signal(SignalKind::PIPE)?;
        let (mut socket, peer) = vigie_detect::net::UnixStream::pair()?;
        drop(peer);
        assert_eq!(error_of_writes(&mut socket).await.kind(), io::ErrorKind::BrokenPipe);
        let quiet = time::timeout(time::Duration::from_millis(20), raised.recv()).await;
        assert!(quiet.is_err(), "a socket raises it");

        let mut command = shell("exec 0<&-; echo ready; exec sleep 100");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().expect("piped");
        let ready = child.stdout.take().expect("piped").read(&mut [0; 8]).await?;
        assert_eq!(ready, 6);
        assert_eq!(error_of_writes(&mut input).await.kind(), io::ErrorKind::BrokenPipe);
        raised.recv().await.expect("a pipe raises it");
        child.kill().await
    });
}

// ------------------------------------------------------------------------------ standard streams

/// Not a test: what a child of `the_standard_streams_carry_bytes` does.
#[test]
#[ignore = "run by another test"]
fn echo_of_the_standard_streams() {
    if std::env::var_os("VIGIE_OS_ECHO").is_none() {
        return;
    }
    let runtime = Runtime::builder().workers(1).build().expect("a runtime");
    let result: io::Result<u64> = runtime.block_on(async {
        let mut output = vigie_runtime::io::stderr();
        let count = tokio::io::copy(&mut vigie_runtime::io::stdin(), &mut output).await?;
        output.flush().await?;
        Ok(count)
    });
    result.expect("the streams are open");
}

/// Goal: the standard streams carry bytes, and an end of the input is one. Method: this program as a child that echoes.
#[test]
fn the_standard_streams_carry_bytes() {
    on_each_flavor(async |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--ignored", "--exact", "echo_of_the_standard_streams", "--nocapture"]);
        command.env("VIGIE_OS_ECHO", "1").stdout(Stdio::null());
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().expect("piped");
        let sent = "sail ho\n".repeat(40_000).into_bytes();
        let written = sent.clone();
        let writing = spawn(async move { input.write_all(&written).await });
        let output = child.wait_with_output().await?;
        writing.await??;
        assert!(output.stderr == sent, "{} bytes of {}", output.stderr.len(), sent.len());
        Ok(())
    });
}

/// Goal: a runtime ends although a task waits for input that never comes. Method: a pipe that stays open.
#[test]
fn a_read_of_the_input_holds_up_no_shutdown() {
    let (_open, input) = {
        let (read, write) = io::pipe().expect("a pipe");
        (write, read)
    };
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "ends_while_it_reads"])
        .env("VIGIE_OS_ECHO", "1")
        .stdin(input)
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    assert!(child.wait().expect("it ends").success());
}

/// Not a test: what a child of `a_read_of_the_input_holds_up_no_shutdown` does.
#[test]
#[ignore = "run by another test"]
fn ends_while_it_reads() {
    if std::env::var_os("VIGIE_OS_ECHO").is_none() {
        return;
    }
    let runtime = Runtime::builder().workers(1).build().expect("a runtime");
    runtime.block_on(async {
        let read = async { vigie_runtime::io::stdin().read(&mut [0; 8]).await };
        assert!(time::timeout(time::Duration::from_millis(20), read).await.is_err());
    });
    runtime.shutdown_timeout(time::Duration::from_secs(100)).expect("nothing runs");
}

/// Goal: a program whose standard input is closed reads the end of it, and runs on. Method: the echo above, started so by a shell.
#[test]
fn a_closed_input_is_an_end() {
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new("sh")
        .args(["-c", r#"exec "$0" "$@" <&-"#])
        .arg(program)
        .args(["--ignored", "--exact", "echo_of_the_standard_streams", "--nocapture"])
        .env("VIGIE_OS_ECHO", "1")
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
