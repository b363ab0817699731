use std::fs;
use std::path::Path;

use bytes::Bytes;
use firstflight_tls::{Session, Version};
use sha2::{Digest, Sha256};

use super::{JarError, file_error, now};

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
pub struct TrustId(pub(super) String);

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
            Trust::File(path) => format!("file:{}", digest(path)?),
            Trust::SystemAnd(path) => format!("system and file:{}", digest(path)?),
        }))
    }
}

fn digest(path: &Path) -> Result<String, JarError> {
    let bytes = fs::read(path).map_err(file_error("read", path))?;
    Ok(hex::encode(Sha256::digest(bytes)))
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
/// that can be reached, and is sent a whole response at once (RFC 9000 section 8.1.3). Kept also
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
pub(super) enum Transport {
    Tcp,
    Quic,
}

/// What a transfer can use.
#[derive(Clone, Debug)]
pub struct JarQuery<'a> {
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
pub struct JarMatch {
    /// For a connection over TCP.
    pub tcp: Option<Ticket>,
    /// For one over QUIC.
    pub quic: Option<Ticket>,
    /// For the first packet of one over QUIC.
    pub token: Option<Token>,
}
