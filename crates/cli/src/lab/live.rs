//! What `lab --serve` prints: how to enter, and a line for each connection.

use std::path::Path;

use firstflight_lab::{
    HandshakeOutcome, LabDescription, NetworkDescription, ObservedConnection, ServerDescription,
    TlsVersion,
};
use serde_json::{Value, json};

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Json,
}

/// Prints a lab as it lives.
pub(super) struct Live {
    form: Form,
    /// Widths of the columns of networks and servers.
    widths: (usize, usize),
}

impl Live {
    pub(super) fn new(description: &LabDescription, form: Form) -> Self {
        let widest = |names: &mut dyn Iterator<Item = &str>, least: &str| {
            names.map(|name| name.chars().count()).chain([least.len()]).max().unwrap_or(0)
        };
        let networks = widest(&mut description.networks.iter().map(|one| &*one.name), "network");
        let servers = widest(&mut description.servers.iter().map(|one| &*one.name), "server");
        Self { form, widths: (networks, servers) }
    }

    /// What there is and how to enter.
    pub(super) fn opening(&self, description: &LabDescription) -> String {
        match self.form {
            Form::Json => line("up", serde_json::to_value(description).unwrap_or_default()),
            Form::Text => format!(
                "{}\n{}\n{}\n{}",
                networks(description),
                servers(description),
                entering(description),
                self.columns([
                    "time (UTC)",
                    "network",
                    "server",
                    "protocol",
                    "trips",
                    "answer after",
                    "what it was"
                ])
            ),
        }
    }

    /// A connection.
    pub(super) fn line(&self, seen: &ObservedConnection) -> String {
        if self.form == Form::Json {
            return line("connection", serde_json::to_value(seen).unwrap_or_default());
        }
        // RFC 3339: the date, `T`, the time, `Z`.
        let time = seen.at.split_once('T').map_or(&*seen.at, |(_, time)| time);
        let trips = seen.round_trips.map_or("-".to_owned(), |trips| trips.to_string());
        let after = seen.first_byte_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
        self.columns([
            time.trim_end_matches('Z'),
            &seen.network,
            &seen.server,
            protocol(seen),
            &trips,
            &after,
            &what(seen),
        ])
    }

    /// The last word.
    pub(super) fn closing(&self, count: usize, capture: Option<&Path>) -> String {
        match (self.form, capture) {
            (Form::Json, _) => line("end", json!({ "connections": count })),
            (Form::Text, Some(path)) => {
                format!("\n{count} connections; their packets are in {}\n", path.display())
            }
            (Form::Text, None) => format!("\n{count} connections\n"),
        }
    }

    fn columns(&self, [time, network, server, protocol, trips, after, what]: [&str; 7]) -> String {
        let (networks, servers) = self.widths;
        format!(
            "{time:<12}  {network:<networks$}  {server:<servers$}  {protocol:<8}  {trips:>5}  \
             {after:>12}  {what}\n"
        )
    }
}

/// A line for programs: an object that says what it is.
fn line(event: &str, mut value: Value) -> String {
    if let Some(object) = value.as_object_mut() {
        object.insert("event".to_owned(), event.into());
    }
    format!("{value}\n")
}

/// What carried the connection, as HTTP's versions are called; what lies below where that does not
/// show.
fn protocol(seen: &ObservedConnection) -> &str {
    match seen.alpn.as_deref() {
        Some("http/1.1") => "HTTP/1.1",
        Some("h2") => "HTTP/2",
        Some("h3") => "HTTP/3",
        Some(other) => other,
        None if seen.transport == "quic" => "QUIC",
        None => "TCP",
    }
}

/// The handshake, and what else is worth a word.
fn what(seen: &ObservedConnection) -> String {
    let mut what = match (seen.handshake, &seen.unknown) {
        (Some(handshake), _) => handshake.name().to_owned(),
        (None, why) => why.clone().unwrap_or_default(),
    };
    if let Some(version) = seen.tls.filter(|version| *version != TlsVersion::Tls13) {
        what = format!("{version} {what}");
    }
    let early =
        matches!(seen.handshake, Some(HandshakeOutcome::Accepted | HandshakeOutcome::Refused));
    if let Some(bytes) = seen.early_bytes.filter(|_| early) {
        what += &format!(", {bytes} bytes early");
    }
    for (said, word) in
        [(seen.fast_open, "data in the SYN"), (seen.hello_retry, "HelloRetryRequest")]
    {
        if said {
            what += &format!(", {word}");
        }
    }
    if seen.dropped > 0 {
        what += &format!(", {} packets dropped", seen.dropped);
    }
    what
}

fn networks(description: &LabDescription) -> String {
    let rate = |mbps: Option<f64>| mbps.map_or("-".to_owned(), |mbps| format!("{mbps} Mbit/s"));
    let mut rows = vec![["network", "round trip", "down", "up", "name inside"].map(str::to_owned)];
    rows.extend(description.networks.iter().map(|network| {
        [
            network.name.clone(),
            format!("{} ms", network.rtt_ms),
            rate(network.down_mbps),
            rate(network.up_mbps),
            network.host.clone(),
        ]
    }));
    table(&rows)
}

