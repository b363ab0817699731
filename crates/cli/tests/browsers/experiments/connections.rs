//! The browser's TCP and TLS features, and its speculative connections.

use firstflight_browser::Installed;
use firstflight_packets::TransportFacts;

use crate::connection::{Connection, EarlyDataOutcome};
use crate::experiments::tickets::offers_ticket;
use crate::server::Tls;
use crate::session::{BrowserSession, connection_of, describe, request_label};

const PAGE: &str = "https://www.site.test/";

/// TCP Fast Open, key shares, and the size of the ClientHello.
pub(crate) fn tcp_and_tls(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    let first = session.visit(PAGE);
    let first = connection_of(&first, "/").clone();
    let second = session.visit(PAGE);
    let second = connection_of(&second, "/").clone();
    let TransportFacts::Tcp(tcp) = &second.facts.transport else { panic!("not TCP: {second}") };
    let fast_open = match (tcp.fast_open_option, tcp.syn_data) {
        (None, 0) => "does not ask for it".to_owned(),
        (option, data) => format!("{option:?}, {data} bytes in the SYN"),
    };
    session.record_finding("tcp-fast-open", fast_open)?;
    let tls = first.tls().expect("TLS");
    let shares: Vec<String> = tls.key_shares_offered.iter().map(ToString::to_string).collect();
    let shares = shares.iter().filter(|name| !is_grease(name)).cloned().collect::<Vec<_>>();
    session.record_finding("key-shares", shares.join(" "))?;
    let offered = tls.alpn_offered.join(" ");
    session.record_finding("alpn", offered)?;
    let group = |connection: &Connection| {
        connection.group().map_or("none".to_owned(), |group| group.to_string())
    };
    let segments = |connection: &Connection| match client_hello_bytes(connection) {
        0..1400 => "one segment",
        1400..2800 => "two segments",
        _ => "three segments or more",
    };
    session
        .record_finding("client-hello-first", format!("{}, {}", group(&first), segments(&first)))?;
    let response = format!(
        "{}, {}, {}",
        group(&second),
        segments(&second),
        request_label(std::slice::from_ref(&second), "/")
    );
    session.record_finding("client-hello-return", response)
}

/// The length of the first ClientHello including the record header, in bytes.
fn client_hello_bytes(connection: &Connection) -> usize {
    let bytes = connection.facts.first_flight.stream().unwrap_or_default();
    bytes.get(3..5).map_or(0, |length| usize::from(u16::from_be_bytes([length[0], length[1]])) + 5)
}

/// Whether it is a GREASE value (RFC 8701).
fn is_grease(name: &str) -> bool {
    let digits = name.strip_prefix("0x").unwrap_or_default().as_bytes();
    matches!(digits, [a, b'a', b, b'a'] if a == b)
}

/// Without the switch for early data: Chromium's default, and switched off in Firefox.
pub(crate) fn early_data_off(installed: &Installed) -> Result<(), String> {
    let mut session =
        BrowserSession::with(installed, &Tls::default(), |settings| settings.early_data = false);
    session.visit(PAGE);
    let connections = session.visit(PAGE);
    session.record_finding("without-the-switch", request_label(&connections, "/"))
}

/// With speculation on: unused connections, and the tickets that they use.
pub(crate) fn speculation(installed: &Installed) -> Result<(), String> {
    let mut session =
        BrowserSession::with(installed, &Tls::default(), |settings| settings.speculation = true);
    session.visit(PAGE);
    let mut early = 0;
    let mut idle = Vec::new();
    for _ in 0..6 {
        let connections = session.visit(PAGE);
        early += usize::from(request_label(&connections, "/") == "early");
        idle.extend(connections.into_iter().filter(|connection| connection.requests().is_empty()));
    }
    let spent: Vec<String> =
        idle.iter().flat_map(|connection| connection.offered.clone()).collect();
    let announced = idle.iter().filter(|connection| connection.announced_early_data()).count();
    let response = format!(
        "6 return visits: {early} early, {} connections unused, {} tickets spent on them, \
         {announced} that announced early data",
        idle.len(),
        spent.len()
    );
    session.record_finding("speculation", response)?;

    // The page has a preconnect link.
    session.visit("https://other.test/");
    session.open_page("https://www.site.test/preconnect");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let connections = session.finish_visit();
    let preconnected = connections.iter().find(|connection| {
        connection.tls().is_some_and(|tls| tls.server_name.as_deref() == Some("other.test"))
    });
    let response = preconnected.map_or("does not connect".to_owned(), |connection| {
        let ticket =
            if connection.offered.is_empty() { "without a ticket" } else { "with a ticket" };
        let early_data = match (connection.announced_early_data(), connection.early_data()) {
            (false, _) => "no early data announced",
            (true, EarlyDataOutcome::None) => "early data announced and none sent",
            (true, _) => "early data sent",
        };
        format!("connects {ticket}, {early_data}")
    });
    session.record_finding("preconnect", response)
}

/// Whether tickets of one host name are offered for another of the same server.
pub(crate) fn other_host_names(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls { tickets: 8, ..Tls::default() });
    session.visit(PAGE);
    let connections = session.visit("https://beside.site.test/");
    assert!(!connections.is_empty(), "{}", describe(&connections));
    session.record_finding("ticket-of-another-name", offers_ticket(&connections))
}
