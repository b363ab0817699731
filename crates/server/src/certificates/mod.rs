//! What is known of the certificates that are shown, and newer ones in their place.

pub(crate) mod acme;
pub(crate) mod development;
pub(crate) mod exposed_keys;
pub(crate) mod self_signed;
pub(crate) mod store;

use std::sync::Arc;

use firstflight_certificates::acme::{CertificateState, Issued};
use firstflight_config::{CertificateSource as Configured, Content, ServerConfig, Site};
use firstflight_telemetry::metrics::CertificateOrigin;
use firstflight_tls::{Entry, Identities};
use tracing::warn;

use self::acme::issued;
use crate::ServerError;
use crate::route::snapshot::Snapshot;
use crate::server::{Server, Shared};

/// The certificate of a site.
#[derive(Clone, Debug)]
pub struct SiteCertificate {
    /// The site's first name; `default`: it has none.
    pub site: String,
    /// All of the site's names.
    pub names: Vec<String>,
    /// Where it comes from.
    pub source: CertificateSource,
    /// When what is shown expires, in seconds since 1970; `None`: it does not say so well.
    pub not_after: Option<i64>,
    /// What an authority has issued, of what is shown.
    issued: Option<Arc<Issued>>,
}

/// Where a certificate comes from.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Two files.
    Files,
    /// It was made at the start, and nobody has signed it.
    SelfSigned,
    /// The development authority of this user, or nobody where that may not vouch for the names.
    Development,
    /// An authority, by ACME: what is done about it.
    Acme(Box<CertificateState>),
}

impl CertificateSource {
    /// The same as metrics and status name it.
    pub fn origin(&self) -> CertificateOrigin {
        match self {
            Self::Files => CertificateOrigin::Files,
            Self::SelfSigned => CertificateOrigin::SelfSigned,
            Self::Development => CertificateOrigin::Development,
            Self::Acme(_) => CertificateOrigin::Acme,
        }
    }
}

impl SiteCertificate {
    /// Whether there is none yet: what is shown then nobody trusts.
    pub fn is_missing(&self) -> bool {
        matches!(self.source, CertificateSource::Acme(_)) && self.issued.is_none()
    }
}

/// The certificates that identities have, of the sites of a configuration.
pub(crate) fn of(
    config: &ServerConfig,
    identities: &Identities,
    states: &[CertificateState],
) -> Vec<SiteCertificate> {
    let sources: Vec<&Configured> = match &config.content {
        Content::Sites(content) => {
            let own = content.sites.iter().map(|site| site.certificate.as_ref());
            own.map(|own| own.unwrap_or(&config.certificate)).collect()
        }
        Content::PingPong => vec![&config.certificate],
    };
    let certificate = |(Entry { names, identity }, source): (&Entry, &Configured)| {
        let issued = match source {
            Configured::Acme => issued(states, names).cloned(),
            _ => None,
        };
        SiteCertificate {
            site: names.first().map_or("default", String::as_str).to_owned(),
            names: names.clone(),
            source: match source {
                Configured::Files { .. } => CertificateSource::Files,
                Configured::SelfSigned { .. } => CertificateSource::SelfSigned,
                Configured::Development => CertificateSource::Development,
                Configured::Acme => CertificateSource::Acme(Box::default()),
            },
            not_after: identity.expires(),
            issued,
        }
    };
    identities.entries().iter().zip(sources).map(certificate).collect()
}

/// The same identities, with what an authority has issued since in the place of what is `shown`.
///
/// # Errors
/// [`ServerError::Tls`]: it is of no use.
pub(crate) fn renewed(
    config: &ServerConfig,
    before: &Identities,
    shown: &[SiteCertificate],
    states: &[CertificateState],
) -> Result<Identities, ServerError> {
    let sites: &[Site] = match &config.content {
        Content::Sites(content) => &content.sites,
        Content::PingPong => &[],
    };
    let entry = |(index, (entry, shown)): (usize, (&Entry, &SiteCertificate))| {
        let Some(issued) = newer(states, shown) else { return Ok(entry.clone()) };
        let plain = issued.identity()?;
        let ocsp = sites.get(index).and_then(|site| site.ocsp.as_deref());
        let identity = self_signed::stapled(plain.clone(), ocsp).unwrap_or_else(|error| {
            warn!("{error}; the new certificate of {} is shown without it", shown.site);
            plain
        });
        Ok(Entry { names: entry.names.clone(), identity })
    };
    let mut entries = before.entries().iter().zip(shown).enumerate().map(entry);
    let Some(first) = entries.next().transpose()? else { return Ok(before.clone()) };
    let others: Result<_, ServerError> = entries.collect();
    Ok(Identities::new(first, others?)?)
}

/// What an authority has issued for a site and is not shown yet.
fn newer<'a>(states: &'a [CertificateState], shown: &SiteCertificate) -> Option<&'a Arc<Issued>> {
    let CertificateSource::Acme(_) = shown.source else { return None };
    let is_new = |new: &&Arc<Issued>| shown.issued.as_ref().is_none_or(|it| it.chain != new.chain);
    issued(states, &shown.names).filter(is_new)
}

impl Server {
    /// Reads the certificates that an authority has issued before, and has them shown. To be called
    /// as the user that the process runs as, once it is that: they are renewed by that user.
    ///
    /// # Errors
    /// [`ServerError::Acme`].
    pub async fn restore_certificates(&self) -> Result<(), ServerError> {
        let config = self.shared.config.lock().await.clone();
        let change = self.shared.acme.open(&config).await?;
        self.shared.keep_certificates(change).await;
        self.shared.show_certificates().await
    }
}

impl Shared {
    /// The certificates that are shown, with what is done about them now.
    pub(crate) fn certificates(&self) -> Vec<SiteCertificate> {
        let mut certificates = self.current().certificates.clone();
        for one in &mut certificates {
            if let CertificateSource::Acme(state) = &mut one.source {
                **state = self.acme.state(&one.names).unwrap_or_default();
            }
        }
        certificates
    }

    /// Shows what an authority has issued by now, if it is not shown yet. All else stays as it is.
    ///
    /// # Errors
    /// [`ServerError`]: what was issued is of no use. What was shown before is shown on.
    pub(crate) async fn show_certificates(self: &Arc<Self>) -> Result<(), ServerError> {
        let config = self.config.lock().await;
        let (before, states) = (self.current(), self.acme.states());
        if before.certificates.iter().all(|one| newer(&states, one).is_none()) {
            return Ok(());
        }
        let (shared, same) = (self.clone(), config.clone());
        let renew = move || before.with_issued(&same, &shared.builder, &states);
        let renewed = tokio::task::spawn_blocking(renew).await;
        let snapshot = renewed.map_err(|error| ServerError::Interrupted(error.to_string()))??;
        self.quic_ports.take_up(snapshot.quic.as_ref(), &config.http3);
        snapshot.begin();
        self.current.store(Arc::new(snapshot));
        Ok(())
    }

    /// The snapshot of a configuration, beside the one in use.
    ///
    /// # Errors
    /// [`ServerError`].
    pub(crate) async fn build(
        self: &Arc<Self>,
        config: &ServerConfig,
        number: u64,
        states: Arc<Vec<CertificateState>>,
    ) -> Result<Snapshot, ServerError> {
        let (shared, config) = (self.clone(), config.clone());
        let build = move || {
            let pools = &shared.current().pools;
            Snapshot::build(number, &config, &shared.builder, pools, &states)
        };
        // It reads files, maybe from a slow disk.
        let built = tokio::task::spawn_blocking(build).await;
        built.map_err(|error| ServerError::Interrupted(error.to_string()))?
    }
}
