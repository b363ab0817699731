//! The pre-shared key that a client offers, and the proof that the client knows it.

use std::fmt;

use hkdf::Hkdf;
use hmac::digest::Output;
use hmac::{EagerHash, Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384};
use zeroize::Zeroize;

use crate::der::{INTEGER, OCTET_STRING, SEQUENCE, element};
use crate::pre_shared_key::PreSharedKey;

/// The first pre-shared key of a ClientHello: its binder, and what the binder authenticates (RFC 8446
/// section 4.2.11.2).
///
/// BoringSSL verifies the binders of sessions that it resumes. This type verifies those of
/// single-use tickets that BoringSSL does not resume (another site, another cipher), or that
/// another process opens. Without the proof, anybody who has seen a ticket on the wire could use it
/// up.
#[derive(Clone, PartialEq, Eq)]
pub struct PskOffer {
    hello: TruncatedHello,
    binder: Vec<u8>,
}

/// The ClientHello up to its binders.
#[derive(Clone, PartialEq, Eq)]
enum TruncatedHello {
    /// The message with its header.
    Message(Vec<u8>),
    /// Its digests by SHA-256 and SHA-384. Which one counts is known when the ticket is open.
    Digests([u8; 32], [u8; 48]),
}

impl PskOffer {
    /// Reads the offer of a ClientHello without its header. `pre_shared_key` is the content of its
    /// last extension (RFC 8446 section 4.2.11).
    pub(crate) fn read(client_hello: &[u8], pre_shared_key: &[u8]) -> Option<Self> {
        let offered = PreSharedKey::read(pre_shared_key)?;
        let truncated = client_hello.len().checked_sub(offered.binders_length)?;
        let length = u32::try_from(client_hello.len()).ok()?.to_be_bytes();
        let mut message = Vec::with_capacity(4 + truncated);
        message.extend_from_slice(&[CLIENT_HELLO, length[1], length[2], length[3]]);
        message.extend_from_slice(&client_hello[..truncated]);
        let hello = TruncatedHello::Message(message);
        Some(Self { hello, binder: offered.binder.to_vec() })
    }

    /// Whether the client knows the secret of this session: whether its binder is valid.
    pub fn proves(&self, session: &[u8]) -> bool {
        self.verify(session).unwrap_or(false)
    }

    /// Serializes what another process needs to verify the binder.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (sha256, sha384) = match &self.hello {
            TruncatedHello::Message(message) => {
                (Sha256::digest(message).into(), Sha384::digest(message).into())
            }
            TruncatedHello::Digests(sha256, sha384) => (*sha256, *sha384),
        };
        [&sha256[..], &sha384, &self.binder].concat()
    }

    /// Parses the bytes of [`PskOffer::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (sha256, rest) = bytes.split_first_chunk()?;
        let (sha384, binder) = rest.split_first_chunk()?;
        let hello = TruncatedHello::Digests(*sha256, *sha384);
        (binder.len() <= MAX_BINDER_BYTES).then(|| Self { hello, binder: binder.to_vec() })
    }

    fn verify(&self, session: &[u8]) -> Option<bool> {
        let (hash, secret) = hash_and_secret(session)?;
        let transcript: &[u8] = match (&self.hello, hash) {
            (TruncatedHello::Message(message), Hash::Sha256) => &Sha256::digest(message),
            (TruncatedHello::Message(message), Hash::Sha384) => &Sha384::digest(message),
            (TruncatedHello::Digests(sha256, _), Hash::Sha256) => sha256,
            (TruncatedHello::Digests(_, sha384), Hash::Sha384) => sha384,
        };
        Some(match hash {
            Hash::Sha256 => is_binder::<Sha256>(&self.binder, secret, transcript),
            Hash::Sha384 => is_binder::<Sha384>(&self.binder, secret, transcript),
        })
    }
}

impl fmt::Debug for PskOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PskOffer(..)")
    }
}

/// The hash of a cipher suite of TLS 1.3.
#[derive(Clone, Copy)]
enum Hash {
    Sha256,
    Sha384,
}

