//! Splits a byte stream into TLS records (RFC 8446 section 5.1), and parses the presentation
//! language of messages (section 3).

use crate::facts::Unknown;

pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

pub(crate) const HEADER_LEN: usize = 5;

/// A record in its stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) content_type: u8,
    /// Where its header starts in the stream.
    pub(crate) start: usize,
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) payload: &'a [u8],
}

impl Record<'_> {
    pub(crate) fn wire_len(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }

    /// Where its payload starts in the stream.
    pub(crate) fn payload_start(&self) -> usize {
        self.start + HEADER_LEN
    }

    /// Where it ends in the stream.
    pub(crate) fn end(&self) -> usize {
        self.start + self.wire_len()
    }
}

/// The whole records of a stream, from its start.
pub(crate) struct Records<'a> {
    stream: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    pub(crate) fn new(stream: &'a [u8]) -> Self {
        Self { stream, at: 0 }
    }

    /// The next whole record; `Ok(None)` when the stream ends first.
    ///
    /// # Errors
    /// `NotTls` if there is no valid record header, now and for all further calls.
    pub(crate) fn next(&mut self) -> Result<Option<Record<'a>>, Unknown> {
        // Ciphertext may be 2^14 + 2048 long before TLS 1.3 (RFC 5246 section 6.2.3).
        const MAX_RECORD_BYTES: usize = (1 << 14) + 2048;
        let rest = &self.stream[self.at..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&header[0])
            || header[1] != 3
            || len > MAX_RECORD_BYTES
        {
            return Err(Unknown::NotTls);
        }
        let Some(payload) = rest.get(..len) else {
            return Ok(None);
        };
        let start = self.at;
        self.at += HEADER_LEN + len;
        Ok(Some(Record { content_type: header[0], start, header: *header, payload }))
    }
}

/// Parses the presentation language (RFC 8446 section 3). Input that is too short is `NotTls`.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Unknown> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Unknown::NotTls)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Unknown> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Unknown::NotTls)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Unknown> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Unknown> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u24(&mut self) -> Result<u32, Unknown> {
        let [a, b, c] = self.array()?;
        Ok(u32::from_be_bytes([0, a, b, c]))
    }

    pub(crate) fn vec8(&mut self) -> Result<Self, Unknown> {
        let len = usize::from(self.u8()?);
        Ok(Self(self.take(len)?))
    }

    pub(crate) fn vec16(&mut self) -> Result<Self, Unknown> {
        let len = usize::from(self.u16()?);
        Ok(Self(self.take(len)?))
    }

    pub(crate) fn vec24(&mut self) -> Result<Self, Unknown> {
        let len = self.u24()? as usize;
        Ok(Self(self.take(len)?))
    }
}
