use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
};

use vigie_detect::HostThread;

use super::{
    client::Client,
    line::{LINE_BYTES_MAX, Lines, PmiResponse, ValueParts, encode},
    *,
};
use crate::world::{World, socket::Conversation, waiting::StateMachine};

fn identity() -> Identity {
    Identity { id: [1; 16], secret: [2; 32] }
}

fn client() -> Client {
    let mut client = Client::new(Rank(0), 1, identity());
    client.greet();
    client
}

/// A launcher of one rank, which answers as Hydra does.
#[derive(Default)]
struct Launcher {
    values: std::collections::BTreeMap<String, String>,
    /// The command that it answers differently, and how.
    planted: Option<(&'static str, String)>,
}

impl Launcher {
    fn answer(&mut self, line: &str) -> String {
        if let Some((command, answer)) = &self.planted
            && line.starts_with(&format!("cmd={command}"))
        {
            return answer.clone();
        }
        let field = |name: &str| {
            let found = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_default().to_owned()
        };
        let command = field("cmd");
        match command.as_str() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".to_owned(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1".to_owned(),
            "put" => {
                assert!(self.values.insert(field("key"), field("value")).is_none());
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "get" => match self.values.get(&field("key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=not_found value=unknown".to_owned(),
            },
            "barrier_in" => "cmd=barrier_out".to_owned(),
            "finalize" => "cmd=finalize_ack".to_owned(),
            other => panic!("{other} is not said"),
        }
    }

    /// Answers everything that the client sends, until it sends no more or is over.
    fn serve(&mut self, client: &mut Client) {
        while !client.is_over() {
            let said = std::mem::take(client.outgoing());
            if said.is_empty() {
                return;
            }
            assert!(said.len() <= LINE_BYTES_MAX, "{} bytes", said.len());
            let line = std::str::from_utf8(&said).unwrap().strip_suffix('\n').unwrap();
            assert!(!line.contains('\n'), "one line at a time: {line}");
            client.receive_bytes(format!("{}\n", self.answer(line)).as_bytes());
        }
    }
}

/// Goal: a rank joins, and finds what it has put, however long that is. Method: values of every length up to
/// the longest, through a launcher that is a map.
#[test]
fn values_of_every_length() {
    let (mut launcher, mut client) = (Launcher::default(), client());
    launcher.serve(&mut client);
    let membership = client.membership.clone().unwrap();
    assert_eq!(membership, Membership::new(Rank(0), 1, identity()));
    for length in (0..=500).step_by(7).chain([482, 483, 499, 500]) {
        let value: Vec<u8> = (0..length).map(|at| u8::try_from(at % 256).unwrap()).collect();
        let key = format!("{length:032}");
        if client.put(&key, &value).is_err() {
            // The same length again.
            continue;
        }
        client.ask(Rank(0), &key).unwrap();
        launcher.serve(&mut client);
        assert_eq!(client.answer(Rank(0), &key).unwrap().unwrap(), value);
    }
    client.enter().unwrap();
    client.leave().unwrap();
    launcher.serve(&mut client);
    assert!(client.pass(1) && client.has_left());
    assert!(matches!(client.check(), Err(WorldError::Left)));
    assert!(matches!(client.put("k", b""), Err(WorldError::Left)));
}

/// Goal: values are split so that no line and no value is longer than the launcher accepts. Method: launchers
/// with short values, and with long names of spaces, which leave less of a line.
#[test]
fn values_are_cut_to_the_launcher() {
    for (maxes, space, shortest) in
        [(17, 5, 16), (18, 5, 17), (64, 256, 63), (1024, 256, 600), (1024, 5, 800)]
    {
        let mut client = client();
        let maxes = format!("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={maxes}");
        let space = format!("cmd=my_kvsname kvsname={}", "s".repeat(space));
        let mut launcher = Launcher::default();
        for (command, answer) in
            [("init", None), ("get_maxes", Some(maxes)), ("get_my", Some(space))]
        {
            launcher.planted = answer.map(|answer| (command, answer));
            let said = std::mem::take(client.outgoing());
            let line = std::str::from_utf8(&said).unwrap().trim_end();
            client.receive_bytes(format!("{}\n", launcher.answer(line)).as_bytes());
        }
        launcher.planted = None;
        launcher.serve(&mut client);
        client.put("key", &[7; 500]).unwrap();
        client.ask(Rank(0), "key").unwrap();
        launcher.serve(&mut client);
        assert_eq!(client.answer(Rank(0), "key").unwrap().unwrap(), [7; 500]);
        let longest = launcher.values.values().map(String::len).max().unwrap();
        assert!(longest >= shortest, "{longest}");
    }
}

/// Goal: a launcher's answer that makes no sense, or reports a failure, is a typed error, and final. Method:
/// one wrong answer in each place.
#[test]
fn wrong_answers() {
    let long = "x".repeat(5000);
    for (command, answer) in [
        ("init", "cmd=response_to_init rc=-1"),
        ("init", "cmd=maxes"),
        ("init", "HTTP/1.1 400 Bad Request"),
        ("init", ""),
        ("init", "cmd=response_to_init rc=x"),
        ("init", "cmd=response_to_init\u{7f}"),
        ("init", &long),
        ("get_maxes", "cmd=maxes"),
        ("get_maxes", "cmd=maxes keylen_max=64 vallen_max=-1"),
        ("get_maxes", "cmd=maxes keylen_max=55 vallen_max=1024"),
        ("get_maxes", "cmd=maxes keylen_max=64 vallen_max=16"),
        ("get_maxes", "cmd=maxes keylen_max=0 vallen_max=0"),
        ("get_my_kvsname", "cmd=my_kvsname"),
        ("get_my_kvsname", "cmd=my_kvsname kvsname="),
        ("put", "cmd=put_result rc=-1 msg=duplicate_key"),
        ("barrier_in", "cmd=barrier_out rc=-1 msg=aborted"),
        ("barrier_in", "cmd=barrier_out\ncmd=barrier_out"),
        ("get", "cmd=get_result rc=-1"),
        ("get", "cmd=get_result rc=0"),
        ("get", "cmd=get_result rc=0 value="),
        ("get", "cmd=get_result rc=0 value=1.a"),
        ("get", "cmd=get_result rc=0 value=1.zz"),
        ("get", "cmd=get_result rc=0 value=1.abc"),
        ("get", "cmd=get_result rc=0 value=ffffffff.ab"),
        ("get", "cmd=get_result rc=0 value=-1.ab"),
        ("get", "cmd=get_result rc=0 value=2.abab"),
    ] {
        let mut client = client();
        let mut launcher =
            Launcher { planted: Some((command, answer.to_owned())), ..Launcher::default() };
        launcher.serve(&mut client);
        let error = client.check().expect_err(answer);
        assert!(matches!(error, WorldError::Pmi(_)) && error.is_final(), "{answer}: {error}");
        assert!(client.membership.is_none() || answer.contains('\n'));
        assert!(error.to_string().len() < 300, "{error}");
    }
    let mut client = client();
    client.receive_bytes("cmd=barrier_out\n".as_bytes());
    assert!(client.check().is_err(), "nothing was asked");
    client.receive_bytes(&[0xff; 10_000]);
}

/// Goal: nothing that a launcher can send panics or is kept without bound. Method: nearly right lines, mutated
/// by a seeded generator and cut anywhere.
#[test]
fn mutated_lines() {
    for seed in 0..2000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut launcher, mut client) = (Launcher::default(), client());
        for _ in 0..12 {
            let said = std::mem::take(client.outgoing());
            if said.is_empty() {
                let _ = client.put(&format!("k{}", random.u8(..)), &[9; 400]);
                let _ = client.ask(Rank(random.u32(0..2)), "k1");
                let _ = client.enter();
                continue;
            }
            let line = String::from_utf8(said).unwrap();
            let mut answer = launcher.answer(line.trim_end()).into_bytes();
            answer.push(b'\n');
            for _ in 0..random.usize(0..3) {
                let at = random.usize(0..answer.len());
                match random.u8(0..4) {
                    0 => answer[at] = random.u8(..),
                    1 => answer.truncate(at.max(1)),
                    2 => answer.insert(at, random.u8(..)),
                    _ => answer[at] = b"0123456789= .\n"[random.usize(0..14)],
                }
            }
            let (front, back) = answer.split_at(random.usize(0..=answer.len()));
            client.receive_bytes(front);
            client.receive_bytes(back);
            if let Err(error) = client.check() {
                assert!(matches!(error, WorldError::Pmi(_)), "seed {seed}: {error}");
            }
        }
    }
}

