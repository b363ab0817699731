//! Capture files: packets of a connection with the secrets that decrypt them.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use firstflight_emulator::{CapturedPacket, Direction as Way, unix_offset_ns};
use firstflight_packets::Direction;
use firstflight_packets::pcapng::{About, Writer};

/// Where packets were seen, for the head of their file.
pub struct Scene<'a> {
    /// The interface.
    pub interface: &'static str,
    /// What to know of the times.
    pub comment: &'static str,
    /// Whose they are, in words.
    pub what: &'a str,
}

/// Writes one connection to a file of its own.
///
/// # Errors
/// The system's.
pub fn write_one(
    path: &Path,
    scene: &Scene<'_>,
    packets: &[&CapturedPacket],
    secrets: &[String],
) -> io::Result<()> {
    let mut writer = begin(path, scene)?;
    append(&mut writer, packets, secrets)?;
    writer.finish().map(drop)
}

/// Starts a file.
///
/// # Errors
/// The system's.
pub fn begin(path: &Path, scene: &Scene<'_>) -> io::Result<Writer<BufWriter<File>>> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let about = About {
        application: concat!("firstflight ", env!("CARGO_PKG_VERSION")).to_owned(),
        interface: scene.interface.to_owned(),
        description: scene.what.to_owned(),
        comment: scene.comment.to_owned(),
        ..About::default()
    };
    Writer::new(BufWriter::new(File::create(path)?), &about)
}

/// Adds the packets of one connection to a file, behind the secrets that open them.
///
/// # Errors
/// The system's.
pub fn append(
    writer: &mut Writer<BufWriter<File>>,
    packets: &[&CapturedPacket],
    secrets: &[String],
) -> io::Result<()> {
    writer.secrets(secrets)?;
    let offset = unix_offset_ns();
    let mut packets = packets.to_vec();
    packets.sort_by_key(|packet| packet.arrival_ns);
    for packet in packets {
        let direction = match packet.direction {
            Way::Up => Direction::ToServer,
            Way::Down => Direction::ToClient,
        };
        let comment = match (packet.dropped_by, &packet.altered) {
            (Some(cell), _) => format!("dropped by {cell}"),
            (None, Some(altered)) => format!("altered by {}", altered.by),
            (None, None) => String::new(),
        };
        let at = packet.arrival_ns.saturating_add_signed(offset);
        writer.packet(at, direction, &packet.frame, packet.length as u32, &comment)?;
    }
    Ok(())
}

/// The file for packets that are called so, relative to the record.
pub fn file_for(name: &str) -> String {
    let kept = |c: char| match c.is_ascii_alphanumeric() || c == '.' {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let name: String = name.chars().map(kept).collect();
    format!("{DIRECTORY}/{name}.pcapng")
}

const DIRECTORY: &str = "captures";
