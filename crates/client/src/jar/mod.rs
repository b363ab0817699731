mod key;
mod store;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use firstflight_tls::{Session, Version};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

pub use key::JarKey;
use key::Keeper;
use store::{Contents, Entry, TokenEntry};

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
    /// The server's transport parameters as the wire has them, where the connection was QUIC's
    /// (RFC 9000 section 7.4.1). Sessions of TCP have none, and the two do not cross.
    pub transport_parameters: Option<Bytes>,
}

/// An address token of a NEW_TOKEN frame: with it in its first packet a client is taken for one
/// that can be reached, and is sent a whole answer at once (RFC 9000 section 8.1.3). Kept also
/// where there is no session.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Whom it belongs to.
    pub origin: Origin,
    /// How that one was verified.
    pub trust: TrustId,
    /// When it came, in seconds since the Unix epoch.
    pub received: u64,
    /// The token itself.
    pub bytes: Bytes,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whoever has it can spend it.
        f.debug_struct("Token").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Token {
    /// One that came just now.
    pub fn new(origin: Origin, trust: TrustId, bytes: Bytes) -> Self {
        Self { origin, trust, received: now(), bytes }
    }
}

/// What carries TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Quic,
}

/// What a transfer can use.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Whom the connection goes to.
    pub origin: &'a Origin,
    /// How it will be verified.
    pub trust: &'a TrustId,
    /// The application protocols that it offers over TCP; `None`: it does not use TCP.
    pub tcp: Option<&'a [Vec<u8>]>,
    /// The same for QUIC.
    pub quic: Option<&'a [Vec<u8>]>,
    /// Oldest and newest version that it speaks.
    pub versions: (Version, Version),
    /// Whether a ticket that allows early data is preferred.
    pub early_data: bool,
}

/// What a jar had for a transfer.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// For a connection over TCP.
    pub tcp: Option<Ticket>,
    /// For one over QUIC.
    pub quic: Option<Ticket>,
    /// For the first packet of one over QUIC.
    pub token: Option<Token>,
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

    /// Takes out the newest fitting ticket for each carrier that is wanted, and for QUIC the newest
    /// address token. What turns out to be garbled is dropped, with a sentence about each in
    /// `warnings`.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn take(&self, wanted: &Wanted<'_>, warnings: &mut Vec<String>) -> Result<Found, JarError> {
        let _lock = self.lock()?;
        let mut contents = self.read()?;
        let before = (contents.len(), contents.tokens());
        self.warn_of_garbled(&mut contents, warnings);
        contents.expire(now());
        let mut garbled = |what: &str, reason: String| {
            warnings.push(format!(
                "{what} for {} in {} is garbled ({reason}) and was dropped",
                wanted.origin.host,
                self.path.display()
            ));
        };
        let mut ticket = |carrier, alpn: Option<&[Vec<u8>]>| {
            let alpn = alpn?;
            loop {
                match contents.take(wanted, carrier, alpn)?.open() {
                    Ok(ticket) => return Some(ticket),
                    Err(reason) => garbled("a session", reason),
                }
            }
        };
        let (tcp, quic) = (ticket(Carrier::Tcp, wanted.tcp), ticket(Carrier::Quic, wanted.quic));
        let mut token = None;
        while let (Some(_), None) = (wanted.quic, &token) {
            let Some(entry) = contents.take_token(wanted.origin, wanted.trust) else { break };
            match entry.open(wanted.origin) {
                Ok(open) => token = Some(open),
                Err(reason) => garbled("an address token", reason),
            }
        }
        if (contents.len(), contents.tokens()) != before {
            self.write(&contents)?;
        }
        Ok(Found { tcp, quic, token })
    }

    /// Puts tickets and address tokens in: new ones, or those that were not used after all. The
    /// jar is bounded; the newest stay.
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
        self.warn_of_garbled(&mut contents, warnings);
        tickets.iter().filter_map(Entry::seal).for_each(|entry| contents.add(entry));
        tokens.iter().filter_map(TokenEntry::seal).for_each(|token| contents.add_token(token));
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

    /// How many address tokens it holds, of all origins.
    ///
    /// # Errors
    /// [`JarError`].
    pub fn count_tokens(&self) -> Result<usize, JarError> {
        let _lock = self.lock()?;
        Ok(self.read()?.tokens())
    }

    fn warn_of_garbled(&self, contents: &mut Contents, warnings: &mut Vec<String>) {
        match contents.drop_garbled() {
            0 => {}
            count => warnings.push(format!(
                "{count} garbled session(s) or token(s) in {} were dropped",
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
