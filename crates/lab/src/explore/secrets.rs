//! The secrets that open what is encrypted, as they are logged.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use firstflight_packets::KeyLog;

use crate::LabError;

/// The log of secrets, which servers and everybody inside append to.
pub(super) struct Secrets {
    path: PathBuf,
    /// How much of it was read.
    read: u64,
    keys: KeyLog,
}

impl Secrets {
    /// Keeps the secrets of at most so many connections.
    pub(super) fn new(path: PathBuf, most: usize) -> Self {
        Self { path, read: 0, keys: KeyLog::new(most) }
    }

    pub(super) fn keys(&self) -> &KeyLog {
        &self.keys
    }

    /// Reads whole lines that came since the last time.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub(super) fn read(&mut self) -> Result<(), LabError> {
        let failed = |source| LabError::File { verb: "read", path: self.path.clone(), source };
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // Somebody inside removed it, and whoever logs next makes it again.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.read = 0;
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        };
        if file.metadata().map_err(failed)?.len() < self.read {
            // Somebody inside emptied it.
            self.read = 0;
        }
        file.seek(SeekFrom::Start(self.read)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_AT_ONCE).read_to_end(&mut bytes).map_err(failed)?;
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            // No line is that long.
            None if bytes.len() as u64 == MAX_AT_ONCE => bytes.len(),
            None => 0,
        };
        self.read += whole as u64;
        self.keys.add(&String::from_utf8_lossy(&bytes[..whole]));
        Ok(())
    }
}

/// What is read of the log at a time.
const MAX_AT_ONCE: u64 = 1 << 22;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn secrets_are_read_by_whole_lines_as_they_come() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets");
        let line = |n: u8| {
            let random = hex(n);
            format!("CLIENT_TRAFFIC_SECRET_0 {random} {random}\n")
        };
        fs::write(&path, &line(1)[..40]).unwrap();
        let mut secrets = Secrets::new(path.clone(), 10);
        secrets.read().unwrap();
        assert!(secrets.keys.lines_for(&[1; 32]).is_empty(), "half a line");
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(format!("{}{}", &line(1)[40..], line(2)).as_bytes()).unwrap();
        secrets.read().unwrap();
        assert_eq!(secrets.keys.lines_for(&[1; 32]).len(), 1);
        assert_eq!(secrets.keys.lines_for(&[2; 32]).len(), 1);
        fs::write(&path, line(3)).unwrap();
        secrets.read().unwrap();
        assert_eq!(secrets.keys.lines_for(&[3; 32]).len(), 1, "after it was emptied");
        fs::remove_file(&path).unwrap();
        secrets.read().unwrap();
        fs::write(&path, line(4)).unwrap();
        secrets.read().unwrap();
        assert_eq!(secrets.keys.lines_for(&[4; 32]).len(), 1, "after it was removed");
    }

    fn hex(n: u8) -> String {
        format!("{n:02x}").repeat(32)
    }
}
