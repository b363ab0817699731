//! The evidence of a lab that stays up: its TLS secrets as they are logged, and a capture file of
//! all packets.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use firstflight_emulator::CapturedPacket;
use firstflight_packets::KeyLog;
use firstflight_samples::{CaptureFile, CaptureInfo};

use crate::LabError;

/// Reads the key log, to which servers and programs in the lab append.
pub(super) struct KeyLogReader {
    path: PathBuf,
    /// The offset up to which it was read.
    offset: u64,
    keys: KeyLog,
}

impl KeyLogReader {
    /// A reader that keeps the secrets of at most `max_connections`.
    pub(super) fn new(path: PathBuf, max_connections: usize) -> Self {
        Self { path, offset: 0, keys: KeyLog::new(max_connections) }
    }

    pub(super) fn keys(&self) -> &KeyLog {
        &self.keys
    }

    /// Reads the complete lines that were added since the last call.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub(super) fn read(&mut self) -> Result<(), LabError> {
        let failed = |source| LabError::File { verb: "read", path: self.path.clone(), source };
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // A program in the lab removed it. The next one that logs creates it again.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.offset = 0;
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        };
        if file.metadata().map_err(failed)?.len() < self.offset {
            // A program in the lab truncated it.
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_READ_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        let complete = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            // No valid line is that long.
            None if bytes.len() as u64 == MAX_READ_BYTES => bytes.len(),
            None => 0,
        };
        self.offset += complete as u64;
        self.keys.add(&String::from_utf8_lossy(&bytes[..complete]));
        Ok(())
    }
}

/// How much of the log is read at a time.
const MAX_READ_BYTES: u64 = 1 << 22;

/// The capture of all packets while the lab is up, limited to a gibibyte.
pub(super) struct LimitedCapture {
    path: PathBuf,
    file: CaptureFile,
    /// How many bytes of packets may still be written.
    remaining: usize,
}

impl LimitedCapture {
    /// Creates the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn create(path: &Path) -> Result<Self, LabError> {
        let info = CaptureInfo {
            interface: "link",
            comment: "timestamps are those of arrival at the link, before its delay; connections are in \
                      the order in which they were classified",
            description: "firstflight lab --serve",
        };
        let file = CaptureFile::create(path, &info).map_err(|source| failed(path, source))?;
        let mut capture = Self { path: path.to_owned(), file, remaining: MAX_CAPTURE_BYTES };
        capture.flush()?;
        Ok(capture)
    }

    /// Adds packets, preceded by the secrets that decrypt them. Packets beyond the limit are left
    /// out.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn add(
        &mut self,
        packets: &[CapturedPacket],
        secrets: &[String],
    ) -> Result<(), LabError> {
        let bytes: usize = packets.iter().map(|packet| packet.frame.len()).sum();
        if packets.is_empty() || self.remaining == 0 {
            return Ok(());
        }
        if bytes > self.remaining {
            let path = self.path.display();
            tracing::warn!(%path, "the capture is full; restart the lab to capture more");
            self.remaining = 0;
            return Ok(());
        }
        self.remaining -= bytes;
        let packets: Vec<&CapturedPacket> = packets.iter().collect();
        self.file.add(&packets, secrets).map_err(|source| failed(&self.path, source))
    }

    /// Makes what was written so far visible to readers.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn flush(&mut self) -> Result<(), LabError> {
        self.file.flush().map_err(|source| failed(&self.path, source))
    }
}

fn failed(path: &Path, source: io::Error) -> LabError {
    LabError::File { verb: "write", path: path.to_owned(), source }
}

/// A size that Wireshark can still open.
const MAX_CAPTURE_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn the_key_log_is_read_by_complete_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets");
        let line = |n: u8| {
            let random = hex(n);
            format!("CLIENT_TRAFFIC_SECRET_0 {random} {random}\n")
        };
        fs::write(&path, &line(1)[..40]).unwrap();
        let mut reader = KeyLogReader::new(path.clone(), 10);
        reader.read().unwrap();
        assert!(reader.keys.lines_for(&[1; 32]).is_empty(), "half a line");
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(format!("{}{}", &line(1)[40..], line(2)).as_bytes()).unwrap();
        reader.read().unwrap();
        assert_eq!(reader.keys.lines_for(&[1; 32]).len(), 1);
        assert_eq!(reader.keys.lines_for(&[2; 32]).len(), 1);
        fs::write(&path, line(3)).unwrap();
        reader.read().unwrap();
        assert_eq!(reader.keys.lines_for(&[3; 32]).len(), 1, "after it was truncated");
        fs::remove_file(&path).unwrap();
        reader.read().unwrap();
        fs::write(&path, line(4)).unwrap();
        reader.read().unwrap();
        assert_eq!(reader.keys.lines_for(&[4; 32]).len(), 1, "after it was removed");
    }

    fn hex(n: u8) -> String {
        format!("{n:02x}").repeat(32)
    }
}
