//! The output of `lab --serve`: how to enter the lab, and a line for each connection.

use std::path::Path;

use firstflight_lab::{
    HandshakeOutcome, LabDescription, NetworkDescription, ObservedConnection, ServerDescription,
    TlsVersion,
};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportFormat {
    Text,
    Json,
}

/// Formats the output for people or programs.
pub(super) struct LabReport {
    format: ReportFormat,
    /// Widths of the columns of networks and servers.
    widths: (usize, usize),
}

impl LabReport {
    pub(super) fn new(lab: &LabDescription, format: ReportFormat) -> Self {
        let width = |names: &mut dyn Iterator<Item = &str>, min: &str| {
            names.map(|name| name.chars().count()).chain([min.len()]).max().unwrap_or(0)
        };
        let networks = width(&mut lab.networks.iter().map(|network| &*network.name), "network");
        let servers = width(&mut lab.servers.iter().map(|server| &*server.name), "server");
        Self { format, widths: (networks, servers) }
    }

    /// Networks, servers, how to enter, and the heading of the connections.
    pub(super) fn start(&self, lab: &LabDescription) -> String {
        match self.format {
            ReportFormat::Json => json_line("up", serde_json::to_value(lab).unwrap_or_default()),
            ReportFormat::Text => format!(
                "{}\n{}\n{}\n{}",
                networks(lab),
                servers(lab),
                instructions(lab),
                self.columns([
                    "time (UTC)",
                    "network",
                    "server",
                    "protocol",
                    "trips",
                    "response after",
                    "handshake"
                ])
            ),
        }
    }

    /// A line for a connection.
    pub(super) fn connection(&self, connection: &ObservedConnection) -> String {
        if self.format == ReportFormat::Json {
            return json_line("connection", serde_json::to_value(connection).unwrap_or_default());
        }
        // RFC 3339: the date, `T`, the time, `Z`.
        let time = connection.at.split_once('T').map_or(&*connection.at, |(_, time)| time);
        let trips = connection.round_trips.map_or("-".to_owned(), |trips| trips.to_string());
        let after = connection.first_byte_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
        self.columns([
            time.trim_end_matches('Z'),
            &connection.network,
            &connection.server,
            protocol(connection),
            &trips,
            &after,
            &description(connection),
        ])
    }

    /// The summary at the end.
    pub(super) fn end(&self, count: usize, capture: Option<&Path>) -> String {
        match (self.format, capture) {
            (ReportFormat::Json, _) => json_line("end", json!({ "connections": count })),
            (ReportFormat::Text, Some(path)) => {
                format!("\n{count} connections; their packets are in {}\n", path.display())
            }
            (ReportFormat::Text, None) => format!("\n{count} connections\n"),
        }
    }

    fn columns(
        &self,
        [time, network, server, protocol, trips, after, description]: [&str; 7],
    ) -> String {
        let (networks, servers) = self.widths;
        format!(
            "{time:<12}  {network:<networks$}  {server:<servers$}  {protocol:<8}  {trips:>5}  \
             {after:>14}  {description}\n"
        )
    }
}

/// A JSON object on one line, with the name of the event.
fn json_line(event: &str, mut value: Value) -> String {
    if let Some(object) = value.as_object_mut() {
        object.insert("event".to_owned(), event.into());
    }
    format!("{value}\n")
}

/// The version of HTTP, or the transport if ALPN was not negotiated or not visible.
fn protocol(connection: &ObservedConnection) -> &str {
    match connection.alpn.as_deref() {
        Some("http/1.1") => "HTTP/1.1",
        Some("h2") => "HTTP/2",
        Some("h3") => "HTTP/3",
        Some(other) => other,
        None if connection.transport == "quic" => "QUIC",
        None => "TCP",
    }
}

