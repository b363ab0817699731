//! Basic authentication (RFC 7617) against a file of bcrypt hashes.
//!
//! bcrypt takes some 50 ms of CPU time, on purpose. So verified credentials are remembered, as a
//! digest with a key of this process. All others are compared on at most half of the cores at once.
//! An unknown name takes as long as a wrong password.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use firstflight_config::read_users;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::ServerError;
use crate::context::ResponseBody;
use crate::handler::response::plain;

/// The users that one route admits.
pub(crate) struct BasicAuth {
    hashes: Arc<BTreeMap<String, String>>,
    /// The hash that an unknown name's password is compared with.
    decoy: String,
    /// Digests of credentials that were verified.
    verified: Cache<[u8; 32], ()>,
    /// Random, so that a digest in memory does not help to guess a password.
    key: [u8; 32],
    /// Limits concurrent comparisons.
    permits: Arc<Semaphore>,
}

/// The number of remembered credentials.
const MAX_VERIFIED: usize = 10_000;

/// Longer fields are refused: bcrypt reads 72 bytes of a password.
const MAX_FIELD_BYTES: usize = 1024;

impl BasicAuth {
    /// Reads the names and hashes from a file.
    ///
    /// # Errors
    /// [`ServerError::Config`]: the file is invalid.
    pub(crate) fn new(file: &Path) -> Result<Self, ServerError> {
        let hashes = read_users(file).map_err(ServerError::setting)?;
        let decoy = hashes.values().next().cloned().unwrap_or_default();
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|error| ServerError::setting(error.to_string()))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let permits = Arc::new(Semaphore::new((cores / 2).max(1)));
        Ok(Self {
            hashes: Arc::new(hashes),
            decoy,
            verified: Cache::new(MAX_VERIFIED),
            key,
            permits,
        })
    }

    /// Whether the request's credentials are those of a user.
    pub(crate) async fn admits(&self, headers: &HeaderMap) -> bool {
        let Some((name, password)) = credentials(headers) else { return false };
        let digest = self.digest(&name, &password);
        if self.verified.get(&digest).is_some() {
            return true;
        }
        let Ok(permit) = self.permits.clone().acquire_owned().await else { return false };
        let (hash, exists) = match self.hashes.get(&name) {
            Some(hash) => (hash.clone(), true),
            None => (self.decoy.clone(), false),
        };
        let compare = move || {
            let is_right = bcrypt::verify(&password, &hash).unwrap_or(false);
            drop(permit);
            is_right
        };
        let admitted = tokio::task::spawn_blocking(compare).await.unwrap_or(false) && exists;
        if admitted {
            self.verified.insert(digest, ());
        }
        admitted
    }

    /// The length of the name separates it from the password.
    fn digest(&self, name: &str, password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(self.key);
        digest.update((name.len() as u64).to_be_bytes());
        digest.update(name);
        digest.update(password);
        digest.finalize().into()
    }
}

/// The response to a request without valid credentials (RFC 7617 section 2).
pub(crate) fn challenge() -> Response<ResponseBody> {
    let mut response = plain(StatusCode::UNAUTHORIZED);
    let field = HeaderValue::from_static("Basic realm=\"restricted\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, field);
    response
}

/// The name and password of the single `Authorization` field.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let (field, None) = (fields.next()?, fields.next()) else { return None };
    let (scheme, token) = field.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || token.len() > MAX_FIELD_BYTES {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(token.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let name = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    Some((name, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(credentials: &str) -> HeaderMap {
        let value = format!("Basic {}", BASE64_STANDARD.encode(credentials));
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(&value).unwrap())])
    }

    fn auth() -> (tempfile::TempDir, BasicAuth) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("users");
        let hash = bcrypt::hash("right:horse", 4).unwrap();
        std::fs::write(&file, format!("ann:{hash}\n")).unwrap();
        let auth = BasicAuth::new(&file).unwrap();
        (directory, auth)
    }

    #[tokio::test]
    async fn rfc7617_2_only_the_right_password_of_a_user_is_admitted_and_remembered() {
        let (_directory, auth) = auth();
        for wrong in
            ["ann:wrong", "ann:", "ann", "bob:right:horse", ":right:horse", "Ann:right:horse"]
        {
            assert!(!auth.admits(&headers(wrong)).await, "{wrong}");
        }
        assert_eq!(auth.verified.len(), 0);
        for _ in 0..2 {
            assert!(auth.admits(&headers("ann:right:horse")).await);
        }
        assert_eq!(auth.verified.len(), 1);
        // Remembered credentials need no permit.
        auth.permits.close();
        assert!(auth.admits(&headers("ann:right:horse")).await);
        assert!(!auth.admits(&headers("ann:wrong")).await);
    }

    #[test]
    fn invalid_fields_have_no_credentials() {
        let mut twice = headers("ann:a");
        twice.append(header::AUTHORIZATION, HeaderValue::from_static("Basic YW5uOmI="));
        assert_eq!(credentials(&twice), None);
        for value in ["Bearer YW5uOmI=", "Basic", "Basic !!!", "YW5uOmI="] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
            assert_eq!(credentials(&headers), None);
        }
        assert_eq!(credentials(&headers(":")), Some((String::new(), Vec::new())));
    }
}
