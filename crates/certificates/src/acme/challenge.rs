//! Responses to the challenges by which an authority validates names.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use firstflight_tls::{Identity, normalize_host};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use serde::{Deserialize, Serialize};

use crate::acme::AcmeError;

/// The responses to pending challenges. Clones share them.
#[derive(Clone, Default)]
pub struct ChallengeResponses {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The number of pending challenges, so that requests take no lock while there is none.
    pending: AtomicUsize,
    tables: RwLock<Tables>,
}

#[derive(Default)]
struct Tables {
    own: Table,
    /// Responses of the other nodes.
    others: Table,
}

#[derive(Default)]
struct Table {
    http: HashMap<String, String>,
    alpn: HashMap<String, Identity>,
}

/// Withdraws the responses of an order when it is dropped.
pub(crate) struct ResponseGuard {
    shared: Arc<Shared>,
}

impl ChallengeResponses {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether no challenge is pending.
    pub fn is_idle(&self) -> bool {
        self.shared.pending.load(Ordering::Acquire) == 0
    }

    /// Returns the body of `/.well-known/acme-challenge/TOKEN` (RFC 8555 section 8.3), to be served
    /// as `application/octet-stream`, or `None` if no such challenge is pending.
    pub fn http(&self, token: &str) -> Option<String> {
        if self.is_idle() {
            return None;
        }
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.own.http.get(token).or_else(|| tables.others.http.get(token)).cloned()
    }

    /// Returns the certificate for a ClientHello with this server name that offers only
    /// `acme-tls/1` (RFC 8737 section 3). Returns `None` if no challenge is pending for the name;
    /// the handshake then has to fail.
    pub fn tls_alpn(&self, server_name: &str) -> Option<Identity> {
        if self.is_idle() {
            return None;
        }
        let name = normalize_host(server_name)?;
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.own.alpn.get(&*name).or_else(|| tables.others.alpn.get(&*name)).cloned()
    }

    /// Serves these responses until the returned guard is dropped.
    pub(crate) fn serve(&self, proofs: &[Proof]) -> Result<ResponseGuard, AcmeError> {
        let table = Table::of(proofs)?;
        self.shared.change(|tables| tables.own = table);
        Ok(ResponseGuard { shared: self.shared.clone() })
    }

    /// Replaces the responses that are served for other nodes.
    pub(crate) fn serve_for_others(&self, proofs: &[Proof]) -> Result<(), AcmeError> {
        let table = Table::of(proofs)?;
        self.shared.change(|tables| tables.others = table);
        Ok(())
    }
}

impl Table {
    fn of(proofs: &[Proof]) -> Result<Self, AcmeError> {
        let mut table = Self::default();
        for proof in proofs {
            match proof {
                Proof::Http { token, authorization } => {
                    table.http.insert(token.clone(), authorization.clone());
                }
                Proof::Alpn { name, digest } => {
                    table.alpn.insert(name.clone(), alpn_identity(name, *digest)?);
                }
            }
        }
        Ok(table)
    }

    fn len(&self) -> usize {
        self.http.len() + self.alpn.len()
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Tables)) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut tables);
        self.pending.store(tables.own.len() + tables.others.len(), Ordering::Release);
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.shared.change(|tables| tables.own = Table::default());
    }
}

impl fmt::Debug for ChallengeResponses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.shared.pending.load(Ordering::Relaxed);
        f.debug_struct("ChallengeResponses").field("pending", &pending).finish()
    }
}

/// The response to one challenge.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Proof {
    /// RFC 8555 section 8.3.
    Http {
        /// The last part of the path.
        token: String,
        /// The body.
        authorization: String,
    },
    /// RFC 8737 section 3.
    Alpn {
        /// The server name.
        name: String,
        /// SHA-256 of the key authorization.
        digest: [u8; 32],
    },
}

/// Creates the self-signed certificate of RFC 8737 section 3, for this name only, with the digest
/// in a critical extension.
pub(crate) fn alpn_identity(name: &str, digest: [u8; 32]) -> Result<Identity, AcmeError> {
    let what = "the certificate for a challenge";
    let failed = |error: rcgen::Error| AcmeError::Make { what, reason: error.to_string() };
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&digest)];
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes())
        .map_err(|error| AcmeError::Make { what, reason: error.to_string() })
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { token, .. } => f.debug_struct("Http").field("token", token).finish(),
            Self::Alpn { name, .. } => f.debug_struct("Alpn").field("name", name).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proofs() -> [Proof; 2] {
        [
            Proof::Http { token: "t".to_owned(), authorization: "t.thumb".to_owned() },
            Proof::Alpn { name: "example.test".to_owned(), digest: [7; 32] },
        ]
    }

    #[test]
    fn responses_are_served_until_the_order_ends() {
        let responses = ChallengeResponses::new();
        assert!(responses.is_idle() && responses.http("t").is_none());
        let guard = responses.serve(&proofs()).unwrap();
        assert!(!responses.is_idle());
        assert_eq!(responses.http("t").as_deref(), Some("t.thumb"));
        assert!(responses.http("u").is_none());
        assert!(responses.tls_alpn("EXAMPLE.test.").is_some_and(|it| it.covers("example.test")));
        assert!(responses.tls_alpn("www.example.test").is_none());
        drop(guard);
        assert!(responses.is_idle() && responses.http("t").is_none());
    }

    #[test]
    fn responses_of_other_nodes_are_kept_apart() {
        let responses = ChallengeResponses::new();
        responses.serve_for_others(&proofs()).unwrap();
        drop(responses.serve(&[]).unwrap());
        assert!(responses.http("t").is_some());
        responses.serve_for_others(&[]).unwrap();
        assert!(responses.is_idle());
    }
}
