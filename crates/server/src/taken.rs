//! How much of its answers an HTTP/2 client has let go: the bytes of DATA frames, told from all else
//! that is written. A client can keep a connection busy with pings while its windows stay closed.

/// Reads what the library writes, in pieces of any size, as frames (RFC 9113 section 4.1).
#[derive(Debug, Default)]
pub(crate) struct DataMeter {
    head: [u8; HEAD],
    /// Bytes of the head that are there, and of the payload that are not.
    have: usize,
    left: usize,
}

const HEAD: usize = 9;
const DATA: u8 = 0;

impl DataMeter {
    /// Takes the next bytes; how many of them are in DATA frames.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> usize {
        let mut data = 0;
        while !bytes.is_empty() {
            if self.have < HEAD {
                let count = bytes.len().min(HEAD - self.have);
                self.head[self.have..self.have + count].copy_from_slice(&bytes[..count]);
                self.have += count;
                bytes = &bytes[count..];
                if self.have == HEAD {
                    let [a, b, c, ..] = self.head;
                    self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                }
            }
            let count = bytes.len().min(self.left);
            if self.head[3] == DATA && self.have == HEAD {
                data += count;
            }
            self.left -= count;
            bytes = &bytes[count..];
            if self.have == HEAD && self.left == 0 {
                self.have = 0;
            }
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let mut frame = (length as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, 0, 0, 0, 0, 1]);
        frame.resize(HEAD + length, 0);
        frame
    }

    proptest! {
        #[test]
        fn rfc9113_4_1_only_data_counts_however_it_is_cut(
            frames in prop::collection::vec((0u8..10, 0usize..300), 0..20),
            piece in 1usize..400,
        ) {
            let bytes: Vec<u8> =
                frames.iter().flat_map(|(kind, length)| frame(*kind, *length)).collect();
            let mut meter = DataMeter::default();
            let counted: usize = bytes.chunks(piece).map(|piece| meter.feed(piece)).sum();
            let data = frames.iter().filter(|(kind, _)| *kind == DATA);
            prop_assert_eq!(counted, data.map(|(_, length)| length).sum::<usize>());
        }
    }
}
