//! Errors that keep a server from starting. Each message is one sentence that names the fix.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use firstflight_certificates::acme::AcmeError;
use firstflight_certificates::authority::AuthorityError;
use firstflight_config::ConfigError;
use firstflight_store::StoreError;
use firstflight_tickets::{FileError, KeyEncryptionError};
use firstflight_tls::TlsError;
use firstflight_upstream::PoolError;

/// Why a server cannot start or reload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Certificate, key, cipher or version was rejected by TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The configuration has no listener.
    #[error("there is no address to listen on; give one with --listen ADDRESS:PORT")]
    NoAddress,
    /// Another process listens on the TCP port.
    #[error(
        "{0} is in use already; stop the program that listens there or choose another port \
         with --listen"
    )]
    AddressInUse(SocketAddr),
    /// Another process listens on the UDP port.
    #[error(
        "the UDP port {0}, which HTTP/3 needs, is in use already; stop the program that listens there, \
         choose another port with --listen, or disable HTTP/3 with --no-http3"
    )]
    UdpInUse(SocketAddr),
    /// A port below 1024 needs a privilege.
    #[error(
        "listening on {0} is not permitted; choose a port from 1024 on or give the program \
         CAP_NET_BIND_SERVICE"
    )]
    AddressForbidden(SocketAddr),
    /// Binding failed for another reason.
    #[error("cannot listen on {address}: {reason}; give an address of this machine")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        reason: io::Error,
    },
    /// The directory to serve does not exist or is not a directory.
    #[error("cannot serve {path}: {reason}; give a readable directory with --root")]
    Root {
        /// The configured path.
        path: PathBuf,
        /// Why it cannot be served.
        reason: String,
    },
    /// The settings of an upstream are invalid.
    #[error("upstream {name}: {reason}")]
    Upstream {
        /// The pool's name.
        name: String,
        /// What is wrong with the settings.
        reason: PoolError,
    },
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings of the store are invalid.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ticket key file cannot be used.
    #[error(transparent)]
    TicketKeys(#[from] FileError),
    /// The file of key-encryption keys, which seal the store's records, cannot be used.
    #[error(transparent)]
    KeyEncryption(#[from] KeyEncryptionError),
    /// ACME certificates cannot be stored.
    #[error(transparent)]
    Acme(#[from] AcmeError),
    /// A task panicked or was cancelled because the process is ending.
    #[error("interrupted: {0}")]
    Interrupted(String),
    /// The access log cannot be opened.
    #[error("cannot write the access log {path}: {reason}; give a file in a writable directory")]
    AccessLog {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The state inherited from the previous process cannot be used.
    #[error("cannot take over from the previous process: {0}; start this one without it")]
    InheritedState(std::io::Error),
    /// A certificate cannot be created.
    #[error(transparent)]
    IssuedCertificate(#[from] AuthorityError),
    /// The self-signed certificate cannot be saved.
    #[error("cannot save the certificate to {path}: {reason}")]
    SaveCertificate {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
}

impl ServerError {
    /// An invalid setting. `text`: a sentence that names the fix.
    pub(crate) fn setting(text: impl Into<String>) -> Self {
        Self::Config(ConfigError::Setting(text.into()))
    }
}
