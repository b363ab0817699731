mod key;
mod store;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use firstflight_tls::{Session, Version};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

pub use key::JarKey;
use key::Keeper;
use store::{Contents, Entry};

/// What can be wrong with a session jar, each in one sentence that names the mend. The jar is left
/// as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JarError {
    /// A file of the jar's cannot be read, made or replaced.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Encrypted for another key.
    #[error(
        "the session jar {} was made with another key; give that one with --ssl-sessions-key FILE \
         (or its passphrase), or remove the jar",
        .0.display()
    )]
    OtherKey(PathBuf),
    /// Cut short, or changed.
    #[error("the session jar {} is damaged ({reason}); remove it to begin anew", path.display())]
    Damaged {
        /// The jar.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The key file holds no key.
    #[error(
        "{} holds no session key (one line AGE-SECRET-KEY-1...); remove it to have one made",
        .0.display()
    )]
    BadKey(PathBuf),
    /// Others can read the key.
    #[error("the key file {path} can be read by others; run: chmod 600 {path}", path = .0.display())]
    KeyIsOpen(PathBuf),
    /// There is no place for the key file.
    #[error("neither XDG_CONFIG_HOME nor HOME is set; name a key file by --ssl-sessions-key FILE")]
    NoHome,
}

/// Whom a session belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `https`.
    pub scheme: String,
    /// Name or address, in lower case.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// How the server of a session was verified. Resuming skips the certificate, so a session may only
/// be used where its server would have been verified in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustId(String);

impl TrustId {
    /// The identity of a way to verify; that of a file of authorities is its contents.
    ///
    /// # Errors
    /// [`JarError::File`] when that file cannot be read.
    pub fn of(trust: &firstflight_tls::Trust) -> Result<Self, JarError> {
        use firstflight_tls::Trust;
        Ok(Self(match trust {
            Trust::System => "system".to_owned(),
            Trust::Anyone => "anyone".to_owned(),
            Trust::File(path) => {
                let bytes = fs::read(path).map_err(file_error("read", path))?;
                format!("file:{}", hex::encode(Sha256::digest(bytes)))
            }
        }))
    }
}

/// A session with all that decides where it may be used.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Whom it belongs to.
    pub origin: Origin,
    /// How that one was verified.
    pub trust: TrustId,
    /// The application protocol of the connection that brought it.
    pub alpn: Option<Vec<u8>>,
    /// The session itself.
    pub session: Session,
}

/// What kind of ticket a connection can use.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Whom the connection goes to.
    pub origin: &'a Origin,
    /// How it will be verified.
    pub trust: &'a TrustId,
    /// The application protocols that it offers.
    pub alpn: &'a [Vec<u8>],
    /// Oldest and newest version that it speaks.
    pub versions: (Version, Version),
    /// Whether one that allows early data is preferred.
    pub early_data: bool,
}

/// Sessions in a file, encrypted as a whole, which several processes may use at a time: each
/// ticket is handed out once (RFC 8446 appendix C.4), under a lock.
pub struct Jar {
    path: PathBuf,
    keeper: Keeper,
}

impl std::fmt::Debug for Jar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Jar").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Jar {
    /// Names a jar and gets its key, making one if there is none. The jar itself is made by the
    /// first [`Jar::put`].
    ///
    /// # Errors
    /// [`JarError`], also when the jar exists and cannot be opened with this key.
    pub fn open(path: &Path, key: JarKey) -> Result<Self, JarError> {
        // Where there is a jar, there was a key: a new one could not open it.
        if path.exists() && key.is_missing() {
            return Err(JarError::OtherKey(path.to_owned()));
        }
        let jar = Self { path: path.to_owned(), keeper: key.load()? };
        let _lock = jar.lock()?;
        jar.read()?;
        Ok(jar)
    }

    /// Takes the newest fitting ticket out of the jar. Sessions that turn out to be garbled are
    /// dropped, with a sentence about each in `warnings`.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn take(
        &self,
        wanted: &Wanted<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Ticket>, JarError> {
        let _lock = self.lock()?;
        let mut contents = self.read()?;
        let before = contents.len();
        self.warn_of_garbled(&mut contents, warnings);
        contents.expire(now());
        let found = loop {
            let Some(entry) = contents.take(wanted) else { break None };
            match entry.open() {
                Ok(ticket) => break Some(ticket),
                Err(reason) => warnings.push(format!(
                    "a session for {} in {} is garbled ({reason}) and was dropped",
                    wanted.origin.host,
                    self.path.display()
                )),
            }
        };
        if contents.len() != before {
            self.write(&contents)?;
        }
        Ok(found)
    }

    /// Puts tickets in: new ones, or one that was not used after all. The jar is bounded; the
    /// newest stay.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn put(&self, tickets: &[Ticket], warnings: &mut Vec<String>) -> Result<(), JarError> {
        if tickets.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let mut contents = self.read()?;
        self.warn_of_garbled(&mut contents, warnings);
        for ticket in tickets {
            if let Some(entry) = Entry::seal(ticket) {
                contents.add(entry);
            }
        }
        contents.expire(now());
        self.write(&contents)
    }

    /// How many tickets it holds, of all origins.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn count(&self) -> Result<usize, JarError> {
        let _lock = self.lock()?;
        Ok(self.read()?.len())
    }

    fn warn_of_garbled(&self, contents: &mut Contents, warnings: &mut Vec<String>) {
        match contents.drop_garbled() {
            0 => {}
            count => warnings.push(format!(
                "{count} garbled session(s) in {} were dropped",
                self.path.display()
            )),
        }
    }

    /// A file of its own: the jar is replaced by renaming, and a lock on what is replaced locks
    /// nothing.
    fn lock(&self) -> Result<Flock<File>, JarError> {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(file_error("make", &path))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| file_error("lock", &path)(errno.into()))
    }

    fn read(&self) -> Result<Contents, JarError> {
        let sealed = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Contents::default());
            }
            Ok(metadata) if metadata.len() > MAX_JAR => {
                return Err(self.damaged(format!("it is larger than {MAX_JAR} bytes")));
            }
            _ => fs::read(&self.path).map_err(file_error("read", &self.path))?,
        };
        let plain = self.keeper.open(&sealed).map_err(|error| match error {
            key::Unopened::OtherKey => JarError::OtherKey(self.path.clone()),
            key::Unopened::Damaged(reason) => self.damaged(reason),
        })?;
        Contents::from_bytes(&plain).map_err(|reason| self.damaged(reason))
    }

    fn write(&self, contents: &Contents) -> Result<(), JarError> {
        let failed = |source| file_error("write", &self.path)(source);
        let sealed = self.keeper.seal(&contents.to_bytes()).map_err(failed)?;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(&sealed).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&self.path).map_err(|error| failed(error.error))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    fn damaged(&self, reason: String) -> JarError {
        JarError::Damaged { path: self.path.clone(), reason }
    }
}

/// No jar that we wrote is larger.
const MAX_JAR: u64 = 64 * 1024 * 1024;

fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> JarError {
    move |source| JarError::File { what, path: path.to_owned(), source }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
