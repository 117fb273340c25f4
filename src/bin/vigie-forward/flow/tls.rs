//! TLS of relays: certificates are read when a flow is prepared, and again at SIGHUP.

use vigie::forward::relay::{
    SniRoute, TlsConfigError, TlsIdentity, TlsOrigination, TlsRouter, TlsTermination, Upstream,
};

use crate::{
    config::{ClientTls, Relay, TargetTls, TargetUri},
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

    /// Reads the files again, and logs what has changed.
    pub(super) fn reload(&self, flow: &str) {
        let mut renewed = 0;
        for identity in &self.0 {
            match identity.reload() {
                Ok(true) => renewed += 1,
                Ok(false) => {}
                Err(error) => {
                    log(format!(
                        "flow `{flow}`: {error}; the certificate from before stays in use"
                    ));
                }
            }
        }
        if renewed > 0 {
            log(format!("flow `{flow}`: {} renewed", counted(renewed, "certificate")));
        }
    }
}

/// Reads all files that the TLS of a relay needs, and makes its targets.
pub(super) fn read(
    relay: &Relay,
    upstream: impl Fn(&TargetUri) -> Option<Upstream>,
) -> Result<RelayTls, TlsConfigError> {
    let mut identities = Identities::default();
    let upstreams = targets(&relay.to, &relay.to_tls, &upstream, &mut identities)?;
    let mut router = match termination(&relay.tls, &mut identities)? {
        Some(termination) => TlsRouter::terminate(termination),
        None if relay.tls.pass_through => TlsRouter::pass_through(),
        None => TlsRouter::by_name_only(),
    };
    for route in &relay.route {
        let to = targets(&route.to, &route.to_tls, &upstream, &mut identities)?;
        let made = termination(&route.tls, &mut identities)?
            .map_or_else(SniRoute::pass_through, SniRoute::terminate);
        let made = route.names.iter().fold(made, |made, name| made.name(name.as_str()));
        router = router.route(to.into_iter().fold(made, SniRoute::upstream))?;
    }
    let router = (relay.tls.is_on() || !relay.route.is_empty()).then_some(router);
    Ok(RelayTls { router, upstreams, identities })
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
