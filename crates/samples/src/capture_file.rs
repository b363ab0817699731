//! Capture files (pcapng): the packets of connections with the secrets that decrypt them.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use firstflight_emulator::{CapturedPacket, Direction as LinkDirection, unix_offset_ns};
use firstflight_packets::Direction;
use firstflight_packets::pcapng::{Metadata, Writer};

/// Describes a capture in the file's header.
pub struct CaptureInfo<'a> {
    /// The interface on which the packets were captured.
    pub interface: &'static str,
    /// How to read the timestamps.
    pub comment: &'static str,
    /// Which connections the file holds.
    pub description: &'a str,
}

/// A capture file that is being written.
pub struct CaptureFile(Writer<BufWriter<File>>);

impl CaptureFile {
    /// Creates the file and the directory above it.
    ///
    /// # Errors
    /// The system's, if the file cannot be written.
    pub fn create(path: &Path, info: &CaptureInfo<'_>) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let metadata = Metadata {
            application: concat!("firstflight ", env!("CARGO_PKG_VERSION")).to_owned(),
            interface: info.interface.to_owned(),
            description: info.description.to_owned(),
            comment: info.comment.to_owned(),
            ..Metadata::default()
        };
        Writer::new(BufWriter::new(File::create(path)?), &metadata).map(Self)
    }

    /// Writes a file with a single connection.
    ///
    /// # Errors
    /// The system's, if the file cannot be written.
    pub fn write_one(
        path: &Path,
        info: &CaptureInfo<'_>,
        packets: &[&CapturedPacket],
        secrets: &[String],
    ) -> io::Result<()> {
        let mut file = Self::create(path, info)?;
        file.add(packets, secrets)?;
        file.finish()
    }

    /// Adds the packets of a connection, preceded by the secrets that decrypt them. A packet that
    /// the link duplicated is written once.
    ///
    /// # Errors
    /// The system's, if the file cannot be written.
    pub fn add(&mut self, packets: &[&CapturedPacket], secrets: &[String]) -> io::Result<()> {
        self.0.secrets(secrets)?;
        let offset = unix_offset_ns();
        let mut packets = packets.to_vec();
        // Of the copies of a packet, a delivered one is kept.
        packets.sort_by_key(|packet| (packet.arrival_ns, packet.dropped_by.is_some()));
        packets.dedup_by(|later, earlier| later.is_copy_of(earlier));
        for packet in packets {
            let direction = match packet.direction {
                LinkDirection::Up => Direction::ToServer,
                LinkDirection::Down => Direction::ToClient,
            };
            let comment = match (packet.dropped_by, &packet.altered) {
                (Some(cell), _) => format!("dropped by {cell}"),
                (None, Some(altered)) => format!("altered by {}", altered.by),
                (None, None) => String::new(),
            };
            let at = packet.arrival_ns.saturating_add_signed(offset);
            self.0.packet(at, direction, &packet.frame, packet.length as u32, &comment)?;
        }
        Ok(())
    }

    /// Flushes the file, so that readers see what was added so far.
    ///
    /// # Errors
    /// The system's, if the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The system's, if the file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        self.0.finish().map(drop)
    }
}

/// The path of the capture with this name, relative to the record.
pub fn capture_path(name: &str) -> String {
    let replace_special = |c: char| match c.is_ascii_alphanumeric() || c == '.' {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let name: String = name.chars().map(replace_special).collect();
    format!("{DIRECTORY}/{name}.pcapng")
}

const DIRECTORY: &str = "captures";
