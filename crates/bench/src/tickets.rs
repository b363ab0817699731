use std::collections::HashMap;
use std::hash::Hash;

use firstflight_tls::{Session, Version};

use crate::servers::Asked;
use crate::{Certificate, Http, ServerKind, Workload};

/// What a ticket is good for: the listener that issued it, the version, and the application
/// protocol, to which early data is bound (RFC 8446 section 4.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Issuer {
    server: ServerKind,
    workload: Workload,
    certificate: Certificate,
    version: Version,
    http: Http,
}

impl Issuer {
    pub(crate) fn of(server: ServerKind, asked: &Asked) -> Self {
        let Asked { workload, certificate, version, http, .. } = *asked;
        Self { server, workload, certificate, version, http }
    }
}

/// The client's tickets during a run.
pub(crate) struct TicketPool<K>(HashMap<K, Vec<Session>>);

impl<K> Default for TicketPool<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> TicketPool<K> {
    /// A ticket, the youngest one. A TLS 1.3 ticket is used once (RFC 8446 appendix C.4); an older
    /// session stays for the next connection.
    pub(crate) fn take(&mut self, issuer: &K, version: Version) -> Option<Session> {
        let stock = self.0.get_mut(issuer)?;
        match version {
            Version::Tls13 => stock.pop(),
            _ => stock.last().cloned(),
        }
    }

    pub(crate) fn put(&mut self, issuer: K, sessions: Vec<Session>) {
        let stock = self.0.entry(issuer).or_default();
        stock.extend(sessions);
        if stock.len() > MOST {
            stock.drain(..stock.len() - MOST);
        }
    }
}

/// More than are ever in flight at a time.
const MOST: usize = 512;
