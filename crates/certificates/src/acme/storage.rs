//! The state on disk, with a directory for each authority.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tracing::warn;
use zeroize::Zeroizing;

use crate::acme::certificate::StoredCertificate;
use crate::acme::names::{digest_label, label};
use crate::acme::schedule::History;
use crate::acme::{AcmeError, Directory, IssuedCertificate};

/// The directory of one authority:
///
/// - `account.json`: URL, key and contacts of the account;
/// - `NAME.pem`: key and chain of a certificate; `NAME.json`: the history of its orders;
/// - `NAME.order`: an order to resume, with the certificate's key;
/// - `lock`: held by the process that orders.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory {
    directory: PathBuf,
}

/// A lock between processes, held until dropped.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

/// The stored account.
#[derive(Deserialize, Serialize)]
pub(crate) struct Account<C> {
    pub(crate) contact: Vec<String>,
    pub(crate) credentials: C,
}

impl StateDirectory {
    /// Opens or creates the directory of an authority below `root`.
    ///
    /// # Errors
    /// [`AcmeError::StateDirectory`] if it cannot be created or written, or if other users have access.
    pub(crate) fn open(root: &Path, authority: &Directory) -> Result<Self, AcmeError> {
        if let Some(parent) = root.parent() {
            fs::create_dir_all(parent).map_err(state_error(parent))?;
        }
        create_private(root)?;
        let url = authority.to_string();
        let host = url.split('/').nth(2).unwrap_or_default();
        let directory = root.join(digest_label(host, &url));
        create_private(&directory)?;
        NamedTempFile::new_in(&directory).map_err(state_error(&directory))?;
        Ok(Self { directory })
    }

    /// Takes the lock. Returns `None` if another process holds it.
    pub(crate) fn lock(&self) -> Result<Option<Lock>, AcmeError> {
        let path = self.directory.join("lock");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        match Flock::lock(file.map_err(state_error(&path))?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Lock(lock))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(state_error(&path)(error.into())),
        }
    }

    pub(crate) fn account_path(&self) -> PathBuf {
        self.directory.join("account.json")
    }

    /// # Errors
    /// [`AcmeError::StateDirectory`] if the file exists and cannot be read.
    pub(crate) fn account<C: DeserializeOwned>(&self) -> Result<Option<Account<C>>, AcmeError> {
        read_json(&self.account_path())
    }

    pub(crate) fn save_account(&self, account: &Account<impl Serialize>) -> Result<(), AcmeError> {
        self.write_json(&self.account_path(), account)
    }

    /// Renames an account that cannot be used any more.
    pub(crate) fn discard_account(&self, why: &str) {
        rename_damaged(&self.account_path(), why);
    }

    /// Reads a certificate and its history. Damaged files are renamed with a warning. If there is
    /// no certificate for exactly these names, the one that covers most of them is returned, so
    /// that a site to which a name was added keeps its certificate meanwhile.
    ///
    /// # Errors
    /// [`AcmeError::StateDirectory`] if a file exists and cannot be read. That does not mean that it is
    /// damaged, so it is left in place.
    pub(crate) fn certificate(
        &self,
        names: &[String],
        now: i64,
    ) -> Result<StoredCertificate, AcmeError> {
        let (pem, json) = self.paths(names);
        let history = read_json(&json)?.unwrap_or_default();
        let issued = read(&pem)?.and_then(|text| {
            IssuedCertificate::from_pem(names, &text)
                .map_err(|reason| rename_damaged(&pem, &reason))
                .ok()
        });
        Ok(StoredCertificate {
            issued: issued.or_else(|| self.partial_certificate(names, now)),
            history,
        })
    }

    fn partial_certificate(&self, names: &[String], now: i64) -> Option<IssuedCertificate> {
        let files = fs::read_dir(&self.directory).ok()?.filter_map(|file| Some(file.ok()?.path()));
        files
            .filter(|path| path.extension().is_some_and(|it| it == "pem"))
            .filter_map(|path| IssuedCertificate::covering(names, &read(&path).ok()??))
            .filter(|issued| issued.not_after > now)
            .reduce(|best, other| if other.is_better_than(&best) { other } else { best })
    }

    /// Stores a certificate, which completes any order for the same names.
    pub(crate) fn save_certificate(&self, issued: &IssuedCertificate) -> Result<(), AcmeError> {
        let (pem, _) = self.paths(&issued.names);
        let text = Zeroizing::new(format!("{}{}", *issued.key, issued.chain));
        self.write(&pem, text.as_bytes())?;
        self.forget_pending(&issued.names);
        Ok(())
    }

    pub(crate) fn save_history(
        &self,
        names: &[String],
        history: &History,
    ) -> Result<(), AcmeError> {
        let (_, json) = self.paths(names);
        self.write_json(&json, history)
    }

    fn paths(&self, names: &[String]) -> (PathBuf, PathBuf) {
        let label = label(names);
        (self.directory.join(format!("{label}.pem")), self.directory.join(format!("{label}.json")))
    }

    fn write_json(&self, path: &Path, content: &impl Serialize) -> Result<(), AcmeError> {
        let text = serde_json::to_vec_pretty(content).map_err(|e| state_error(path)(e.into()))?;
        self.write(path, &Zeroizing::new(text))
    }

    /// Writes atomically with mode 0600, and syncs to disk.
    fn write(&self, path: &Path, content: &[u8]) -> Result<(), AcmeError> {
        let writing = || {
            let mut file = NamedTempFile::new_in(&self.directory)?;
            file.write_all(content)?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            File::open(&self.directory)?.sync_all()
        };
        writing().map_err(state_error(path))
    }
}

