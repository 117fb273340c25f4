//! The command lines and configurations of relays that are programs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{CertificateParams, KeyPair};

use super::topology::RelayTopology;
use crate::error::{BenchError, Missing};

/// The file, in a program's folder, of its certificate and its key.
pub(super) const CERTIFICATE: &str = "web.pem";

/// The name in the certificate.
pub(super) const SERVER_NAME: &str = "web.test";

/// What a program relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayService {
    Streams,
    Datagrams,
    /// Streams whose TLS ends at the relay.
    Tls,
}

/// A program that relays. Each has one thread, and buffers of 64 KiB where it lets one choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayProgram {
    /// `vigie-forward`, with a mode, and its defaults otherwise.
    Vigie(&'static str),
    Socat,
    Haproxy,
    Nginx,
}

impl RelayProgram {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Vigie(_) => "vigie-forward",
            Self::Socat => "socat",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }

    /// Returns the command line, with the files that it needs in `folder`.
    pub(super) fn command(
        self,
        topology: &RelayTopology,
        folder: &Path,
        service: RelayService,
    ) -> Result<Command, BenchError> {
        let pem = folder.join(CERTIFICATE).display().to_string();
        let pem = (service == RelayService::Tls).then_some(pem);
        let is_udp = service == RelayService::Datagrams;
        let text = match self {
            Self::Vigie(mode) => {
                let scheme = if is_udp { "udp" } else { "tcp" };
                return vigie_forward((mode, scheme), topology, folder, pem.as_deref());
            }
            Self::Socat => return Ok(socat(topology)),
            Self::Haproxy => haproxy(topology, pem.as_deref()),
            Self::Nginx => nginx(topology, is_udp, pem.as_deref()),
        };
        let file = folder.join("configuration");
        let written = fs::write(&file, text);
        written.map_err(BenchError::io("relay", "writing a peer's configuration"))?;
        let mut command = Command::new(self.name());
        match self {
            Self::Nginx => command.arg("-p").arg(folder).arg("-c").arg(file),
            _ => command.arg("-db").arg("-f").arg(file),
        };
        Ok(command)
    }
}

/// Writes a certificate (ECDSA P-256) and its key.
pub(super) fn certify(folder: &Path) -> io::Result<()> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    fs::write(folder.join(CERTIFICATE), certificate.pem() + &key.serialize_pem())
}

fn vigie_forward(
    (mode, scheme): (&str, &str),
    topology: &RelayTopology,
    folder: &Path,
    pem: Option<&str>,
) -> Result<Command, BenchError> {
    let beside = std::env::current_exe().map(|own| own.with_file_name("vigie-forward"));
    let program: Option<PathBuf> = beside.ok().filter(|path| path.exists());
    let program = program.ok_or_else(|| {
        Missing::new(
            "`vigie-forward` is not beside this program",
            "cargo build --profile measure --features cli-forward --bin vigie-forward",
        )
    })?;
    let mut command = Command::new(program);
    let (listen, to) =
        (format!("{scheme}://{}", topology.relay), format!("{scheme}://{}", topology.sink));
    command.args(["relay", "--listen", &listen, "--to", &to]);
    if scheme == "tcp" {
        command.args(["--mode", mode]);
    }
    if let Some(pem) = pem {
        command.args(["--tls-certificate", pem, "--tls-key", pem]);
    }
    // For its socket of statistics.
    command.env("XDG_RUNTIME_DIR", folder);
    Ok(command)
}

fn socat(topology: &RelayTopology) -> Command {
    let mut command = Command::new("socat");
    let (relay, sink) = (topology.relay, topology.sink);
    let (ip, port) = (relay.ip(), relay.port());
    let listen = format!("TCP-LISTEN:{port},bind={ip},backlog=128,reuseaddr,fork,nodelay");
    command.args(["-b", "65536", &listen, &format!("TCP:{sink},nodelay")]);
    command
}

fn haproxy(topology: &RelayTopology, pem: Option<&str>) -> String {
    let (relay, sink) = (topology.relay, topology.sink);
    let tls = pem.map(|pem| format!(" ssl crt {pem} ssl-min-ver TLSv1.3")).unwrap_or_default();
    format!(
        "global\n  nbthread 1\n  maxconn 4200\n  tune.bufsize 65536\n\
         defaults\n  mode tcp\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n  option splice-auto\n\
         frontend relay\n  bind {relay}{tls}\n  default_backend sink\n\
         backend sink\n  server one {sink}\n"
    )
}

fn nginx(topology: &RelayTopology, is_udp: bool, pem: Option<&str>) -> String {
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let load = if fs::exists(module).unwrap_or(false) {
        format!("load_module {module};\n")
    } else {
        String::new()
    };
    let (relay, sink) = (topology.relay, topology.sink);
    let (udp, nodelay) = if is_udp { (" udp", "") } else { ("", "tcp_nodelay on;") };
    let (ssl, tls) = pem.map_or_else(Default::default, |pem| {
        let tls =
            format!("ssl_certificate {pem}; ssl_certificate_key {pem}; ssl_protocols TLSv1.3;");
        (" ssl", tls)
    });
    format!(
        "{load}daemon off;\nmaster_process off;\nworker_processes 1;\nworker_rlimit_nofile 19000;\n\
         error_log /dev/null crit;\npid nginx.pid;\nevents {{ worker_connections 18000; }}\n\
         stream {{ server {{ listen {relay}{ssl}{udp}; {tls} proxy_pass {sink}; proxy_buffer_size 64k; {nodelay} }} }}\n"
    )
}
