use std::ptr::NonNull;
use std::sync::Arc;

use boring_sys as ffi;
use bytes::BytesMut;
use quinn_proto::crypto::{self, CryptoError};

use crate::suite::{Secret, Suite};

/// Length of the tag, in all suites.
pub(crate) const TAG: usize = 16;
const NONCE: usize = 12;

/// An AEAD of BoringSSL with its key.
pub(crate) struct Aead(NonNull<ffi::EVP_AEAD_CTX>);

// SAFETY: sealing and opening only read the context (aead.h: they "may be called concurrently"),
// and it is freed by its only owner.
unsafe impl Send for Aead {}
// SAFETY: as above.
unsafe impl Sync for Aead {}

impl Aead {
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Self {
        // SAFETY: the key is readable for its length.
        let context = unsafe { ffi::EVP_AEAD_CTX_new(suite.aead(), key.as_ptr(), key.len(), TAG) };
        Self(NonNull::new(context).expect("fails only for a wrong key length or without memory"))
    }

    /// Seals `text` in place and returns the tag. `aad` is only authenticated.
    pub(crate) fn seal(&self, nonce: &[u8; NONCE], aad: &[u8], text: &mut [u8]) -> [u8; TAG] {
        let (mut tag, mut tag_len) = ([0; TAG], 0);
        // SAFETY: the context is valid; input and output are the same buffer, which the library
        // allows; all lengths are the buffers' own.
        let done = unsafe {
            ffi::EVP_AEAD_CTX_seal_scatter(
                self.0.as_ptr(),
                text.as_mut_ptr(),
                tag.as_mut_ptr(),
                &mut tag_len,
                TAG,
                nonce.as_ptr(),
                NONCE,
                text.as_ptr(),
                text.len(),
                std::ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        };
        assert!(done == 1 && tag_len == TAG, "sealing fails only beyond 2^36 bytes");
        tag
    }

    /// Opens `text` in place.
    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8],
    ) -> Result<(), CryptoError> {
        // SAFETY: as in `seal`.
        let done = unsafe {
            ffi::EVP_AEAD_CTX_open_gather(
                self.0.as_ptr(),
                text.as_mut_ptr(),
                nonce.as_ptr(),
                NONCE,
                text.as_ptr(),
                text.len(),
                tag.as_ptr(),
                tag.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        if done == 1 {
            return Ok(());
        }
        // SAFETY: clears this thread's error queue, to which the failure has added an entry.
        unsafe { ffi::ERR_clear_error() };
        Err(CryptoError)
    }
}

impl Drop for Aead {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { ffi::EVP_AEAD_CTX_free(self.0.as_ptr()) };
    }
}

/// Packet protection in one direction (RFC 9001 section 5.3). Cheap to clone.
#[derive(Clone)]
pub(crate) struct PacketKey {
    suite: Suite,
    aead: Arc<Aead>,
    iv: [u8; NONCE],
}

impl PacketKey {
    pub(crate) fn new(secret: &Secret) -> Self {
        let key = secret.derive_of_length("quic key", secret.suite.key_len());
        let aead = Arc::new(Aead::new(secret.suite, key.as_bytes()));
        let mut iv = [0; NONCE];
        secret.expand("quic iv", &mut iv);
        Self { suite: secret.suite, aead, iv }
    }

    /// The nonce: the packet number XORed into the end of the IV.
    fn nonce(&self, packet: u64) -> [u8; NONCE] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(packet.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }
}

impl crypto::PacketKey for PacketKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let (header, rest) = buf.split_at_mut(header_len);
        let (text, tag) = rest.split_at_mut(rest.len() - TAG);
        tag.copy_from_slice(&self.aead.seal(&self.nonce(packet), header, text));
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let text_len = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        let (text, tag) = payload.split_at_mut(text_len);
        self.aead.open(&self.nonce(packet), header, text, tag)?;
        payload.truncate(text_len);
        Ok(())
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
