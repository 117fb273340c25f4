//! TLS of relays: certificates are read when a flow is prepared, and again at SIGHUP.

use std::{fs::File, path::PathBuf};

use vigie::forward::relay::{
    SniRoute, TlsConfigError, TlsIdentity, TlsOrigination, TlsRouter, TlsTermination, Upstream,
};

use crate::{
    config::{ClientTls, FileProblems, Relay, TargetTls, TargetUri},
    journal::{counted, log},
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
pub(super) struct Identities(Vec<TlsIdentity>);

impl Identities {
    fn read(
        &mut self,
        chain: &std::path::Path,
        key: &std::path::Path,
    ) -> Result<TlsIdentity, TlsConfigError> {
        let identity = TlsIdentity::from_pem_files(chain, key)?;
        self.0.push(identity.clone());
        Ok(identity)
    }

    /// Reads the files again, and logs what has changed. Returns what is wrong with them.
    pub(super) fn reload(&self, flow: &str) -> Vec<String> {
        let (mut renewed, mut problems) = (0, Vec::new());
        for identity in &self.0 {
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
