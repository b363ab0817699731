//! Combines the configuration file, environment and flags.

use std::env;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use firstflight_config::{
    AdminSettings, CertificateSource, Content, KeySource, Listener, ListenerProtocol, LogFormat,
    ServerConfig,
};

use super::args::{AcmeArgs, ContentArgs, LimitArgs, LogArgs, ServeArgs, Switch, TlsArgs};

/// Reads the configuration file and applies environment and flags. The result may lack addresses or
/// content, see [`require_complete`].
///
/// # Errors
/// If a setting is invalid; the message says how to fix it.
pub(super) fn read_config(args: &ServeArgs) -> anyhow::Result<ServerConfig> {
    let mut config = match &args.config {
        Some(path) => ServerConfig::read(path).map_err(|error| anyhow::anyhow!("{error}"))?,
        None => ServerConfig::default(),
    };
    if !args.listen.is_empty() {
        config.listeners = addresses(&args.listen)?.into_iter().map(Listener::new).collect();
    }
    if let Some(content) = content(&args.content)? {
        config.content = content;
    }
    certificate(args, &mut config)?;
    if args.content.directory.is_some() && args.acme.acme.is_empty() && config.listeners.is_empty()
    {
        config.listeners.push(Listener::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 8443))));
    }
    args.acme.apply(&mut config)?;
    tls(args, &mut config);
    limits(&args.limits, &mut config);
    logs(&args.logs, &mut config)?;
    if let Some(switch) = args.early_data {
        config.early_data.enabled = switch == Switch::On;
    }
    if let Some(file) = &args.ticket_keys {
        config.tickets.keys = KeySource::File(file.clone());
    }
    if let Some(address) = &args.admin {
        let address = address.parse()?;
        match &mut config.admin {
            Some(admin) => admin.address = address,
            None => config.admin = Some(AdminSettings::new(address)),
        }
    }
    config.process.workers = args.workers.or(config.process.workers);
    config.http3.enabled &= !args.no_http3;
    config.check()?;
    // Settings from the file were checked when it was read, with their line numbers.
    if let Some(error) = config.check_files().into_iter().next() {
        anyhow::bail!("{}", error.reason);
    }
    Ok(config)
}

/// Refuses flags on the command line without effect on `config`. Not called at a reload: a new file
/// may give each site its own certificate, while the flags stay the same.
///
/// # Errors
/// If a flag has no effect; the message names it.
pub(super) fn check_effects(args: &ServeArgs, config: &ServerConfig) -> anyhow::Result<()> {
    let has_arg = |ids: &[&str]| args.command_line.has(ids);
    anyhow::ensure!(
        !has_arg(&["acme_contact", "acme_agree", "acme_directory", "acme_ca", "acme_state"])
            || !config.acme_names().is_empty(),
        "no site gets its certificate by ACME, so the flags --acme-... have no effect; give --acme \
         NAME, set acme = true in a [[site]], or leave them out"
    );
    let flags = match (has_arg(&["cert", "key"]), has_arg(&["self_signed", "save_cert"])) {
        (true, _) => "--cert and --key",
        (false, true) => "--self-signed and --save-cert",
        (false, false) => return Ok(()),
    };
    if let Content::Sites(content) = &config.content {
        let all_have_one = content.sites.iter().all(|site| site.certificate.is_some());
        anyhow::ensure!(
            content.sites.is_empty() || !all_have_one,
            "each site of the file has its own certificate, so {flags} have no effect; leave them out"
        );
    }
    Ok(())
}

/// Requires an address and content.
///
/// # Errors
/// If one is missing; the message says where to add it.
pub(super) fn require_complete(config: ServerConfig) -> anyhow::Result<ServerConfig> {
    let is_empty = matches!(&config.content, Content::Sites(sites) if sites.sites.is_empty());
    anyhow::ensure!(
        !is_empty,
        "nothing to serve; give --root DIR, --upstream URL, or a [[site]] in the file \
         that --config names"
    );
    anyhow::ensure!(
        !config.listeners.is_empty(),
        "no address to listen on; give --listen ADDRESS:PORT, or a [[listener]] in the \
         file that --config names"
    );
    Ok(config)
}

fn content(args: &ContentArgs) -> anyhow::Result<Option<Content>> {
    match (&args.directory, &args.root, &args.upstream, args.ping_pong) {
        (None, None, None, false) => Ok(None),
        (Some(root), None, None, false) | (None, Some(root), None, false) => {
            Ok(Some(Content::files(root)))
        }
        (None, None, Some(url), false) => Ok(Some(Content::upstream(url)?)),
        (None, None, None, true) => Ok(Some(Content::PingPong)),
        _ => anyhow::bail!(
            "give only one of DIR, --root, --upstream and --ping-pong, only one of FIRSTFLIGHT_ROOT \
             and FIRSTFLIGHT_UPSTREAM, or sites in a file"
        ),
    }
}

