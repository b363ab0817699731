//! The admin token, and the cookie that a browser gets for it.

use std::fmt;
use std::path::Path;

use firstflight_tickets::{SecretFileError, read_secret_file};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::AdminError;

/// The token as a keyed hash under a key of this process. The token itself is not kept in memory.
pub(crate) struct Token {
    key: [u8; 32],
    hash: [u8; 32],
}

impl Token {
    /// Reads the token from a file.
    ///
    /// # Errors
    /// [`AdminError`] if the file cannot be read, if others may read it, or if the token is invalid.
    pub(crate) fn read(path: &Path) -> Result<Self, AdminError> {
        let (text, _) = read_secret_file(path).map_err(|error| match error {
            SecretFileError::Read(reason) => {
                AdminError::TokenFile { path: path.to_owned(), reason }
            }
            SecretFileError::ReadableByOthers(_) => {
                AdminError::TokenForAll { path: path.to_owned() }
            }
            SecretFileError::TooLong => AdminError::Token { path: path.to_owned() },
        })?;
        let token = text.trim();
        let printable = token.bytes().all(|byte| byte.is_ascii_graphic());
        match printable && (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&token.len()) {
            true => Ok(Self::new(token)),
            false => Err(AdminError::Token { path: path.to_owned() }),
        }
    }

    /// Hashes the token under a new key.
    pub(crate) fn new(token: &str) -> Self {
        let mut key = [0; 32];
        // TLS needs the random generator of the system too.
        getrandom::fill(&mut key).expect("the system has a random generator");
        let hash = keyed(&key, &[b"token", token.as_bytes()]).finalize().into_bytes().into();
        Self { key, hash }
    }

    /// Whether `candidate` is the token. Compares in constant time.
    pub(crate) fn matches(&self, candidate: &[u8]) -> bool {
        candidate.len() <= MAX_TOKEN_BYTES
            && keyed(&self.key, &[b"token", candidate]).verify_slice(&self.hash).is_ok()
    }

    /// Makes a cookie that is valid for [`COOKIE_LIFETIME_SECS`] from `now` (seconds since 1970), but
    /// not beyond this process or this token.
    pub(crate) fn cookie(&self, now: u64) -> String {
        let until = now + COOKIE_LIFETIME_SECS;
        format!("{until}.{}", hex::encode(self.seal(until).finalize().into_bytes()))
    }

    /// Whether this process made the cookie for this token, and it has not expired.
    pub(crate) fn verify_cookie(&self, cookie: &str, now: u64) -> bool {
        let Some((until, seal)) = cookie.split_once('.') else { return false };
        let (Ok(until), Ok(seal)) = (until.parse(), hex::decode(seal)) else { return false };
        now < until && self.seal(until).verify_slice(&seal).is_ok()
    }

    fn seal(&self, until: u64) -> Hmac<Sha256> {
        keyed(&self.hash, &[b"cookie", &until.to_be_bytes()])
    }
}

/// Shows nothing of the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Too long to be guessed, so that failed attempts need no limit.
pub(crate) const MIN_TOKEN_BYTES: usize = 32;
/// Less than the limit of a request head.
pub(crate) const MAX_TOKEN_BYTES: usize = 512;

/// A working day.
pub(crate) const COOKIE_LIFETIME_SECS: u64 = 12 * 3600;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_token_matches() {
        let token = Token::new("0123456789abcdef0123456789abcdef");
        assert!(token.matches(b"0123456789abcdef0123456789abcdef"));
        for wrong in ["", "0123456789abcdef0123456789abcdeF", "0123456789abcdef0123456789abcde"] {
            assert!(!token.matches(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn a_cookie_expires_and_is_bound_to_process_and_token() {
        let (token, same) = (Token::new(TEXT), Token::new(TEXT));
        let cookie = token.cookie(1_000);
        assert!(
            token.verify_cookie(&cookie, 1_000)
                && token.verify_cookie(&cookie, 999 + COOKIE_LIFETIME_SECS)
        );
        assert!(!token.verify_cookie(&cookie, 1_000 + COOKIE_LIFETIME_SECS));
        // Another process, or a reloaded token.
        assert!(!same.verify_cookie(&cookie, 1_000));
        let (until, seal) = cookie.split_once('.').unwrap();
        let later = format!("{}.{seal}", until.parse::<u64>().unwrap() + 1);
        for forged in [&later, "", ".", "9999999999", &format!("{until}."), &format!("{until}.00")]
        {
            assert!(!token.verify_cookie(forged, 1_000), "{forged}");
        }
        assert!(!cookie.contains(TEXT));
    }

    #[test]
    fn a_token_file_must_be_private_and_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| error.to_string())
        };
        assert!(read(&format!("{TEXT}\n"), 0o600).unwrap().matches(TEXT.as_bytes()));
        assert!(read(TEXT, 0o644).unwrap_err().contains("chmod 600"));
        for bad in ["", "short", &format!("{TEXT}\n{TEXT}"), &format!("{TEXT}é"), &"x".repeat(513)]
        {
            assert!(read(bad, 0o600).unwrap_err().contains("openssl rand -hex 32"), "{bad:?}");
        }
        fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).unwrap_err().to_string().contains("cannot read"));
    }

    const TEXT: &str = "0123456789abcdef0123456789abcdef";
}
