//! Why the operators' side cannot be served.

use std::io;
use std::path::PathBuf;

use firstflight_config::ConfigError;

use crate::token::{MAX_TOKEN_BYTES, MIN_TOKEN_BYTES};

/// Why the operators' side cannot be served, in one sentence that names the fix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Settings that cannot be.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on the admin address {address}: {reason}; give a free one in [admin]")]
    Listen {
        /// The address, or the socket's path.
        address: String,
        /// Why not.
        reason: io::Error,
    },
    /// Another process listens on the unix socket.
    #[error(
        "another process serves the admin socket {path}; stop it, or give another address in \
         [admin]"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A reload cannot move it.
    #[error("the admin address cannot change while the server runs; restart it")]
    Moved,
    /// The token file cannot be read.
    #[error("cannot read the admin token {path}: {reason}; give a file that we may read")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// Others may read the token file.
    #[error("others may read the admin token {path}; run `chmod 600 {path}`")]
    TokenForAll {
        /// The file.
        path: PathBuf,
    },
    /// The token is too short to withstand guessing, or has bytes that no header carries.
    #[error(
        "the admin token in {path} is not {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} printable characters on one \
         line; make one by `openssl rand -hex 32`"
    )]
    Token {
        /// The file.
        path: PathBuf,
    },
}