/// The handshake, and other noteworthy facts.
fn description(connection: &ObservedConnection) -> String {
    let mut description = match (connection.handshake, &connection.unknown) {
        (Some(handshake), _) => handshake.name().to_owned(),
        (None, why) => why.clone().unwrap_or_default(),
    };
    if let Some(version) = connection.tls.filter(|version| *version != TlsVersion::Tls13) {
        description = format!("{version} {description}");
    }
    let early = matches!(
        connection.handshake,
        Some(HandshakeOutcome::Accepted | HandshakeOutcome::Refused)
    );
    if let Some(bytes) = connection.early_bytes.filter(|_| early) {
        description += &format!(", {bytes} bytes of early data");
    }
    for (applies, text) in
        [(connection.fast_open, "data in the SYN"), (connection.hello_retry, "HelloRetryRequest")]
    {
        if applies {
            description += &format!(", {text}");
        }
    }
    if connection.dropped > 0 {
        description += &format!(", {} packets dropped", connection.dropped);
    }
    description
}

fn networks(lab: &LabDescription) -> String {
    let rate = |mbps: Option<f64>| mbps.map_or("-".to_owned(), |mbps| format!("{mbps} Mbit/s"));
    let mut rows = vec![["network", "round trip", "down", "up", "name inside"].map(str::to_owned)];
    rows.extend(lab.networks.iter().map(|network| {
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

fn servers(lab: &LabDescription) -> String {
    let first = lab.networks.first();
    let mut rows = vec![["server", "HTTP", "0-RTT over", "URL inside"].map(str::to_owned)];
    rows.extend(lab.servers.iter().map(|server| {
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
            first.map_or_else(String::new, |network| lab.url(network, server, "/")),
        ]
    }));
    let pages = lab.pages.join(" ");
    let others = match lab.networks.len() {
        1 => "",
        _ => "; use another network's name to connect over it",
    };
    format!("{}pages: {pages}{others}\n", table(&rows))
}

fn instructions(lab: &LabDescription) -> String {
    let mut text = format!(
        "To enter the lab from another terminal, with a shell or a browser:\n  \
         firstflight lab --enter {pid}\n  firstflight lab --enter {pid} --browser firefox\n",
        pid = lab.pid
    );
    if let (Some(network), Some(server)) = (lab.networks.first(), lab.servers.first()) {
        text += &example(lab, network, server);
    }
    if let Some(path) = &lab.capture {
        text += &format!("All packets, with TLS secrets: {}\n", path.display());
    }
    text + "Ctrl-C ends the lab and all processes in it.\n"
}

/// A command to try.
fn example(
    lab: &LabDescription,
    network: &NetworkDescription,
    server: &ServerDescription,
) -> String {
    let url = lab.url(network, server, "/");
    format!(
        "Inside, run this twice; the second request is early data:\n  \
         firstflight fetch --ssl-sessions $FIRSTFLIGHT_LAB/jar --tls-earlydata {url}\n"
    )
}

/// Aligns columns.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let max_width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| max_width(column).unwrap_or(0));
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

    fn lab() -> LabDescription {
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

    fn connection() -> ObservedConnection {
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
    fn the_start_lists_networks_and_servers_and_how_to_enter() {
        let lab = lab();
        insta::assert_snapshot!(LabReport::new(&lab, ReportFormat::Text).start(&lab));
    }

    #[test]
    fn a_connection_is_a_line_with_its_handshake() {
        let report = LabReport::new(&lab(), ReportFormat::Text);
        let full = ObservedConnection {
            handshake: Some(HandshakeOutcome::Full),
            early_bytes: None,
            round_trips: Some(4),
            alpn: None,
            hello_retry: true,
            dropped: 3,
            ..connection()
        };
        let unknown = ObservedConnection {
            handshake: None,
            unknown: Some("no ClientHello was captured".to_owned()),
            round_trips: None,
            first_byte_ms: None,
            transport: "quic",
            alpn: None,
            ..connection()
        };
        let lines = [connection(), full, unknown].map(|entry| report.connection(&entry)).concat();
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn json_has_a_line_for_each_event() {
        let lab = lab();
        let report = LabReport::new(&lab, ReportFormat::Json);
        let read = |text: String| {
            assert_eq!(text.lines().count(), 1);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        let up = read(report.start(&lab));
        assert_eq!((&up["event"], &up["pid"]), (&"up".into(), &4711.into()));
        let entry = read(report.connection(&connection()));
        assert_eq!(entry["event"], "connection");
        assert_eq!(
            (&entry["handshake"], &entry["round_trips"]),
            (&"0-RTT accepted".into(), &2.into())
        );
        assert_eq!(read(report.end(3, None))["connections"], 3);
    }
}
