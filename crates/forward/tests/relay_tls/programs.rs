//! Other people's TLS: `openssl s_client`, `openssl s_server` and `curl`.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
};

use vigie_forward::relay::{TlsRouter, Upstream};

use crate::{
    Serving,
    certificates::{Kit, has_program},
    peers::plain_echo,
    relay, serve,
};

/// Goal: OpenSSL's client is served, in both versions, and sees the relay's chain as right. Method: `openssl s_client` says a line and gets it back.
#[test]
fn openssl_is_a_client() {
    if !has_program("openssl_is_a_client", "openssl") {
        return;
    }
    let kit = Kit::shared();
    let termination = kit.termination().alpn(["h2", "http/1.1"]).expect("protocols");
    let relay =
        Serving::start(relay().upstream(plain_echo()).tls(TlsRouter::terminate(termination)));
    for version in ["-tls1_2", "-tls1_3"] {
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                version,
                "-servername",
                "web.test",
                "-alpn",
                "http/1.1",
                "-verify_return_error",
            ])
            .args(["-verify_hostname", "web.test", "-CAfile"])
            .arg(kit.authority_file())
            .args(["-connect", &relay.address.to_string(), "-ign_eof"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a program");
        let mut input = client.stdin.take().expect("piped");
        input.write_all(b"sail ho\n").expect("it runs");
        let mut output = client.stdout.take().expect("piped");
        let mut heard = Vec::new();
        let mut room = [0; 4096];
        while !String::from_utf8_lossy(&heard).contains("\nsail ho\n") {
            match output.read(&mut room).expect("it runs") {
                0 => break,
                count => heard.extend(&room[..count]),
            }
        }
        drop((input, output));
        client.kill().expect("it runs");
        let errors = client.wait_with_output().expect("it has ended").stderr;
        let (heard, errors) = (String::from_utf8_lossy(&heard), String::from_utf8_lossy(&errors));
        assert!(heard.contains("\nsail ho\n"), "{version}: {heard}\n{errors}");
        assert!(heard.contains("ALPN protocol: http/1.1"), "{version}: {heard}");
    }
}

/// Goal: OpenSSL's server is a target, in both versions. Method: `openssl s_server -www` answers a request in plain.
#[test]
fn openssl_is_a_target() {
    if !has_program("openssl_is_a_target", "openssl") {
        return;
    }
    let kit = Kit::shared();
    for version in ["-tls1_2", "-tls1_3"] {
        // An address of this test's own: on a common one, another test could get the port before the server does.
        let target =
            TcpListener::bind("127.0.0.77:0").and_then(|one| one.local_addr()).expect("a port");
        let mut server = Command::new("openssl")
            .args(["s_server", version, "-www", "-quiet", "-accept", &target.to_string(), "-cert"])
            .arg(kit.folder.path("web.chain.pem"))
            .arg("-key")
            .arg(kit.folder.path("web.key.pem"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a program");
        while std::net::TcpStream::connect(target).is_err() {
            assert_eq!(server.try_wait().expect("a process"), None, "it runs");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        let to = Upstream::from(target).tls(kit.origination("web.test"));
        let relay = Serving::start(relay().upstream(to));
        let mut stream = relay.connect();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it is connected");
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        server.kill().and_then(|()| server.wait()).expect("it ran");
        let heard = String::from_utf8_lossy(&heard);
        assert!(heard.starts_with("HTTP/1.0 200"), "{version}: {heard}");
    }
}

/// Goal: curl is served by HTTP over TLS, by name. Method: a target that answers one request, and curl with the authority's certificate.
#[test]
fn curl_is_a_client() {
    if !has_program("curl_is_a_client", "curl") {
        return;
    }
    let kit = Kit::shared();
    let target = serve(|mut socket| {
        let mut heard = Vec::new();
        let mut room = [0; 999];
        while !heard.ends_with(b"\r\n\r\n") {
            match socket.read(&mut room) {
                Ok(count @ 1..) => heard.extend(&room[..count]),
                _ => return,
            }
        }
        let _ = socket.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\nsail ho\n",
        );
    });
    let relay =
        Serving::start(relay().upstream(target).tls(TlsRouter::terminate(kit.termination())));
    let port = relay.address.port();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "--cacert"])
        .arg(kit.authority_file())
        .args([
            "--resolve",
            &format!("web.test:{port}:127.0.0.1"),
            &format!("https://web.test:{port}/"),
        ])
        .output()
        .expect("a program");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sail ho\n", "{errors}");
}
