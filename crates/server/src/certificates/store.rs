//! What nodes that serve the same names share, in the store, sealed under the key-encryption keys.

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

/// The store's side of certificates; without a store, or without keys to seal under, there is
/// none, and each node asks for itself.
#[derive(Clone)]
pub(crate) struct SharedCertificateStore(Option<Arc<Shared>>);

struct Shared {
    store: Store,
    keys: KeyEncryption,
    /// Which records cannot be read, and why, so that each is complained of once.
    unreadable: Mutex<BTreeMap<String, String>>,
}

impl Shared {
    /// The key that a record is under may be about to leave. Between two nodes that put at a time
    /// the older content may stay; who has the newer one puts it again when he looks next.
    async fn seal_anew(&self, place: &str, content: &[u8]) {
        let sealed = self.keys.seal(content, place);
        if let Err(error) = self.store.replace(place, &sealed).await {
            debug!("{place} is sealed anew later: {error}");
        }
    }

    /// Whether a record's trouble is news. `None`: it can be read.
    fn may_complain(&self, place: &str, trouble: Option<&str>) -> bool {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            None => unreadable.remove(place).is_some(),
            Some(trouble) => {
                let before = unreadable.insert(place.to_owned(), trouble.to_owned());
                before.as_deref() != Some(trouble)
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
        Ok(Self(Some(Arc::new(Shared {
            store: store.clone(),
            keys,
            unreadable: Mutex::default(),
        }))))
    }

    /// The shared side, with the keys that its file has now.
    async fn shared(&self) -> Result<Arc<Shared>, SharedRecordsError> {
        let none = || SharedRecordsError("nothing is shared".to_owned());
        let shared = self.0.clone().ok_or_else(none)?;
        let refreshed = shared.clone();
        // That the file is of no use, the ticket keys' side says.
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
        let place = place(name);
        let Some(sealed) = shared.store.get(&place).await.map_err(trouble)? else {
            shared.may_complain(&place, None);
            return Ok(None);
        };
        match shared.keys.unseal(&sealed, &place) {
            Ok(unsealed) => {
                shared.may_complain(&place, None);
                if !unsealed.up_to_date {
                    shared.seal_anew(&place, &unsealed.content).await;
                }
                Ok(Some(unsealed.content.to_vec()))
            }
            // The store has answered: who holds what belongs there puts it again.
            Err(error) => {
                let error = error.to_string();
                if shared.may_complain(&place, Some(&error)) {
                    warn!("{place} in the store counts as absent: {error}");
                }
                Ok(None)
            }
        }
    }

    async fn put(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> Result<(), SharedRecordsError> {
        let (shared, place) = (self.shared().await?, place(name));
        let sealed = shared.keys.seal(record, &place);
        shared.store.put(&place, &sealed, life).await.map_err(trouble)
    }

    async fn put_new(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> Result<bool, SharedRecordsError> {
        let (shared, place) = (self.shared().await?, place(name));
        let sealed = shared.keys.seal(record, &place);
        shared.store.put_new(&place, &sealed, life).await.map_err(trouble)
    }

    async fn remove(&self, name: &str) -> Result<(), SharedRecordsError> {
        let shared = self.shared().await?;
        shared.store.delete(&place(name)).await.map_err(trouble)
    }
}

/// Where a record lies, which is also what it is sealed for.
fn place(name: &str) -> String {
    format!("acme:{name}")
}

fn trouble(error: StoreError) -> SharedRecordsError {
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

    const LIFE: Duration = Duration::from_secs(3600);
    const PLACE: &str = "firstflight:acme:ca/certificate/one";

    struct Bench {
        redis: StoreProcess,
        store: Store,
        dir: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let redis = StoreProcess::redis(StoreListen::Unix);
            let address = StoreUrl::parse(&redis.url(), 6379).unwrap().address;
            let mut config = StoreConfig::new(Topology::Single(address));
            config.budget = Duration::from_secs(1);
            let store = Store::open(config, SteadyClock::unix_micros).unwrap();
            Self { redis, store, dir: tempfile::tempdir().unwrap() }
        }

        /// A node whose file has these keys. A file that changes keeps the old ones open for a
        /// while; a node that is started does not.
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
    async fn a_record_outlives_the_key_that_it_was_sealed_under() {
        let bench = Bench::new();
        let old = bench.node("old", &['a']);
        put(&old).await;
        // Nobody has looked yet: it is as if it were not there, and that is no trouble of the
        // store.
        assert_eq!(read(&bench.node("new", &['b'])).await, None);
        // One look by a node that has both seals it under the new one, for the rest of its life.
        assert_eq!(read(&bench.node("both", &['b', 'a'])).await.as_deref(), Some(&b"whole"[..]));
        assert_eq!(read(&bench.node("after", &['b'])).await.as_deref(), Some(&b"whole"[..]));
        let left: u64 = bench.redis.ask(&["PTTL", PLACE]).trim().parse().unwrap();
        assert!(left > 0 && left <= 3_600_000, "{left}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_read_is_absent_and_complained_of_once() {
        let bench = Bench::new();
        let node = bench.node("kek", &['a']);
        put(&node).await;
        bench.redis.ask(&["SET", PLACE, "x"]);
        assert_eq!(read(&node).await, None);
        let shared = node.0.clone().unwrap();
        let place = place("ca/certificate/one");
        let reason = shared.unreadable.lock().unwrap().get(&place).cloned().expect("it was told");
        assert!(!shared.may_complain(&place, Some(&reason)), "again");
        assert!(shared.may_complain(&place, Some("another reason")));
        assert!(shared.may_complain("another record", Some(&reason)));
        // Put again it is whole, and worth a complaint when it is spoiled again.
        node.put("ca/certificate/one", b"anew", LIFE).await.unwrap();
        assert_eq!(read(&node).await.as_deref(), Some(&b"anew"[..]));
        assert!(shared.may_complain(&place, Some(&reason)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_that_is_away_is_no_absent_record() {
        let mut bench = Bench::new();
        let node = bench.node("kek", &['a']);
        put(&node).await;
        bench.redis.kill();
        assert!(node.get("ca/certificate/one").await.is_err());
    }

    /// Puts a record, as soon as there is a connection.
    async fn put(node: &SharedCertificateStore) {
        let end = Instant::now() + Duration::from_secs(30);
        while let Err(error) = node.put("ca/certificate/one", b"whole", LIFE).await {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
