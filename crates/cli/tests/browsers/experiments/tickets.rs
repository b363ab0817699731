//! How many tickets the browser keeps, which it uses, and for how long.

use std::time::Duration;

use firstflight_browser::Installed;

use crate::connection::Connection;
use crate::server::Tls;
use crate::session::BrowserSession;

const PAGE: &str = "https://www.site.test/";

/// Four tickets, twice the default of other servers.
pub(crate) fn four(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    kept_tickets(&mut session, 4)
}

pub(crate) fn counts(installed: &Installed) -> Result<(), String> {
    for tickets in [1, 2, 8] {
        // A fresh profile for each number of tickets.
        let mut session = BrowserSession::new(installed, &Tls::default());
        kept_tickets(&mut session, tickets)?;
    }
    Ok(())
}

/// One connection issues tickets, all later ones none: which are used, and in which order.
fn kept_tickets(session: &mut BrowserSession, tickets: usize) -> Result<(), String> {
    session.set_tls(&Tls { tickets, ..Tls::default() });
    session.visit(PAGE);
    session.set_tls(&Tls { tickets: 0, ..Tls::default() });
    let mut offered = Vec::new();
    for _ in 0..tickets + 2 {
        let connections = session.visit(PAGE);
        let first = connections
            .iter()
            .find(|connection| connection.requested("/"))
            .expect("the page was requested");
        match &first.offered[..] {
            [] => break,
            [ticket] => offered.push(position(ticket)),
            many => offered.push(format!("{} at once", many.len())),
        }
    }
    let mut distinct = offered.clone();
    distinct.sort();
    distinct.dedup();
    let twice =
        if distinct.len() < offered.len() { "used again and again" } else { "each used once" };
    let response = match &offered[..] {
        [] => "none is used".to_owned(),
        _ => format!("keeps {}: {}, {twice}", distinct.len(), offered.join(" ")),
    };
    session.record_finding(&format!("tickets-{tickets}"), response)
}

/// The number of a ticket among those of its connection.
fn position(ticket: &str) -> String {
    ticket.rsplit('.').next().unwrap_or(ticket).to_owned()
}

/// A page that opens parallel connections, with few and with many tickets.
pub(crate) fn parallel_connections(installed: &Installed) -> Result<(), String> {
    for tickets in [1, 2, 8] {
        let mut session = BrowserSession::new(installed, &Tls { tickets, ..Tls::default() });
        session.visit(PAGE);
        let connections = session.visit("https://www.site.test/images");
        let used: Vec<&String> =
            connections.iter().flat_map(|connection| &connection.offered).collect();
        let mut distinct = used.clone();
        distinct.sort();
        distinct.dedup();
        let connections = super::requests::summarize(&connections);
        let response = format!(
            "{connections}; {} tickets offered, {} of them different",
            used.len(),
            distinct.len()
        );
        session.record_finding(&format!("side-by-side-of-{tickets}"), response)?;
    }
    Ok(())
}

/// Expired tickets are not offered.
pub(crate) fn lifetimes(installed: &Installed) -> Result<(), String> {
    let mut session =
        BrowserSession::new(installed, &Tls { lifetime: Duration::from_secs(8), ..Tls::default() });
    session.visit(PAGE);
    let connections = session.visit(PAGE);
    session.record_finding("ticket-of-8-s-at-once", offers_ticket(&connections))?;
    std::thread::sleep(Duration::from_secs(10));
    let connections = session.visit(PAGE);
    session.record_finding("ticket-of-8-s-after-10-s", offers_ticket(&connections))
}

/// Whether the first connection of a visit offers a ticket.
pub(crate) fn offers_ticket(connections: &[Connection]) -> &'static str {
    match connections.iter().any(|connection| !connection.offered.is_empty()) {
        true => "offers it",
        false => "does not offer it",
    }
}
