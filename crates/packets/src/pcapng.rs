//! Writes pcapng files with the TLS secrets inside, so that other programs can decrypt the packets.
//! A file has one section and one Ethernet interface with times in nanoseconds; blocks are in
//! little-endian order (draft-ietf-opsawg-pcapng). The same packets always make the same file.

use std::io::{self, Write};

use crate::Direction;

/// Metadata of a capture file. Empty texts are omitted. Do not name people or places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The hardware, such as the processor.
    pub hardware: String,
    /// The operating system.
    pub os: String,
    /// The program that writes the file.
    pub application: String,
    /// The tap's name.
    pub interface: String,
    /// What the tap captures, such as the network profile.
    pub description: String,
    /// A comment on the whole file.
    pub comment: String,
    /// Frames are truncated to this many bytes; 0 means no limit.
    pub snap_length: u32,
}

/// Writes one file. Writes are not buffered: pass a `BufWriter`.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Starts a file.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(out: W, info: &Metadata) -> io::Result<Self> {
        let mut writer = Self { out };
        let mut section = Body::default();
        section.u32(BYTE_ORDER_MAGIC).u16(1).u16(0);
        // The section's length is not known in advance.
        section.u64(u64::MAX);
        section.text(OPT_COMMENT, &info.comment);
        section.text(SHB_HARDWARE, &info.hardware);
        section.text(SHB_OS, &info.os);
        section.text(SHB_USERAPPL, &info.application);
        writer.block(SECTION_HEADER, section)?;
        let mut interface = Body::default();
        interface.u16(LINKTYPE_ETHERNET).u16(0).u32(info.snap_length);
        interface.text(IF_NAME, &info.interface);
        interface.text(IF_DESCRIPTION, &info.description);
        interface.option(IF_TSRESOL, &[NANOSECONDS]);
        writer.block(INTERFACE_DESCRIPTION, interface)?;
        Ok(writer)
    }

    /// Adds lines of an NSS key log, such as those of [`crate::KeyLog::lines_for`]. They apply to
    /// the packets after them.
    ///
    /// # Errors
    /// Errors of the output, and `InvalidInput` for 4 GiB and more.
    pub fn secrets(&mut self, lines: impl IntoIterator<Item: AsRef<str>>) -> io::Result<()> {
        let mut text = String::new();
        for line in lines {
            text += line.as_ref().trim_end();
            text.push('\n');
        }
        if text.is_empty() {
            return Ok(());
        }
        let mut body = Body::default();
        body.u32(TLS_KEY_LOG).u32(length(text.len())?);
        body.padded(text.as_bytes());
        self.block(DECRYPTION_SECRETS, body)
    }

    /// Adds a packet: its time in nanoseconds since 1970, its direction (to the server is
    /// outbound), its Ethernet frame, the frame's length before truncation, and a comment, which
    /// may be empty.
    ///
    /// # Errors
    /// Errors of the output, and `InvalidInput` for a frame of 4 GiB and more.
    pub fn packet(
        &mut self,
        time: u64,
        direction: Direction,
        frame: &[u8],
        original_len: u32,
        comment: &str,
    ) -> io::Result<()> {
        let captured = length(frame.len())?;
        let mut body = Body::default();
        body.u32(0).u32((time >> 32) as u32).u32(time as u32);
        body.u32(captured).u32(original_len.max(captured));
        body.padded(frame);
        let flags: u32 = match direction {
            Direction::ToClient => 1,
            Direction::ToServer => 2,
        };
        body.option(EPB_FLAGS, &flags.to_le_bytes());
        body.text(OPT_COMMENT, comment);
        self.block(ENHANCED_PACKET, body)
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Finishes the file and returns the output.
    ///
    /// # Errors
    /// Errors of flushing it.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn block(&mut self, kind: u32, mut body: Body) -> io::Result<()> {
        body.end_options();
        let total = length(body.bytes.len() + 12)?;
        let mut block = Vec::with_capacity(body.bytes.len() + 12);
        block.extend(kind.to_le_bytes());
        block.extend(total.to_le_bytes());
        block.append(&mut body.bytes);
        block.extend(total.to_le_bytes());
        self.out.write_all(&block)
    }
}

/// The content of a block, between its two length fields.
#[derive(Default)]
struct Body {
    bytes: Vec<u8>,
    options: bool,
}

