//! What is kept on disk, for each authority in a directory of its own.

mod pending;

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

use crate::acme::names::{label, labelled};
use crate::acme::plan::History;
use crate::acme::{AcmeError, Directory, Issued};

pub(crate) use pending::Pending;

/// The files of one authority:
///
/// - `account.json`: the account's URL and key, and the contacts it was given;
/// - `NAME.pem`: a certificate's key and chain, `NAME.json`: what came of asking for it;
/// - `NAME.order`: an order that is to be ended, with the certificate's key;
/// - `lock`: held by the process that asks.
#[derive(Clone, Debug)]
pub(crate) struct State {
    directory: PathBuf,
}

/// Held until dropped, and not by two processes at once.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

/// The account, as it is kept.
#[derive(Deserialize, Serialize)]
pub(crate) struct Account<C> {
    pub(crate) contact: Vec<String>,
    pub(crate) credentials: C,
}

/// What is kept of one certificate.
#[derive(Default)]
pub(crate) struct StoredCertificate {
    pub(crate) issued: Option<Issued>,
    pub(crate) history: History,
}

impl State {
    /// Opens or makes the directory of an authority below `root`.
    ///
    /// # Errors
    /// [`AcmeError::State`]: it cannot be made or written, or others can get into it.
    pub(crate) fn open(root: &Path, authority: &Directory) -> Result<Self, AcmeError> {
        if let Some(parent) = root.parent() {
            fs::create_dir_all(parent).map_err(wrong(parent))?;
        }
        private(root)?;
        let url = authority.to_string();
        let host = url.split('/').nth(2).unwrap_or_default();
        let directory = root.join(labelled(host, &url));
        private(&directory)?;
        NamedTempFile::new_in(&directory).map_err(wrong(&directory))?;
        Ok(Self { directory })
    }

    /// The lock, if nobody has it.
    pub(crate) fn lock(&self) -> Result<Option<Lock>, AcmeError> {
        let path = self.directory.join("lock");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        match Flock::lock(file.map_err(wrong(&path))?, FlockArg::LockExclusiveNonblock) {
            Ok(held) => Ok(Some(Lock(held))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(wrong(&path)(error.into())),
        }
    }

    pub(crate) fn account_path(&self) -> PathBuf {
        self.directory.join("account.json")
    }

    /// # Errors
    /// [`AcmeError::State`]: it is there and cannot be read.
    pub(crate) fn account<C: DeserializeOwned>(&self) -> Result<Option<Account<C>>, AcmeError> {
        read_json(&self.account_path())
    }

    pub(crate) fn save_account(&self, account: &Account<impl Serialize>) -> Result<(), AcmeError> {
        self.write_json(&self.account_path(), account)
    }

    /// The account is of no use any more.
    pub(crate) fn forget_account(&self, why: &str) {
        set_aside(&self.account_path(), why);
    }

    /// What is kept of a certificate. What is damaged is set aside with a warning. If there is none
    /// for exactly these names, one that is for the most of them stands in: a site to which a name
    /// was added goes on with what it had.
    ///
    /// # Errors
    /// [`AcmeError::State`]: something is there and cannot be read. That says nothing of what is in
    /// it, so it stays where it is.
    pub(crate) fn certificate(
        &self,
        names: &[String],
        now: i64,
    ) -> Result<StoredCertificate, AcmeError> {
        let (pem, json) = self.paths(names);
        let history = read_json(&json)?.unwrap_or_default();
        let issued = read(&pem)?.and_then(|text| {
            Issued::from_pem(names, &text).map_err(|reason| set_aside(&pem, &reason)).ok()
        });
        Ok(StoredCertificate { issued: issued.or_else(|| self.stand_in(names, now)), history })
    }

    fn stand_in(&self, names: &[String], now: i64) -> Option<Issued> {
        let files = fs::read_dir(&self.directory).ok()?.filter_map(|file| Some(file.ok()?.path()));
        files
            .filter(|path| path.extension().is_some_and(|it| it == "pem"))
            .filter_map(|path| Issued::covering(names, &read(&path).ok()??))
            .filter(|issued| issued.not_after > now)
            .reduce(|best, other| if other.is_better_than(&best) { other } else { best })
    }

    /// With it an order for the same names is over, whoever made it.
    pub(crate) fn save_certificate(&self, issued: &Issued) -> Result<(), AcmeError> {
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
        let text = serde_json::to_vec_pretty(content).map_err(|e| wrong(path)(e.into()))?;
        self.write(path, &Zeroizing::new(text))
    }

    /// Whole or not at all, mode 0600, and on disk when this returns.
    fn write(&self, path: &Path, content: &[u8]) -> Result<(), AcmeError> {
        let writing = || {
            let mut file = NamedTempFile::new_in(&self.directory)?;
            file.write_all(content)?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            File::open(&self.directory)?.sync_all()
        };
        writing().map_err(wrong(path))
    }
}

/// Makes a directory for us alone, or sees that it is one.
fn private(path: &Path) -> Result<(), AcmeError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(wrong(path)(error)),
        _ => {
            let metadata = fs::metadata(path).map_err(wrong(path))?;
            let (ours, owner) = (nix::unistd::geteuid().as_raw(), metadata.uid());
            let reason = match metadata.mode() & 0o777 {
                _ if !metadata.is_dir() => "it is no directory".to_owned(),
                // For root too: what it leaves there the owner could not read.
                _ if owner != ours => format!(
                    "it belongs to user {owner}, and this process is user {ours}; run it as {owner}, \
                     or give the directory and all in it to {ours} (chown -R)"
                ),
                mode if mode & 0o077 != 0 => {
                    format!("others can get into it (mode {mode:o}); run `chmod 700` on it")
                }
                _ => return Ok(()),
            };
            Err(AcmeError::State { path: path.to_owned(), reason })
        }
    }
}

/// `None`: there is no such file, or it was no text and is set aside.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>, AcmeError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::InvalidData => {
                set_aside(path, &error.to_string());
                Ok(None)
            }
            _ => Err(AcmeError::State {
                path: path.to_owned(),
                reason: format!("{error}; it has to be a file that this user can read"),
            }),
        },
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, AcmeError> {
    let Some(text) = read(path)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(content) => Ok(Some(content)),
        Err(error) => {
            // Where, and not what: its own words may quote a key.
            set_aside(path, &format!("line {}, column {}", error.line(), error.column()));
            Ok(None)
        }
    }
}

/// Moved away and kept for who wants to look; asked for again.
fn set_aside(path: &Path, why: &str) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".aside");
    match fs::rename(path, &aside) {
        Ok(()) => warn!("{} is of no use and was set aside: {why}", path.display()),
        Err(error) => warn!("{} is of no use ({why}) and stays: {error}", path.display()),
    }
}

fn wrong(path: &Path) -> impl Fn(io::Error) -> AcmeError {
    move |error| AcmeError::State {
        path: path.to_owned(),
        reason: format!(
            "{error}; state in [acme] has to name a directory that this user can write"
        ),
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
