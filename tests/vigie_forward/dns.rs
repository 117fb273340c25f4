//! Targets by name, with a real DNS server: dnsmasq, in network and mount namespaces of the test's own, where it alone is asked.

use std::{
    fmt::Write as _,
    fs,
    io::Read,
    net::UdpSocket,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    connect,
    instance::{BOUND, Folder, Instance, report},
    kit::{namespace, skip::skip},
    names::letter_server,
};

/// The addresses of a name, so many that their answer is longer than a datagram without extensions, of 512 bytes.
const MANY: usize = 40;

/// dnsmasq, until this is dropped.
struct DnsServer {
    child: Child,
}

impl DnsServer {
    /// Starts one that knows the names of a file in the form of /etc/hosts, and says of all others under `test` that they do not exist.
    fn start(hosts: &Path) -> Self {
        let mut command = Command::new("dnsmasq");
        command.args(["--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"]);
        command.args(["--local=/test/", "--listen-address=127.0.0.1", "--bind-interfaces"]);
        command.arg("--pid-file");
        command.arg(format!("--addn-hosts={}", hosts.display()));
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        Self { child: command.spawn().expect("it is installed") }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Asks for the addresses of `one.test` or `many.test` over UDP. Returns the second pair of bytes, its flags, once it answers.
    fn flags_of(&mut self, name: &str) -> [u8; 2] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.connect("127.0.0.1:53").expect("a loopback");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        // One question, recursion desired; of type A and class IN.
        let mut question = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in [name, "test"] {
            question.push(u8::try_from(label.len()).expect("short"));
            question.extend(label.bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        for _ in 0..BOUND.as_millis() / 100 {
            let mut answer = [0; 512];
            if socket.send(&question).is_ok() && socket.recv(&mut answer).is_ok() {
                return [answer[2], answer[3]];
            }
            assert_eq!(self.child.try_wait().expect("a child"), None, "dnsmasq has ended");
            // Refused at once, as long as it does not listen.
            thread::park_timeout(Duration::from_millis(50));
        }
        panic!("dnsmasq does not answer");
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes this namespace, which has mounts of its own, ask a DNS server at 127.0.0.1.
fn resolve_here(folder: &Folder) {
    namespace::near("ip link set lo up");
    for (name, text) in [
        ("hosts", "127.0.0.1 localhost\n"),
        ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
        ("nsswitch.conf", "hosts: files dns\n"),
    ] {
        let file = folder.write(name, text);
        namespace::near(&format!("mount --bind {} /etc/{name}", file.display()));
    }
}

/// Goal: a relay follows what a DNS server says of its targets, also in answers that are truncated and must be asked for over TCP; while the server does not
/// answer, or says that the name does not exist, the last addresses serve, and both are said. Method: dnsmasq, whose file changes and which is stopped, and a
/// question of our own that shows the truncation.
#[test]
fn a_dns_server_is_followed() {
    const TEST: &str = "dns::a_dns_server_is_followed";
    let has = |folder: &str| Path::new(folder).join("dnsmasq").is_file();
    if !["/usr/sbin", "/usr/bin"].into_iter().any(has) {
        return skip(
            TEST,
            "`dnsmasq`, which is not installed (on Debian: apt install dnsmasq-base)",
        );
    }
    namespace::inside(TEST, &[&["-Urnm"], &["-nm"]], || {
        let folder = Folder::new();
        let file = folder.path("names");
        let hosts = |one: &str, many: usize| {
            let mut text = format!("{one} one.test\n");
            for host in 1..=many {
                writeln!(text, "127.1.0.{host} many.test").expect("a string");
            }
            fs::write(&file, text).expect("it is ours");
        };
        hosts("127.0.0.2", MANY);
        resolve_here(&folder);
        let mut dns = DnsServer::start(&file);
        let is_truncated = |[flags, _]: [u8; 2]| flags & 2 != 0;
        assert!(!is_truncated(dns.flags_of("one")));
        assert!(is_truncated(dns.flags_of("many")), "{MANY} addresses fit into a datagram");

        let port = letter_server("127.0.0.2:0", b'a');
        assert_eq!(letter_server(&format!("127.0.0.3:{port}"), b'b'), port);
        let socket = folder.path("stats");
        let text = format!(
            "[process]\ndrain = '100ms'\nstats_socket = '{}'\n\
             [[relay]]\nname = 'one'\nlisten = 'tcp://127.0.0.1:0'\nresolve = '1s'\nto = 'tcp://one.test:{port}'\n\
             [[relay]]\nname = 'many'\nlisten = 'tcp://127.0.0.1:0'\nresolve = '1s'\nto = 'tcp://many.test:{port}'\n",
            socket.display()
        );
        let config = folder.write("flows.toml", &text);
        let arguments = ["run", "--config", config.to_str().expect("text")];
        let mut relay = Instance::start(&folder, &arguments).ready();
        let at = relay.address("one");
        let ask = || {
            let (mut stream, mut letter) = (connect(at), [0]);
            stream.read_exact(&mut letter).expect("an answer");
            letter[0]
        };
        assert_eq!(ask(), b'a');
        let targets = || report(&socket)["flows"][1]["targets"].as_array().map(Vec::len);
        // Its answer takes a second question.
        while targets() != Some(MANY) {}

        // Another address.
        hosts("127.0.0.3", MANY);
        dns.signal(Signal::HUP);
        relay.until("name: one.test; new: [\"tcp://127.0.0.3");
        assert_eq!(ask(), b'b');

        // A name that is gone: NXDOMAIN.
        hosts("127.0.0.3", 0);
        dns.signal(Signal::HUP);
        relay.until("cannot be resolved; name: many.test");
        assert_eq!(targets(), Some(MANY));

        // A server that does not answer, and then does.
        dns.signal(Signal::STOP);
        relay.until("cannot be resolved; name: one.test");
        assert_eq!(ask(), b'b');
        hosts("127.0.0.2", MANY);
        dns.signal(Signal::HUP);
        dns.signal(Signal::CONT);
        relay.until("can be resolved again; name: one.test");
        relay.until("can be resolved again; name: many.test");
        relay.until("gone: [\"tcp://127.0.0.3");
        assert_eq!(ask(), b'a');
        assert_eq!(relay.end().code(), 0);
    });
}
