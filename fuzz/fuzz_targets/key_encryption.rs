//! Any text as a file of key-encryption keys: read, or refused in one sentence that shows no key.
//! Any bytes as a record: none opens.
#![no_main]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use firstflight_tickets::{KeyEncryption, check_key_encryption_text};
use libfuzzer_sys::fuzz_target;

const PLACE: &str = "ticket-key/1790000000";

static KEYS: LazyLock<KeyEncryption> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kek");
    fs::write(&path, "0123456789abcdef".repeat(4)).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode set");
    KeyEncryption::open(path).expect("a key")
});

fuzz_target!(|input: (&str, &[u8])| {
    let (text, record) = input;
    match check_key_encryption_text("kek", text) {
        Ok(keys) => assert!(keys > 0),
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.starts_with("kek line "), "{sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
            for secret in text.split(|c: char| !c.is_ascii_alphanumeric()) {
                assert!(secret.len() < 16 || !sentence.contains(secret), "{sentence}");
            }
        }
    }
    assert!(KEYS.unseal(record, PLACE).is_err());
    // With the right key's id in front, so that the cipher is reached.
    let known = [&KEYS.seal(b"", PLACE)[..9], record].concat();
    assert!(KEYS.unseal(&known, PLACE).is_err());
});
