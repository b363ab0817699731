//! The flags of `firstflight serve` for certificates by ACME.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use firstflight_config::{
    CertificateSource, Content, Directory, Listener, ListenerProtocol, ServerConfig,
};

#[derive(Args)]
pub(super) struct AcmeArgs {
    /// Host name to get a certificate for from an ACME authority (docs/certificates.md); may be
    /// repeated. Needs --acme-agree. Without --listen the server listens on [::]:443, and on
    /// [::]:80 to redirect.
    #[arg(
        long,
        value_name = "NAME",
        env = "FIRSTFLIGHT_ACME",
        value_delimiter = ',',
        conflicts_with_all = ["cert", "self_signed", "save_cert", "ping_pong"]
    )]
    acme: Vec<String>,

    /// Contact mail address for the authority; may be repeated.
    #[arg(long, value_name = "ADDRESS", env = "FIRSTFLIGHT_ACME_CONTACT", value_delimiter = ',')]
    acme_contact: Vec<String>,

    /// Agree to the authority's terms of service.
    #[arg(long, env = "FIRSTFLIGHT_ACME_AGREE")]
    acme_agree: bool,

    /// URL of the authority's directory. Default: Let's Encrypt.
    #[arg(long, value_name = "URL", env = "FIRSTFLIGHT_ACME_DIRECTORY")]
    acme_directory: Option<Directory>,

    /// Certificates to trust for the authority's own HTTPS (PEM). Default: the system's.
    #[arg(long, value_name = "FILE", env = "FIRSTFLIGHT_ACME_CA")]
    acme_ca: Option<PathBuf>,

    /// Directory for account, keys and certificates. Default: /var/lib/firstflight/acme.
    #[arg(long, value_name = "DIR", env = "FIRSTFLIGHT_ACME_STATE")]
    acme_state: Option<PathBuf>,
}

impl AcmeArgs {
    /// Puts them above the file's `[acme]`, and the names on what is served.
    ///
    /// # Errors
    /// There are names, and sites with names of their own.
    pub(super) fn apply(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        let asks = !self.acme.is_empty();
        if asks || self.acme_agree || self.acme_directory.is_some() {
            let acme = config.acme.get_or_insert_default();
            acme.terms_agreed |= self.acme_agree;
        }
        if let Some(acme) = &mut config.acme {
            if !self.acme_contact.is_empty() {
                acme.contact = self.acme_contact.clone();
            }
            if let Some(directory) = &self.acme_directory {
                acme.directory = directory.clone();
            }
            acme.authority = self.acme_ca.clone().or(acme.authority.take());
            if let Some(state) = &self.acme_state {
                acme.state = state.clone();
            }
        }
        if asks {
            self.name_site(config)?;
            if config.listeners.is_empty() {
                config.listeners = both_ports();
            }
        }
        Ok(())
    }

    fn name_site(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        if let Content::Sites(content) = &mut config.content
            && let [site] = &mut *content.sites
            && site.names.is_empty()
        {
            site.names = self.acme.iter().map(|name| name.to_ascii_lowercase()).collect();
            site.certificate = Some(CertificateSource::Acme);
            return Ok(());
        }
        anyhow::bail!(
            "--acme is for what --root or --upstream serves; give one of them, or acme = true to \
             a [[site]] with names in the file that --config names"
        )
    }
}

/// The two ports to which authorities and clients come, for IPv6 and IPv4.
fn both_ports() -> Vec<Listener> {
    let at = |port| Listener::new(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    vec![at(443), Listener { protocol: ListenerProtocol::Redirect, ..at(80) }]
}
