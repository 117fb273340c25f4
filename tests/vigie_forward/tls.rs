//! TLS by configuration: two instances, one of which ends the TLS that the other begins.
//!
//! `certificates/` has an authority, certificates of it for `web.test` (and 127.0.0.1) and `api.test`, and a stranger's for `web.test`, each with its
//! key, made by rcgen and valid from 2020 to 2099; and a self-signed one that expired in 2020, made by `openssl ca`.

use std::{
    fs,
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use crate::{
    connect,
    instance::{Folder, Instance, counter, run},
    metrics::{assert_explained, get},
    reload::marked_echo,
};

fn pem(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vigie_forward/certificates");
    folder.join(format!("{name}.pem"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Asks an echo, and returns its mark; nothing if the connection is closed or reset instead.
fn ask(address: SocketAddr) -> Option<u8> {
    let mut stream = connect(address);
    let mut answer = [0; 2];
    stream.write_all(b"x").and_then(|()| stream.read_exact(&mut answer)).ok()?;
    assert_eq!(answer[1], b'x');
    Some(answer[0])
}

/// Starts a relay that speaks TLS with `to` and asks for `name`.
fn front(folder: &Folder, to: SocketAddr, name: &str) -> Instance {
    let (to, ca) = (format!("tcp://{to}"), pem("authority"));
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--to-tls"];
    let of_tls = ["--to-tls-name", name, "--to-tls-ca", text(&ca)];
    Instance::start(folder, &[&arguments[..], &of_tls].concat()).ready()
}

/// Goal: names choose certificates and targets; a name that no certificate has is not served; and a renewed certificate is served after SIGHUP, while a wrong file
/// changes nothing. Method: an instance with two routes behind others that check its certificates, by name and by address; its file is a stranger's first.
#[test]
fn tls_is_configured_and_renewed() {
    let folder = Folder::new();
    let own = folder.path("own.pem");
    fs::copy(pem("stranger"), &own).expect("a file");
    let [web, api] = [b'w', b'a'].map(marked_echo);
    let config = format!(
        "[[relay]]\nname = 'back'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://{web}'\n\
         tls = {{ certificate = '{own}', key = '{own}' }}\n\
         [[relay.route]]\nnames = 'api.test'\nto = 'tcp://{api}'\n\
         tls = {{ certificate = '{of_api}', key = '{of_api}', alpn = ['h2', 'http/1.1'] }}\n",
        own = own.display(),
        of_api = pem("api").display(),
    );
    let file = folder.write("config.toml", &config);
    let mut back = Instance::start(&folder, &["run", "--config", text(&file)]).ready();
    let listens = back.address("back");
    let mut fronts =
        ["web.test", "api.test", "127.0.0.1"].map(|name| front(&folder, listens, name));
    let [by_web, by_api, by_address] = fronts.each_mut().map(|one| one.address("relay"));
    assert_eq!((ask(by_web), ask(by_api), ask(by_address)), (None, Some(b'a'), None));

    fs::copy(pem("web"), &own).expect("a file");
    back.signal(Signal::HUP);
    back.until("flow `back`: 1 certificate renewed");
    back.until("SIGHUP: flows: 1 unchanged, 0 ended");
    assert_eq!((ask(by_web), ask(by_api), ask(by_address)), (Some(b'w'), Some(b'a'), Some(b'w')));

    fs::write(&own, "nonsense").expect("a file");
    back.signal(Signal::HUP);
    back.until("the certificate from before stays in use");
    back.until("SIGHUP: flows: 1 unchanged, 0 ended, 0 new, 1 failed");
    assert_eq!(ask(by_web), Some(b'w'));

    let socket = folder.path(&format!("vigie-forward.{}.sock", back.id()));
    let (_, shown, _) = run(&folder, &["stats", "--socket", text(&socket)]);
    assert!(shown.contains("the certificate from before stays in use"), "{shown}");
    assert!(shown.contains(&format!("tcp://{api} for api.test")), "{shown}");
    assert_eq!(counter(&socket, "back", "tls_clients_alert"), 2);
    assert_eq!(counter(&socket, "back", "tls_clients_ok"), 5);
    let socket = folder.path(&format!("vigie-forward.{}.sock", fronts[0].id()));
    assert_eq!(counter(&socket, "relay", "tls_upstreams_unknown_issuer"), 1);
    for instance in fronts.into_iter().chain([back]) {
        assert_eq!(instance.end().code(), 0);
    }
}

/// Goal: a connection that is passed through reaches the target that has the certificate. Method: three instances in a row; the one in between has no certificate, and
/// routes by name.
#[test]
fn tls_is_passed_through() {
    let folder = Folder::new();
    let (web, certificate) = (format!("tcp://{}", marked_echo(b'w')), pem("web"));
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &web];
    let of_tls = ["--tls-certificate", text(&certificate), "--tls-key", text(&certificate)];
    let mut back = Instance::start(&folder, &[&arguments[..], &of_tls].concat()).ready();
    let config = format!(
        "[[relay]]\nname = 'between'\nlisten = 'tcp://127.0.0.1:0'\nto = []\n\
         [[relay.route]]\nnames = ['web.test', '*.web.test']\nto = 'tcp://{}'\ntls = {{ pass_through = true }}\n",
        back.address("relay"),
    );
    let file = folder.write("config.toml", &config);
    let mut between = Instance::start(&folder, &["run", "--config", text(&file)]).ready();
    let listens = between.address("between");
    let mut fronts = ["web.test", "api.test"].map(|name| front(&folder, listens, name));
    let [served, refused] = fronts.each_mut().map(|one| one.address("relay"));
    assert_eq!((ask(served), ask(refused)), (Some(b'w'), None));
    let socket = folder.path(&format!("vigie-forward.{}.sock", between.id()));
    assert_eq!(counter(&socket, "between", "tls_passed_through"), 1);
    assert_eq!(counter(&socket, "between", "tls_clients_no_route"), 1);
}

/// Goal: an own certificate that has expired is named at the start and at a reload, and metrics show when each expires. Method: an expired one, which is replaced by another one; of a target's
/// client and of a listener.
#[test]
fn expired_certificates_are_named() {
    let folder = Folder::new();
    let [own, metrics] = ["own.pem", "metrics"].map(|name| folder.path(name));
    let (expired, ca) = (pem("expired"), pem("authority"));
    fs::copy(&expired, &own).expect("a file");
    let config = format!(
        "[process]\nmetrics = 'unix:{}'\n[[relay]]\nname = 'web'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://127.0.0.1:9'\n\
         tls = {{ certificate = '{own}', key = '{own}' }}\n\
         to_tls = {{ certificate = '{expired}', key = '{expired}', ca = '{ca}', server_name = 'web.test' }}\n",
        metrics.display(),
        own = own.display(),
        expired = expired.display(),
        ca = ca.display(),
    );
    let file = folder.write("config.toml", &config);
    let check = || run(&folder, &["check", text(&file)]);
    let warning = |file: &Path| {
        format!(
            "flow `web`: the certificate in {} has expired at 2020-01-01T00:00:00",
            file.display()
        )
    };
    let (code, output, errors) = check();
    assert!(code == 0 && output.ends_with("1 flow, no errors, 2 warnings\n"), "{output}");
    for file in [&own, &expired] {
        let line = format!("vigie-forward: warning: {}", warning(file));
        assert_eq!(errors.matches(&line).count(), 1, "{errors}");
    }
    let mut instance = Instance::start(&folder, &["run", "--config", text(&file)]).ready();
    instance.until(&warning(&own));
    instance.until(&warning(&expired));
    let shown = |file: &Path, at: u64| {
        let stream = UnixStream::connect(&metrics).expect("it listens");
        let (_, text) = get(stream, "GET /metrics");
        assert_explained(&text);
        let sample = "vigie_forward_certificate_expiry_timestamp_seconds{flow=\"web\",file=";
        let sample = format!("{sample}\"{}\"}} {at}\n", file.display());
        assert!(text.contains(&sample), "{sample} in\n{text}");
    };
    shown(&own, 1_577_836_800);

    fs::copy(pem("web"), &own).expect("a file");
    let (code, output, errors) = check();
    assert!(code == 0 && output.ends_with("1 flow, no errors, 1 warning\n"), "{output}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    instance.said.clear();
    instance.signal(Signal::HUP);
    instance.until(&warning(&expired));
    shown(&own, 4_070_908_800);
    shown(&expired, 1_577_836_800);
    let said = instance.end().said;
    assert!(!said.contains(&warning(&own)), "{said}");
}

/// Goal: files that cannot be used are named by `check` and at the start, with the flow. Method: a file that does not exist, a certificate with another's key, a name that is none.
#[test]
fn wrong_files_are_refused() {
    let folder = Folder::new();
    let relay = |tls: &str| {
        format!(
            "[[relay]]\nname = 'x'\nlisten = 'tcp://127.0.0.1:0'\nto = 'tcp://127.0.0.1:9'\n{tls}\n"
        )
    };
    let (web, api) = (pem("web"), pem("api"));
    let (web, api) = (web.display(), api.display());
    for (tls, words) in [
        ("tls = { certificate = '/none', key = '/none' }".to_owned(), "/none cannot be read"),
        (format!("tls = {{ certificate = '{web}', key = '{api}' }}"), "does not belong"),
        ("to_tls = { ca = '/none' }".to_owned(), "/none cannot be read"),
        (
            format!(
                "tls = {{ certificate = '{web}', key = '{web}' }}\n[[relay.route]]\nnames = 'a b'\n\
                 tls = {{ pass_through = true }}"
            ),
            "`a b` cannot be the name",
        ),
    ] {
        let file = folder.write("config.toml", &relay(&tls));
        for arguments in [&["check", text(&file)][..], &["run", "--config", text(&file)]] {
            let (code, _, errors) = run(&folder, arguments);
            assert_eq!(code, 2, "{tls}: {errors}");
            assert!(errors.contains(words) && errors.contains("flow `x`"), "{tls}: {errors}");
        }
    }
}

/// Goal: a file or the command line can ask clients for certificates: a front that has one is served, and one that has none is not; TLS that is passed through
/// cannot ask. Method: two fronts before one instance, and a wrong file.
#[test]
fn clients_are_asked_for_certificates() {
    let folder = Folder::new();
    let to = format!("tcp://{}", marked_echo(b'w'));
    let [ca, web] = ["authority", "web"].map(pem);
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to];
    let of_tls =
        ["--tls-certificate", text(&web), "--tls-key", text(&web), "--tls-client-ca", text(&ca)];
    let mut back = Instance::start(&folder, &[&arguments[..], &of_tls].concat()).ready();
    let to = format!("tcp://{}", back.address("relay"));
    let arguments = ["relay", "--listen", "tcp://127.0.0.1:0", "--to", &to, "--to-tls"];
    let of_tls = ["--to-tls-name", "web.test", "--to-tls-ca", text(&ca)];
    let api = pem("api");
    let own = ["--to-tls-certificate", text(&api), "--to-tls-key", text(&api)];
    let with = [&arguments[..], &of_tls, &own].concat();
    let mut known = Instance::start(&folder, &with).ready();
    let mut unknown = Instance::start(&folder, &[&arguments[..], &of_tls].concat()).ready();
    assert_eq!(ask(known.address("relay")), Some(b'w'));
    assert_eq!(ask(unknown.address("relay")), None);
    let socket = folder.path(&format!("vigie-forward.{}.sock", back.id()));
    // It counts once it has told its client.
    while counter(&socket, "relay", "tls_clients_bad_certificate") == 0 {}
    assert_eq!(counter(&socket, "relay", "tls_clients_ok"), 1);

    let config = format!(
        "[[relay]]\nlisten = 'tcp://127.0.0.1:0'\nto = '{to}'\n\
         tls = {{ pass_through = true, client_ca = '{}' }}\n",
        ca.display()
    );
    let file = folder.write("config.toml", &config);
    let (code, _, errors) = run(&folder, &["check", text(&file)]);
    assert!(code == 2 && errors.contains("`client_ca` is for TLS that ends here"), "{errors}");
}
