use std::collections::VecDeque;

use firstflight_tls::Session;

/// The sessions of one server address, the youngest first. A TLS 1.3 ticket is handed out once
/// (RFC 8446 appendix C.4); an older version's session as often as wanted.
pub(crate) struct Tickets {
    sessions: VecDeque<Session>,
    early_data: bool,
    most: usize,
}

impl Tickets {
    /// Keeps at most `most`, and with `early_data` only those that allow it.
    pub(crate) fn new(early_data: bool, most: usize) -> Self {
        Self { sessions: VecDeque::new(), early_data, most }
    }

    /// Keeps what a connection brought; the oldest give way.
    pub(crate) fn put(&mut self, sessions: Vec<Session>) {
        for session in sessions {
            if self.early_data && !session.early_data_capable() {
                continue;
            }
            // One is enough where it can be used again.
            if !session.single_use() {
                self.sessions.clear();
            }
            if self.sessions.len() >= self.most {
                self.sessions.pop_front();
            }
            self.sessions.push_back(session);
        }
    }

    /// The youngest.
    pub(crate) fn take(&mut self) -> Option<Session> {
        let session = self.sessions.pop_back()?;
        if !session.single_use() {
            self.sessions.push_back(session.clone());
        }
        Some(session)
    }

    /// For how many connections there are sessions.
    pub(crate) fn supply(&self) -> usize {
        match self.sessions.back() {
            Some(session) if !session.single_use() => usize::MAX,
            _ => self.sessions.len(),
        }
    }
}
