//! HAProxy before and behind a relay: the PROXY protocol of another program.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use vigie::Instant;

use crate::{
    instance::{BOUND, Folder, Instance},
    kit::skip::skip,
};

/// HAProxy, until this is dropped.
struct HaProxy(Child);

impl Drop for HaProxy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts one that answers requests at a Unix socket with the client's address, and hands what comes to a port on to a relay. Both
/// connections have headers of the PROXY protocol. `None` if it is not installed.
fn haproxy(folder: &Folder, relay: SocketAddr) -> Option<(HaProxy, SocketAddr)> {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let text = format!(
        "global\n  maxconn 100\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 10s\n  timeout server 10s\n\
         frontend before\n  bind {port}\n  default_backend relay\n\
         backend relay\n  server one {relay} send-proxy-v2\n\
         frontend behind\n  mode http\n  bind unix@{} accept-proxy\n  \
         http-request return status 200 content-type text/plain lf-string \"%[src]:%[src_port]\"\n",
        folder.path("behind").display()
    );
    let file = folder.write("haproxy.cfg", &text);
    // Not every user has the second folder among those that are searched.
    for program in ["haproxy", "/usr/sbin/haproxy"] {
        // What it says is seen if the test fails.
        match Command::new(program).arg("-f").arg(&file).arg("-db").stdout(Stdio::null()).spawn() {
            Ok(child) => return Some((HaProxy(child), port)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{program}: {error}"),
        }
    }
    None
}

/// Asks who the client is, until HAProxy has started and answers. Returns what the client is taken for, and its own address.
fn client_seen_at(to: SocketAddr, haproxy: &mut HaProxy) -> (String, String) {
    let end = Instant::now() + BOUND;
    loop {
        assert!(Instant::now() < end, "no answer at {to}");
        let ended = haproxy.0.try_wait().expect("a child");
        assert!(ended.is_none(), "HAProxy has ended: {ended:?}");
        thread::park_timeout(Duration::from_millis(10));
        let Ok(mut stream) = TcpStream::connect(to) else { continue };
        stream.set_read_timeout(Some(BOUND)).expect("a socket");
        let mut answer = String::new();
        let asked = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
        if asked.is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && let Some((_, body)) = answer.split_once("\r\n\r\n")
        {
            return (body.to_owned(), stream.local_addr().expect("connected").to_string());
        }
    }
}

/// Goal: HAProxy trusts the header that a relay sends, and a relay the one that HAProxy sends, so that the last one knows the client.
/// Method: a client before a relay, and one before HAProxy before a relay, both of which end at HAProxy.
#[test]
fn haproxy_and_a_relay_tell_each_other_of_the_client() {
    let folder = Folder::new();
    let target = folder.path("behind");
    let flow = |name: &str, more: &str| {
        format!(
            "[[relay]]\nname = '{name}'\nlisten = 'tcp://127.0.0.1:0'\nto = 'unix:{}'\nproxy_send = true\n{more}",
            target.display()
        )
    };
    let text = flow("last", "proxy_from = ['127.0.0.0/8']\n") + &flow("first", "");
    let file = folder.write("config.toml", &text);
    let arguments = ["run", "--config", file.to_str().expect("text")];
    let mut instance = Instance::start(&folder, &arguments).ready();
    let (last, first) = (instance.address("last"), instance.address("first"));
    let Some((mut haproxy, before)) = haproxy(&folder, last) else {
        skip("haproxy_and_a_relay_tell_each_other_of_the_client", "`haproxy`");
        return;
    };
    for to in [first, before] {
        let (seen, own) = client_seen_at(to, &mut haproxy);
        assert_eq!(seen, own);
    }
    assert_eq!(instance.end().code(), 0);
}
