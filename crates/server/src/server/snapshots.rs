//! Builds snapshots of configurations: certificates, TLS, sites.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use firstflight_certificates::acme::CertificateState;
use firstflight_config::{CertificateSource, ConfigError, Content, ServerConfig, Site};
use firstflight_tls::{
    Acceptor, AcceptorConfig, ChallengeCertificates, EchKey, EchKeys, Identities, Identity,
    IdentityEntry, KeyLog, KeyLogFile, TlsError,
};
use tracing::warn;

use crate::ServerError;
use crate::certificates::development::{self, DevelopmentCertificates};
use crate::certificates::{self, issued};
use crate::handler::proxy::{self, Pools};
use crate::handshake::quic_config::{QuicTokens, quic_config};
use crate::handshake::tickets::TicketRing;
use crate::route::Snapshot;
use crate::route::sites::Sites;

/// Builds snapshots, and holds the state that outlives them.
pub(crate) struct SnapshotBuilder {
    pub(crate) ring: Arc<TicketRing>,
    /// Address tokens, and the record of spent ones.
    pub(crate) tokens: QuicTokens,
    /// The self-signed certificate, if the configuration wants one, and its settings.
    self_signed: Option<(CertificateSource, Identity)>,
    /// Certificates of the development authority, if the configuration names no certificate.
    development: OnceLock<DevelopmentCertificates>,
    /// The listeners' addresses.
    addresses: Vec<SocketAddr>,
    /// Opened after the process has dropped its privileges.
    pub(crate) key_log: Option<Arc<ServerKeyLog>>,
    /// Certificates for ACME challenges over TLS (RFC 8737).
    challenges: Arc<dyn ChallengeCertificates>,
}

impl SnapshotBuilder {
    /// A builder for a server that listens on `addresses`.
    ///
    /// # Errors
    /// [`ServerError`]: the self-signed certificate cannot be created or saved.
    pub(crate) fn new(
        config: &ServerConfig,
        ring: Arc<TicketRing>,
        addresses: &[SocketAddr],
        challenges: Arc<dyn ChallengeCertificates>,
    ) -> Result<Self, ServerError> {
        // Created once, so that clients that trust it still do after a reload.
        let self_signed = match &config.certificate {
            CertificateSource::Files { .. }
            | CertificateSource::Development
            | CertificateSource::Acme => None,
            CertificateSource::SelfSigned { names, save } => {
                let names = names.iter().chain(site_names(&config.content));
                let identity =
                    certificates::self_signed_identity(names, save.as_deref(), addresses)?;
                Some((config.certificate.clone(), identity))
            }
        };
        let key_log = config.tls.key_log.clone().map(|path| Arc::new(ServerKeyLog::new(path)));
        let tokens = QuicTokens::new(&ring);
        let (development, addresses) = (OnceLock::new(), addresses.to_owned());
        Ok(Self { ring, tokens, self_signed, development, addresses, key_log, challenges })
    }

    /// Each site's certificate, with the site's names. `states`: the ACME certificates.
    fn identities(
        &self,
        config: &ServerConfig,
        states: &[CertificateState],
    ) -> Result<Identities, ServerError> {
        match unconfigured_names(config) {
            Some(names) => self.development().prepare(&names, development::now())?,
            None => self.development_in_use().into_iter().for_each(DevelopmentCertificates::clear),
        }
        let Content::Sites(sites) = &config.content else {
            return Ok(self.identity(&config.certificate, &[], states)?.into());
        };
        let entry = |site: &Site| -> Result<IdentityEntry, ServerError> {
            let source = site.certificate.as_ref().unwrap_or(&config.certificate);
            let identity = self.identity(source, &site.names, states)?;
            let mut identity = certificates::with_ocsp_file(identity, site.ocsp.as_deref())?;
            for (cert, key) in &site.other_certificates {
                identity = identity.with_alternative(Identity::from_files(cert, key)?);
            }
            let ticket_group = ticket_group(site, &sites.sites, config);
            Ok(IdentityEntry { names: site.names.clone(), identity, ticket_group })
        };
        let mut entries = sites.sites.iter().map(entry);
        let first =
            entries.next().ok_or_else(|| ServerError::setting("there is no site; give one"))??;
        Ok(Identities::new(first, entries.collect::<Result<_, _>>()?)?)
    }

