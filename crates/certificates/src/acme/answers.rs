//! What is answered to an authority that comes to see whether a name leads here.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use firstflight_tls::{Identity, normalize_host};

use crate::acme::AcmeError;
use crate::acme::challenge::{Proof, alpn_identity};

/// The responses to pending challenges. Clones share them.
#[derive(Clone, Default)]
pub struct Answers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// How many are pending, so that those who look need no lock when there is none.
    pending: AtomicUsize,
    tables: RwLock<Tables>,
}

#[derive(Default)]
struct Tables {
    own: Table,
    /// Those of other nodes.
    others: Table,
}

#[derive(Default)]
struct Table {
    http: HashMap<String, String>,
    alpn: HashMap<String, Identity>,
}

/// Takes an order's answers away when it ends, however it ends.
pub(crate) struct PendingChallenges {
    shared: Arc<Shared>,
}

impl Answers {
    /// No responses yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no challenge is pending: then there is nothing to look for.
    pub fn is_idle(&self) -> bool {
        self.shared.pending.load(Ordering::Acquire) == 0
    }

    /// The body of `/.well-known/acme-challenge/TOKEN` (RFC 8555 section 8.3), to be served as
    /// `application/octet-stream`; `None`: no such challenge is pending.
    pub fn http(&self, token: &str) -> Option<String> {
        if self.is_idle() {
            return None;
        }
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.own.http.get(token).or_else(|| tables.others.http.get(token)).cloned()
    }

    /// The certificate for a ClientHello with this server name that offers `acme-tls/1` alone (RFC
    /// 8737 section 3); `None`: no challenge is pending for the name, and the handshake is to fail.
    pub fn tls_alpn(&self, server_name: &str) -> Option<Identity> {
        if self.is_idle() {
            return None;
        }
        let name = normalize_host(server_name)?;
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.own.alpn.get(&*name).or_else(|| tables.others.alpn.get(&*name)).cloned()
    }

    /// Answers so until what is given back is dropped.
    pub(crate) fn stand(&self, proofs: &[Proof]) -> Result<PendingChallenges, AcmeError> {
        let table = Table::of(proofs)?;
        self.shared.change(|tables| tables.own = table);
        Ok(PendingChallenges { shared: self.shared.clone() })
    }

    /// Answers so for other nodes, instead of what was answered for them before.
    pub(crate) fn stand_in(&self, proofs: &[Proof]) -> Result<(), AcmeError> {
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

impl Drop for PendingChallenges {
    fn drop(&mut self) {
        self.shared.change(|tables| tables.own = Table::default());
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.shared.pending.load(Ordering::Relaxed);
        f.debug_struct("Answers").field("pending", &pending).finish()
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
    fn answers_are_there_while_the_order_stands() {
        let answers = Answers::new();
        assert!(answers.is_idle() && answers.http("t").is_none());
        let standing = answers.stand(&proofs()).unwrap();
        assert!(!answers.is_idle());
        assert_eq!(answers.http("t").as_deref(), Some("t.thumb"));
        assert!(answers.http("u").is_none());
        assert!(answers.tls_alpn("EXAMPLE.test.").is_some_and(|it| it.covers("example.test")));
        assert!(answers.tls_alpn("www.example.test").is_none());
        drop(standing);
        assert!(answers.is_idle() && answers.http("t").is_none());
    }

    #[test]
    fn what_is_answered_for_others_is_apart() {
        let answers = Answers::new();
        answers.stand_in(&proofs()).unwrap();
        drop(answers.stand(&[]).unwrap());
        assert!(answers.http("t").is_some());
        answers.stand_in(&[]).unwrap();
        assert!(answers.is_idle());
    }
}
