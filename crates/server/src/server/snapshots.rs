//! Makes snapshots of configurations: certificates, TLS, sites.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use firstflight_certificates::acme::CertificateState;
use firstflight_config::{CertificateSource, ConfigError, Content, ServerConfig, Site};
use firstflight_tls::{
    Acceptor, AcceptorConfig, ChallengeCertificates, Identities, Identity, IdentityEntry, KeyLog,
    KeyLogFile, TlsError,
};

use crate::ServerError;
use crate::certificates::development::{self, Development};
use crate::certificates::{self, issued};
use crate::handler::proxy::{self, Pools};
use crate::handshake::quic_config::{QuicTokens, quic_config};
use crate::handshake::tickets::TicketRing;
use crate::listen::serves_http3;
use crate::route::Snapshot;
use crate::route::sites::Sites;

/// What snapshots are built on, and what outlives them.
pub(crate) struct SnapshotBuilder {
    pub(crate) ring: Arc<TicketRing>,
    /// Address tokens, and which of them are spent.
    pub(crate) tokens: QuicTokens,
    /// Where the configuration asks for a self-signed certificate.
    self_signed: Option<Identity>,
    /// Where it asks for none at all.
    development: OnceLock<Development>,
    /// What is listened on.
    addresses: Vec<SocketAddr>,
    /// Opened once the process has given up its privileges.
    pub(crate) key_log: Option<Arc<ServerKeyLog>>,
    /// What authorities that ask whose a name is are shown.
    challenges: Arc<dyn ChallengeCertificates>,
}

impl SnapshotBuilder {
    /// For a server that listens on `addresses`.
    ///
    /// # Errors
    /// [`ServerError`] of the self-signed certificate.
    pub(crate) fn new(
        config: &ServerConfig,
        ring: Arc<TicketRing>,
        addresses: &[SocketAddr],
        challenges: Arc<dyn ChallengeCertificates>,
    ) -> Result<Self, ServerError> {
        // Made once: clients that trust it go on to do so after a reload.
        let self_signed = match &config.certificate {
            CertificateSource::Files { .. }
            | CertificateSource::Development
            | CertificateSource::Acme => None,
            CertificateSource::SelfSigned { names, save } => {
                let names = names.iter().chain(site_names(&config.content));
                Some(certificates::unsigned(names, save.as_deref(), addresses)?)
            }
        };
        let key_log = config.tls.key_log.clone().map(|path| Arc::new(ServerKeyLog::new(path)));
        let tokens = QuicTokens::new(&ring);
        let (development, addresses) = (OnceLock::new(), addresses.to_owned());
        Ok(Self { ring, tokens, self_signed, development, addresses, key_log, challenges })
    }

    /// Each site's certificate, under the site's names. `states`: those of an authority.
    fn identities(
        &self,
        config: &ServerConfig,
        states: &[CertificateState],
    ) -> Result<Identities, ServerError> {
        match unprovided_names(config) {
            Some(names) => self.development().prepare(&names, development::now())?,
            None => self.development_in_use().into_iter().for_each(Development::rest),
        }
        let Content::Sites(sites) = &config.content else {
            return Ok(self.identity(&config.certificate, &[], states)?.into());
        };
        let entry = |site: &Site| -> Result<IdentityEntry, ServerError> {
            let source = site.certificate.as_ref().unwrap_or(&config.certificate);
            let identity = self.identity(source, &site.names, states)?;
            let identity = certificates::stapled(identity, site.ocsp.as_deref())?;
            Ok(IdentityEntry { names: site.names.clone(), identity })
        };
        let mut entries = sites.sites.iter().map(entry);
        let first = entries.next().ok_or_else(|| setting("there is no site; give one"))??;
        Ok(Identities::new(first, entries.collect::<Result<_, _>>()?)?)
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
            (CertificateSource::SelfSigned { .. }, Some(identity)) => Ok(identity.clone()),
            (CertificateSource::SelfSigned { names, save }, None) => {
                certificates::unsigned(names, save.as_deref(), &self.addresses)
            }
            (CertificateSource::Development, _) => {
                let identity = self.development().identity(site);
                identity.ok_or_else(|| setting("there is no certificate; give one"))
            }
        }
    }

    /// What makes certificates where the configuration has none; made when it is first asked.
    fn development(&self) -> &Development {
        self.development.get_or_init(|| Development::of_this_user(&self.addresses))
    }

    /// The same, if it has been asked.
    pub(crate) fn development_in_use(&self) -> Option<&Development> {
        self.development.get()
    }

    /// Checks a configuration, and reads its files. `pools`: those of the snapshot before;
    /// `states`: the certificates that an authority has issued.
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
            return Err(setting("the key log cannot change while the server runs; restart it"));
        }
        let pools = proxy::pools(config, pools)?;
        let sites = match &config.content {
            Content::Sites(sites) => Some(Arc::new(Sites::new(sites, config, &pools)?)),
            Content::PingPong => None,
        };
        let identities = self.identities(config, states)?;
        self.with(number, config, (sites, pools), identities, states)
    }

    /// The snapshot before, with what an authority has issued since in the place of those
    /// certificates alone. No other file is read: one that is of no use just now is no reason to
    /// show an old certificate elsewhere.
    ///
    /// # Errors
    /// [`ServerError::Tls`]: what was issued is of no use.
    pub(crate) fn with_issued(
        &self,
        before: &Snapshot,
        config: &ServerConfig,
        states: &[CertificateState],
    ) -> Result<Snapshot, ServerError> {
        let (identities, shown) = (&before.identities, &before.certificates);
        let identities = certificates::renewed(config, identities, shown, states)?;
        let kept = (before.sites.clone(), before.pools.clone());
        self.with(before.number, config, kept, identities, states)
    }

    fn with(
        &self,
        number: u64,
        config: &ServerConfig,
        (sites, pools): (Option<Arc<Sites>>, Pools),
        identities: Identities,
        states: &[CertificateState],
    ) -> Result<Snapshot, ServerError> {
        let acceptor_config = acceptor(config, identities.clone(), self)?;
        let certificates = certificates::of(config, &identities, states);
        let quic = match serves_http3(config) {
            true => {
                let for_quic = for_quic(&acceptor_config, &config.content);
                Some(quic_config(for_quic, &self.tokens, &self.ring, config)?)
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
            limits: config.limits.clone(),
            keep_alive: config.limits.keep_alive,
            early_data: config.early_data.enabled,
            when_not_allowed: config.early_data.when_not_allowed,
            certificates,
            alt_svc: config.http3.alt_svc,
        })
    }
}