/// Goal: the codec alone accepts any bytes. Method: random ones, as lines, as answers, as pieces of values.
#[test]
fn random_bytes() {
    for seed in 0..2000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
        let mut lines = Lines::default();
        lines.feed(&bytes);
        while let Ok(Some(line)) = lines.next_line() {
            if let Ok(answer) = PmiResponse::parse(line) {
                let _ = (answer.expect("maxes"), answer.text("value"), answer.number("rc"));
            }
        }
        let text: String = (0..random.usize(0..20)).map(|_| random.char(..)).collect();
        let mut pieces = ValueParts::default();
        let _ = pieces.add(&text, 500);
        let _ = pieces.add(&text, 500);
        let mut pieces = ValueParts::default();
        let text = encode(&bytes);
        let (front, back) = text.split_at(random.usize(0..text.len()));
        let found = pieces.add(front, 500).ok().flatten();
        let found = found.or_else(|| pieces.add(back, 500).ok().flatten());
        // Cut before the full stop, it is not the beginning of a value.
        assert!(found == Some(bytes) || !front.contains('.'), "seed {seed}");
    }
}

/// Goal: a missing value is reported as such, and may be asked for again. Method: ask before it is put and after.
#[test]
fn values_that_come_later() {
    let (mut launcher, mut client) = (Launcher::default(), client());
    launcher.serve(&mut client);
    client.ask(Rank(0), "later").unwrap();
    launcher.serve(&mut client);
    let missing = client.answer(Rank(0), "later").unwrap().unwrap_err();
    assert!(matches!(&missing, WorldError::NotPut { .. }) && !missing.is_final(), "{missing}");
    client.put("later", b"value").unwrap();
    client.ask(Rank(0), "later").unwrap();
    launcher.serve(&mut client);
    assert_eq!(client.answer(Rank(0), "later").unwrap().unwrap(), b"value");
}

