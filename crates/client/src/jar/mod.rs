mod contents;
mod key;
mod types;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};

use contents::{Contents, Entry, TokenEntry};
pub use key::JarKey;
use key::{OpenError, Sealer, is_sealed_by_age};
use types::Transport;
pub use types::{JarMatch, JarQuery, Origin, Ticket, Token, TrustId};

/// An error of the session jar. Messages name the fix. The jar is left unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JarError {
    /// A file of the jar cannot be read, created or replaced.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The jar is encrypted under another key.
    #[error(
        "the session jar {} is encrypted under another key; set that key with --ssl-sessions-key \
         FILE (or its passphrase), or remove the jar",
        .0.display()
    )]
    OtherKey(PathBuf),
    /// The jar is truncated or was changed.
    #[error("the session jar {} is damaged ({reason}); remove it to start with an empty one", path.display())]
    Damaged {
        /// The jar.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The jar was written by an earlier version, with age.
    #[error(
        "the session jar {} was sealed with age, by an earlier version; remove it \
         (rm {}{}), which costs one full handshake with each server",
        path.display(), path.display(), key_argument(key.as_deref())
    )]
    AgeJar {
        /// The jar.
        path: PathBuf,
        /// Its key file, which is obsolete too.
        key: Option<PathBuf>,
    },
    /// The key file was created by an earlier version, for age.
    #[error(
        "{path} contains an age key of an earlier version; remove it, and a new key is created \
         (rm {path})",
        path = .0.display()
    )]
    AgeKey(PathBuf),
    /// The key file contains no valid key.
    #[error("{} line {line}: {problem}; remove the file, and a new key is created", path.display())]
    BadKey {
        /// The key file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// Other users can read the key file.
    #[error("the key file {path} can be read by other users; run: chmod 600 {path}", path = .0.display())]
    KeyIsOpen(PathBuf),
    /// There is no directory for the key file.
    #[error("neither XDG_CONFIG_HOME nor HOME is set; set a key file with --ssl-sessions-key FILE")]
    NoHome,
}

/// Sessions in an encrypted file, which several processes may use concurrently. A lock ensures that
/// each ticket is handed out once (RFC 8446 appendix C.4).
pub struct Jar {
    path: PathBuf,
    sealer: Sealer,
}

impl std::fmt::Debug for Jar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print the key.
        f.debug_struct("Jar").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Jar {
    /// Opens a jar with its key, and creates the key if there is none. The first [`Jar::put`] creates
    /// the jar.
    ///
    /// # Errors
    /// [`JarError`], also if the jar exists and cannot be opened with this key.
    pub fn open(path: &Path, key: JarKey) -> Result<Self, JarError> {
        // The key of an age jar is obsolete too, so the error names both files.
        if sealed_by_age(path) {
            let key = key.age_file().map(Path::to_owned);
            return Err(JarError::AgeJar { path: path.to_owned(), key });
        }
        // A new key could not open the existing jar.
        if path.exists() && key.is_missing() {
            return Err(JarError::OtherKey(path.to_owned()));
        }
        let jar = Self { path: path.to_owned(), sealer: key.load()? };
        let _lock = jar.lock()?;
        jar.read()?;
        Ok(jar)
    }

    /// Takes out the newest matching ticket for each requested transport, and for QUIC the newest
    /// address token. Drops garbled entries, and adds a warning for each.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn take(
        &self,
        query: &JarQuery<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<JarMatch, JarError> {
        let _lock = self.lock()?;
        let mut contents = self.read()?;
        let before = (contents.len(), contents.tokens());
        self.warn_of_unreadable(&mut contents, warnings);
        contents.expire(now());
        let mut warn_garbled = |what: &str, reason: String| {
            warnings.push(format!(
                "{what} for {} in {} is garbled ({reason}) and was dropped",
                query.origin.host,
                self.path.display()
            ));
        };
        let mut ticket = |transport, alpn: Option<&[Vec<u8>]>| {
            let alpn = alpn?;
            loop {
                match contents.take(query, transport, alpn)?.into_ticket() {
                    Ok(ticket) => return Some(ticket),
                    Err(reason) => warn_garbled("a session", reason),
                }
            }
        };
        let (tcp, quic) = (ticket(Transport::Tcp, query.tcp), ticket(Transport::Quic, query.quic));
        let mut token = None;
        while let (Some(_), None) = (query.quic, &token) {
            let Some(entry) = contents.take_token(query.origin, query.trust) else { break };
            match entry.into_token(query.origin) {
                Ok(restored) => token = Some(restored),
                Err(reason) => warn_garbled("an address token", reason),
            }
        }
        if (contents.len(), contents.tokens()) != before {
            self.write(&contents)?;
        }
        Ok(JarMatch { tcp, quic, token })
    }

    /// Stores tickets and address tokens: new ones, or those that were not used. The jar is bounded and
    /// keeps the newest.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn put(
        &self,
        tickets: &[Ticket],
        tokens: &[Token],
        warnings: &mut Vec<String>,
    ) -> Result<(), JarError> {
        if tickets.is_empty() && tokens.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let mut contents = self.read()?;
        self.warn_of_unreadable(&mut contents, warnings);
        tickets.iter().filter_map(Entry::from_ticket).for_each(|entry| contents.add(entry));
        tokens
            .iter()
            .filter_map(TokenEntry::from_token)
            .for_each(|token| contents.add_token(token));
        contents.expire(now());
        self.write(&contents)
    }

    /// Returns the number of tickets, for all origins.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn count(&self) -> Result<usize, JarError> {
        let _lock = self.lock()?;
        Ok(self.read()?.len())
    }

    /// Returns the number of address tokens, for all origins.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn count_tokens(&self) -> Result<usize, JarError> {
        let _lock = self.lock()?;
        Ok(self.read()?.tokens())
    }

    fn warn_of_unreadable(&self, contents: &mut Contents, warnings: &mut Vec<String>) {
        match contents.drop_unreadable() {
            0 => {}
            count => warnings.push(format!(
                "{count} garbled session(s) or token(s) in {} were dropped",
                self.path.display()
            )),
        }
    }

    /// Locks a separate file: the jar is replaced by renaming, which would lose a lock on it.
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
            Ok(metadata) if metadata.len() > MAX_JAR_BYTES => {
                return Err(self.damaged(format!("it is larger than {MAX_JAR_BYTES} bytes")));
            }
            _ => fs::read(&self.path).map_err(file_error("read", &self.path))?,
        };
        let plain = self.sealer.open(&sealed).map_err(|error| match error {
            OpenError::OtherKey => JarError::OtherKey(self.path.clone()),
            OpenError::Damaged(reason) => self.damaged(reason.to_owned()),
        })?;
        Contents::from_bytes(&plain).map_err(|reason| self.damaged(reason))
    }

    fn write(&self, contents: &Contents) -> Result<(), JarError> {
        let failed = |source| file_error("write", &self.path)(source);
        let sealed = self.sealer.seal(&contents.to_bytes());
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Created with mode 0600.
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

fn sealed_by_age(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut head));
    read.is_ok() && is_sealed_by_age(&head)
}

/// Formats the key file as a further argument of `rm`.
fn key_argument(key: Option<&Path>) -> String {
    key.map_or_else(String::new, |key| format!(" {}", key.display()))
}

/// Maximum size of a jar file; this program writes no larger one.
const MAX_JAR_BYTES: u64 = 64 * 1024 * 1024;

fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> JarError {
    move |source| JarError::File { what, path: path.to_owned(), source }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