/// The same for QUIC. Certificate, ring and key log are shared; a ticket is good for one of both
/// alone, as the library sees to.
fn for_quic(config: &AcceptorConfig, content: &Content) -> AcceptorConfig {
    let alpn: &[u8] = match content {
        Content::PingPong => b"firstflight-ping-pong",
        Content::Sites(_) => b"h3",
    };
    // RFC 8737 section 3 is about TLS over TCP.
    AcceptorConfig { alpn: vec![alpn.to_vec()], challenges: None, ..config.clone() }
}

fn acceptor(
    config: &ServerConfig,
    identities: Identities,
    builder: &SnapshotBuilder,
) -> Result<AcceptorConfig, ServerError> {
    let tls = &config.tls;
    let alpn: &[&str] = match (&config.content, tls.http2) {
        (Content::PingPong, _) => &[],
        (_, true) => &["h2", "http/1.1"],
        (_, false) => &["http/1.1"],
    };
    let ring = builder.ring.clone();
    let lifetime = ring.lifetime();
    Ok(AcceptorConfig {
        min_version: tls.min_version,
        max_version: tls.max_version,
        ciphers: tls.ciphers.clone(),
        cipher_preference: tls.cipher_preference,
        alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
        early_data: config.early_data.enabled,
        sealer: Some(ring),
        tickets: tls.tickets,
        // A ticket outlives its key otherwise, and is offered in vain.
        ticket_lifetime: lifetime,
        key_log: builder.key_log.clone().map(|log| log as Arc<dyn KeyLog>),
        challenges: (!config.acme_names().is_empty()).then(|| builder.challenges.clone()),
        ..AcceptorConfig::new(identities)
    })
}

/// The names of all sites.
fn site_names(content: &Content) -> impl Iterator<Item = &String> {
    let sites = match content {
        Content::Sites(content) => &*content.sites,
        Content::PingPong => &[],
    };
    sites.iter().flat_map(|site| &site.names)
}

/// The names of the sites whose certificate nobody has provided for; `None`: there is no such site.
fn unprovided_names(config: &ServerConfig) -> Option<Vec<&String>> {
    if config.certificate != CertificateSource::Development {
        return None;
    }
    match &config.content {
        Content::PingPong => Some(Vec::new()),
        Content::Sites(content) => {
            let unprovided = content.sites.iter().filter(|site| site.certificate.is_none());
            let unprovided: Vec<_> = unprovided.collect();
            let names = || unprovided.iter().flat_map(|site| &site.names).collect();
            (!unprovided.is_empty()).then(names)
        }
    }
}

fn setting(text: &str) -> ServerError {
    ServerError::Config(ConfigError::Setting(text.to_owned()))
}

/// A key log that is handed to TLS before its file is open: keys are read with the privileges of
/// the start, and files are written without them. Takes no lines before it is open.
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

    /// Opens the file, unless that was done before.
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