/// Runs blocking file operations (including fsync) on a thread of their own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AcmeError> + Send + 'static,
) -> Result<T, AcmeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            Err(AcmeError::Make { what: "a thread for files", reason: error.to_string() })
        }
    }
}

/// Creates a directory for this user alone, or checks that it is one.
fn create_private(path: &Path) -> Result<(), AcmeError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(state_error(path)(error)),
        _ => {
            let metadata = fs::metadata(path).map_err(state_error(path))?;
            let (process_user, owner) = (nix::unistd::geteuid().as_raw(), metadata.uid());
            let reason = match metadata.mode() & 0o777 {
                _ if !metadata.is_dir() => "it is not a directory".to_owned(),
                // For root too: the owner could not read files that root creates.
                _ if owner != process_user => format!(
                    "it belongs to user {owner}, and this process is user {process_user}; run it as {owner}, \
                     or change the owner of the directory and its files to {process_user} (chown -R)"
                ),
                mode if mode & 0o077 != 0 => {
                    format!("other users have access (mode {mode:o}); run `chmod 700` on it")
                }
                _ => return Ok(()),
            };
            Err(AcmeError::StateDirectory { path: path.to_owned(), reason })
        }
    }
}

/// Returns `None` if there is no such file, or if it was not text and was renamed.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>, AcmeError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::InvalidData => {
                rename_damaged(path, &error.to_string());
                Ok(None)
            }
            _ => Err(AcmeError::StateDirectory {
                path: path.to_owned(),
                reason: format!("{error}; make it a file that this user can read"),
            }),
        },
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, AcmeError> {
    let Some(text) = read(path)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(content) => Ok(Some(content)),
        Err(error) => {
            // The position only: the message may quote a key.
            rename_damaged(path, &format!("line {}, column {}", error.line(), error.column()));
            Ok(None)
        }
    }
}

/// Renames a damaged file, so that an operator can inspect it.
fn rename_damaged(path: &Path, why: &str) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".aside");
    match fs::rename(path, &aside) {
        Ok(()) => warn!("{} is damaged and was renamed to *.aside: {why}", path.display()),
        Err(error) => warn!("{} is damaged ({why}) and cannot be renamed: {error}", path.display()),
    }
}

fn state_error(path: &Path) -> impl Fn(io::Error) -> AcmeError {
    move |error| AcmeError::StateDirectory {
        path: path.to_owned(),
        reason: format!("{error}; set state in [acme] to a directory that this user can write"),
    }
}

#[cfg(test)]
mod tests;

/// An order whose names are validated. Stored from before finalization until the certificate is on
/// disk. If the response is lost, the order is resumed: a new order would count against the
/// authority's limits.
#[derive(Deserialize, Serialize)]
pub(crate) struct PendingOrder {
    /// The URL of the order.
    pub(crate) url: String,
    /// The certificate's key, PKCS #8 in PEM.
    #[serde(with = "secret")]
    pub(crate) key: Zeroizing<String>,
    /// When it was stored, in Unix seconds.
    pub(crate) since: i64,
}

impl StateDirectory {
    /// Returns the order to resume.
    ///
    /// # Errors
    /// [`AcmeError::StateDirectory`] if there may be one that cannot be read.
    pub(crate) fn pending(
        &self,
        names: &[String],
        now: i64,
    ) -> Result<Option<PendingOrder>, AcmeError> {
        let Some(pending) = read_json::<PendingOrder>(&self.order_path(names))? else {
            return Ok(None);
        };
        let is_too_old = now.abs_diff(pending.since) > MAX_PENDING_AGE;
        // A process that was killed after it stored the certificate left the order behind.
        let is_completed =
            read(&self.paths(names).0)?.is_some_and(|it| it.starts_with(&*pending.key));
        if is_too_old || is_completed {
            self.forget_pending(names);
            return Ok(None);
        }
        Ok(Some(pending))
    }

    pub(crate) fn save_pending(
        &self,
        names: &[String],
        pending: &PendingOrder,
    ) -> Result<(), AcmeError> {
        self.write_json(&self.order_path(names), pending)
    }

    pub(crate) fn forget_pending(&self, names: &[String]) {
        let path = self.order_path(names);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!("cannot remove the completed order {}: {error}", path.display());
            }
            _ => {}
        }
    }

    fn order_path(&self, names: &[String]) -> std::path::PathBuf {
        self.paths(names).0.with_extension("order")
    }
}

/// Serializes a secret that is wiped from memory when dropped.
mod secret {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(
        key: &Zeroizing<String>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(key)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(from).map(Zeroizing::new)
    }
}

/// Seconds for which an order is resumed. Let's Encrypt issues five certificates for the same names
/// per week; an order that gets stuck each time uses up fewer.
const MAX_PENDING_AGE: u64 = 36 * 3600;
