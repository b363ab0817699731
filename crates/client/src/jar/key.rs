use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::iter;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use age::secrecy::{ExposeSecret, SecretString};
use age::{DecryptError, Decryptor, Encryptor, scrypt, x25519};

use super::{JarError, file_error};

/// Where the key of a jar comes from.
#[derive(Clone)]
pub enum JarKey {
    /// A file with an age identity (X25519), made with mode 0600 if it does not exist.
    File(PathBuf),
    /// A passphrase, stretched by scrypt.
    Passphrase(String),
}

impl JarKey {
    /// The key file of this user: `firstflight/session-key` under `$XDG_CONFIG_HOME` or
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

    pub(super) fn load(self) -> Result<Keeper, JarError> {
        match self {
            Self::Passphrase(phrase) => Ok(Keeper::Passphrase(phrase.into())),
            Self::File(path) => {
                if !path.exists() {
                    make_key(&path)?;
                }
                read_key(&path).map(Box::new).map(Keeper::Identity)
            }
        }
    }
}

/// Seals and opens the jar.
pub(super) enum Keeper {
    Identity(Box<x25519::Identity>),
    Passphrase(SecretString),
}

/// Why sealed bytes could not be opened.
#[derive(Debug)]
pub(super) enum Unopened {
    OtherKey,
    Damaged(String),
}

/// scrypt's log2 of N: about a tenth of a second. Passphrases guard a file of short-lived tickets,
/// and each use of the jar pays twice.
const WORK_FACTOR: u8 = 15;

/// What a jar may ask for at most: a foreign one must not hang the client.
const MAX_WORK_FACTOR: u8 = 18;

impl Keeper {
    pub(super) fn seal(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let recipient: Box<dyn age::Recipient> = match self {
            Self::Identity(identity) => Box::new(identity.to_public()),
            Self::Passphrase(phrase) => {
                let mut recipient = scrypt::Recipient::new(phrase.clone());
                recipient.set_work_factor(WORK_FACTOR);
                Box::new(recipient)
            }
        };
        let mut sealed = Vec::with_capacity(plain.len() + 512);
        let mut writer = Encryptor::with_recipients(iter::once(recipient.as_ref()))
            .map_err(io::Error::other)?
            .wrap_output(&mut sealed)?;
        writer.write_all(plain)?;
        writer.finish()?;
        Ok(sealed)
    }

    pub(super) fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let damaged = |error: &dyn ToString| Unopened::Damaged(error.to_string());
        if sealed.is_empty() {
            return Err(Unopened::Damaged("it is empty".to_owned()));
        }
        let decryptor = Decryptor::new(sealed).map_err(|error| match error {
            DecryptError::Io(_) => Unopened::Damaged("it is cut short".to_owned()),
            _ => Unopened::Damaged("it is no age file".to_owned()),
        })?;
        let identity: Box<dyn age::Identity> = match self {
            Self::Identity(identity) => Box::new(identity.as_ref().clone()),
            Self::Passphrase(phrase) => {
                let mut identity = scrypt::Identity::new(phrase.clone());
                identity.set_max_work_factor(MAX_WORK_FACTOR);
                Box::new(identity)
            }
        };
        let mut reader =
            decryptor.decrypt(iter::once(identity.as_ref())).map_err(|error| match error {
                DecryptError::NoMatchingKeys
                | DecryptError::KeyDecryptionFailed
                | DecryptError::DecryptionFailed => Unopened::OtherKey,
                DecryptError::ExcessiveWork { .. } => {
                    Unopened::Damaged("it asks for far more work than we put in".to_owned())
                }
                DecryptError::InvalidMac => Unopened::Damaged("its head was changed".to_owned()),
                DecryptError::Io(_) => Unopened::Damaged("it is cut short".to_owned()),
                other => damaged(&other),
            })?;
        let mut plain = Vec::new();
        reader
            .read_to_end(&mut plain)
            .map_err(|_| Unopened::Damaged("it is cut short or was changed".to_owned()))?;
        Ok(plain)
    }
}

/// Makes a key file whole or not at all; another process may be doing the same.
fn make_key(path: &Path) -> Result<(), JarError> {
    let failed = file_error("make the session key", path);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(&failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(&failed)?;
    let identity = x25519::Identity::generate();
    let secret = identity.to_string();
    writeln!(file, "# firstflight: opens the session jar; keep it to yourself").map_err(&failed)?;
    writeln!(file, "{}", secret.expose_secret()).map_err(&failed)?;
    file.as_file().sync_all().map_err(&failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        // The other process was first: its key counts.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error.error)),
    }
}

fn read_key(path: &Path) -> Result<x25519::Identity, JarError> {
    let failed = file_error("read the session key", path);
    let metadata = fs::metadata(path).map_err(&failed)?;
    if metadata.mode() & 0o077 != 0 {
        return Err(JarError::KeyIsOpen(path.to_owned()));
    }
    let mut text = String::new();
    let bad = || JarError::BadKey(path.to_owned());
    let file = fs::File::open(path).map_err(&failed)?;
    file.take(64 * 1024).read_to_string(&mut text).map_err(|_| bad())?;
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .find_map(|line| line.parse().ok())
        .ok_or_else(bad)
}