fn certificate(args: &ServeArgs, config: &mut ServerConfig) -> anyhow::Result<()> {
    let files = args.cert.clone().zip(args.key.clone());
    let self_signed = !args.self_signed.is_empty() || args.save_cert.is_some();
    let sources = [files.is_some(), self_signed, !args.acme.acme.is_empty()];
    anyhow::ensure!(
        sources.into_iter().filter(|given| *given).count() <= 1,
        "give only one of --cert, --self-signed (or --save-cert) and --acme, and only one of \
         FIRSTFLIGHT_CERT and FIRSTFLIGHT_ACME"
    );
    if let Some((cert, key)) = files {
        config.certificate = CertificateSource::Files { cert, key };
    } else if self_signed {
        let (names, save) = (args.self_signed.clone(), args.save_cert.clone());
        config.certificate = CertificateSource::SelfSigned { names, save };
    }
    Ok(())
}

impl AcmeArgs {
    /// Overrides the file's `[acme]` section, and gives the served site its names.
    ///
    /// # Errors
    /// If `--acme` is used with sites that have names already.
    pub(super) fn apply(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        let requested = !self.acme.is_empty();
        if requested || self.acme_agree || self.acme_directory.is_some() {
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
        if requested {
            self.name_site(config)?;
            if config.listeners.is_empty() {
                config.listeners = default_listeners();
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
            "--acme needs --root or --upstream; give one of them, or set acme = true in \
             a [[site]] with names in the file that --config names"
        )
    }
}

/// Ports 443 and 80, for IPv6 and IPv4: clients and ACME authorities connect to both.
fn default_listeners() -> Vec<Listener> {
    let at = |port| Listener::new(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    vec![at(443), Listener { protocol: ListenerProtocol::Redirect, ..at(80) }]
}

fn tls(args: &ServeArgs, config: &mut ServerConfig) {
    let TlsArgs { tls_min, tls_max, ciphers, tls13_ciphers, groups, tickets } = &args.tls;
    let tls = &mut config.tls;
    tls.min_version = tls_min.unwrap_or(tls.min_version);
    tls.max_version = tls_max.unwrap_or(tls.max_version);
    let policy = &mut tls.ciphers;
    policy.ciphers = ciphers.clone().or(policy.ciphers.take());
    policy.tls13_ciphers = tls13_ciphers.clone().or(policy.tls13_ciphers.take());
    policy.groups = groups.clone().or(policy.groups.take());
    tls.tickets = tickets.unwrap_or(tls.tickets);
    tls.http2 = args.http2.map_or(tls.http2, |switch| switch == Switch::On);
    tls.key_log = env::var_os("SSLKEYLOGFILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let keep_alive = &mut config.limits.keep_alive;
    *keep_alive = args.keep_alive.map_or(*keep_alive, |switch| switch == Switch::On);
}

fn limits(args: &LimitArgs, config: &mut ServerConfig) {
    let limits = &mut config.limits;
    limits.header_timeout = args.header_timeout.unwrap_or(limits.header_timeout);
    limits.header_size = args.header_size.unwrap_or(limits.header_size);
    limits.idle_timeout = args.idle_timeout.unwrap_or(limits.idle_timeout);
    limits.connections = args.max_connections.unwrap_or(limits.connections);
    limits.upstream_timeout = args.upstream_timeout.unwrap_or(limits.upstream_timeout);
    limits.drain_timeout = args.drain_timeout.unwrap_or(limits.drain_timeout);
    limits.backlog = args.backlog.unwrap_or(limits.backlog);
}

fn logs(args: &LogArgs, config: &mut ServerConfig) -> anyhow::Result<()> {
    if let Some(file) = &args.access_log {
        let log = config.access_log.get_or_insert_default();
        log.file = (file.as_os_str() != "-").then(|| file.clone());
    }
    match (args.log_format, &mut config.access_log) {
        (Some(format), Some(log)) => log.format = format.into(),
        (Some(_), None) => {
            anyhow::bail!("--log-format needs an access log; give --access-log FILE")
        }
        (None, _) => {}
    }
    let log = &mut config.log;
    if let Some(level) = args.log_level.clone().or_else(|| args.rust_log()) {
        log.level = level;
    }
    match env::var("FIRSTFLIGHT_LOG_FORMAT").as_deref() {
        Ok("json") => log.format = LogFormat::Json,
        Ok("text") => log.format = LogFormat::Text,
        _ => {}
    }
    Ok(())
}

fn addresses(listen: &[String]) -> anyhow::Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    for text in listen {
        let found = text.to_socket_addrs().map_err(|reason| {
            anyhow::anyhow!(
                "cannot listen on {text:?}: {reason}; give an address such as 127.0.0.1:8443 or \
                 [::]:443"
            )
        })?;
        all.extend(found);
    }
    Ok(all)
}
