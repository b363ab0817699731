//! Key-encryption keys, which protect ticket keys and sessions on disk.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::schedule::UnixTime;
use crate::secret_file::{self, MAX_BYTES, SecretFileError};

mod sealing;
mod text;
mod writing;

use sealing::Envelope;
pub use sealing::{KeyId, SealingKey};

/// The key-encryption keys in a file: one or more, one per line, 32 bytes as 64 hexadecimal digits
/// or as base64 (either alphabet, padded or not). Blank lines and lines that start with `#` are
/// ignored. The first key seals, all of them open.
///
/// The file may be replaced at any time, by hand, by a vault's agent or by Kubernetes;
/// [`refresh`](Self::refresh) reads it again. A key that was removed from the file opens for ten
/// more minutes, because other nodes get the new file later and seal under the old key until then.
/// After that it opens nothing, so an operator can revoke a stolen key by removing it.
#[derive(Debug)]
pub struct KeyEncryption {
    path: PathBuf,
    keys: RwLock<Arc<Keys>>,
    file_state: Mutex<FileState>,
}

/// Why a file of key-encryption keys cannot be used. Messages never contain a key.
#[derive(Debug, Error)]
pub enum KeyEncryptionError {
    /// The file cannot be read.
    #[error(
        "cannot read key-encryption keys from {}: {reason}; it has to hold what `openssl rand -hex \
         32` prints, the same on all nodes, at mode 600",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Other users may read or write the file.
    #[error(
        "key-encryption keys in {} can be read by others (mode {mode:03o}); run `chmod 600 {}`, \
         or write `defaultMode: 0400` in the Kubernetes volume, or `perms = \"0600\"` in the \
         vault agent's template",
        path.display(), path.display()
    )]
    ReadableByOthers {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A new file was requested at an existing path.
    #[error("{} exists already; choose another name, or rotate its keys", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write key-encryption keys to {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// A line is not a key.
    #[error("{} line {line}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong, and what is expected.
        problem: String,
    },
}

/// The result of [`KeyEncryption::unseal`].
#[derive(Debug, PartialEq, Eq)]
pub struct Unsealed {
    /// The sealed content.
    pub content: Zeroizing<Vec<u8>>,
    /// Whether it is sealed under the key that seals now. If not, seal it again, because its key
    /// may soon be removed.
    pub up_to_date: bool,
}

/// Why a record was not opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnsealError {
    /// The record's key is not in the file.
    #[error(
        "it is sealed under the key-encryption key with id {sealed_under}, and {} holds {held}; \
         put the same keys into that file on all nodes, the one to seal under first",
        path.display()
    )]
    UnknownKey {
        /// The id of the key that the record is sealed under.
        sealed_under: KeyId,
        /// The file.
        path: PathBuf,
        /// The ids of the keys there.
        held: String,
    },
    /// The record was changed, or moved to another place.
    #[error("it was changed or moved by somebody without the key")]
    Forged,
    /// The bytes do not have the format of a sealed record.
    #[error("it is not a sealed record")]
    Malformed,
}

impl KeyEncryption {
    /// Reads the keys in the file at `path`. Symbolic links are followed.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or it holds no key.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, KeyEncryptionError> {
        let path = path.into();
        let (text, _) = read(&path)?;
        let keys = Keys { listed: parse(&path, &text)?, retired: Vec::new() };
        let file_state = Mutex::new(FileState { digest: digest(&text), last_error: None });
        Ok(Self { path, keys: RwLock::new(Arc::new(keys)), file_state })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again if it has changed, and returns whether it had. Call it about once a
    /// second.
    ///
    /// # Errors
    /// If the file cannot be used. The earlier keys stay in use, and the same error is returned
    /// only once while it persists.
    pub fn refresh(&self, now: UnixTime) -> Result<bool, KeyEncryptionError> {
        let mut file_state = self.file_state.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_expired(now);
        match self.reread(&mut file_state, now) {
            Ok(changed) => {
                file_state.last_error = None;
                Ok(changed)
            }
            Err(error) => {
                let last_error = Some(error.to_string());
                if file_state.last_error == last_error {
                    return Ok(false);
                }
                file_state.last_error = last_error;
                Err(error)
            }
        }
    }

    /// Seals `content` for `context` under the first key.
    ///
    /// `context` says what the record is and where it is stored. It can be opened for the same
    /// context only, so a writer to the store cannot exchange one record for another.
    pub fn seal(&self, content: &[u8], context: &str) -> Vec<u8> {
        self.keys().first().seal(content, context)
    }

