//! `firstflight serve --check`: whether it could be served, and what would be.

use std::net::SocketAddr;
use std::process::ExitCode;

use firstflight_config::{
    Action, CertificateSource, Content, Listener, ListenerProtocol, Route, ServerConfig, Site,
    Sites,
};

use super::args::ServeArgs;
use super::sentence;

/// Reads all files that the configuration names, and prints what would be served. A file that
/// leaves addresses or sites to flags is good too.
///
/// # Errors
/// One sentence with the fix.
pub(super) fn check(args: &ServeArgs, config: ServerConfig) -> anyhow::Result<ExitCode> {
    let rows = rows(&config);
    let mut warnings = config.warnings();
    warnings.extend(firstflight_server::exposed_keys(&config));
    let mut config = config;
    if matches!(&config.content, Content::Sites(sites) if sites.sites.is_empty()) {
        config.content = Content::PingPong;
    }
    if config.listeners.is_empty() {
        config.listeners.push(Listener::new(SocketAddr::from(([127, 0, 0, 1], 0))));
    }
    firstflight_server::check(&config).map_err(sentence)?;
    config.admin.as_ref().map(firstflight_admin::check).transpose()?;
    print!("{}", table(&rows));
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    match &args.config {
        Some(path) => println!("{}: OK", path.display()),
        None => println!("OK"),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a line of the table says: of what kind it is, which, and what of it.
type Row = [String; 4];

fn rows(config: &ServerConfig) -> Vec<Row> {
    let mut rows: Vec<Row> =
        config.listeners.iter().map(|listener| listener_row(listener, config)).collect();
    match &config.content {
        Content::Sites(sites) => {
            for (at, site) in sites.sites.iter().enumerate() {
                rows.extend(site_rows(at, site, sites, config));
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
    let mut spoken = match listener.protocol {
        ListenerProtocol::Redirect => "redirect to https".to_owned(),
        ListenerProtocol::Https if config.http3.enabled && listener.http3 => {
            "https, HTTP/3".to_owned()
        }
        ListenerProtocol::Https => "https".to_owned(),
    };
    let proxies: Vec<_> = listener.proxy_protocol_from.iter().map(ToString::to_string).collect();
    if !proxies.is_empty() {
        spoken += &format!(", PROXY from {}", proxies.join(", "));
    }
    row("listener", &listener.address.to_string(), &spoken, "")
}

fn site_rows(at: usize, site: &Site, sites: &Sites, config: &ServerConfig) -> Vec<Row> {
    let names = match (site.names.is_empty(), at) {
        (true, _) => "(every name)".to_owned(),
        (false, 0) => format!("{} (and unknown names)", site.names.join(", ")),
        (false, _) => site.names.join(", "),
    };
    let certificate = match site.certificate.as_ref().unwrap_or(&config.certificate) {
        CertificateSource::Acme => "certificate by ACME",
        _ => "",
    };
    let mut rows = vec![row("site", &names, certificate, "")];
    for route in &site.routes {
        let early = match (config.early_data.enabled, route.early.mode) {
            (false, _) => "off".to_owned(),
            (true, Some(mode)) => mode.to_string(),
            (true, None) => config.early_data.policy.mode(&route.path).to_string(),
        };
        let action = action(route, sites);
        rows.push(row("", &route.path, &action, &format!("early data: {early}")));
    }
    rows
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

fn row(kind: &str, which: &str, what: &str, more: &str) -> Row {
    [kind, which, what, more].map(str::to_owned)
}

/// Columns as wide as their cells; what comes last on a line widens none.
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
