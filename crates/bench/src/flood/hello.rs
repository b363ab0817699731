use rand::{Rng, RngExt};

/// A ClientHello for QUIC (RFC 9001 section 8) that nobody has keys for: its X25519 share is
/// random. With `ticket` it offers a random ticket, with a random binder, and early data.
pub(crate) fn client_hello(
    host: &str,
    source_id: &[u8],
    ticket: bool,
    random: &mut impl Rng,
) -> Vec<u8> {
    let mut body = vec![3, 3];
    filled(&mut body, 32, random);
    // No session id, TLS_AES_128_GCM_SHA256, no compression.
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    let extensions = extensions(host, source_id, ticket, random);
    vector(&mut body, 2, &extensions);
    let mut hello = vec![1];
    vector(&mut hello, 3, &body);
    hello
}

fn extensions(host: &str, source_id: &[u8], ticket: bool, random: &mut impl Rng) -> Vec<u8> {
    let mut all = Vec::new();
    let mut extension = |kind: u16, data: &[u8]| {
        all.extend_from_slice(&kind.to_be_bytes());
        vector(&mut all, 2, data);
    };
    extension(SERVER_NAME, &server_name(host));
    extension(SUPPORTED_GROUPS, &[0, 2, 0x00, 0x1d]);
    extension(SIGNATURE_ALGORITHMS, &[0, 8, 4, 3, 8, 4, 5, 3, 8, 7]);
    extension(ALPN, &[0, 3, 2, b'h', b'3']);
    extension(SUPPORTED_VERSIONS, &[2, 3, 4]);
    let mut share = vec![0, 36, 0x00, 0x1d, 0, 32];
    filled(&mut share, 32, random);
    extension(KEY_SHARE, &share);
    extension(QUIC_TRANSPORT_PARAMETERS, &transport_parameters(source_id));
    if ticket {
        extension(PSK_KEY_EXCHANGE_MODES, &[1, 1]);
        extension(EARLY_DATA, &[]);
        // The last one (RFC 8446 section 4.2.11).
        extension(PRE_SHARED_KEY, &made_up_ticket(random));
    }
    all
}

const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const PSK_KEY_EXCHANGE_MODES: u16 = 45;
const KEY_SHARE: u16 = 51;
const QUIC_TRANSPORT_PARAMETERS: u16 = 57;
const INITIAL_SOURCE_CONNECTION_ID: u8 = 0x0f;

/// Windows and streams as clients have them (RFC 9000 section 18.2): servers turn down those who
/// allow none.
fn transport_parameters(source_id: &[u8]) -> Vec<u8> {
    let mut parameters = vec![INITIAL_SOURCE_CONNECTION_ID, source_id.len() as u8];
    parameters.extend_from_slice(source_id);
    // initial_max_data to initial_max_streams_uni: a mebibyte each, or 100 streams.
    for window in 0x04..=0x07 {
        parameters.extend_from_slice(&[window, 4, 0x80, 0x10, 0, 0]);
    }
    for streams in [0x08, 0x09] {
        parameters.extend_from_slice(&[streams, 2, 0x40, 100]);
    }
    parameters
}

/// Bytes of a ticket, about as long as real ones.
const TICKET: usize = 192;

fn server_name(host: &str) -> Vec<u8> {
    let mut entry = vec![0];
    vector(&mut entry, 2, host.as_bytes());
    let mut list = Vec::new();
    vector(&mut list, 2, &entry);
    list
}

fn made_up_ticket(random: &mut impl Rng) -> Vec<u8> {
    let mut ticket = Vec::new();
    filled(&mut ticket, TICKET, random);
    let mut identity = Vec::new();
    vector(&mut identity, 2, &ticket);
    // Its age.
    filled(&mut identity, 4, random);
    let mut binder = vec![32];
    filled(&mut binder, 32, random);
    let mut offered = Vec::new();
    vector(&mut offered, 2, &identity);
    vector(&mut offered, 2, &binder);
    offered
}

/// A vector with so many bytes of length before it (RFC 8446 section 3.4).
fn vector(to: &mut Vec<u8>, length: usize, data: &[u8]) {
    to.extend_from_slice(&(data.len() as u32).to_be_bytes()[4 - length..]);
    to.extend_from_slice(data);
}

fn filled(to: &mut Vec<u8>, count: usize, random: &mut impl Rng) {
    let from = to.len();
    to.resize(from + count, 0);
    random.fill(&mut to[from..]);
}