    /// Opens a record that was sealed for `context`.
    ///
    /// # Errors
    /// [`UnsealError`]; report it with the record's name in front.
    pub fn unseal(&self, record: &[u8], context: &str) -> Result<Unsealed, UnsealError> {
        let envelope = Envelope::read(record).ok_or(UnsealError::Malformed)?;
        let keys = self.keys();
        let Some(key) = keys.all().find(|key| key.id() == envelope.id) else {
            return Err(self.unknown(&keys, envelope.id));
        };
        let content = key.open(&envelope, context).ok_or(UnsealError::Forged)?;
        Ok(Unsealed { content, up_to_date: key.id() == keys.first().id() })
    }

    /// Returns the id of the key that seals.
    pub fn sealing_key(&self) -> KeyId {
        self.keys().first().id()
    }

    fn unknown(&self, keys: &Keys, sealed_under: KeyId) -> UnsealError {
        let held = keys.listed.iter().map(|key| key.id().to_string());
        let held = held.collect::<Vec<_>>().join(", ");
        UnsealError::UnknownKey { sealed_under, path: self.path.clone(), held }
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn reread(
        &self,
        file_state: &mut FileState,
        now: UnixTime,
    ) -> Result<bool, KeyEncryptionError> {
        let (text, _) = read(&self.path)?;
        let digest = digest(&text);
        if digest == file_state.digest {
            return Ok(false);
        }
        let listed = parse(&self.path, &text)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        *keys = Arc::new(keys.replaced_by(listed, now.after(RETIRED_KEY_LIFETIME)));
        file_state.digest = digest;
        Ok(true)
    }

    /// Drops the keys that have expired.
    fn drop_expired(&self, now: UnixTime) {
        if self.keys().retired.iter().all(|(_, until)| *until > now) {
            return;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let mut remaining = (**keys).clone();
        remaining.retired.retain(|(_, until)| *until > now);
        *keys = Arc::new(remaining);
    }
}

/// The keys in use.
#[derive(Debug, Clone)]
struct Keys {
    /// Keys in the file; never empty.
    listed: Vec<SealingKey>,
    /// Keys that were removed from the file, and until when they open.
    retired: Vec<(SealingKey, UnixTime)>,
}

impl Keys {
    fn first(&self) -> &SealingKey {
        &self.listed[0]
    }

    fn all(&self) -> impl Iterator<Item = &SealingKey> {
        self.listed.iter().chain(self.retired.iter().map(|(key, _)| key))
    }

    fn replaced_by(&self, listed: Vec<SealingKey>, until: UnixTime) -> Self {
        let removed = self.listed.iter().map(|key| (key.clone(), until));
        let retired = self.retired.iter().cloned().chain(removed);
        let is_listed = |key: &SealingKey| listed.iter().any(|other| other.id() == key.id());
        let retired = retired.filter(|(key, _)| !is_listed(key)).collect();
        Self { listed, retired }
    }
}

/// The file when its keys were last read, and its last error since then.
#[derive(Debug)]
struct FileState {
    digest: [u8; 32],
    last_error: Option<String>,
}

fn read(path: &Path) -> Result<(Zeroizing<String>, Metadata), KeyEncryptionError> {
    let path = path.to_owned();
    match secret_file::read(&path) {
        Ok(read) => Ok(read),
        Err(SecretFileError::Read(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            let problem = format!("this is not text; {}", text::SHAPE);
            Err(KeyEncryptionError::Content { path, line: 1, problem })
        }
        Err(SecretFileError::Read(error)) => {
            Err(KeyEncryptionError::Read { path, reason: error.to_string() })
        }
        Err(SecretFileError::ReadableByOthers(mode)) => {
            Err(KeyEncryptionError::ReadableByOthers { path, mode })
        }
        Err(SecretFileError::TooLong) => {
            let problem = format!("a file of key-encryption keys has {MAX_BYTES} bytes at most");
            Err(KeyEncryptionError::Content { path, line: 1, problem })
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<SealingKey>, KeyEncryptionError> {
    text::parse(text).map_err(|(line, problem)| KeyEncryptionError::Content {
        path: path.to_owned(),
        line,
        problem,
    })
}

/// Parses a text as [`KeyEncryption::open`] parses a file, and returns the number of keys. For
/// tests of the format.
///
/// # Errors
/// [`KeyEncryptionError::Content`], with `name` as the file's name.
pub fn check_key_encryption_text(name: &str, text: &str) -> Result<usize, KeyEncryptionError> {
    parse(Path::new(name), text).map(|keys| keys.len())
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// How long a key opens after it was removed from the file. Kubernetes updates a secret on all
/// nodes within about two minutes, a vault's agent within its interval of five.
const RETIRED_KEY_LIFETIME: std::time::Duration = std::time::Duration::from_secs(600);

#[cfg(test)]
mod tests;