impl Body {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// A text option, truncated to the maximum length of options; empty texts are omitted.
    fn text(&mut self, code: u16, text: &str) {
        if !text.is_empty() {
            let max = text.len().min(usize::from(u16::MAX));
            let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            self.option(code, &text.as_bytes()[..end]);
        }
    }

    /// An option of at most 65,535 bytes.
    fn option(&mut self, code: u16, value: &[u8]) {
        self.options = true;
        self.u16(code).u16(value.len() as u16);
        self.padded(value);
    }

    fn end_options(&mut self) {
        if self.options {
            self.u32(0);
        }
    }
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| {
        let why = "a block of a capture must be smaller than 4 GiB; write fewer bytes at a time";
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const DECRYPTION_SECRETS: u32 = 10;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
/// "TLSK".
const TLS_KEY_LOG: u32 = 0x544c_534b;
/// The exponent of a time resolution of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

const OPT_COMMENT: u16 = 1;
const SHB_HARDWARE: u16 = 2;
const SHB_OS: u16 = 3;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The type and body of each block, whose lengths must agree.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let total = word(file, 4) as usize;
            assert!(total.is_multiple_of(4) && word(file, total - 4) as usize == total);
            blocks.push((word(file, 0), file[8..total - 4].to_vec()));
            file = &file[total..];
        }
        blocks
    }

    #[test]
    fn absent_options_and_secrets_are_not_written() {
        let mut writer = Writer::new(Vec::new(), &Metadata::default()).unwrap();
        writer.secrets([""; 0]).unwrap();
        let blocks = blocks(&writer.finish().unwrap());
        assert_eq!(blocks.len(), 2);
        assert_eq!((blocks[0].0, blocks[0].1.len()), (SECTION_HEADER, 16));
        // The time resolution, and the end of the options.
        assert_eq!((blocks[1].0, blocks[1].1.len()), (INTERFACE_DESCRIPTION, 8 + 8 + 4));
    }

    #[test]
    fn secrets_are_whole_lines() {
        let mut writer = Writer::new(Vec::new(), &Metadata::default()).unwrap();
        writer.secrets(["A 1 2\r\n", "B 3 4"]).unwrap();
        let block = blocks(&writer.finish().unwrap()).pop().unwrap();
        assert_eq!(block.0, DECRYPTION_SECRETS);
        assert_eq!(block.1, b"KSLT\x0c\0\0\0A 1 2\nB 3 4\n");
    }

    proptest! {
        #[test]
        fn every_block_is_well_formed(
            packets in prop::collection::vec(
                (
                    any::<u64>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..50),
                    any::<u32>(), "\\PC{0,9}"
                ),
                0..20
            ),
            comment in "\\PC{0,40}"
        ) {
            let info = Metadata { comment, ..Metadata::default() };
            let write = || {
                let mut writer = Writer::new(Vec::new(), &info).unwrap();
                for (time, up, frame, original, comment) in &packets {
                    let direction = if *up { Direction::ToServer } else { Direction::ToClient };
                    writer.packet(*time, direction, frame, *original, comment).unwrap();
                }
                writer.finish().unwrap()
            };
            let file = write();
            prop_assert_eq!(&file, &write());
            let blocks = blocks(&file);
            prop_assert_eq!(blocks.len(), packets.len() + 2);
            for ((kind, body), (time, _, frame, ..)) in blocks[2..].iter().zip(&packets) {
                prop_assert_eq!(*kind, ENHANCED_PACKET);
                let high = u32::from_le_bytes(body[4..8].try_into().unwrap());
                let low = u32::from_le_bytes(body[8..12].try_into().unwrap());
                prop_assert_eq!(u64::from(high) << 32 | u64::from(low), *time);
                prop_assert_eq!(&body[20..20 + frame.len()], frame.as_slice());
            }
        }
    }

    #[test]
    fn a_long_comment_is_truncated_between_characters() {
        let comment = "ä".repeat(40_000);
        let mut writer = Writer::new(Vec::new(), &Metadata::default()).unwrap();
        writer.packet(0, Direction::ToServer, &[], 0, &comment).unwrap();
        let (_, body) = blocks(&writer.finish().unwrap()).pop().unwrap();
        let at = 20 + 8;
        assert_eq!(body[at..at + 4], [1, 0, 0xfe, 0xff], "an even number of bytes");
    }
}
