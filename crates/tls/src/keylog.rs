//! Key logs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::TlsError;

/// Receives the secrets of connections as lines of the NSS key log format (`SSLKEYLOGFILE`, RFC
/// 9850).
pub trait KeyLog: Send + Sync {
    /// Receives one line, without its line end. Called during the handshake, so it must not block.
    fn line(&self, line: &str);
}

/// Appends key log lines to a file that only its owner can read.
pub struct KeyLogFile(Mutex<File>);

impl KeyLogFile {
    /// Opens or creates the file (mode 0600). Does not follow a symbolic link.
    ///
    /// # Errors
    /// Returns [`TlsError::File`] if it can be neither opened nor created.
    pub fn open(path: &Path) -> Result<Self, TlsError> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map(|file| Self(Mutex::new(file)))
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
                _ => error,
            })
            .map_err(|source| TlsError::File { what: "key log", path: path.to_owned(), source })
    }
}

impl KeyLog for KeyLogFile {
    fn line(&self, line: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk must not end the connection.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// Keeps key log lines in memory, for decrypting captured packets.
#[derive(Default)]
pub struct KeyLogLines(Mutex<String>);

impl KeyLogLines {
    /// Takes the lines since the last call, each with its line end.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [file, other] = ["keys", "other"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(&other, &file).unwrap();
        let refused = KeyLogFile::open(&file).err().unwrap().to_string();
        assert!(refused.contains("it is a symbolic link"), "{refused}");
        assert!(!other.exists());
        KeyLogFile::open(&other).unwrap().line("one");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "one\n");
    }
}
