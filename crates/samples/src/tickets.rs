//! What a client keeps from one connection for the next: tickets and address tokens.

use std::collections::HashMap;
use std::hash::Hash;

use firstflight_quic::Resumption;
use firstflight_tls::{Session, TlsError, Version};

/// What resumes a connection.
#[derive(Clone)]
pub enum Ticket {
    /// Over TCP.
    Tcp(Session),
    /// Over QUIC, with the server's transport parameters.
    Quic(Resumption),
}

impl Ticket {
    /// The TLS session in it.
    pub fn session(&self) -> &Session {
        match self {
            Self::Tcp(session) => session,
            Self::Quic(resumption) => &resumption.session,
        }
    }

    /// The same, said to have been issued so many seconds earlier.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn issued_earlier(&self, seconds: u32) -> Result<Self, TlsError> {
        let session = self.session().issued_earlier(seconds)?;
        Ok(match self {
            Self::Tcp(_) => Self::Tcp(session),
            Self::Quic(resumption) => Self::Quic(Resumption { session, ..resumption.clone() }),
        })
    }
}

/// What is kept for each issuer, the youngest last.
pub struct Stock<K, V>(HashMap<K, Vec<V>>);

/// The client's tickets during a run.
pub type TicketPool<K> = Stock<K, Ticket>;

impl<K, V> Default for Stock<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V> Stock<K, V> {
    /// The youngest, which is then no longer there.
    pub fn pop(&mut self, issuer: &K) -> Option<V> {
        self.0.get_mut(issuer)?.pop()
    }

    /// Keeps more; of too many the oldest go.
    pub fn put(&mut self, issuer: K, more: Vec<V>) {
        let stock = self.0.entry(issuer).or_default();
        stock.extend(more);
        if stock.len() > MAX_TICKETS {
            stock.drain(..stock.len() - MAX_TICKETS);
        }
    }
}

impl<K: Eq + Hash> TicketPool<K> {
    /// A ticket, the youngest one. A TLS 1.3 ticket is used once (RFC 8446 appendix C.4); an older
    /// session stays for the next connection.
    pub fn take(&mut self, issuer: &K, version: Version) -> Option<Ticket> {
        match version {
            Version::Tls13 => self.pop(issuer),
            _ => self.0.get(issuer)?.last().cloned(),
        }
    }
}

/// More than are ever in flight at a time.
const MAX_TICKETS: usize = 512;
