use std::io;

use firstflight_client::{ClientError, JarError};

/// Why there was no tour.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TourError {
    /// The client could not be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Its sessions cannot be kept.
    #[error(transparent)]
    Jar(#[from] JarError),
    /// A visit came to nothing.
    #[error("the {visit} visit failed: {reason}")]
    Visit {
        /// Which: `first` or `returning`.
        visit: &'static str,
        /// Why.
        reason: String,
    },
    /// The system gives no socket or file.
    #[error("the tour needs a loopback socket and a temporary directory: {0}")]
    System(#[from] io::Error),
}