    /// Refuses changed settings of the self-signed certificate, which is created only once.
    fn check_self_signed(&self, source: &CertificateSource) -> Result<(), ServerError> {
        match (source, &self.self_signed) {
            (CertificateSource::SelfSigned { .. }, Some((settings, _))) if settings != source => {
                Err(ServerError::setting(
                    "tls.self_signed and tls.save_self_signed cannot change while the server runs; \
                     restart it",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The certificate of a site with these names.
    fn identity(
        &self,
        source: &CertificateSource,
        site: &[String],
        states: &[CertificateState],
    ) -> Result<Identity, ServerError> {
        match (source, &self.self_signed) {
            (CertificateSource::Files { cert, key }, _) => Ok(Identity::from_files(cert, key)?),
            (CertificateSource::Acme, _) => match issued(states, site) {
                Some(issued) => Ok(issued.identity()?),
                None => certificates::placeholder(site),
            },
            (CertificateSource::SelfSigned { .. }, Some((_, identity))) => Ok(identity.clone()),
            (CertificateSource::SelfSigned { names, save }, None) => {
                certificates::self_signed_identity(names, save.as_deref(), &self.addresses)
            }
            (CertificateSource::Development, _) => {
                let identity = self.development().identity(site);
                identity.ok_or_else(|| ServerError::setting("there is no certificate; give one"))
            }
        }
    }

    /// The development certificates, created on first use.
    fn development(&self) -> &DevelopmentCertificates {
        self.development.get_or_init(|| DevelopmentCertificates::of_this_user(&self.addresses))
    }

    /// The development certificates, if they are in use.
    pub(crate) fn development_in_use(&self) -> Option<&DevelopmentCertificates> {
        self.development.get()
    }

    /// Checks a configuration and reads its files. `pools`: the previous snapshot's. `states`: the
    /// ACME certificates.
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the fix.
    pub(crate) fn build(
        &self,
        number: u64,
        config: &ServerConfig,
        pools: &Pools,
        states: &[CertificateState],
    ) -> Result<Snapshot, ServerError> {
        config.check().map_err(ConfigError::from)?;
        let key_log = self.key_log.as_ref().map(|log| log.path());
        if config.tls.key_log.as_deref() != key_log {
            return Err(ServerError::setting(
                "the key log cannot change while the server runs; restart it",
            ));
        }
        self.check_self_signed(&config.certificate)?;
        let pools = proxy::pools(config, pools)?;
        let sites = match &config.content {
            Content::Sites(sites) => Some(Arc::new(Sites::new(sites, config, &pools)?)),
            Content::PingPong => None,
        };
        let identities = self.identities(config, states)?;
        let ech = ech_keys(&config.tls.ech, &identities)?;
        self.assemble(number, config, (sites, pools, ech), identities, states)
    }

    /// A copy of the previous snapshot with newly issued ACME certificates.
    ///
    /// No other file is read: an unusable file must not delay the renewal of other certificates.
    ///
    /// # Errors
    /// [`ServerError::Tls`]: an issued certificate is unusable.
    pub(crate) fn with_issued(
        &self,
        before: &Snapshot,
        config: &ServerConfig,
        states: &[CertificateState],
    ) -> Result<Snapshot, ServerError> {
        let (identities, installed) = (&before.identities, &before.certificates);
        let identities = certificates::with_newer(config, identities, installed, states)?;
        let unchanged = (before.sites.clone(), before.pools.clone(), before.ech.clone());
        self.assemble(before.number, config, unchanged, identities, states)
    }

    fn assemble(
        &self,
        number: u64,
        config: &ServerConfig,
        (sites, pools, ech): (Option<Arc<Sites>>, Pools, Option<EchKeys>),
        identities: Identities,
        states: &[CertificateState],
    ) -> Result<Snapshot, ServerError> {
        let acceptor_config = acceptor(config, identities.clone(), ech.clone(), self);
        let certificates = certificates::site_certificates(config, &identities, states);
        let quic = match config.http3.enabled && config.has_tls13() {
            true => {
                let tls = quic_acceptor(&acceptor_config, &config.content);
                Some(quic_config(tls, &self.tokens, &self.ring, config)?)
            }
            false => None,
        };
        Ok(Snapshot {
            number,
            identities,
            acceptor: Acceptor::new(acceptor_config)?,
            quic,
            sites,
            pools,
            ech,
            limits: config.limits.clone(),
            trusted_proxies: config.trusted_proxies.clone(),
            keep_alive: config.limits.keep_alive,
            early_data: config.early_data.enabled,
            when_not_allowed: config.early_data.when_not_allowed,
            certificates,
            alt_svc: config.http3.alt_svc,
        })
    }
}

/// The TLS settings for QUIC. Certificate, ticket ring and key log are shared. BoringSSL ensures
/// that a ticket from TCP does not resume over QUIC, or vice versa.
fn quic_acceptor(config: &AcceptorConfig, content: &Content) -> AcceptorConfig {
    let alpn: &[u8] = match content {
        Content::PingPong => b"firstflight-ping-pong",
        Content::Sites(_) => b"h3",
    };
    // RFC 8737 section 3 defines the challenge for TLS over TCP only.
    AcceptorConfig { alpn: vec![alpn.to_vec()], challenges: None, ..config.clone() }
}

fn acceptor(
    config: &ServerConfig,
    identities: Identities,
    ech: Option<EchKeys>,
    builder: &SnapshotBuilder,
) -> AcceptorConfig {
    let tls = &config.tls;
    let alpn: &[&str] = match (&config.content, tls.http2) {
        (Content::PingPong, _) => &[],
        (_, true) => &["h2", "http/1.1"],
        (_, false) => &["http/1.1"],
    };
    let ring = builder.ring.clone();
    let lifetime = ring.lifetime();
    AcceptorConfig {
        min_version: tls.min_version,
        max_version: tls.max_version,
        ciphers: tls.ciphers.clone(),
        cipher_preference: tls.cipher_preference,
        alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
        early_data: config.early_data.enabled,
        sealer: Some(ring),
        tickets: tls.tickets,
        tickets_across_names: config.tickets.across_names,
        compress_certificates: tls.compress_certificates,
        ech,
        // A ticket must not outlive its key, or clients would offer it in vain.
        ticket_lifetime: lifetime,
        key_log: builder.key_log.clone().map(|log| log as Arc<dyn KeyLog>),
        challenges: (!config.acme_names().is_empty()).then(|| builder.challenges.clone()),
        ..AcceptorConfig::new(identities)
    }
}

/// The name of the group of sites that accept each other's tickets: those with the same certificate
/// files and the same rules for early data. Returns `None` for a site that is alone. The name lists
/// the sites, so earlier tickets become invalid when a site joins or leaves the group.
fn ticket_group(site: &Site, sites: &[Site], config: &ServerConfig) -> Option<String> {
    let certificate = |site: &Site| match site.certificate.as_ref().unwrap_or(&config.certificate) {
        files @ CertificateSource::Files { .. } => {
            Some((files.clone(), site.other_certificates.clone()))
        }
        // The other sources have a certificate for each site.
        _ => None,
    };
    let own = certificate(site).filter(|_| config.tickets.across_names)?;
    let is_in_group = |other: &&Site| {
        certificate(other).is_some_and(|others| others == own)
            && other.early_rules() == site.early_rules()
    };
    let names = sites.iter().filter(is_in_group).map(|site| site.names.first());
    let names: Vec<_> = names.map(|name| name.map_or("", String::as_str)).collect();
    (names.len() > 1).then(|| names.join(" ").to_ascii_lowercase())
}

/// Reads the ECH keys. Without a certificate for a public name, clients with outdated configurations
/// cannot learn the current ones (RFC 9849 section 6.1.6).
fn ech_keys(files: &[PathBuf], identities: &Identities) -> Result<Option<EchKeys>, ServerError> {
    let keys: Vec<_> =
        files.iter().map(|file| EchKey::from_file(file)).collect::<Result<_, _>>()?;
    for name in keys.iter().map(EchKey::public_name) {
        if !identities.for_name(Some(name)).covers(name) {
            warn!(
                "no certificate covers {name}, the public name of an ECH key: clients whose ECH \
                 configuration is outdated cannot connect; add it to a site's names and certificate"
            );
        }
    }
    Ok((!keys.is_empty()).then(|| EchKeys::new(&keys)).transpose()?)
}

/// The names of all sites.
fn site_names(content: &Content) -> impl Iterator<Item = &String> {
    let sites = match content {
        Content::Sites(content) => &*content.sites,
        Content::PingPong => &[],
    };
    sites.iter().flat_map(|site| &site.names)
}

/// The names of the sites without a configured certificate. Returns `None` if there is no such
/// site.
fn unconfigured_names(config: &ServerConfig) -> Option<Vec<&String>> {
    if config.certificate != CertificateSource::Development {
        return None;
    }
    match &config.content {
        Content::PingPong => Some(Vec::new()),
        Content::Sites(content) => {
            let unconfigured = content.sites.iter().filter(|site| site.certificate.is_none());
            let unconfigured: Vec<_> = unconfigured.collect();
            let names = || unconfigured.iter().flat_map(|site| &site.names).collect();
            (!unconfigured.is_empty()).then(names)
        }
    }
}

/// A key log whose file is opened after the process has dropped its privileges, when TLS is already
/// configured. Ignores lines until then.
pub(crate) struct ServerKeyLog {
    path: PathBuf,
    file: OnceLock<KeyLogFile>,
}

impl ServerKeyLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, file: OnceLock::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file, unless it is open.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub(crate) fn open(&self) -> Result<(), TlsError> {
        if self.file.get().is_none() {
            let _ = self.file.set(KeyLogFile::open(&self.path)?);
        }
        Ok(())
    }
}

impl KeyLog for ServerKeyLog {
    fn line(&self, line: &str) {
        if let Some(file) = self.file.get() {
            file.line(line);
        }
    }
}
