//! The token that opens the operators' side, and the cookie that a browser gets for it.

use std::fmt;
use std::path::Path;

use firstflight_tickets::{SecretFileError, read_secret_file};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::AdminError;

/// A token, known by what it hashes to under a key of this process: the token itself is forgotten
/// once it is read.
pub(crate) struct Token {
    key: [u8; 32],
    mark: [u8; 32],
}

impl Token {
    /// The token in a file that nobody else may read.
    ///
    /// # Errors
    /// [`AdminError`], where the file or the token is of no use.
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

    /// This token, under a fresh key.
    pub(crate) fn new(token: &str) -> Self {
        let mut key = [0; 32];
        // Without randomness from the system there is no TLS either.
        getrandom::fill(&mut key).expect("the system has randomness");
        let mark = keyed(&key, &[b"token", token.as_bytes()]).finalize().into_bytes().into();
        Self { key, mark }
    }

    /// Whether it is this token. Takes as long for one that is nearly right as for any other.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        given.len() <= MAX_TOKEN_BYTES
            && keyed(&self.key, &[b"token", given]).verify_slice(&self.mark).is_ok()
    }

    /// A cookie's value, good for [`COOKIE_LIFE`] from `now` on, in seconds since 1970. It dies
    /// with the process and with the token.
    pub(crate) fn cookie(&self, now: u64) -> String {
        let until = now + COOKIE_LIFE;
        format!("{until}.{}", hex::encode(self.seal(until).finalize().into_bytes()))
    }

    /// Whether a cookie's value is one of ours, and still good.
    pub(crate) fn made(&self, cookie: &str, now: u64) -> bool {
        let Some((until, seal)) = cookie.split_once('.') else { return false };
        let (Ok(until), Ok(seal)) = (until.parse(), hex::decode(seal)) else { return false };
        now < until && self.seal(until).verify_slice(&seal).is_ok()
    }

    fn seal(&self, until: u64) -> Hmac<Sha256> {
        keyed(&self.mark, &[b"cookie", &until.to_be_bytes()])
    }
}

/// Says nothing of itself.
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

/// Who can guess that many characters could guess a key: so wrong tokens need not be counted.
pub(crate) const MIN_TOKEN_BYTES: usize = 32;
/// More than anybody needs, and less than a head may have.
pub(crate) const MAX_TOKEN_BYTES: usize = 512;

/// A working day, in seconds.
pub(crate) const COOKIE_LIFE: u64 = 12 * 3600;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_token_opens() {
        let token = Token::new("0123456789abcdef0123456789abcdef");
        assert!(token.is(b"0123456789abcdef0123456789abcdef"));
        for wrong in ["", "0123456789abcdef0123456789abcdeF", "0123456789abcdef0123456789abcde"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn a_cookie_dies_with_its_time_and_with_its_token() {
        let (token, same) = (Token::new(TEXT), Token::new(TEXT));
        let cookie = token.cookie(1_000);
        assert!(token.made(&cookie, 1_000) && token.made(&cookie, 999 + COOKIE_LIFE));
        assert!(!token.made(&cookie, 1_000 + COOKIE_LIFE));
        // Another process, or the token set again.
        assert!(!same.made(&cookie, 1_000));
        let (until, seal) = cookie.split_once('.').unwrap();
        let later = format!("{}.{seal}", until.parse::<u64>().unwrap() + 1);
        for forged in [&later, "", ".", "9999999999", &format!("{until}."), &format!("{until}.00")]
        {
            assert!(!token.made(forged, 1_000), "{forged}");
        }
        assert!(!cookie.contains(TEXT));
    }

    #[test]
    fn a_token_file_is_for_its_owner_and_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| error.to_string())
        };
        assert!(read(&format!("{TEXT}\n"), 0o600).unwrap().is(TEXT.as_bytes()));
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
