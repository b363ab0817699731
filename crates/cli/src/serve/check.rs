//! `firstflight serve --check`: checks the configuration and prints what would be served.

use std::process::ExitCode;

use firstflight_certificates::authority::is_permitted_name;
use firstflight_config::{
    Action, CertificateSource, Content, Listener, ListenerProtocol, Route, ServerConfig, Site,
    Sites,
};
use firstflight_server::SiteCertificate;
use jiff::Timestamp;

use super::args::ServeArgs;

/// Reads all files that the configuration names, and prints what would be served. `config` has an
/// address and content.
///
/// # Errors
/// If the configuration or one of its files is invalid.
pub(super) fn check(args: &ServeArgs, config: ServerConfig) -> anyhow::Result<ExitCode> {
    let certificates = firstflight_server::check(&config)?;
    config.admin.as_ref().map(firstflight_admin::check).transpose()?;
    let rows = rows(&config, &certificates);
    let mut warnings = config.warnings();
    warnings.extend(firstflight_server::exposed_keys(&config));
    out!("{}", table(&rows));
    warnings.iter().for_each(|warning| errln!("warning: {warning}"));
    match &args.config {
        Some(path) => outln!("{}: OK", path.display()),
        None => outln!("OK"),
    }
    Ok(ExitCode::SUCCESS)
}

/// A line of the table: kind, name, description, details.
type Row = [String; 4];

fn rows(config: &ServerConfig, certificates: &[SiteCertificate]) -> Vec<Row> {
    let mut rows: Vec<Row> =
        config.listeners.iter().map(|listener| listener_row(listener, config)).collect();
    match &config.content {
        Content::Sites(sites) => {
            for (index, site) in sites.sites.iter().enumerate() {
                let source = site.certificate.as_ref().unwrap_or(&config.certificate);
                let certificate = certificate(source, &site.names, certificates.get(index));
                rows.extend(site_rows(index, site, sites, (config, certificate)));
            }
        }
        Content::PingPong => rows.push(row("ping-pong", "", "PONG for each PING", "")),
    }
    if let Some(admin) = &config.admin {
        let token = if admin.token_file.is_some() { "with a token" } else { "without a token" };
        rows.push(row("admin", &admin.address.to_string(), token, ""));
    }
    rows
}

fn listener_row(listener: &Listener, config: &ServerConfig) -> Row {
    let mut protocols = match listener.protocol {
        ListenerProtocol::Redirect => "redirect to https".to_owned(),
        ListenerProtocol::Https if config.serves_http3(listener) => "https, HTTP/3".to_owned(),
        ListenerProtocol::Https => "https".to_owned(),
    };
    let proxies: Vec<_> = listener.proxy_protocol_from.iter().map(ToString::to_string).collect();
    if !proxies.is_empty() {
        protocols += &format!(", PROXY from {}", proxies.join(", "));
    }
    row("listener", &listener.address.to_string(), &protocols, "")
}

/// Where the certificate of a site with these names comes from, and when it expires if it exists.
fn certificate(
    source: &CertificateSource,
    names: &[String],
    loaded: Option<&SiteCertificate>,
) -> String {
    let CertificateSource::Files { cert, .. } = source else {
        return match source {
            CertificateSource::Acme => "certificate by ACME",
            CertificateSource::Development if names.iter().all(|name| is_permitted_name(name)) => {
                "certificate of the development authority (for testing)"
            }
            _ => "self-signed certificate",
        }
        .to_owned();
    };
    let expires = loaded.and_then(|loaded| Timestamp::from_second(loaded.not_after?).ok());
    let expires = expires.map(|at| {
        let word = if at < Timestamp::now() { "expired" } else { "expires" };
        format!(", {word} {}", at.strftime("%Y-%m-%d"))
    });
    format!("certificate {}{}", cert.display(), expires.unwrap_or_default())
}

fn site_rows(
    index: usize,
    site: &Site,
    sites: &Sites,
    (config, certificate): (&ServerConfig, String),
) -> Vec<Row> {
    let names = match (site.names.is_empty(), index) {
        (true, _) => "(every name)".to_owned(),
        (false, 0) => format!("{} (and unknown names)", site.names.join(", ")),
        (false, _) => site.names.join(", "),
    };
    let mut rows = vec![row("site", &names, &certificate, "")];
    let policy = &config.early_data.policy;
    // Does not fail: the paths have been checked.
    let policy = site.policy(policy).unwrap_or_else(|_| policy.clone());
    for route in &site.routes {
        let early = match config.early_data.enabled && config.has_tls13() {
            true => policy.mode(&route.path).to_string(),
            false => "off".to_owned(),
        };
        let action = action(route, sites);
        rows.push(row("", &route.path, &action, &format!("early data: {early}{}", extras(route))));
    }
    rows
}

/// Other settings of a route.
fn extras(route: &Route) -> String {
    let limit = route
        .rate_limit
        .map(|limit| format!("{} requests in {:?} for each client", limit.requests, limit.per));
    let keeps_path = matches!(&route.action, Action::Redirect(redirect) if redirect.keep_path);
    let parts = [
        route.users.as_ref().map(|users| format!("users of {}", users.display())),
        limit,
        route.rewrite.as_ref().map(|path| format!("path rewritten to {path}")),
        keeps_path.then(|| "path kept".to_owned()),
        route.compress.then(|| "compressed".to_owned()),
    ];
    parts.into_iter().flatten().map(|part| format!("; {part}")).collect()
}

fn action(route: &Route, sites: &Sites) -> String {
    match &route.action {
        Action::Files(files) => format!("files below {}", files.root.display()),
        Action::Upstream(name) => match sites.upstreams.get(name).map(|pool| &*pool.servers) {
            Some([server]) => format!("upstream {name}: {server}"),
            Some(servers) => format!("upstream {name}: {} servers", servers.len()),
            None => format!("upstream {name}"),
        },
        Action::Redirect(redirect) => format!(
            "{} to {}",
            redirect.status.as_u16(),
            String::from_utf8_lossy(redirect.to.as_bytes())
        ),
        Action::Status(status) => status.to_string(),
    }
}

fn row(kind: &str, name: &str, description: &str, details: &str) -> Row {
    [kind, name, description, details].map(str::to_owned)
}

/// Aligns columns. The last cell of a line does not widen its column.
fn table(rows: &[Row]) -> String {
    let last = |row: &Row| row.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| column < last(row)).map(|row| &row[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate().take(last(row) + 1) {
            match column == last(row) {
                true => text.push_str(cell),
                false => text.push_str(&format!("{cell:<0$}  ", widths[column])),
            }
        }
        text.push('\n');
    }
    text
}
