//! An order whose names are validated: the next thing that comes of it is a certificate.

use serde::{Deserialize, Serialize};
use tracing::warn;
use zeroize::Zeroizing;

use super::{State, read, read_json};
use crate::acme::AcmeError;

/// Kept from before the authority is told to sign until the certificate is on disk. Whoever loses
/// the response goes on with it: another order would be another certificate, and those are limited.
#[derive(Deserialize, Serialize)]
pub(crate) struct Pending {
    /// Where the authority has the order.
    pub(crate) url: String,
    /// The certificate's key, PKCS #8 in PEM.
    #[serde(with = "secret")]
    pub(crate) key: Zeroizing<String>,
    /// In seconds since 1970.
    pub(crate) since: i64,
}

impl State {
    /// The order that is to be gone on with.
    ///
    /// # Errors
    /// [`AcmeError::State`]: there may be one, and it cannot be read.
    pub(crate) fn pending(&self, names: &[String], now: i64) -> Result<Option<Pending>, AcmeError> {
        let Some(pending) = read_json::<Pending>(&self.pending_path(names))? else {
            return Ok(None);
        };
        let late = now.abs_diff(pending.since) > MAX_PENDING_AGE;
        // A process that was killed after the certificate was there left it behind.
        let ended = read(&self.paths(names).0)?.is_some_and(|it| it.starts_with(&*pending.key));
        if late || ended {
            self.forget_pending(names);
            return Ok(None);
        }
        Ok(Some(pending))
    }

    pub(crate) fn save_pending(
        &self,
        names: &[String],
        pending: &Pending,
    ) -> Result<(), AcmeError> {
        self.write_json(&self.pending_path(names), pending)
    }

    pub(crate) fn forget_pending(&self, names: &[String]) {
        let path = self.pending_path(names);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!("{} is over and stays: {error}", path.display());
            }
            _ => {}
        }
    }

    fn pending_path(&self, names: &[String]) -> std::path::PathBuf {
        self.paths(names).0.with_extension("order")
    }
}

/// Wiped from memory when it is dropped.
mod secret {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(
        key: &Zeroizing<String>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(key)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(from).map(Zeroizing::new)
    }
}

/// Seconds for which an order is gone on with. Let's Encrypt issues five certificates for the same
/// names in a week; one that gets stuck each time uses up less than those.
const MAX_PENDING_AGE: u64 = 36 * 3600;
