use std::collections::VecDeque;

use firstflight_tls::Session;

/// What resumes a connection.
pub(crate) trait Ticket: Clone {
    /// Whether it may be used once only (RFC 8446 appendix C.4).
    fn single_use(&self) -> bool;

    /// Whether early data may be sent with it.
    fn early_data_capable(&self) -> bool;
}

impl Ticket for Session {
    fn single_use(&self) -> bool {
        self.single_use()
    }

    fn early_data_capable(&self) -> bool {
        self.early_data_capable()
    }
}

/// The tickets of one server address, the youngest first. A TLS 1.3 ticket is handed out once; an
/// older version's session as often as wanted.
pub(crate) struct Tickets<T> {
    tickets: VecDeque<T>,
    early_data: bool,
    most: usize,
}

impl<T: Ticket> Tickets<T> {
    /// Keeps at most `most`, and with `early_data` only those that allow it.
    pub(crate) fn new(early_data: bool, most: usize) -> Self {
        Self { tickets: VecDeque::new(), early_data, most }
    }

    /// Keeps what a connection brought; the oldest give way.
    pub(crate) fn put(&mut self, tickets: Vec<T>) {
        for ticket in tickets {
            if self.early_data && !ticket.early_data_capable() {
                continue;
            }
            // One is enough where it can be used again.
            if !ticket.single_use() {
                self.tickets.clear();
            }
            if self.tickets.len() >= self.most {
                self.tickets.pop_front();
            }
            self.tickets.push_back(ticket);
        }
    }

    /// The youngest.
    pub(crate) fn take(&mut self) -> Option<T> {
        let ticket = self.tickets.pop_back()?;
        if !ticket.single_use() {
            self.tickets.push_back(ticket.clone());
        }
        Some(ticket)
    }

    /// For how many connections there are tickets.
    pub(crate) fn supply(&self) -> usize {
        match self.tickets.back() {
            Some(ticket) if !ticket.single_use() => usize::MAX,
            _ => self.tickets.len(),
        }
    }
}