/// Whether this is the binder of a session with this secret (RFC 8446 sections 7.1 and 4.4.4).
fn is_binder<H: EagerHash + Digest>(binder: &[u8], secret: &[u8], transcript: &[u8]) -> bool {
    let (mut early_secret, schedule) = Hkdf::<H>::extract(None, secret);
    early_secret.zeroize();
    let mut binder_key = Output::<H>::default();
    expand_label::<H>(&schedule, b"res binder", &H::digest(b""), &mut binder_key);
    let mut finished_key = Output::<H>::default();
    let schedule = Hkdf::<H>::from_prk(&binder_key).expect("it has the length of the hash");
    expand_label::<H>(&schedule, b"finished", b"", &mut finished_key);
    let mac = <Hmac<H> as KeyInit>::new_from_slice(&finished_key);
    binder_key.zeroize();
    finished_key.zeroize();
    let mac = mac.expect("HMAC takes keys of any length");
    // Compares in constant time.
    mac.chain_update(transcript).verify_slice(binder).is_ok()
}

/// HKDF-Expand-Label (RFC 8446 section 7.1) to the length of the output.
fn expand_label<H: EagerHash>(schedule: &Hkdf<H>, label: &[u8], context: &[u8], out: &mut [u8]) {
    let length = (out.len() as u16).to_be_bytes();
    let [label_length, context_length] =
        [PREFIX.len() + label.len(), context.len()].map(|length| [length as u8]);
    let info = [&length[..], &label_length, PREFIX, label, &context_length, context];
    schedule.expand_multi_info(&info, out).expect("it is one hash");
}

/// The hash and the secret of a serialized session (`ssl_asn1.cc`).
fn hash_and_secret(session: &[u8]) -> Option<(Hash, &[u8])> {
    let (fields, _) = element(session, SEQUENCE)?;
    let (_format, rest) = element(fields, INTEGER)?;
    let (_tls_version, rest) = element(rest, INTEGER)?;
    let (cipher, rest) = element(rest, OCTET_STRING)?;
    let (_session_id, rest) = element(rest, OCTET_STRING)?;
    let (secret, _) = element(rest, OCTET_STRING)?;
    match cipher {
        // TLS_AES_256_GCM_SHA384; the other suites of TLS 1.3 have SHA-256.
        [0x13, 0x02] => Some((Hash::Sha384, secret)),
        [0x13, _] => Some((Hash::Sha256, secret)),
        _ => None,
    }
}

const CLIENT_HELLO: u8 = 1;
const PREFIX: &[u8] = b"tls13 ";
const MAX_BINDER_BYTES: usize = 255;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A session with TLS_AES_128_GCM_SHA256 and this secret.
    fn session(secret: &[u8; 32]) -> Vec<u8> {
        let fields = [
            &[INTEGER, 1, 1, INTEGER, 2, 3, 4, OCTET_STRING, 2, 0x13, 0x01, OCTET_STRING, 0][..],
            &[OCTET_STRING, 32],
            secret,
        ]
        .concat();
        [&[SEQUENCE, fields.len() as u8][..], &fields].concat()
    }

    /// The trace "Resumed 0-RTT Handshake" of RFC 8448 section 4: its resumption PSK, the ClientHello
    /// before its binders, and the binder.
    #[test]
    fn rfc8448_4_the_binder_of_the_trace_is_valid() {
        let secret = bytes("4ecd0eb6ec3b4d87f5d6028f922ca4c5851a277fd41311c9e62d2c9492e1c4f3");
        let digest = bytes("63224b2e4573f2d3454ca84b9d009a04f6be9e05711a8396473aefa01e924a14");
        let binder = bytes("3add4fb2d8fdf822a0ca3cf7678ef5e88dae990141c5924d57bb6fa31b9e5f9d");
        let hello = TruncatedHello::Digests(digest.try_into().unwrap(), [0; 48]);
        let offer = PskOffer { hello, binder };
        let session = session(&secret.try_into().unwrap());
        assert!(offer.proves(&session));
        assert!(PskOffer::from_bytes(&offer.to_bytes()).unwrap().proves(&session));
        let mut other = offer.clone();
        other.binder[31] ^= 1;
        assert!(!other.proves(&session));
        other.binder.truncate(31);
        assert!(!other.proves(&session));
        assert!(!offer.proves(&self::session(&[0; 32])));
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().as_chunks::<2>().0;
        digits
            .iter()
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn any_bytes_prove_nothing(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            other in proptest::collection::vec(any::<u8>(), 0..100),
            secret in any::<[u8; 32]>(),
            binder in any::<[u8; 32]>(),
        ) {
            let Some(mut offer) = PskOffer::from_bytes(&bytes) else { return Ok(()) };
            prop_assert_eq!(offer.to_bytes(), bytes);
            prop_assert!(!offer.proves(&other));
            prop_assert_eq!(offer.verify(&session(&secret)), Some(false));
            // A binder of the right length.
            offer.binder = binder.to_vec();
            prop_assert_eq!(offer.verify(&session(&secret)), Some(false));
        }
    }
}
