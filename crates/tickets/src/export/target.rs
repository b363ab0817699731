//! The key files of another server, written so that it never reads an incomplete change.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use thiserror::Error;
use zeroize::Zeroizing;

use super::order;
use crate::ring::Ring;
use crate::schedule::UnixTime;
use crate::secret_file;

/// The server that reads the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A directory: `tickets.conf`, to be included beside `ssl_certificate`, and the key files that
    /// it names. Each key has its own file, which never changes, so every version of `tickets.conf`
    /// refers to its own keys.
    Nginx,
    /// A file for `tls-ticket-keys`.
    Haproxy,
    /// A file for `session_ticket_keys_sds_secret_config`, which Envoy watches.
    Envoy,
}

/// Where a ring is written for another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    format: Format,
    path: PathBuf,
}

/// Why another server's files cannot be written.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The system's reason.
    #[error("cannot write ticket keys to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// nginx needs a directory, because it has one file per key.
    #[error("{} is not a directory; nginx has a file for each key, so name a directory", path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The other servers have one file for all keys.
    #[error("{} is a directory; name a file for the keys", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// The path cannot be written in nginx's configuration.
    #[error(
        "nginx's configuration cannot contain the path {path:?}; choose one without special characters"
    )]
    Name {
        /// The directory.
        path: PathBuf,
    },
}

impl Target {
    /// The target at `path`: a directory for nginx, a file for the others. Changes nothing.
    pub fn new(format: Format, path: impl Into<PathBuf>) -> Self {
        Self { format, path: path.into() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the ring as of `now`, unless the files are up to date. Returns whether something has
    /// changed.
    ///
    /// A file is replaced atomically and keeps its mode and owner; a new one has mode 0600, and a new
    /// directory 0700. New keys
    /// of nginx have those of `tickets.conf`, without access for others. Symbolic links are
    /// followed.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn write(&self, ring: &Ring, now: UnixTime) -> Result<bool, TargetError> {
        let text = match self.format {
            Format::Nginx => return self.write_nginx(ring, now),
            Format::Haproxy => order::haproxy(ring, now),
            Format::Envoy => order::envoy(ring, now),
        };
        if self.path.is_dir() {
            return Err(TargetError::Directory { path: self.path.clone() });
        }
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.create_directory(parent)?;
        }
        replace(&self.path, text.as_bytes(), None)
    }

    /// Writes new keys first, then `tickets.conf`, and only then removes keys that it does not
    /// name.
    fn write_nginx(&self, ring: &Ring, now: UnixTime) -> Result<bool, TargetError> {
        let directory = self.directory()?;
        let quoted_directory = quotable(&directory)?;
        let config = directory.join(CONFIG_FILE);
        let reference = fs::metadata(&config).ok();
        let mut lines = String::from(
            "# Written by `firstflight keys`. Include it beside ssl_certificate: the first key \
             seals, all open.\n",
        );
        let mut named = Vec::new();
        let mut changed = false;
        for key in order::nginx(ring, now) {
            let name = format!("{KEY_FILE_PREFIX}{}{KEY_FILE_SUFFIX}", hex::encode(key.name()));
            changed |= replace(&directory.join(&name), key.as_bytes(), reference.as_ref())?;
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "ssl_session_ticket_key \"{quoted_directory}/{name}\";");
            named.push(name);
        }
        changed |= replace(&config, lines.as_bytes(), None)?;
        remove_others(&directory, &named)?;
        Ok(changed)
    }

    /// Returns the directory's absolute path, because nginx resolves relative ones from its own
    /// configuration. Creates it if it does not exist.
    fn directory(&self) -> Result<PathBuf, TargetError> {
        let failed = |source| TargetError::Write { path: self.path.clone(), source };
        if self.path.exists() && !self.path.is_dir() {
            return Err(TargetError::NoDirectory { path: self.path.clone() });
        }
        self.create_directory(&self.path)?;
        self.path.canonicalize().map_err(failed)
    }

    /// Creates a directory that does not exist, with access for this user only.
    fn create_directory(&self, path: &Path) -> Result<(), TargetError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|source| TargetError::Write { path: self.path.clone(), source })
    }
}

/// Replaces a file atomically if its content differs, and keeps its mode and owner. A new one has
/// mode 0600, or the access of `reference`. Returns whether the file was written.
fn replace(path: &Path, bytes: &[u8], reference: Option<&Metadata>) -> Result<bool, TargetError> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let existing = fs::metadata(&target).ok();
    if existing.is_some() && fs::read(&target).map(Zeroizing::new).is_ok_and(|old| *old == *bytes) {
        return Ok(false);
    }
    let write = || -> io::Result<()> {
        let file = secret_file::prepare(&target, bytes, existing.as_ref())?;
        if let (None, Some(reference)) = (&existing, reference) {
            copy_access(file.as_file(), reference)?;
        }
        secret_file::persist(file, &target)
    };
    write().map_err(|source| TargetError::Write { path: path.to_owned(), source })?;
    Ok(true)
}

/// Copies owner, group and mode of another file to a file of secrets, but without access for
/// others: the other file has no secrets, so everybody may read it.
fn copy_access(file: &File, reference: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (reference.uid(), reference.gid()) {
        fchown(file, Some(reference.uid()), Some(reference.gid()))?;
    }
    // After the owner, because changing the owner clears mode bits.
    file.set_permissions(Permissions::from_mode(reference.mode() & 0o640))
}

/// Removes the key files that are not among `named`: expired keys must not remain on disk.
fn remove_others(directory: &Path, named: &[String]) -> Result<(), TargetError> {
    let failed = |source| TargetError::Write { path: directory.to_owned(), source };
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str() else { continue };
        if is_key_file(name) && !named.iter().any(|other| other == name) {
            fs::remove_file(directory.join(name)).map_err(failed)?;
        }
    }
    Ok(())
}

fn is_key_file(name: &str) -> bool {
    let middle =
        name.strip_prefix(KEY_FILE_PREFIX).and_then(|rest| rest.strip_suffix(KEY_FILE_SUFFIX));
    middle.is_some_and(|hex| hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns the path if it can be quoted in nginx's configuration.
fn quotable(path: &Path) -> Result<&str, TargetError> {
    let special = |c: char| c.is_control() || matches!(c, '"' | '\\' | '$');
    path.to_str()
        .filter(|text| !text.contains(special))
        .ok_or_else(|| TargetError::Name { path: path.to_owned() })
}

const CONFIG_FILE: &str = "tickets.conf";
const KEY_FILE_PREFIX: &str = "ticket-";
const KEY_FILE_SUFFIX: &str = ".key";
