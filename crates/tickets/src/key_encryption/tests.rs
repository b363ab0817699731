use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const NOW: UnixTime = UnixTime(1_790_000_000);
const PLACE: &str = "firstflight/ticket-key/1790000000";

/// Two keys in different encodings. Their bytes need `+` and `/` in base64.
const HEX: &str = "fbefbefbefbefbefbefbefbefbefbefbefbefbefbefbefbefbefbefbefbefffe";
const PADDED: &str = "++++++++++++++++++++++++++++++++++++++++//4=";
const OTHER: &str = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";
const THIRD: &str = "2102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";

fn later(seconds: u64) -> UnixTime {
    UnixTime(NOW.0 + seconds)
}

fn file_of(text: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("kek");
    write_file(&path, text);
    (directory, path)
}

fn write_file(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode set");
}

fn keys_of(text: &str) -> (TempDir, KeyEncryption) {
    let (directory, path) = file_of(text);
    let keys = KeyEncryption::open(path).expect("keys");
    (directory, keys)
}

fn open(keys: &KeyEncryption, record: &[u8]) -> Result<bool, UnsealError> {
    let unsealed = keys.unseal(record, PLACE)?;
    assert_eq!(*unsealed.content, b"secret");
    Ok(unsealed.up_to_date)
}

#[test]
fn all_encodings_of_a_key_are_equivalent() {
    let (_directory, keys) = keys_of(HEX);
    let record = keys.seal(b"secret", PLACE);
    for text in [
        PADDED.to_owned(),
        PADDED.trim_end_matches('=').to_owned(),
        PADDED.replace('+', "-").replace('/', "_"),
        PADDED.replace('+', "-").replace('/', "_").replace('=', ""),
        HEX.to_uppercase(),
        format!("\u{feff}# made today\r\n\r\n  {HEX}  \r\n"),
        format!("{HEX}\n{HEX}\n"),
    ] {
        let (_directory, same) = keys_of(&text);
        assert_eq!(open(&same, &record), Ok(true), "{text}");
    }
}

#[test]
fn the_first_seals_and_all_open() {
    let (_directory, old) = keys_of(OTHER);
    let (_directory, both) = keys_of(&format!("{HEX}\n{OTHER}\n"));
    let record = old.seal(b"secret", PLACE);
    assert_eq!(open(&both, &record), Ok(false), "to be sealed again");
    let record = both.seal(b"secret", PLACE);
    assert_eq!(open(&both, &record), Ok(true));
    let error = open(&old, &record).expect_err("it holds another");
    let sentence = error.to_string();
    let (ours, theirs) = (old.sealing_key().to_string(), both.sealing_key().to_string());
    assert!(sentence.contains(&ours) && sentence.contains(&theirs), "{sentence}");
    assert!(sentence.contains("put the same keys into that file"), "{sentence}");
    assert!(!sentence.contains(&OTHER[..16]) && !sentence.contains(&HEX[..16]), "{sentence}");
}

#[test]
fn a_record_opens_in_its_place_only_and_unchanged() {
    let (_directory, keys) = keys_of(HEX);
    let record = keys.seal(b"secret", PLACE);
    assert_eq!(keys.unseal(&record, "elsewhere"), Err(UnsealError::Forged));
    for at in 0..record.len() {
        let mut changed = record.clone();
        changed[at] ^= 1;
        let error = keys.unseal(&changed, PLACE).expect_err("changed");
        match at {
            0 => assert_eq!(error, UnsealError::Malformed),
            1..=8 => assert!(matches!(error, UnsealError::UnknownKey { .. })),
            _ => assert_eq!(error, UnsealError::Forged, "byte {at}"),
        }
        assert!(keys.unseal(&record[..at], PLACE).is_err());
    }
}

#[test]
fn a_replaced_file_is_read_and_the_old_key_opens_for_ten_minutes() {
    let (directory, keys) = keys_of(OTHER);
    let old = keys.seal(b"secret", PLACE);
    assert!(!keys.refresh(NOW).unwrap());
    // As a vault's agent does: a new file replaces the old one.
    let next = directory.path().join("next");
    write_file(&next, HEX);
    fs::rename(next, keys.path()).unwrap();
    assert!(keys.refresh(NOW).unwrap());
    assert!(!keys.refresh(NOW).unwrap());
    assert_eq!(open(&keys, &old), Ok(false));
    let (_directory, new) = keys_of(HEX);
    assert_eq!(open(&new, &keys.seal(b"secret", PLACE)), Ok(true));
    keys.refresh(later(599)).unwrap();
    assert_eq!(open(&keys, &old), Ok(false));
    keys.refresh(later(600)).unwrap();
    assert!(matches!(open(&keys, &old), Err(UnsealError::UnknownKey { .. })));
    // A key that is back in the file opens again.
    write_file(keys.path(), &format!("{HEX}\n{OTHER}"));
    keys.refresh(later(601)).unwrap();
    write_file(keys.path(), &format!("{OTHER}\n{THIRD}"));
    keys.refresh(later(602)).unwrap();
    keys.refresh(later(10_000)).unwrap();
    assert_eq!(open(&keys, &old), Ok(true));
}

