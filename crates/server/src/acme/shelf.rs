//! What nodes that serve the same names share, in the store, sealed under the key-encryption keys.

use std::sync::Arc;
use std::time::Duration;

use firstflight_acme::{Shelf, ShelfError};
use firstflight_config::KeySource;
use firstflight_store::{Store, StoreError};
use firstflight_tickets::KeyEncryption;
use tracing::warn;

use crate::ServerError;
use crate::keys::now;

/// The store's side of certificates; without a store, or without keys to seal under, there is
/// none, and each node asks for itself.
#[derive(Clone)]
pub(crate) struct NodeShelf(Option<Arc<Shared>>);

struct Shared {
    store: Store,
    keys: KeyEncryption,
}

impl NodeShelf {
    /// # Errors
    /// [`ServerError::KeyEncryption`].
    pub(super) fn new(keys: &KeySource, store: Option<&Store>) -> Result<Self, ServerError> {
        let (KeySource::Store { key_encryption, .. }, Some(store)) = (keys, store) else {
            return Ok(Self(None));
        };
        let keys = KeyEncryption::open(key_encryption)?;
        Ok(Self(Some(Arc::new(Shared { store: store.clone(), keys }))))
    }

    /// The shared side, with the keys that its file has now.
    async fn shared(&self) -> Result<Arc<Shared>, ShelfError> {
        let none = || ShelfError("nothing is shared".to_owned());
        let shared = self.0.clone().ok_or_else(none)?;
        let refreshed = shared.clone();
        // That the file is of no use, the ticket keys' side says.
        let refresh = move || refreshed.keys.refresh(now()).map(drop).unwrap_or_default();
        let _ = tokio::task::spawn_blocking(refresh).await;
        Ok(shared)
    }
}

impl Shelf for NodeShelf {
    fn is_shared(&self) -> bool {
        self.0.is_some()
    }

    async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, ShelfError> {
        let shared = self.shared().await?;
        let place = place(name);
        let Some(sealed) = shared.store.get(&place).await.map_err(trouble)? else {
            return Ok(None);
        };
        match shared.keys.unseal(&sealed, &place) {
            Ok(unsealed) => Ok(Some(unsealed.content.to_vec())),
            Err(error) => {
                // Asked for anew and put there again, it is whole.
                warn!("{place} in the store: {error}");
                Err(ShelfError(format!("{place} in the store: {error}")))
            }
        }
    }

    async fn put(&self, name: &str, record: &[u8], life: Duration) -> Result<(), ShelfError> {
        let (shared, place) = (self.shared().await?, place(name));
        let sealed = shared.keys.seal(record, &place);
        shared.store.put(&place, &sealed, life).await.map_err(trouble)
    }

    async fn put_new(&self, name: &str, record: &[u8], life: Duration) -> Result<bool, ShelfError> {
        let (shared, place) = (self.shared().await?, place(name));
        let sealed = shared.keys.seal(record, &place);
        shared.store.put_new(&place, &sealed, life).await.map_err(trouble)
    }

    async fn remove(&self, name: &str) -> Result<(), ShelfError> {
        let shared = self.shared().await?;
        shared.store.delete(&place(name)).await.map_err(trouble)
    }
}

/// Where a record lies, which is also what it is sealed for.
fn place(name: &str) -> String {
    format!("acme:{name}")
}

fn trouble(error: StoreError) -> ShelfError {
    ShelfError(format!("the store: {error}"))
}
