use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::TlsError;

/// Receives the secrets of connections, a line each in the NSS key log format
/// (`SSLKEYLOGFILE`, RFC 9850).
pub trait KeyLog: Send + Sync {
    /// Takes one line, without its line end. Called from within the handshake: be quick.
    fn line(&self, line: &str);
}

/// Appends key log lines to a file that only its owner can read.
pub struct KeyLogFile(Mutex<File>);

impl KeyLogFile {
    /// Opens or makes the file (mode 0600).
    ///
    /// # Errors
    /// [`TlsError::File`] when it can be neither opened nor made.
    pub fn open(path: &Path) -> Result<Self, TlsError> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map(|file| Self(Mutex::new(file)))
            .map_err(|source| TlsError::File { what: "key log", path: path.to_owned(), source })
    }
}

impl KeyLog for KeyLogFile {
    fn line(&self, line: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk must not end the connection: the log is for the eye, not for the peer.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// Keeps key log lines in memory, for the lab's judge.
#[derive(Default)]
pub struct KeyLogLines(Mutex<String>);

impl KeyLogLines {
    /// The lines since the last call, each with its line end.
    pub fn take(&self) -> String {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KeyLog for KeyLogLines {
    fn line(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_str(line);
        lines.push('\n');
    }
}
