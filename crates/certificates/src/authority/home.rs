//! Where a user's authority lies: a directory of his own with a key and a certificate.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fs};

use firstflight_tls::Identity;
use nix::unistd::geteuid;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::authority::making::{self, IssuedCertificate, Signer};
use crate::authority::{AuthorityError, believing, may_vouch_for};

const CERTIFICATE: &str = "authority.pem";
const KEY: &str = "authority.key";

/// The directory of this user's authority: `firstflight/authority` in `$XDG_DATA_HOME` or
/// `~/.local/share`.
///
/// # Errors
/// [`AuthorityError::NoHome`].
pub fn directory() -> Result<PathBuf, AuthorityError> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    Ok(data.ok_or(AuthorityError::NoHome)?.join("firstflight/authority"))
}

/// An authority that can sign.
pub struct Authority {
    certificate: PathBuf,
    name: String,
    /// In seconds since 1970.
    expires: u64,
    signer: Signer,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Authority").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority in a directory; `None`: there is none yet. `now`: in seconds since 1970.
    ///
    /// # Errors
    /// [`AuthorityError`]: it is not this user's alone, or damaged, or has expired.
    pub fn open(directory: &Path, now: u64) -> Result<Option<Self>, AuthorityError> {
        let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
        let (Some(pem), Some(secret)) = (read(&certificate)?, read(&key)?) else {
            return Ok(None);
        };
        own(directory, 0o022)?;
        own(&certificate, 0o022)?;
        own(&key, 0o077)?;
        let identity = Identity::from_pem(&pem, &secret)
            .map_err(|error| damaged(&certificate, &error.to_string()))?;
        let expires = identity.expires().and_then(|expires| u64::try_from(expires).ok());
        let expires = expires.ok_or_else(|| damaged(&certificate, "it does not say its end"))?;
        if expires <= now {
            return Err(AuthorityError::Expired { path: certificate });
        }
        let secret = String::from_utf8_lossy(&secret);
        let key = KeyPair::from_pem_and_sign_algo(&secret, &PKCS_ECDSA_P256_SHA256)
            .map_err(|error| damaged(&key, &error.to_string()))?;
        let name = making::name_of(&key);
        Ok(Some(Self { certificate, name, expires, signer: making::signer(key) }))
    }

    /// The same, made if there is none yet. Several processes may do so at a time: the first one's
    /// counts.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn open_or_make(directory: &Path, now: u64) -> Result<Self, AuthorityError> {
        if let Some(authority) = Self::open(directory, now)? {
            return Ok(authority);
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("make", directory))?;
        own(directory, 0o022)?;
        let key = directory.join(KEY);
        write_new(&key, &making::new_key()?.serialize_pem())?;
        own(&key, 0o077)?;
        // The key that lies there by now: the certificate follows from it, whoever writes it.
        let secret = read(&key)?.unwrap_or_default();
        let pair = KeyPair::from_pem_and_sign_algo(
            &String::from_utf8_lossy(&secret),
            &PKCS_ECDSA_P256_SHA256,
        )
        .map_err(|error| damaged(&key, &error.to_string()))?;
        let certificate = directory.join(CERTIFICATE);
        write_new(&certificate, &making::authority_certificate(&pair, now)?)?;
        let made = Self::open(directory, now)?;
        made.ok_or_else(|| damaged(&certificate, "it went away while it was made"))
    }

    /// Its common name, which no other authority has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its certificate, PEM: whom clients are to trust.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// When it ends, in seconds since 1970.
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// A certificate for a server with these host names and addresses, good for a week.
    ///
    /// # Errors
    /// [`AuthorityError::Names`]: it [may not vouch](may_vouch_for) for one of them.
    pub fn sign(&self, names: &[String], now: u64) -> Result<IssuedCertificate, AuthorityError> {
        let beyond: Vec<_> = names.iter().filter(|name| !may_vouch_for(name)).cloned().collect();
        if !beyond.is_empty() {
            let reason = "the development authority may not vouch for that".to_owned();
            return Err(AuthorityError::Names { names: beyond.join(", "), reason });
        }
        making::leaf(&self.signer, names, now)
    }
}

/// The certificate of the authority in a directory, for clients to trust; `None`: there is none.
///
/// # Errors
/// [`AuthorityError`]: others than this user could be this authority; or what lies there is not one
/// certificate alone, with the bounds of a development authority.
pub fn believed(directory: &Path) -> Result<Option<PathBuf>, AuthorityError> {
    let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
    let Some(pem) = read(&certificate)? else { return Ok(None) };
    own(directory, 0o022)?;
    own(&certificate, 0o022)?;
    if key.exists() {
        own(&key, 0o077)?;
    }
    believing::check(&pem).map_err(|reason| damaged(&certificate, reason))?;
    Ok(Some(certificate))
}

/// Removes the authority in a directory; the files that are gone.
///
/// # Errors
/// [`AuthorityError::File`].
pub fn remove(directory: &Path) -> Result<Vec<PathBuf>, AuthorityError> {
    let mut gone = Vec::new();
    for path in [directory.join(KEY), directory.join(CERTIFICATE)] {
        match fs::remove_file(&path) {
            Ok(()) => gone.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(AuthorityError::File { verb: "remove", path, source }),
        }
    }
    // What else lies there is not ours.
    let _ = fs::remove_dir(directory);
    Ok(gone)
}

/// Whether a file or directory is this user's, and nobody else has one of these rights on it.
fn own(path: &Path, others: u32) -> Result<(), AuthorityError> {
    let metadata = fs::metadata(path).map_err(failed("look at", path))?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(AuthorityError::Foreign { path: path.to_owned() });
    }
    if metadata.mode() & others != 0 {
        return Err(AuthorityError::Open { path: path.to_owned() });
    }
    Ok(())
}

/// The content of a file, which is small; `None`: there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, AuthorityError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(AuthorityError::File { verb: "read", path: path.to_owned(), source }),
    }
}

/// Writes a file, mode 0600, whole or not at all. One that is there already stays.
fn write_new(path: &Path, content: &str) -> Result<(), AuthorityError> {
    let failed = failed("write", path);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(&failed)?;
    file.write_all(content.as_bytes()).map_err(&failed)?;
    file.as_file().sync_all().map_err(&failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error.error)),
    }
}

fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> AuthorityError {
    move |source| AuthorityError::File { verb, path: path.to_owned(), source }
}

fn damaged(path: &Path, reason: &str) -> AuthorityError {
    AuthorityError::Damaged { path: path.to_owned(), reason: reason.to_owned() }
}
