//! Any bytes as a session jar, and any bytes sealed under the jar's own key: read or refused, and
//! what is refused stays as it was.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use firstflight_client::{Jar, JarKey, JarQuery, Origin, TrustId};
use firstflight_tickets::KeyEncryption;
use firstflight_tls::{Trust, Version};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let place = &*PLACE;
    let jar = if how % 2 == 1 { place.seal(bytes) } else { bytes.to_vec() };
    let path = place.folder.path().join("jar");
    fs::write(&path, &jar).expect("a file");

    let key = JarKey::File(place.key.clone());
    match Jar::open(&path, key) {
        Ok(jar) => use_it(&jar),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            assert_eq!(fs::read(&path).expect("the jar"), jar);
        }
    }
});

fn use_it(jar: &Jar) {
    let mut warnings = Vec::new();
    let wanted = JarQuery {
        origin: &Origin { scheme: "https".into(), host: "a".into(), port: 443 },
        trust: &TrustId::of(&Trust::System).expect("a name for the system's trust"),
        tcp: Some(&[b"h2".to_vec()]),
        quic: Some(&[b"h3".to_vec()]),
        versions: (Version::Tls10, Version::Tls13),
        early_data: true,
    };
    let taken = jar.take(&wanted, &mut warnings).expect("a jar that opened can be used");
    let left = jar.count().expect("a jar that opened can be used");
    let tickets: Vec<_> = [taken.tcp, taken.quic].into_iter().flatten().collect();
    let tokens: Vec<_> = taken.token.into_iter().collect();
    jar.put(&tickets, &tokens, &mut warnings).expect("a jar that opened can be used");
    // More only by those, and less only by what has expired.
    assert!(jar.count().expect("a jar") <= left + tickets.len());
}

struct Place {
    folder: TempDir,
    key: PathBuf,
    keys: KeyEncryption,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    // In memory where that can be had: each run writes and syncs.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a folder");
    let key = folder.path().join("key");
    KeyEncryption::write_new(&key).expect("a key file");
    let keys = KeyEncryption::open(&key).expect("the key file");
    let place = Place { folder, key, keys };
    // If the jar's format changes, the target must follow, or it would try nothing but the header.
    let path = place.folder.path().join("empty");
    fs::write(&path, place.seal(br#"{"version":2,"sessions":[],"tokens":[]}"#)).expect("a file");
    Jar::open(&path, JarKey::File(place.key.clone())).expect("a jar as the client seals it");
    place
});

impl Place {
    fn seal(&self, plain: &[u8]) -> Vec<u8> {
        let record = self.keys.seal(plain, "session jar");
        [b"firstflight session jar 1, key file\n", &record[..]].concat()
    }
}