fn servers(description: &LabDescription) -> String {
    let first = description.networks.first();
    let mut rows = vec![["server", "HTTP", "0-RTT over", "URL inside"].map(str::to_owned)];
    rows.extend(description.servers.iter().map(|server| {
        let early = match (server.early_data, server.early_data_quic) {
            (true, true) => "TCP and QUIC",
            (true, false) => "TCP",
            (false, true) => "QUIC",
            (false, false) => "-",
        };
        [
            server.name.clone(),
            server.http.join(", "),
            early.to_owned(),
            first.map_or_else(String::new, |network| description.url(network, server, "/")),
        ]
    }));
    let pages = description.pages.join(" ");
    let others = match description.networks.len() {
        1 => "",
        _ => "; over another network by its name",
    };
    format!("{}pages: {pages}{others}\n", table(&rows))
}

fn entering(description: &LabDescription) -> String {
    let mut text = format!(
        "From another terminal, a shell inside, and a browser that has 0-RTT on:\n  \
         firstflight lab --enter {pid}\n  firstflight lab --enter {pid} --browser firefox\n",
        pid = description.pid
    );
    if let (Some(network), Some(server)) =
        (description.networks.first(), description.servers.first())
    {
        text += &try_inside(description, network, server);
    }
    if let Some(path) = &description.capture {
        text += &format!("Packets with their secrets: {}\n", path.display());
    }
    text + "Ctrl-C ends the lab and everybody in it.\n"
}

/// Commands that are worth a try.
fn try_inside(
    description: &LabDescription,
    network: &NetworkDescription,
    server: &ServerDescription,
) -> String {
    let url = description.url(network, server, "/");
    format!(
        "Inside, twice:\n  \
         firstflight fetch --ssl-sessions $FIRSTFLIGHT_LAB/jar --tls-earlydata {url}\n"
    )
}

/// Columns of text, each as wide as its widest cell.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let wide = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| wide(column).unwrap_or(0));
    let row = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> LabDescription {
        let network = |name: &str, host: &str, rtt_ms, mbps| NetworkDescription {
            name: name.to_owned(),
            host: host.to_owned(),
            address: [10, 77, 1, 2].into(),
            rtt_ms,
            down_mbps: mbps,
            up_mbps: mbps,
        };
        let server = |name: &str, port, http: &[&'static str], quic| ServerDescription {
            name: name.to_owned(),
            version: format!("{name} 1"),
            port,
            http: http.to_vec(),
            early_data: true,
            early_data_quic: quic,
        };
        LabDescription {
            pid: 4711,
            directory: "/tmp/lab".into(),
            trust: "/tmp/lab/authority.pem".into(),
            key_log: "/tmp/lab/secrets".into(),
            capture: Some("lab-results/explored.pcapng".into()),
            networks: vec![
                network("112 ms", "112ms.lab.test", 112.0, None),
                network("3g", "3g.lab.test", 100.0, Some(1.6)),
            ],
            servers: vec![
                server("firstflight", 4433, &["1.1", "2", "3"], true),
                server("nginx", 4439, &["1.1", "2"], false),
            ],
            pages: vec!["/1k".to_owned(), "/".to_owned()],
        }
    }

    fn seen() -> ObservedConnection {
        ObservedConnection {
            at: "2026-11-22T06:30:00.123Z".to_owned(),
            network: "112 ms".to_owned(),
            server: "firstflight".to_owned(),
            client: ([10, 77, 1, 1], 40_000).into(),
            transport: "tcp",
            server_name: None,
            alpn: Some("h2".to_owned()),
            tls: None,
            handshake: Some(HandshakeOutcome::Accepted),
            unknown: None,
            group: None,
            hello_retry: false,
            fast_open: false,
            early_bytes: Some(85),
            round_trips: Some(2),
            setup_ms: Some(336.0),
            first_byte_ms: Some(225.04),
            dropped: 0,
            sent_again: 0,
        }
    }

    #[test]
    fn the_opening_says_what_there_is_and_how_to_enter() {
        let description = description();
        insta::assert_snapshot!(Live::new(&description, Form::Text).opening(&description));
    }

    #[test]
    fn a_line_says_what_a_connection_was() {
        let live = Live::new(&description(), Form::Text);
        let full = ObservedConnection {
            handshake: Some(HandshakeOutcome::Full),
            early_bytes: None,
            round_trips: Some(4),
            alpn: None,
            hello_retry: true,
            dropped: 3,
            ..seen()
        };
        let unknown = ObservedConnection {
            handshake: None,
            unknown: Some("no ClientHello was seen".to_owned()),
            round_trips: None,
            first_byte_ms: None,
            transport: "quic",
            alpn: None,
            ..seen()
        };
        let lines = [seen(), full, unknown].map(|one| live.line(&one)).concat();
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn programs_get_a_line_each() {
        let description = description();
        let live = Live::new(&description, Form::Json);
        let read = |text: String| {
            assert_eq!(text.lines().count(), 1);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        let up = read(live.opening(&description));
        assert_eq!((&up["event"], &up["pid"]), (&"up".into(), &4711.into()));
        let one = read(live.line(&seen()));
        assert_eq!(one["event"], "connection");
        assert_eq!((&one["handshake"], &one["round_trips"]), (&"0-RTT accepted".into(), &2.into()));
        assert_eq!(read(live.closing(3, None))["connections"], 3);
    }
}
