//! Integers and vectors of the TLS presentation language (RFC 8446 section 3), and the protocol
//! errors of a server.

/// Why a response cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first bytes are no TLS record.
    #[error("the server does not speak TLS")]
    NotTls,
    /// A version before TLS 1.3 was negotiated.
    #[error("the server does not support TLS 1.3")]
    Version,
    /// The server chose a suite or group that was not offered.
    #[error("the server chose a cipher suite or key share that was not offered")]
    NotOffered,
    /// The server requests a key share of a group that this crate does not have.
    #[error("the server requires the key share group {0:#06x}; only X25519 is supported")]
    Group(u16),
    /// A message ends early, or has bytes left over.
    #[error("a handshake message of the server is malformed")]
    Malformed,
    /// A message that is not allowed at this point.
    #[error("the server sent handshake message {0} out of order")]
    Unexpected(u8),
    /// A record or the handshake is longer than permitted.
    #[error("the server sent more than the protocol permits")]
    TooLong,
    /// The server closed a QUIC connection with an error.
    #[error("the server closed the connection with the error {code:#x}")]
    Closed {
        /// The code: of the application protocol, or of RFC 9000 section 20.1.
        code: u64,
        /// Whether it is the application protocol's.
        by_application: bool,
    },
    /// A record does not open, or the server's Finished is wrong.
    #[error("the server's records do not open with the keys of the handshake")]
    Decrypt,
}

/// Reads from the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(ProtocolError::Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        self.take(N)?.try_into().map_err(|_| ProtocolError::Malformed)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ProtocolError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ProtocolError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A vector with a length of one byte.
    pub(crate) fn vec8(&mut self) -> Result<Reader<'a>, ProtocolError> {
        let len = self.u8()?;
        Ok(Reader(self.take(len.into())?))
    }

    /// A vector with a length of two bytes.
    pub(crate) fn vec16(&mut self) -> Result<Reader<'a>, ProtocolError> {
        let len = self.u16()?;
        Ok(Reader(self.take(len.into())?))
    }

    /// The next extension of a list: its type and content.
    pub(crate) fn extension(&mut self) -> Result<Option<(u16, Reader<'a>)>, ProtocolError> {
        if self.is_empty() {
            return Ok(None);
        }
        Ok(Some((self.u16()?, self.vec16()?)))
    }

    /// Fails if bytes are left over.
    pub(crate) fn end(&self) -> Result<(), ProtocolError> {
        if self.is_empty() { Ok(()) } else { Err(ProtocolError::Malformed) }
    }
}

/// Appends a vector whose length takes `length_bytes`.
pub(crate) fn put_vec(out: &mut Vec<u8>, length_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.resize(at + length_bytes, 0);
    write(out);
    let len = (out.len() - at - length_bytes) as u32;
    out[at..at + length_bytes].copy_from_slice(&len.to_be_bytes()[4 - length_bytes..]);
}

/// Appends an extension.
pub(crate) fn put_extension(out: &mut Vec<u8>, kind: u16, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&kind.to_be_bytes());
    put_vec(out, 2, write);
}

/// A handshake message (RFC 8446 section 4).
pub(crate) fn message(kind: u8, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind];
    put_vec(&mut out, 3, write);
    out
}

/// Types of handshake messages.
pub(crate) mod kind {
    pub(crate) const CLIENT_HELLO: u8 = 1;
    pub(crate) const SERVER_HELLO: u8 = 2;
    pub(crate) const NEW_SESSION_TICKET: u8 = 4;
    pub(crate) const END_OF_EARLY_DATA: u8 = 5;
    pub(crate) const ENCRYPTED_EXTENSIONS: u8 = 8;
    pub(crate) const CERTIFICATE: u8 = 11;
    pub(crate) const CERTIFICATE_REQUEST: u8 = 13;
    pub(crate) const CERTIFICATE_VERIFY: u8 = 15;
    pub(crate) const FINISHED: u8 = 20;
    pub(crate) const KEY_UPDATE: u8 = 24;
    pub(crate) const MESSAGE_HASH: u8 = 254;
}

/// Types of extensions.
pub(crate) mod extension {
    pub(crate) const SERVER_NAME: u16 = 0;
    pub(crate) const SUPPORTED_GROUPS: u16 = 10;
    pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;
    pub(crate) const ALPN: u16 = 16;
    pub(crate) const PRE_SHARED_KEY: u16 = 41;
    pub(crate) const QUIC_TRANSPORT_PARAMETERS: u16 = 57;
    pub(crate) const EARLY_DATA: u16 = 42;
    pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
    pub(crate) const COOKIE: u16 = 44;
    pub(crate) const PSK_KEY_EXCHANGE_MODES: u16 = 45;
    pub(crate) const KEY_SHARE: u16 = 51;
}

pub(crate) const TLS13: u16 = 0x0304;
/// The only group of this crate.
pub(crate) const X25519: u16 = 0x001d;
/// SHA-256 of "HelloRetryRequest": the random that marks one (RFC 8446 section 4.1.3).
pub(crate) const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
