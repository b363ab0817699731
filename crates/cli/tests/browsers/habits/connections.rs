//! What its connections look like, which it opens ahead, and for which names.

use firstflight_browser::Installed;
use firstflight_packets::TransportFacts;

use crate::habits::tickets::offers;
use crate::room::{Room, how, on, words};
use crate::seen::{Early, Seen};
use crate::witness::Tls;

const PAGE: &str = "https://www.site.test/";

/// TCP Fast Open, groups, and the size of a ClientHello.
pub(crate) fn looks(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    let first = room.visit(PAGE);
    let first = on(&first, "/").clone();
    let again = room.visit(PAGE);
    let again = on(&again, "/").clone();
    let TransportFacts::Tcp(tcp) = &again.facts.transport else { panic!("not TCP: {again}") };
    let fast_open = match (tcp.fast_open_option, tcp.syn_data) {
        (None, 0) => "does not ask for it".to_owned(),
        (option, data) => format!("{option:?}, {data} bytes in the SYN"),
    };
    room.found("tcp-fast-open", fast_open)?;
    let tls = first.tls().expect("TLS");
    let shares: Vec<String> = tls.key_shares_offered.iter().map(ToString::to_string).collect();
    let shares = shares.iter().filter(|name| !is_grease(name)).cloned().collect::<Vec<_>>();
    room.found("key-shares", shares.join(" "))?;
    let offered = tls.alpn_offered.join(" ");
    room.found("alpn", offered)?;
    let group = |seen: &Seen| seen.group().map_or("none".to_owned(), |group| group.to_string());
    let segments = |seen: &Seen| match hello(seen) {
        0..1400 => "one segment",
        1400..2800 => "two segments",
        _ => "three segments or more",
    };
    room.found("client-hello-first", format!("{}, {}", group(&first), segments(&first)))?;
    let response = format!(
        "{}, {}, {}",
        group(&again),
        segments(&again),
        how(std::slice::from_ref(&again), "/")
    );
    room.found("client-hello-return", response)
}

/// The length of its first ClientHello with the record's header, in bytes.
fn hello(seen: &Seen) -> usize {
    let bytes = seen.facts.first_flight.stream().unwrap_or_default();
    bytes.get(3..5).map_or(0, |length| usize::from(u16::from_be_bytes([length[0], length[1]])) + 5)
}

/// A number that means nothing (RFC 8701).
fn is_grease(name: &str) -> bool {
    let digits = name.strip_prefix("0x").unwrap_or_default().as_bytes();
    matches!(digits, [a, b'a', b, b'a'] if a == b)
}

/// With early data left as Chromium has it by itself, and switched off in Firefox, which has it on.
pub(crate) fn without_switch(installed: &Installed) -> Result<(), String> {
    let mut room = Room::with(installed, &Tls::default(), |settings| settings.early_data = false);
    room.visit(PAGE);
    let seen = room.visit(PAGE);
    room.found("without-the-switch", how(&seen, "/"))
}

/// With its own speculation left on: connections that nobody asks on, and what they spend.
pub(crate) fn ahead(installed: &Installed) -> Result<(), String> {
    let mut room = Room::with(installed, &Tls::default(), |settings| settings.speculation = true);
    room.visit(PAGE);
    let mut early = 0;
    let mut idle = Vec::new();
    for _ in 0..6 {
        let seen = room.visit(PAGE);
        early += usize::from(how(&seen, "/") == "early");
        idle.extend(seen.into_iter().filter(|seen| seen.requests().is_empty()));
    }
    let spent: Vec<String> = idle.iter().flat_map(|seen| seen.offered.clone()).collect();
    let announced = idle.iter().filter(|seen| seen.announced_early()).count();
    let response = format!(
        "6 return visits: {early} early, {} connections unused, {} tickets spent on them, \
         {announced} that announced early data",
        idle.len(),
        spent.len()
    );
    room.found("speculation", response)?;

    // A page names a server that it will need.
    room.visit("https://other.test/");
    room.go("https://www.site.test/preconnect");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let seen = room.end();
    let ahead = seen.iter().find(|seen| {
        seen.tls().is_some_and(|tls| tls.server_name.as_deref() == Some("other.test"))
    });
    let response = ahead.map_or("does not connect".to_owned(), |seen| {
        let ticket = if seen.offered.is_empty() { "without a ticket" } else { "with a ticket" };
        let early = match (seen.announced_early(), seen.early()) {
            (false, _) => "no early data announced",
            (true, Early::None) => "early data announced and none sent",
            (true, _) => "early data sent",
        };
        format!("connects {ticket}, {early}")
    });
    room.found("preconnect", response)
}

/// Tickets of one name, offered to another one of the same server.
pub(crate) fn names(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls { tickets: 8, ..Tls::default() });
    room.visit(PAGE);
    let seen = room.visit("https://beside.site.test/");
    assert!(!seen.is_empty(), "{}", words(&seen));
    room.found("ticket-of-another-name", offers(&seen))
}
