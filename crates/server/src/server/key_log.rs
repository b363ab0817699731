//! The server's key log (`SSLKEYLOGFILE`), which belongs to the user that the process becomes.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use firstflight_tls::{KeyLog, KeyLogFile, TlsError};

/// A key log that is handed to TLS before its file is open: keys are read with the privileges of
/// the start, and files are written without them. Takes no lines before it is open.
pub(crate) struct ServerKeyLog {
    path: PathBuf,
    file: OnceLock<KeyLogFile>,
}

impl ServerKeyLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, file: OnceLock::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file, unless that was done before.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub(crate) fn open(&self) -> Result<(), TlsError> {
        if self.file.get().is_none() {
            let _ = self.file.set(KeyLogFile::open(&self.path)?);
        }
        Ok(())
    }
}

impl KeyLog for ServerKeyLog {
    fn line(&self, line: &str) {
        if let Some(file) = self.file.get() {
            file.line(line);
        }
    }
}
