//! Records that the nodes of a cluster share in the store, sealed under the key-encryption keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firstflight_certificates::acme::{SharedRecords, SharedRecordsError};
use firstflight_config::KeySource;
use firstflight_store::{Store, StoreError};
use firstflight_tickets::KeyEncryption;
use tracing::{debug, warn};

use crate::ServerError;
use crate::context::now;

/// Shares ACME records between nodes. Without a store or key-encryption keys nothing is shared, and
/// each node orders certificates for itself.
#[derive(Clone)]
pub(crate) struct SharedCertificateStore(Option<Arc<SealedStore>>);

struct SealedStore {
    store: Store,
    keys: KeyEncryption,
    /// Records that cannot be read, with the reason, so that each is logged once.
    unreadable: Mutex<BTreeMap<String, String>>,
}

impl SealedStore {
    /// Seals a record again, under the newest key, because its present key may be removed soon. If
    /// two nodes write at the same time, the older content may win; the node with the newer content
    /// writes it again at its next refresh.
    async fn reseal(&self, store_key: &str, content: &[u8]) {
        let sealed = self.keys.seal(content, store_key);
        if let Err(error) = self.store.replace(store_key, &sealed).await {
            debug!("{store_key} will be sealed under the new key later: {error}");
        }
    }

    /// Whether an error for a record is new. `None` means that the record can be read.
    fn is_new_error(&self, store_key: &str, error: Option<&str>) -> bool {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            None => unreadable.remove(store_key).is_some(),
            Some(error) => {
                let before = unreadable.insert(store_key.to_owned(), error.to_owned());
                before.as_deref() != Some(error)
            }
        }
    }
}

impl SharedCertificateStore {
    /// # Errors
    /// [`ServerError::KeyEncryption`].
    pub(crate) fn new(keys: &KeySource, store: Option<&Store>) -> Result<Self, ServerError> {
        let (KeySource::Store { key_encryption, .. }, Some(store)) = (keys, store) else {
            return Ok(Self(None));
        };
        let keys = KeyEncryption::open(key_encryption)?;
        Ok(Self(Some(Arc::new(SealedStore {
            store: store.clone(),
            keys,
            unreadable: Mutex::default(),
        }))))
    }

    /// The store and its keys, after reading the key file again.
    async fn shared(&self) -> Result<Arc<SealedStore>, SharedRecordsError> {
        let none = || SharedRecordsError("there is no shared store".to_owned());
        let shared = self.0.clone().ok_or_else(none)?;
        let refreshed = shared.clone();
        // The ticket keys use the same file and log its errors.
        let refresh = move || refreshed.keys.refresh(now()).map(drop).unwrap_or_default();
        let _ = tokio::task::spawn_blocking(refresh).await;
        Ok(shared)
    }
}

impl SharedRecords for SharedCertificateStore {
    fn is_shared(&self) -> bool {
        self.0.is_some()
    }

    async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, SharedRecordsError> {
        let shared = self.shared().await?;
        let store_key = store_key(name);
        let Some(sealed) = shared.store.get(&store_key).await.map_err(store_error)? else {
            shared.is_new_error(&store_key, None);
            return Ok(None);
        };
        match shared.keys.unseal(&sealed, &store_key) {
            Ok(unsealed) => {
                shared.is_new_error(&store_key, None);
                if !unsealed.up_to_date {
                    shared.reseal(&store_key, &unsealed.content).await;
                }
                Ok(Some(unsealed.content.to_vec()))
            }
            // The store works, so the node that has the certificate writes it again.
            Err(error) => {
                let error = error.to_string();
                if shared.is_new_error(&store_key, Some(&error)) {
                    warn!("{store_key} in the store is unreadable and counts as absent: {error}");
                }
                Ok(None)
            }
        }
    }

    async fn put(
        &self,
        name: &str,
        record: &[u8],
        lifetime: Duration,
    ) -> Result<(), SharedRecordsError> {
        let (shared, store_key) = (self.shared().await?, store_key(name));
        let sealed = shared.keys.seal(record, &store_key);
        shared.store.put(&store_key, &sealed, lifetime).await.map_err(store_error)
    }

    async fn put_new(
        &self,
        name: &str,
        record: &[u8],
        lifetime: Duration,
    ) -> Result<bool, SharedRecordsError> {
        let (shared, store_key) = (self.shared().await?, store_key(name));
        let sealed = shared.keys.seal(record, &store_key);
        shared.store.put_new(&store_key, &sealed, lifetime).await.map_err(store_error)
    }

