//! Tickets that bear the name of the connection that issued them, in clear, so that packets show
//! which one comes back.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use firstflight_tls::{OpenedTicket, TicketSealer};

thread_local! {
    /// The number of the connection that this thread serves, and how many tickets it has issued.
    static CONNECTION: Cell<usize> = const { Cell::new(0) };
    static ISSUED: Cell<usize> = const { Cell::new(0) };
}

/// Tickets that anybody could open, for they keep secrets of tests alone.
#[derive(Default)]
pub(crate) struct NamedTickets {
    unknown: AtomicBool,
}

impl NamedTickets {
    /// Whether tickets are known from now on.
    pub(crate) fn are_known(&self, known: bool) {
        self.unknown.store(!known, Ordering::SeqCst);
    }
}

/// Tickets that this thread seals from now on are of this connection.
pub(crate) fn on_connection(number: usize) {
    CONNECTION.set(number);
    ISSUED.set(0);
}

/// What a ticket's name starts with.
pub(crate) const TICKET: &[u8] = b"ticket ";
/// The length of a ticket's name: its start, `0017.2` and nothing more.
pub(crate) const NAME: usize = TICKET.len() + 6;

impl TicketSealer for NamedTickets {
    fn max_overhead(&self) -> usize {
        NAME
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        ISSUED.set(ISSUED.get() + 1);
        let mut ticket = TICKET.to_vec();
        ticket.extend(format!("{:04}.{}", CONNECTION.get(), ISSUED.get()).into_bytes());
        ticket.extend(session);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        match ticket.get(NAME..) {
            Some(session) if !self.unknown.load(Ordering::SeqCst) => {
                OpenedTicket::Session(session.to_vec())
            }
            _ => OpenedTicket::Ignored,
        }
    }
}
