//! Work with files.

use crate::acme::AcmeError;

/// Files are written through to the disk, for which no connection has to wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AcmeError> + Send + 'static,
) -> Result<T, AcmeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            Err(AcmeError::Make { what: "a thread for files", reason: error.to_string() })
        }
    }
}
