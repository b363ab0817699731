use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use argon2::{Algorithm, Argon2, Block, Params};
use firstflight_tickets::{KeyEncryption, KeyEncryptionError, SealingKey, UnsealError};
use zeroize::Zeroizing;

use super::{JarError, file_error};

/// Where the key of a jar comes from.
#[derive(Clone)]
pub enum JarKey {
    /// A file of key-encryption keys, created with mode 0600 if it does not exist.
    File(PathBuf),
    /// A passphrase, from which Argon2id derives the key.
    Passphrase(String),
}

impl JarKey {
    /// Returns the default key file: `firstflight/session-key` under `$XDG_CONFIG_HOME` or
    /// `~/.config`.
    ///
    /// # Errors
    /// [`JarError::NoHome`].
    pub fn default_file() -> Result<PathBuf, JarError> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".config")))
            .ok_or(JarError::NoHome)?;
        Ok(config.join("firstflight").join("session-key"))
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::File(path) if !path.exists())
    }

    /// Returns the file if it contains an age key, as earlier versions created.
    pub(super) fn age_file(&self) -> Option<&Path> {
        match self {
            Self::File(path) if holds_age_key(path) => Some(path),
            _ => None,
        }
    }

    pub(super) fn load(self) -> Result<Sealer, JarError> {
        match self {
            Self::Passphrase(phrase) => {
                Ok(Sealer::Passphrase { phrase: Zeroizing::new(phrase), derived: Mutex::new(None) })
            }
            Self::File(path) => {
                if !path.exists() {
                    make_key(&path)?;
                }
                KeyEncryption::open(&path).map(Sealer::File).map_err(key_error)
            }
        }
    }
}

/// Seals and opens the jar.
///
/// A jar consists of a header line with the kind of its key, 16 bytes of salt (passphrase only), and a
/// record sealed by [`firstflight_tickets`].
pub(super) enum Sealer {
    File(KeyEncryption),
    Passphrase {
        phrase: Zeroizing<String>,
        /// Cache of the last derived key and its salt: deriving is slow, and each use of the jar needs
        /// the key several times.
        derived: Mutex<Option<(Salt, SealingKey)>>,
    },
}

/// Why sealed bytes could not be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    OtherKey,
    Damaged(&'static str),
}

impl Sealer {
    pub(super) fn seal(&self, plain: &[u8]) -> Vec<u8> {
        match self {
            Self::File(keys) => [FILE_HEADER, &keys.seal(plain, RECORD_LABEL)].concat(),
            Self::Passphrase { phrase, derived } => {
                let last = derived.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let (salt, key) = last.unwrap_or_else(|| {
                    let mut salt = Salt::default();
                    getrandom::fill(&mut salt).expect("the system has random bytes");
                    (salt, derive(phrase, &salt))
                });
                [PASSPHRASE_HEADER, &salt, &key.seal(plain, RECORD_LABEL)].concat()
            }
        }
    }

    pub(super) fn open(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        if let Some(record) = sealed.strip_prefix(FILE_HEADER) {
            let Self::File(keys) = self else { return Err(OpenError::OtherKey) };
            return Ok(keys.unseal(record, RECORD_LABEL)?.content);
        }
        let Some(rest) = sealed.strip_prefix(PASSPHRASE_HEADER) else {
            return Err(OpenError::Damaged("it is not a session jar"));
        };
        let Self::Passphrase { phrase, derived } = self else { return Err(OpenError::OtherKey) };
        let (salt, record) =
            rest.split_first_chunk::<SALT_LENGTH>().ok_or(OpenError::Damaged("it is cut short"))?;
        let mut derived = derived.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, key) = match derived.take().filter(|(last, _)| last == salt) {
            Some(last) => derived.insert(last),
            None => derived.insert((*salt, derive(phrase, salt))),
        };
        key.unseal(record, RECORD_LABEL)?.ok_or(OpenError::OtherKey)
    }
}

impl From<UnsealError> for OpenError {
    fn from(error: UnsealError) -> Self {
        match error {
            UnsealError::UnknownKey { .. } => Self::OtherKey,
            UnsealError::Forged => Self::Damaged("it was changed or cut short"),
            UnsealError::Malformed => Self::Damaged("it is cut short"),
        }
    }
}

/// Whether an earlier version wrote the jar.
pub(super) fn is_sealed_by_age(sealed: &[u8]) -> bool {
    sealed.starts_with(b"age-encryption.org/")
}

/// Creates a key file atomically.
fn make_key(path: &Path) -> Result<(), JarError> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(file_error("make the session key", path))?;
    }
    match KeyEncryption::write_new(path) {
        // Another process created it first: use that key.
        Ok(_) | Err(KeyEncryptionError::Exists { .. }) => Ok(()),
        Err(error) => Err(key_error(error)),
    }
}

fn key_error(error: KeyEncryptionError) -> JarError {
    match error {
        KeyEncryptionError::ReadableByOthers { path, .. } => JarError::KeyIsOpen(path),
        KeyEncryptionError::Content { path, .. } if holds_age_key(&path) => JarError::AgeKey(path),
        KeyEncryptionError::Content { path, line, problem } => {
            JarError::BadKey { path, line, problem }
        }
        KeyEncryptionError::Read { path, reason } => {
            file_error("read the session key", &path)(std::io::Error::other(reason))
        }
        KeyEncryptionError::Exists { path } => {
            file_error("make the session key", &path)(std::io::ErrorKind::AlreadyExists.into())
        }
        KeyEncryptionError::Write { path, reason } => {
            file_error("make the session key", &path)(std::io::Error::other(reason))
        }
    }
}

fn holds_age_key(path: &Path) -> bool {
    let mut text = Zeroizing::new(String::new());
    let read = File::open(path).and_then(|file| file.take(64 * 1024).read_to_string(&mut text));
    read.is_ok() && text.lines().any(|line| line.trim().starts_with("AGE-SECRET-KEY-1"))
}

fn derive(phrase: &str, salt: &Salt) -> SealingKey {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).expect("within Argon2's bounds");
    let mut memory = vec![Block::new(); params.block_count()];
    let mut secret = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params)
        .hash_password_into_with_memory(phrase.as_bytes(), salt, secret.as_mut(), &mut memory)
        .expect("a passphrase from the environment is shorter than 4 GiB");
    SealingKey::new(secret)
}

const SALT_LENGTH: usize = 16;
type Salt = [u8; SALT_LENGTH];

const FILE_HEADER: &[u8] = b"firstflight session jar 1, key file\n";
const PASSPHRASE_HEADER: &[u8] = b"firstflight session jar 1, passphrase\n";

/// Associated data of the record.
const RECORD_LABEL: &str = "session jar";

/// The minimum that OWASP recommends for Argon2id. RFC 9106's 64 MiB would slow down each fetch, and the
/// jar contains only short-lived tickets. The costs are not stored in the jar, because an untrusted jar
/// must not make the client work for long.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