    async fn remove(&self, name: &str) -> Result<(), SharedRecordsError> {
        let shared = self.shared().await?;
        shared.store.delete(&store_key(name)).await.map_err(store_error)
    }
}

/// The key of a record in the store. The record is sealed for this key.
fn store_key(name: &str) -> String {
    format!("acme:{name}")
}

fn store_error(error: StoreError) -> SharedRecordsError {
    SharedRecordsError(format!("the store: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::time::Instant;

    use firstflight_store::{StoreConfig, StoreUrl, Topology};
    use firstflight_testkit::{StoreListen, StoreProcess};
    use firstflight_tickets::Schedule;
    use firstflight_tls::SteadyClock;

    use super::*;

    const RECORD_LIFETIME: Duration = Duration::from_secs(3600);
    const STORE_KEY: &str = "firstflight:acme:ca/certificate/one";

    struct TestStore {
        redis: StoreProcess,
        store: Store,
        dir: tempfile::TempDir,
    }

    impl TestStore {
        fn new() -> Self {
            let redis = StoreProcess::redis(StoreListen::Unix);
            let address = StoreUrl::parse(&redis.url(), 6379).unwrap().address;
            let mut config = StoreConfig::new(Topology::Single(address));
            config.budget = Duration::from_secs(1);
            let store = Store::open(config, SteadyClock::unix_micros).unwrap();
            Self { redis, store, dir: tempfile::tempdir().unwrap() }
        }

        /// A node with these key-encryption keys. A changed file keeps the old keys open for a
        /// while; a newly started node does not have them.
        fn node(&self, name: &str, keys: &[char]) -> SharedCertificateStore {
            let path = self.dir.path().join(name);
            write(&path, keys);
            let keys = KeySource::Store { key_encryption: path, schedule: Schedule::default() };
            SharedCertificateStore::new(&keys, Some(&self.store)).unwrap()
        }
    }

    fn write(path: &Path, keys: &[char]) {
        let lines: Vec<_> =
            keys.iter().map(|last| format!("0123456789abcde{last}").repeat(4)).collect();
        fs::write(path, lines.join("\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    async fn read(node: &SharedCertificateStore) -> Option<Vec<u8>> {
        node.get("ca/certificate/one").await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_record_outlives_the_key_that_sealed_it() {
        let test_store = TestStore::new();
        let old = test_store.node("old", &['a']);
        put(&old).await;
        // No node has read the record with both keys yet, so it counts as absent. That is no failure
        // of the store.
        assert_eq!(read(&test_store.node("new", &['b'])).await, None);
        // A node with both keys seals it under the new one, for the rest of its lifetime.
        assert_eq!(
            read(&test_store.node("both", &['b', 'a'])).await.as_deref(),
            Some(&b"whole"[..])
        );
        assert_eq!(read(&test_store.node("after", &['b'])).await.as_deref(), Some(&b"whole"[..]));
        let lifetime: u64 = test_store.redis.cli(&["PTTL", STORE_KEY]).trim().parse().unwrap();
        assert!(lifetime > 0 && lifetime <= 3_600_000, "{lifetime}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_unreadable_record_counts_as_absent_and_is_logged_once() {
        let test_store = TestStore::new();
        let node = test_store.node("kek", &['a']);
        put(&node).await;
        test_store.redis.cli(&["SET", STORE_KEY, "x"]);
        assert_eq!(read(&node).await, None);
        let shared = node.0.clone().unwrap();
        let store_key = store_key("ca/certificate/one");
        let reason = shared
            .unreadable
            .lock()
            .unwrap()
            .get(&store_key)
            .cloned()
            .expect("the error is recorded");
        assert!(!shared.is_new_error(&store_key, Some(&reason)), "again");
        assert!(shared.is_new_error(&store_key, Some("another reason")));
        assert!(shared.is_new_error("another record", Some(&reason)));
        // A readable record resets this, so the next failure is logged again.
        node.put("ca/certificate/one", b"anew", RECORD_LIFETIME).await.unwrap();
        assert_eq!(read(&node).await.as_deref(), Some(&b"anew"[..]));
        assert!(shared.is_new_error(&store_key, Some(&reason)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_unavailable_store_is_an_error_and_not_an_absent_record() {
        let mut test_store = TestStore::new();
        let node = test_store.node("kek", &['a']);
        put(&node).await;
        test_store.redis.kill();
        assert!(node.get("ca/certificate/one").await.is_err());
    }

    /// Puts a record, as soon as there is a connection.
    async fn put(node: &SharedCertificateStore) {
        let end = Instant::now() + Duration::from_secs(30);
        while let Err(error) = node.put("ca/certificate/one", b"whole", RECORD_LIFETIME).await {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
