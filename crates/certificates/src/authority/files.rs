//! The authority's files: a key and a certificate in a directory of its user.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fs};

use firstflight_tls::Identity;
use nix::unistd::geteuid;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::authority::issue::{self, CertifiedKey, Signer};
use crate::authority::{AuthorityError, constraints, is_permitted_name};

const CERTIFICATE: &str = "authority.pem";
const KEY: &str = "authority.key";

/// The default directory of the authority: `firstflight/authority` in `$XDG_DATA_HOME` or
/// `~/.local/share`.
///
/// # Errors
/// [`AuthorityError::NoDataDirectory`].
pub fn default_directory() -> Result<PathBuf, AuthorityError> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    Ok(data.ok_or(AuthorityError::NoDataDirectory)?.join("firstflight/authority"))
}

/// A development authority, which can sign.
pub struct Authority {
    certificate: PathBuf,
    name: String,
    /// In Unix seconds.
    expires: u64,
    signer: Signer,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not appear in logs.
        f.debug_struct("Authority").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in a directory. Returns `None` if there is none yet. `now` is in Unix
    /// seconds.
    ///
    /// # Errors
    /// [`AuthorityError`] if other users have access, or the authority is damaged or has expired.
    pub fn open(directory: &Path, now: u64) -> Result<Option<Self>, AuthorityError> {
        let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
        let (Some(pem), Some(secret)) = (read(&certificate)?, read(&key)?) else {
            return Ok(None);
        };
        check_owner(directory, 0o022)?;
        check_owner(&certificate, 0o022)?;
        check_owner(&key, 0o077)?;
        let identity = Identity::from_pem(&pem, &secret)
            .map_err(|error| damaged(&certificate, &error.to_string()))?;
        let expires = identity.expires().and_then(|expires| u64::try_from(expires).ok());
        let expires = expires.ok_or_else(|| damaged(&certificate, "it has no expiry date"))?;
        if expires <= now {
            return Err(AuthorityError::Expired { path: certificate });
        }
        let secret = String::from_utf8_lossy(&secret);
        let key = KeyPair::from_pem_and_sign_algo(&secret, &PKCS_ECDSA_P256_SHA256)
            .map_err(|error| damaged(&key, &error.to_string()))?;
        let name = issue::authority_name(&key);
        Ok(Some(Self { certificate, name, expires, signer: issue::signer(key) }))
    }

    /// Opens the authority in a directory, or creates it. Several processes may do so at once: the
    /// files of the first one are used.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn open_or_create(directory: &Path, now: u64) -> Result<Self, AuthorityError> {
        if let Some(authority) = Self::open(directory, now)? {
            return Ok(authority);
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("create", directory))?;
        check_owner(directory, 0o022)?;
        let key = directory.join(KEY);
        write_new(&key, &issue::new_key()?.serialize_pem())?;
        check_owner(&key, 0o077)?;
        // The key that exists now; the certificate is derived from it, whichever process writes it.
        let secret = read(&key)?.unwrap_or_default();
        let pair = KeyPair::from_pem_and_sign_algo(
            &String::from_utf8_lossy(&secret),
            &PKCS_ECDSA_P256_SHA256,
        )
        .map_err(|error| damaged(&key, &error.to_string()))?;
        let certificate = directory.join(CERTIFICATE);
        write_new(&certificate, &issue::authority_certificate(&pair, now)?)?;
        let created = Self::open(directory, now)?;
        created.ok_or_else(|| damaged(&certificate, "it was removed while it was created"))
    }

    /// Its common name, which is unique.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file of its certificate (PEM), for clients to trust.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// When it expires, in Unix seconds.
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// Issues a certificate for a server with these host names and addresses, valid for a week.
    ///
    /// # Errors
    /// [`AuthorityError::Names`] if a name is [not permitted](is_permitted_name).
    pub fn sign(&self, names: &[String], now: u64) -> Result<CertifiedKey, AuthorityError> {
        let refused: Vec<_> =
            names.iter().filter(|name| !is_permitted_name(name)).cloned().collect();
        if !refused.is_empty() {
            let reason =
                "the name constraints of the development authority do not permit it".to_owned();
            return Err(AuthorityError::Names { names: refused.join(", "), reason });
        }
        issue::leaf(&self.signer, names, now)
    }
}

/// The certificate of the authority in a directory, for clients to trust. Returns `None` if there
/// is none.
///
/// # Errors
/// [`AuthorityError`] if other users have access, or if the file is not exactly one certificate
/// with the name constraints of a development authority.
pub fn trust_anchor(directory: &Path) -> Result<Option<PathBuf>, AuthorityError> {
    let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
    let Some(pem) = read(&certificate)? else { return Ok(None) };
    check_owner(directory, 0o022)?;
    check_owner(&certificate, 0o022)?;
    if key.exists() {
        check_owner(&key, 0o077)?;
    }
    constraints::check(&pem).map_err(|reason| damaged(&certificate, reason))?;
    Ok(Some(certificate))
}

/// The name of the authority whose key is in a directory, also if [`Authority::open`] refuses it.
/// Returns `None` if there is no key that can be read.
pub fn name_in(directory: &Path) -> Option<String> {
    let secret = fs::read_to_string(directory.join(KEY)).ok()?;
    let key = KeyPair::from_pem_and_sign_algo(&secret, &PKCS_ECDSA_P256_SHA256).ok()?;
    Some(issue::authority_name(&key))
}

/// Removes the authority in a directory. Returns the removed files.
///
/// # Errors
/// [`AuthorityError::File`].
pub fn remove(directory: &Path) -> Result<Vec<PathBuf>, AuthorityError> {
    let mut removed = Vec::new();
    for path in [directory.join(KEY), directory.join(CERTIFICATE)] {
        match fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(AuthorityError::File { verb: "remove", path, source }),
        }
    }
    // Other files in the directory stay.
    let _ = fs::remove_dir(directory);
    Ok(removed)
}

/// Checks that a file or directory belongs to this user, and that others have none of these
/// permissions.
fn check_owner(path: &Path, others: u32) -> Result<(), AuthorityError> {
    let metadata = fs::metadata(path).map_err(failed("inspect", path))?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(AuthorityError::WrongOwner { path: path.to_owned() });
    }
    if metadata.mode() & others != 0 {
        return Err(AuthorityError::AccessibleByOthers { path: path.to_owned() });
    }
    Ok(())
}

/// Reads a small file. Returns `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, AuthorityError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(AuthorityError::File { verb: "read", path: path.to_owned(), source }),
    }
}

/// Writes a file atomically with mode 0600, unless it exists.
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
