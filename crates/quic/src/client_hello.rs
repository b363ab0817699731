/// The parts of a ClientHello (RFC 8446 section 4.1.2) that are needed before TLS processes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offer<'a> {
    /// The first ticket of pre_shared_key, the only one that BoringSSL considers.
    pub(crate) ticket: &'a [u8],
    /// Whether early data is offered with it.
    pub(crate) early_data: bool,
}

const CLIENT_HELLO: u8 = 1;
const EARLY_DATA: u16 = 42;
const PRE_SHARED_KEY: u16 = 41;

impl<'a> Offer<'a> {
    /// Parses a handshake message with its header. Returns `None` if it is not a complete ClientHello,
    /// or offers no ticket.
    pub(crate) fn read(message: &'a [u8]) -> Option<Self> {
        let (&[CLIENT_HELLO], rest) = message.split_first_chunk()? else { return None };
        let (body, _) = split_vector(rest, 3)?;
        // legacy_version and random.
        let (_, rest) = body.split_at_checked(2 + 32)?;
        let (_legacy_session_id, rest) = split_vector(rest, 1)?;
        let (_cipher_suites, rest) = split_vector(rest, 2)?;
        let (_legacy_compression_methods, rest) = split_vector(rest, 1)?;
        let (mut extensions, _) = split_vector(rest, 2)?;
        let (mut early_data, mut ticket) = (false, None);
        while let Some((kind, rest)) = extensions.split_first_chunk() {
            let (content, after) = split_vector(rest, 2)?;
            match u16::from_be_bytes(*kind) {
                EARLY_DATA => early_data = true,
                PRE_SHARED_KEY => ticket = Some(first_identity(content)?),
                _ => (),
            }
            extensions = after;
        }
        ticket.map(|ticket| Self { ticket, early_data })
    }
}

/// RFC 8446 section 4.2.11.
fn first_identity(pre_shared_key: &[u8]) -> Option<&[u8]> {
    let (identities, _binders) = split_vector(pre_shared_key, 2)?;
    Some(split_vector(identities, 2)?.0)
}

/// Splits off a vector after its length, which has `width` bytes. Returns its content and the rest.
fn split_vector(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(width)?;
    rest.split_at_checked(length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
}