#[test]
fn a_kubernetes_volume_is_followed_through_its_links() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (folder, key) in [("..1", OTHER), ("..2", HEX)] {
        fs::create_dir(at(folder)).unwrap();
        write_file(&at(folder).join("kek"), key);
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/kek", at("kek")).unwrap();
    let keys = KeyEncryption::open(at("kek")).expect("keys");
    let before = keys.sealing_key();
    symlink("..2", at("..new")).unwrap();
    fs::rename(at("..new"), at("..data")).unwrap();
    assert!(keys.refresh(NOW).unwrap());
    assert_ne!(keys.sealing_key(), before);
}

#[test]
fn after_an_invalid_replacement_the_old_keys_stay_and_the_error_is_returned_once() {
    let (_directory, keys) = keys_of(HEX);
    let record = keys.seal(b"secret", PLACE);
    let broken = [("no key", 0o600), ("", 0o600), (HEX, 0o644)];
    for (text, mode) in broken {
        write_file(keys.path(), text);
        fs::set_permissions(keys.path(), Permissions::from_mode(mode)).unwrap();
        assert!(keys.refresh(NOW).is_err(), "{text}");
        assert!(!keys.refresh(NOW).unwrap(), "{text}");
        assert_eq!(open(&keys, &record), Ok(true));
    }
    fs::remove_file(keys.path()).unwrap();
    assert!(matches!(keys.refresh(NOW), Err(KeyEncryptionError::Read { .. })));
    assert!(!keys.refresh(NOW).unwrap());
    write_file(keys.path(), HEX);
    assert!(!keys.refresh(NOW).unwrap(), "the same keys");
    fs::remove_file(keys.path()).unwrap();
    assert!(keys.refresh(NOW).is_err(), "the error is returned again after a valid file");
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_fix() {
    let (_directory, path) = file_of(HEX);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let error = KeyEncryption::open(&path).expect_err("others can read it").to_string();
    for fix in
        [&format!("chmod 600 {}", path.display())[..], "defaultMode: 0400", "perms = \"0600\""]
    {
        assert!(error.contains(fix), "{error}");
    }
}

#[test]
fn invalid_keys_are_reported_by_line_and_not_shown() {
    for (text, expected) in [
        (String::new(), "kek line 1: there is no key; each line is a key of 32 random bytes"),
        ("# nothing\n\n".to_owned(), "kek line 1: there is no key"),
        (format!("{OTHER}\n{}", &HEX[2..]), "kek line 2: 62 characters, which are not a key"),
        (format!("{}g", &HEX[1..]), "kek line 1: 64 characters, which are not a key"),
        (
            format!("#\n{}", PADDED.replace('=', "A")),
            "kek line 2: 44 characters, which are not a key",
        ),
        (PADDED.replace("//", "_/"), "kek line 1: 44 characters, which are not a key"),
        ("0".repeat(64), "kek line 1: the same byte 32 times is not a secret"),
    ] {
        let error = check_key_encryption_text("kek", &text).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains(&HEX[2..20]) && !error.contains("+++"), "{error}");
    }
    let (_directory, path) = file_of("");
    fs::write(&path, [0xff; 32]).unwrap();
    let error = KeyEncryption::open(&path).expect_err("binary").to_string();
    assert!(error.contains("this is not text; each line is a key"), "{error}");
}

#[test]
fn debug_shows_no_secret() {
    let (_directory, keys) = keys_of(&format!("{HEX}\n{OTHER}"));
    let shown = format!("{keys:?}");
    assert!(!shown.contains("fbefbe") && !shown.contains("251, 239"), "{shown}");
}

proptest! {
    #[test]
    fn garbage_never_panics_and_never_opens(
        text in "[0-9a-f+/=_ \n#-]{0,200}",
        mut record in prop::collection::vec(any::<u8>(), 0..200),
        ours: bool,
    ) {
        let _ = check_key_encryption_text("kek", &text);
        let (_directory, keys) = keys_of(HEX);
        if ours && record.len() >= 9 {
            record[..9].copy_from_slice(&keys.seal(b"", PLACE)[..9]);
        }
        prop_assert!(keys.unseal(&record, PLACE).is_err());
    }
}
