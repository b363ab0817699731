//! What is known of each certificate, for the server that shows them and for those who look.

use std::fmt;
use std::sync::Arc;

use firstflight_tls::{Identity, TlsError};
use zeroize::Zeroizing;

use crate::acme::plan::Window;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// A certificate that an authority issued, with its key.
pub struct Issued {
    /// The names it is for: those of its site, or while names that were added have none yet, the
    /// others.
    pub names: Vec<String>,
    /// The chain as PEM, leaf first.
    pub chain: String,
    /// The leaf's private key, PKCS #8 in PEM.
    pub key: Zeroizing<String>,
    /// From when it is valid, in seconds since 1970.
    pub not_before: i64,
    /// Until when, in seconds since 1970.
    pub not_after: i64,
}

/// One certificate of a manager, as it stands.
#[derive(Clone, Debug, Default)]
pub struct CertificateState {
    /// The names it is for, the first one first.
    pub names: Vec<String>,
    /// What is to be served; `None`: there is none yet.
    pub issued: Option<Arc<Issued>>,
    /// What is done about it.
    pub phase: Phase,
    /// When the authority is asked next, in seconds since 1970; `None` while that goes on.
    pub next_try: Option<i64>,
    /// When a certificate was issued or taken up from another node, in seconds since 1970.
    pub last_success: Option<i64>,
    /// What went wrong last, unless it went well since.
    pub last_error: Option<IssuanceFailure>,
    /// Tries since the start, by what came of them.
    pub tries: Attempts,
}

/// What is done about a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing before the next try.
    #[default]
    Waiting,
    /// The authority is asked.
    Ordering,
    /// Another process or node asks it.
    Elsewhere,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuanceFailure {
    /// When, in seconds since 1970.
    pub at: i64,
    /// What, and the fix: one sentence.
    pub reason: String,
    /// How many times in a row.
    pub in_a_row: u32,
}

/// What came of tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// The authority issued a certificate to this process.
    pub issued: u64,
    /// It did not.
    pub failed: u64,
    /// Another process or node had got one, and it was taken up.
    pub taken_up: u64,
}

impl Issued {
    /// Sees that a chain is for this key and these names.
    pub(crate) fn accept(
        names: &[String],
        chain: &str,
        key: Zeroizing<String>,
    ) -> Result<Self, String> {
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes());
        let identity = identity.map_err(|error| error.to_string())?;
        if let Some(name) = names.iter().find(|name| !identity.covers(name)) {
            return Err(format!("the certificate is not for {name}"));
        }
        let times = identity.valid_from().zip(identity.expires()).filter(|(from, to)| from < to);
        let (not_before, not_after) =
            times.ok_or("the certificate does not say until when it is valid")?;
        Ok(Self { names: names.to_vec(), chain: chain.to_owned(), key, not_before, not_after })
    }

    /// The same from one text, the key before the chain.
    pub(crate) fn from_pem(names: &[String], text: &str) -> Result<Self, String> {
        let start = text.find(CERTIFICATE).ok_or("no certificate block in it")?;
        let (key, chain) = text.split_at(start);
        Self::accept(names, chain, Zeroizing::new(key.to_owned()))
    }

    /// The same from a text that was kept for other names, as far as it is for these.
    pub(crate) fn covering(names: &[String], text: &str) -> Option<Self> {
        let identity = Identity::from_pem(text.as_bytes(), text.as_bytes()).ok()?;
        let covered: Vec<_> = names.iter().filter(|name| identity.covers(name)).cloned().collect();
        if covered.is_empty() { None } else { Self::from_pem(&covered, text).ok() }
    }

    pub(crate) fn validity(&self) -> Window {
        Window { start: self.not_before, end: self.not_after }
    }

    /// Whether this is to be preferred for the same site: it is for more of its names, or else
    /// newer. Nodes that compare two come to the same.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        let rank = |it: &Self| (it.names.len(), it.not_before, it.not_after);
        (rank(self), &self.chain) > (rank(other), &other.chain)
    }

    /// Chain and key as the server shows them.
    ///
    /// # Errors
    /// [`TlsError`]: none for what a manager publishes, as it was checked.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes())
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("names", &self.names)
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
