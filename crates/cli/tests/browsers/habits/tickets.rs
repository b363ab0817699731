//! How many tickets it keeps, which it uses, and for how long.

use std::time::Duration;

use firstflight_browser::Installed;

use crate::room::Room;
use crate::seen::Seen;
use crate::witness::Tls;

const PAGE: &str = "https://www.site.test/";

/// The default of other servers, twice over.
pub(crate) fn four(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    kept(&mut room, 4)
}

pub(crate) fn counts(installed: &Installed) -> Result<(), String> {
    for tickets in [1, 2, 8] {
        // A fresh profile each, with nothing left over.
        let mut room = Room::new(installed, &Tls::default());
        kept(&mut room, tickets)?;
    }
    Ok(())
}

/// One connection brings tickets, and all later ones none: which of them are used, in which order.
fn kept(room: &mut Room, tickets: usize) -> Result<(), String> {
    room.becomes(&Tls { tickets, ..Tls::default() });
    room.visit(PAGE);
    room.becomes(&Tls { tickets: 0, ..Tls::default() });
    let mut offered = Vec::new();
    for _ in 0..tickets + 2 {
        let seen = room.visit(PAGE);
        let first = seen.iter().find(|seen| seen.asked("/")).expect("the page was asked for");
        match &first.offered[..] {
            [] => break,
            [ticket] => offered.push(place(ticket)),
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
    room.found(&format!("tickets-{tickets}"), response)
}

/// A ticket's place among those of its connection.
fn place(ticket: &str) -> String {
    ticket.rsplit('.').next().unwrap_or(ticket).to_owned()
}

/// A page whose images come on connections side by side, with few tickets and with many.
pub(crate) fn side_by_side(installed: &Installed) -> Result<(), String> {
    for tickets in [1, 2, 8] {
        let mut room = Room::new(installed, &Tls { tickets, ..Tls::default() });
        room.visit(PAGE);
        let seen = room.visit("https://www.site.test/images");
        let used: Vec<&String> = seen.iter().flat_map(|seen| &seen.offered).collect();
        let mut distinct = used.clone();
        distinct.sort();
        distinct.dedup();
        let connections = super::requests::several(&seen);
        let response = format!(
            "{connections}; {} tickets offered, {} of them different",
            used.len(),
            distinct.len()
        );
        room.found(&format!("side-by-side-of-{tickets}"), response)?;
    }
    Ok(())
}

/// A ticket that is good for seconds is offered no longer.
pub(crate) fn lifetimes(installed: &Installed) -> Result<(), String> {
    let mut room =
        Room::new(installed, &Tls { lifetime: Duration::from_secs(8), ..Tls::default() });
    room.visit(PAGE);
    let seen = room.visit(PAGE);
    room.found("ticket-of-8-s-at-once", offers(&seen))?;
    std::thread::sleep(Duration::from_secs(10));
    let seen = room.visit(PAGE);
    room.found("ticket-of-8-s-after-10-s", offers(&seen))
}

/// Whether the first connection of a visit offers a ticket.
pub(crate) fn offers(seen: &[Seen]) -> &'static str {
    match seen.iter().any(|seen| !seen.offered.is_empty()) {
        true => "offers it",
        false => "does not offer it",
    }
}
