//! TLS of relays: certificates are read when a flow is prepared, and again at SIGHUP.

use std::{
    cell::Cell,
    fs::File,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use vigie::{
    Instant,
    forward::relay::{
        CertificateValidity, SniRoute, TlsConfigError, TlsIdentity, TlsOrigination, TlsRouter,
        TlsTermination, Upstream,
    },
};

use crate::{
    access_log::utc,
    config::{ClientTls, FileProblems, Relay, TargetTls, TargetUri},
    journal::{counted, log},
    stats::CertificateReport,
};

/// The files of TLS that a relay has read.
#[derive(Default)]
pub(super) struct RelayTls {
    pub(super) router: Option<TlsRouter>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) identities: Identities,
}

/// The certificates of one flow, to be read again.
#[derive(Default)]
pub(super) struct Identities {
    /// With their files.
    all: Vec<(PathBuf, TlsIdentity)>,
    /// When the log next warns of those that are not valid; at once after they were read.
    warns_at: Cell<Option<Instant>>,
}

/// The time between two warnings of the same certificate.
const WARN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time before its end at which a certificate should have been renewed. Of short-lived ones it is a quarter of their life.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Says what is wrong with the times of a certificate.
fn warning(validity: &CertificateValidity, now: SystemTime) -> Option<String> {
    let CertificateValidity { not_before, not_after, .. } = *validity;
    let Ok(left) = not_after.duration_since(now) else {
        return Some(format!("has expired at {}: renew it, and send SIGHUP", utc(not_after)));
    };
    if now < not_before {
        return Some(format!(
            "is not valid before {}: wait, take another one, or set this host's clock",
            utc(not_before)
        ));
    }
    let life = not_after.duration_since(not_before).unwrap_or_default();
    (left <= EXPIRES_SOON.min(life / 4))
        .then(|| format!("expires at {}: renew it, and send SIGHUP", utc(not_after)))
}

impl Identities {
    fn read(
        &mut self,
        chain: &std::path::Path,
        key: &std::path::Path,
    ) -> Result<TlsIdentity, TlsConfigError> {
        let identity = TlsIdentity::from_pem_files(chain, key)?;
        self.all.push((chain.to_owned(), identity.clone()));
        Ok(identity)
    }

    /// Reads the files again, and logs what has changed. Returns what is wrong with them.
    pub(super) fn reload(&self, flow: &str) -> Vec<String> {
        self.warns_at.set(None);
        let (mut renewed, mut problems) = (0, Vec::new());
        for (_, identity) in &self.all {
            match identity.reload() {
                Ok(true) => renewed += 1,
                Ok(false) => {}
                Err(error) => problems.push(format!(
                    "flow `{flow}`: {error}; the certificate from before stays in use"
                )),
            }
        }
        problems.iter().for_each(log);
        if renewed > 0 {
            log(format!("flow `{flow}`: {} renewed", counted(renewed, "certificate")));
        }
        problems
    }
}

impl Identities {
    /// The certificates with their files, each once.
    fn valid_times(&self) -> impl Iterator<Item = (&PathBuf, CertificateValidity)> {
        let is_first = |(at, (file, _)): &(usize, &(PathBuf, TlsIdentity))| {
            self.all[..*at].iter().all(|(other, _)| other != file)
        };
        let each = self.all.iter().enumerate().filter(is_first);
        each.filter_map(|(_, (file, identity))| Some((file, identity.validity()?)))
    }

    /// Returns once a day, and after they were read, warnings of certificates that are not valid or expire soon.
    pub(super) fn warn(&self, flow: &str, now: Instant) -> Vec<String> {
        let warnings = self.warnings(now, SystemTime::now()).into_iter();
        warnings.map(|warning| format!("flow `{flow}`: {warning}")).collect()
    }

    fn warnings(&self, now: Instant, date: SystemTime) -> Vec<String> {
        if self.warns_at.get().is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.warns_at.set(Some(now + WARN_EVERY));
        let said = |(file, validity): (&PathBuf, CertificateValidity)| {
            let warning = warning(&validity, date)?;
            Some(format!("the certificate in {} {warning}", file.display()))
        };
        self.valid_times().filter_map(said).collect()
    }

