use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use firstflight_tls::{Session, Version};
use sha2::{Digest, Sha256};

use super::{JarError, file_error, now};

/// The origin of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `https`.
    pub scheme: String,
    /// Name or IP address, in lower case.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// How the server of a session was verified. Resumption skips the certificate, so a session is used
/// only where the server would be verified in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustId(pub(super) String);

impl TrustId {
    /// Returns the identity of a trust setting; a file of authorities is identified by its contents,
    /// the system's authorities by the environment variables that locate them.
    ///
    /// # Errors
    /// [`JarError::File`] if that file cannot be read.
    pub fn of(trust: &firstflight_tls::Trust) -> Result<Self, JarError> {
        use firstflight_tls::Trust;
        let system = || system(env::var_os("SSL_CERT_FILE"), env::var_os("SSL_CERT_DIR"));
        Ok(Self(match trust {
            Trust::System => system(),
            Trust::Anyone => "anyone".to_owned(),
            Trust::File(path) => format!("file:{}", digest(path)?),
            Trust::SystemAnd(path) => format!("{} and file:{}", system(), digest(path)?),
        }))
    }
}

/// Returns the identity of the system's authorities, given the values of `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`.
fn system(file: Option<OsString>, directory: Option<OsString>) -> String {
    match (file, directory) {
        (None, None) => "system".to_owned(),
        variables => format!("system {variables:?}"),
    }
}

fn digest(path: &Path) -> Result<String, JarError> {
    let bytes = fs::read(path).map_err(file_error("read", path))?;
    Ok(hex::encode(Sha256::digest(bytes)))
}

/// A session, with the conditions for its use.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Origin of the server.
    pub origin: Origin,
    /// How the server was verified.
    pub trust: TrustId,
    /// Application protocol of the connection that received it.
    pub alpn: Option<Vec<u8>>,
    /// The session.
    pub session: Session,
    /// Encoded transport parameters of the server, for QUIC only (RFC 9000 section 7.4.1). Sessions of
    /// TCP have none and are never used for QUIC, and vice versa.
    pub transport_parameters: Option<Bytes>,
}

/// An address token of a NEW_TOKEN frame. A client that sends it in its first packet has a validated
/// address, so the server can send a full response at once (RFC 9000 section 8.1.3). Tokens are
/// stored even without a session.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Origin of the server.
    pub origin: Origin,
    /// How the server was verified.
    pub trust: TrustId,
    /// When it was received, in seconds since the Unix epoch.
    pub received: u64,
    /// The token.
    pub bytes: Bytes,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print the token: anyone who has it can use it.
        f.debug_struct("Token").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Token {
    /// A token received now.
    pub fn new(origin: Origin, trust: TrustId, bytes: Bytes) -> Self {
        Self { origin, trust, received: now(), bytes }
    }
}

/// The transport of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Quic,
}

/// Describes the sessions that a transfer can use.
#[derive(Clone, Debug)]
pub struct JarQuery<'a> {
    /// Origin of the server.
    pub origin: &'a Origin,
    /// How the server will be verified.
    pub trust: &'a TrustId,
    /// Application protocols offered over TCP; `None` if TCP is not used.
    pub tcp: Option<&'a [Vec<u8>]>,
    /// Application protocols offered over QUIC; `None` if QUIC is not used.
    pub quic: Option<&'a [Vec<u8>]>,
    /// Oldest and newest TLS version.
    pub versions: (Version, Version),
    /// Whether to prefer a ticket that allows early data.
    pub early_data: bool,
}

/// The sessions and token that a jar had for a transfer.
#[derive(Clone, Debug, Default)]
pub struct JarMatch {
    /// Ticket for TCP.
    pub tcp: Option<Ticket>,
    /// Ticket for QUIC.
    pub quic: Option<Ticket>,
    /// Address token for the first packet over QUIC.
    pub token: Option<Token>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_location_of_the_authorities_has_its_own_identity() {
        let value = |text: &str| Some(OsString::from(text));
        let identities = [
            system(None, None),
            system(value("a"), None),
            system(None, value("a")),
            system(value("a"), value("a")),
            system(value("b"), None),
        ];
        assert_eq!(identities[0], "system", "as in the jars of earlier versions");
        for (index, identity) in identities.iter().enumerate() {
            assert!(!identities[index + 1..].contains(identity), "{identity}");
        }
    }
}