/// Joins a launcher on a thread, which answers until `last` was sent, and then ends.
fn join_until(host: &HostThread, last: &'static str) -> Result<World, WorldError> {
    let (socket, other) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let launcher = std::thread::spawn(move || {
        let mut launcher = Launcher::default();
        let mut lines = BufReader::new(other.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            if line.starts_with(last) {
                return;
            }
            let answer = launcher.answer(&line);
            (&other).write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let deadline = host.server().now() + Duration::from_secs(60);
    let world = runtime.block_on(async {
        let world = join(host.server(), socket, (Rank(0), 1), deadline).await?;
        let world = World::from_bootstrap(world);
        world.put("k", b"v", deadline).await?;
        world.barrier(deadline).await?;
        assert_eq!(world.get(Rank(0), "k", deadline).await?, Some(b"v".to_vec()));
        world.leave(deadline).await?;
        world.leave(deadline).await?;
        Ok(world)
    });
    if world.is_ok() {
        drop(world);
        launcher.join().unwrap();
        return Err(WorldError::Left);
    }
    launcher.join().unwrap();
    world
}

/// Goal: over a socket, a launcher that goes away ends every wait. Method: it does so instead of each of its
/// answers.
#[test]
fn launcher_goes_away() {
    let host = Server::spawn_thread().expect("a thread");
    for last in ["cmd=init", "cmd=get_maxes", "cmd=get_my", "cmd=put", "cmd=barrier_in", "cmd=get "]
    {
        let error = join_until(&host, last).unwrap_err();
        assert!(matches!(error, WorldError::LauncherLost), "{last}: {error}");
    }
    // The end of the connection counts as the last answer.
    for last in ["cmd=finalize", "nothing"] {
        let error = join_until(&host, last).unwrap_err();
        assert!(matches!(error, WorldError::Left), "{last}: {error}");
    }
}
