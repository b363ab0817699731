//! Creates and rotates files of key-encryption keys, for installations without a vault.

use std::io;
use std::path::Path;

use zeroize::Zeroizing;

use super::sealing::{SECRET_BYTES, SealingKey};
use super::{KeyEncryption, KeyEncryptionError, KeyId, parse, read};
use crate::key::fill_random;
use crate::secret_file;

impl KeyEncryption {
    /// Writes a new file atomically, with one new key and mode 0600. Returns the key's id.
    ///
    /// # Errors
    /// If the path exists, or cannot be written.
    pub fn write_new(path: &Path) -> Result<KeyId, KeyEncryptionError> {
        let key = generate();
        let file = secret_file::prepare(path, text_of(&[&key]).as_bytes(), None);
        let file = file.map_err(|error| write_error(path, &error))?;
        secret_file::persist_new(file, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => KeyEncryptionError::Exists { path: path.to_owned() },
            _ => write_error(path, &error),
        })?;
        Ok(key.id())
    }

    /// Puts a new key first in the file, before the one that was first so far, and removes all
    /// others. The file is replaced atomically and keeps its mode and owner; a symbolic link stays
    /// one. Returns the new key's id.
    ///
    /// # Errors
    /// If the file cannot be read, contains no key, or cannot be replaced.
    pub fn rotate(path: &Path) -> Result<KeyId, KeyEncryptionError> {
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let (text, metadata) = read(&target)?;
        let listed = parse(&target, &text)?;
        let key = generate();
        let text = text_of(&[&key, &listed[0]]);
        secret_file::prepare(&target, text.as_bytes(), Some(&metadata))
            .and_then(|file| secret_file::persist(file, &target))
            .map_err(|error| write_error(path, &error))?;
        Ok(key.id())
    }
}

fn generate() -> SealingKey {
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    fill_random(secret.as_mut());
    SealingKey::new(secret)
}

fn text_of(keys: &[&SealingKey]) -> Zeroizing<String> {
    // Allocated at full size: growing would leave copies of secrets in memory.
    let mut text = Zeroizing::new(String::with_capacity(512 + keys.len() * 128));
    text.push_str(
        "# Key-encryption keys of firstflight: the first seals, all open. Anyone with one of them\n\
         # can read the sealed records (ticket keys in the store, session jars), and so early data:\n\
         # keep this file at mode 600.\n",
    );
    for key in keys {
        text.push_str(&Zeroizing::new(hex::encode(key.secret())));
        text.push('\n');
    }
    text
}

fn write_error(path: &Path, error: &io::Error) -> KeyEncryptionError {
    KeyEncryptionError::Write { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_written_file_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kek");
        let first = KeyEncryption::write_new(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let old = KeyEncryption::open(&path).unwrap();
        assert_eq!(old.sealing_key(), first);
        let error = KeyEncryption::write_new(&path).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");

        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        let second = KeyEncryption::rotate(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o400,
            "the mode is kept"
        );
        let both = KeyEncryption::open(&path).unwrap();
        assert_eq!(both.sealing_key(), second);
        assert!(!both.unseal(&old.seal(b"record", "place"), "place").unwrap().up_to_date);

        KeyEncryption::rotate(&path).unwrap();
        let later = KeyEncryption::open(&path).unwrap();
        assert!(later.unseal(&both.seal(b"record", "place"), "place").is_ok());
        assert!(later.unseal(&old.seal(b"record", "place"), "place").is_err(), "two rotations old");
    }

    #[test]
    fn an_invalid_file_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kek");
        fs::write(&path, "a password").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(KeyEncryption::rotate(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a password");
    }
}
