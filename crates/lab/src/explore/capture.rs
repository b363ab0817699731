//! All packets of a lab that stays up, in one file that opens decrypted.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use firstflight_emulator::CapturedPacket;
use firstflight_packets::pcapng::Writer;

use crate::LabError;
use firstflight_samples::{Scene, append, begin};

/// A file that grows while the lab is up, up to a limit.
pub(super) struct CaptureFile {
    path: PathBuf,
    writer: Writer<BufWriter<File>>,
    /// How many bytes of packets may yet be written.
    room: usize,
}

impl CaptureFile {
    /// Starts the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(path: &Path) -> Result<Self, LabError> {
        let scene = Scene {
            interface: "link",
            comment: "times are those at the link, before its delay; connections follow each other \
                      as they were judged",
            what: "a lab that stayed up",
        };
        let writer = begin(path, &scene).map_err(|source| failed(path, source))?;
        let mut file = Self { path: path.to_owned(), writer, room: LIMIT };
        file.flush()?;
        Ok(file)
    }

    /// Writes packets behind the secrets that open them. What is beyond the limit is left out.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn add(
        &mut self,
        packets: &[CapturedPacket],
        secrets: &[String],
    ) -> Result<(), LabError> {
        let bytes: usize = packets.iter().map(|packet| packet.frame.len()).sum();
        if packets.is_empty() || self.room == 0 {
            return Ok(());
        }
        if bytes > self.room {
            tracing::warn!(path = %self.path.display(), "the capture is full; begin anew for more");
            self.room = 0;
            return Ok(());
        }
        self.room -= bytes;
        let packets: Vec<&CapturedPacket> = packets.iter().collect();
        append(&mut self.writer, &packets, secrets).map_err(|source| failed(&self.path, source))
    }

    /// Lets readers see what was written so far.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn flush(&mut self) -> Result<(), LabError> {
        self.writer.flush().map_err(|source| failed(&self.path, source))
    }
}

fn failed(path: &Path, source: io::Error) -> LabError {
    LabError::File { verb: "write", path: path.to_owned(), source }
}

/// What a disk can spare, and Wireshark can open.
const LIMIT: usize = 1 << 30;
