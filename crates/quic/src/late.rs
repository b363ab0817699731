//! 1-RTT read keys of a server, which become available after quinn needs them.

use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use quinn_proto::crypto::{self, CryptoError};

use crate::header::{HeaderKey, SAMPLE};
use crate::packet::{PacketKey, TAG};
use crate::suite::{Secret, Suite};

/// The client's 1-RTT secret on a server. BoringSSL provides it when the client's Finished has been
/// verified, but quinn requests keys for both directions when the server's flight is ready. That
/// loses nothing: a server must not process 1-RTT packets earlier (RFC 9001 section 5.7).
pub(crate) type LateSecret = Arc<OnceLock<Secret>>;

/// Decrypts packets once the secret is available; fails before.
pub(crate) struct LatePacketKey {
    suite: Suite,
    secret: LateSecret,
    /// How many key updates lie between the secret and this key.
    generation: u32,
    key: OnceLock<PacketKey>,
}

impl LatePacketKey {
    pub(crate) fn new(suite: Suite, secret: LateSecret, generation: u32) -> Self {
        Self { suite, secret, generation, key: OnceLock::new() }
    }

    /// A key of a known secret, derived when it is first used.
    pub(crate) fn from_secret(secret: &Secret) -> Self {
        Self::new(secret.suite, Arc::new(secret.clone().into()), 0)
    }

    fn key(&self) -> Option<&PacketKey> {
        let secret = self.secret.get()?;
        Some(self.key.get_or_init(|| {
            let secret = (0..self.generation).fold(secret.clone(), |secret, _| secret.next());
            PacketKey::new(&secret)
        }))
    }
}

impl crypto::PacketKey for LatePacketKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        // A key for outgoing packets has its secret from the start.
        if let Some(key) = self.key() {
            key.encrypt(packet, buf, header_len);
        }
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key().ok_or(CryptoError)?.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn confidentiality_limit(&self) -> u64 {
        self.suite.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.suite.integrity_limit()
    }
}

/// As [`LatePacketKey`], for header protection. Before the secret is available, a packet is left
/// unchanged, and then fails to decrypt.
pub(crate) struct LateHeaderKey {
    secret: LateSecret,
    key: OnceLock<HeaderKey>,
}

impl LateHeaderKey {
    pub(crate) fn new(secret: LateSecret) -> Self {
        Self { secret, key: OnceLock::new() }
    }

    fn key(&self) -> Option<&HeaderKey> {
        let secret = self.secret.get()?;
        Some(self.key.get_or_init(|| HeaderKey::new(secret)))
    }
}

impl crypto::HeaderKey for LateHeaderKey {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if let Some(key) = self.key() {
            key.decrypt(pn_offset, packet);
        }
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if let Some(key) = self.key() {
            key.encrypt(pn_offset, packet);
        }
    }

    fn sample_size(&self) -> usize {
        SAMPLE
    }
}
