//! Finds the frames of responses in what a server sends over HTTP/2 (RFC 9113 section 4.1).

/// Reads frame headers, and counts the bytes of responses: HEADERS, CONTINUATION and DATA on a
/// stream that the client opened.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    header: Vec<u8>,
    /// What is left of the current frame, and whether it is of a response.
    left: usize,
    responses: bool,
}

const HEADER_LEN: usize = 9;

impl Frames {
    /// Reads on, and says how many bytes of responses `bytes` brought. A frame's header counts
    /// where it ends.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> u64 {
        let mut counted = 0;
        while !bytes.is_empty() {
            if self.left == 0 {
                let missing = (HEADER_LEN - self.header.len()).min(bytes.len());
                self.header.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if let Some(header) = self.header.first_chunk::<HEADER_LEN>() {
                    self.left = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
                    self.responses = is_answer(header);
                    self.header.clear();
                    counted += if self.responses { HEADER_LEN as u64 } else { 0 };
                }
                continue;
            }
            let here = self.left.min(bytes.len());
            counted += if self.responses { here as u64 } else { 0 };
            self.left -= here;
            bytes = &bytes[here..];
        }
        counted
    }
}

fn is_answer(header: &[u8; HEADER_LEN]) -> bool {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const CONTINUATION: u8 = 9;
    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
    // The client's streams have odd numbers (RFC 9113 section 5.1.1).
    matches!(header[3], DATA | HEADERS | CONTINUATION) && stream % 2 == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, stream: u8, len: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, len, kind, 0, 0, 0, 0, stream];
        frame.extend(vec![0xff; usize::from(len)]);
        frame
    }

    proptest! {
        #[test]
        fn rfc9113_4_1_only_answers_count_however_they_are_cut(
            cuts in prop::collection::vec(1usize..20, 0..30)
        ) {
            // SETTINGS, WINDOW_UPDATE on a stream, HEADERS, DATA, an empty DATA, GOAWAY.
            let all: Vec<u8> = [
                frame(4, 0, 18), frame(8, 1, 4), frame(1, 1, 30), frame(0, 1, 200),
                frame(0, 1, 0), frame(7, 0, 8),
            ].concat();
            let mut frames = Frames::default();
            let (mut rest, mut counted) = (&all[..], 0);
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                counted += frames.push(now);
                rest = later;
            }
            counted += frames.push(rest);
            prop_assert_eq!(counted, 9 + 30 + 9 + 200 + 9);
        }

        #[test]
        fn any_bytes_count_at_most_themselves(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Frames::default().push(&bytes) <= bytes.len() as u64);
        }
    }

    #[test]
    fn rfc9113_3_4_settings_alone_are_no_answer() {
        assert_eq!(Frames::default().push(&frame(4, 0, 18)), 0);
    }
}
