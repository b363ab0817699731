//! What can keep a server from starting, each in one sentence that names the fix.

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

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Certificate, key, cipher or version that TLS does not take.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No address to listen on.
    #[error("there is no address to listen on; give one with --listen ADDRESS:PORT")]
    NoAddress,
    /// Another process has the port.
    #[error(
        "{0} is in use already; stop the program that listens there or choose another port \
         with --listen"
    )]
    AddressInUse(SocketAddr),
    /// Another process has the port for UDP.
    #[error(
        "{0} is in use already for UDP, by which HTTP/3 goes; stop the program that listens there, \
         choose another port with --listen, or leave HTTP/3 out with --no-http3"
    )]
    UdpInUse(SocketAddr),
    /// A port below 1024 without the right to it.
    #[error(
        "listening on {0} is not permitted; choose a port from 1024 on or give the program \
         CAP_NET_BIND_SERVICE"
    )]
    AddressForbidden(SocketAddr),
    /// Listening failed otherwise.
    #[error("cannot listen on {address}: {reason}; give an address of this machine")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        reason: io::Error,
    },
    /// The directory to serve is not there or is none.
    #[error("cannot serve {path}: {reason}; give a readable directory with --root")]
    Root {
        /// As given.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// An upstream cannot be.
    #[error("upstream {name}: {reason}")]
    Upstream {
        /// The pool's name.
        name: String,
        /// Why not.
        reason: PoolError,
    },
    /// The settings are of no use.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store's settings cannot be.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ticket keys cannot be had.
    #[error(transparent)]
    TicketKeys(#[from] FileError),
    /// The keys under which ticket keys are sealed in the store cannot be had.
    #[error(transparent)]
    KeyEncryption(#[from] KeyEncryptionError),
    /// Certificates from an authority cannot be kept.
    #[error(transparent)]
    Acme(#[from] AcmeError),
    /// A part of the work was broken off; a defect of ours, or the process is ending.
    #[error("broken off: {0}")]
    Interrupted(String),
    /// The access log cannot be written.
    #[error("cannot write the access log {path}: {reason}; give a file in a writable directory")]
    AccessLog {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// What the process before this one has left cannot be used.
    #[error("cannot take the place of the process before this one: {0}; start this one by itself")]
    InheritedState(std::io::Error),
    /// A self-signed certificate cannot be made.
    #[error(transparent)]
    IssuedCertificate(#[from] AuthorityError),
    /// The self-signed certificate cannot be saved.
    #[error("cannot save the certificate to {path}: {reason}")]
    SaveCertificate {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
}
