//! Clients of databases: redis's, which needs tokio's context, and that of PostgreSQL, which takes vigie's sockets.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use redis::AsyncCommands;
use tokio_postgres::NoTls;
use vigie::{Runtime, net::UnixStream, task::JoinSet};

/// mini-redis, the server, and redis's client, both as they are.
#[test]
fn redis_in_tokios_context() {
    let runtime = Runtime::builder().workers(2).tokio_context(true).build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        vigie::spawn(mini_redis::server::run(listener, std::future::pending::<()>())).detach();
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)));
        let client = redis::Client::open(url).unwrap();
        let connection =
            client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let mut tasks = JoinSet::new();
        for number in 0..50 {
            let mut connection = connection.clone();
            tasks.spawn(async move {
                let _: () = connection.set(number, number * 2).await.unwrap();
                let doubled: i64 = connection.get(number).await.unwrap();
                assert_eq!(doubled, number * 2);
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    });
}

/// Where Debian and others install the server's programs.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .find(|bin| bin.join("initdb").exists())
}

/// A server in a folder of its own, which is not for root to run.
struct Postgres {
    bin: PathBuf,
    folder: PathBuf,
}

impl Postgres {
    fn run(bin: &Path, program: &str, arguments: &[&str]) -> bool {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(bin.join(program)).args(arguments);
        command.current_dir("/").output().is_ok_and(|output| output.status.success())
    }

    fn start(bin: PathBuf) -> Self {
        let folder = env::temp_dir().join(format!("vigie-postgres-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        assert!(Command::new("chown").arg("postgres").arg(&folder).status().unwrap().success());
        let text = folder.to_str().unwrap();
        let data = format!("{text}/data");
        assert!(Self::run(&bin, "initdb", &["-A", "trust", "-D", &data]), "initdb");
        let options = format!("-c listen_addresses= -k {text}");
        assert!(Self::run(
            &bin,
            "pg_ctl",
            &["-w", "-D", &data, "-o", &options, "-l", &format!("{text}/log"), "start"]
        ));
        Self { bin, folder }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let data = self.folder.join("data");
        Self::run(&self.bin, "pg_ctl", &["-m", "immediate", "-D", data.to_str().unwrap(), "stop"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn postgres_on_vigies_sockets() {
    let Some(bin) = postgres_programs().filter(|_| is_root()) else {
        eprintln!(
            "SKIPPED postgres_on_vigies_sockets: needs root and PostgreSQL (apt-get install postgresql)"
        );
        return;
    };
    let server = Postgres::start(bin);
    Runtime::new().unwrap().block_on(async {
        let stream = UnixStream::connect(server.folder.join(".s.PGSQL.5432")).await.unwrap();
        let mut config = tokio_postgres::Config::new();
        config.user("postgres").dbname("postgres");
        let (client, connection) = config.connect_raw(stream, NoTls).await.unwrap();
        vigie::spawn(async move { connection.await.unwrap() }).detach();
        let rows =
            client.query("SELECT n * 2 FROM generate_series(1, 1000) AS n", &[]).await.unwrap();
        let doubled: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        assert!((1..=1000).map(|n| n * 2).eq(doubled));
        // Ten queries at once on one connection.
        let sleep = || client.query_one("SELECT pg_sleep(0.01), 7", &[]);
        for answer in futures_util::future::join_all((0..10).map(|_| sleep())).await {
            assert_eq!(answer.unwrap().get::<_, i32>(1), 7);
        }
    });
    drop(server);
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}