    pub(super) fn report(&self) -> Vec<CertificateReport> {
        let seconds = |at: SystemTime| {
            at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
        };
        let report = |(file, validity): (&PathBuf, CertificateValidity)| CertificateReport {
            file: file.display().to_string(),
            not_before: seconds(validity.not_before),
            not_after: seconds(validity.not_after),
        };
        self.valid_times().map(report).collect()
    }
}

/// Reads all files that the TLS of a relay needs, and makes its targets; or says of each key what is wrong.
pub(super) fn read(
    relay: &Relay,
    upstream: impl Fn(&TargetUri) -> Option<Upstream>,
) -> Result<RelayTls, FileProblems> {
    let mut identities = Identities::default();
    let mut wrong = FileProblems::new();
    let upstreams = of_targets("to_tls", &relay.to_tls, &mut wrong, || {
        targets(&relay.to, &relay.to_tls, &upstream, &mut identities)
    });
    let own =
        of_clients("tls", &relay.tls, &mut wrong, || termination(&relay.tls, &mut identities));
    let mut router = match own {
        Some(termination) => TlsRouter::terminate(termination),
        None if relay.tls.pass_through => TlsRouter::pass_through(),
        None => TlsRouter::by_name_only(),
    };
    for (index, route) in relay.route.iter().enumerate() {
        let key = |key: &str| format!("route.{index}.{key}");
        let to = of_targets(&key("to_tls"), &route.to_tls, &mut wrong, || {
            targets(&route.to, &route.to_tls, &upstream, &mut identities)
        });
        let own = of_clients(&key("tls"), &route.tls, &mut wrong, || {
            termination(&route.tls, &mut identities)
        });
        let made = own.map_or_else(SniRoute::pass_through, SniRoute::terminate);
        let made = route.names.iter().fold(made, |made, name| made.name(name.as_str()));
        let with_route = router.route(to.into_iter().fold(made, SniRoute::upstream));
        router = with_route.unwrap_or_else(|error| {
            let name = match &error {
                TlsConfigError::Name { name } | TlsConfigError::DuplicateName { name } => name,
                _ => "",
            };
            let at = route.names.iter().rposition(|one| one == name).unwrap_or_default();
            wrong.push((key(&format!("names.{at}")), error.to_string()));
            TlsRouter::by_name_only()
        });
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let router = (relay.tls.is_on() || !relay.route.is_empty()).then_some(router);
    Ok(RelayTls { router, upstreams, identities })
}

/// Makes something of the files of TLS with clients.
fn of_clients<T: Default>(
    at: &str,
    tls: &ClientTls,
    wrong: &mut FileProblems,
    make: impl FnOnce() -> Result<T, TlsConfigError>,
) -> T {
    let files =
        [("certificate", &tls.certificate), ("key", &tls.key), ("client_ca", &tls.client_ca)];
    of_files(at, files, wrong, make)
}

/// Makes something of the files of TLS with targets.
fn of_targets<T: Default>(
    at: &str,
    tls: &TargetTls,
    wrong: &mut FileProblems,
    make: impl FnOnce() -> Result<T, TlsConfigError>,
) -> T {
    let files = [("certificate", &tls.certificate), ("key", &tls.key), ("ca", &tls.ca)];
    of_files(at, files, wrong, make)
}

/// Makes something of files, or notes what is wrong with each.
fn of_files<T: Default>(
    at: &str,
    files: [(&str, &Option<PathBuf>); 3],
    wrong: &mut FileProblems,
    make: impl FnOnce() -> Result<T, TlsConfigError>,
) -> T {
    let before = wrong.len();
    for (key, path) in files {
        if let Some(path) = path.clone()
            && let Err(source) = File::open(&path)
        {
            let error = TlsConfigError::File { path, source };
            wrong.push((format!("{at}.{key}"), error.to_string()));
        }
    }
    if wrong.len() > before {
        return T::default();
    }
    make().unwrap_or_else(|error| {
        let key_of = |path| files.iter().find(|(_, file)| file.as_ref() == Some(path));
        let key = match &error {
            TlsConfigError::NoKey { .. } | TlsConfigError::KeyMismatch { .. } => Some("key"),
            TlsConfigError::File { path, .. }
            | TlsConfigError::Pem { path, .. }
            | TlsConfigError::NoCertificate { path }
            | TlsConfigError::Unusable { path, .. } => key_of(path).map(|(key, _)| *key),
            TlsConfigError::Name { .. } => Some("server_name"),
            TlsConfigError::Alpn { .. } => Some("alpn"),
            _ => None,
        };
        let key = key.map_or_else(|| at.to_owned(), |key| format!("{at}.{key}"));
        wrong.push((key, error.to_string()));
        T::default()
    })
}

fn termination(
    tls: &ClientTls,
    identities: &mut Identities,
) -> Result<Option<TlsTermination>, TlsConfigError> {
    let Some((chain, key)) = tls.certificate.as_ref().zip(tls.key.as_ref()) else {
        return Ok(None);
    };
    let termination = TlsTermination::new(identities.read(chain, key)?).alpn(&tls.alpn)?;
    Ok(Some(match &tls.client_ca {
        Some(file) => termination.client_authorities(file)?,
        None => termination,
    }))
}

fn targets(
    to: &[TargetUri],
    tls: &TargetTls,
    upstream: impl Fn(&TargetUri) -> Option<Upstream>,
    identities: &mut Identities,
) -> Result<Vec<Upstream>, TlsConfigError> {
    let identity = match tls.certificate.as_ref().zip(tls.key.as_ref()) {
        Some((chain, key)) => Some(identities.read(chain, key)?),
        None => None,
    };
    let mut all = Vec::new();
    for to in to {
        let Some(made) = upstream(to) else { continue };
        // Checked before: a target with TLS has a name.
        let Some(name) = tls.name_for(to).filter(|_| tls.is_on) else {
            all.push(made);
            continue;
        };
        let mut origination = match &tls.ca {
            Some(ca) => TlsOrigination::trusting(&name, ca)?,
            None => TlsOrigination::to(&name)?,
        };
        if let Some(identity) = &identity {
            origination = origination.identity(identity.clone());
        }
        all.push(made.tls(origination.alpn(&tls.alpn)?));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Goal: the log warns of a certificate that has expired, is not valid yet, or should have been renewed, when it was read and once a day. Method: one that is valid from 2020 to 2099,
    /// at dates around both, and instants around a day.
    #[test]
    fn certificates_expire() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vigie_forward/certificates/web.pem");
        let mut identities = Identities::default();
        for _ in 0..2 {
            identities.read(&file, &file).expect("a certificate");
        }
        let day = |days: u64| Duration::from_secs(days * 86_400);
        let report = identities.report();
        assert_eq!((report.len(), report[0].file.as_str()), (1, file.to_str().expect("text")));
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let (begin, end) = (at(report[0].not_before), at(report[0].not_after));
        let start = Instant::from_nanos(5);
        for (date, said) in [
            (begin - day(1), Some(" is not valid before 2020-01-01T00:00:00.000Z")),
            (begin, None),
            (end - day(15), None),
            (end - day(14), Some(" expires at 2099-01-01T00:00:00.000Z")),
            (end, Some(" expires at")),
            (end + day(1), Some(" has expired at 2099-01-01T00:00:00.000Z")),
        ] {
            identities.reload("web");
            let warnings = identities.warnings(start, date);
            assert_eq!(warnings.len(), usize::from(said.is_some()), "{warnings:?}");
            assert!(
                warnings.iter().all(|text| said.is_some_and(|said| text.contains(said))),
                "{warnings:?}"
            );
            assert!(identities.warnings(start + WARN_EVERY / 2, end + day(1)).is_empty());
            assert_eq!(identities.warnings(start + WARN_EVERY, end + day(1)).len(), 1);
        }
    }
}
