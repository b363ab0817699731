//! A ticket key for another server, derived from a key of the ring.

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::key::TicketKey;

/// A key of 80 bytes in the format of OpenSSL's users: name (16), HMAC-SHA256 key (32), AES-256-CBC
/// key (32). Wiped when dropped, and not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportedKey(Zeroizing<[u8; KEY_BYTES]>);

impl ExportedKey {
    /// Derives the key of `purpose` from `key`, the same on every machine: HKDF-SHA256 (RFC 5869)
    /// with the key's name as salt, its secret as input and `purpose` as info.
    ///
    /// All 80 bytes including the name are derived, so no name ever refers to two keys. The keys of
    /// different purposes are independent: a thief of one server's files learns neither the ring's
    /// secret nor the keys of other servers.
    pub(super) fn derive(key: &TicketKey, purpose: &str) -> Self {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        Hkdf::<Sha256>::new(Some(key.name()), key.secret())
            .expand_multi_info(&[LABEL, purpose.as_bytes()], bytes.as_mut())
            .expect("80 bytes are less than HKDF's limit of 255 times 32");
        Self(bytes)
    }

    /// Returns all 80 bytes.
    pub fn as_bytes(&self) -> &[u8; 80] {
        &self.0
    }

    /// Returns the name that its tickets contain in plain text.
    pub fn name(&self) -> &[u8] {
        &self.0[..NAME_BYTES]
    }
}

impl fmt::Debug for ExportedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedKey")
            .field("name", &hex::encode(self.name()))
            .finish_non_exhaustive()
    }
}

const KEY_BYTES: usize = 80;
const NAME_BYTES: usize = 16;
const LABEL: &[u8] = b"firstflight ticket key for ";
