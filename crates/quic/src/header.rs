use std::sync::Arc;

use boring_sys as ffi;
use quinn_proto::crypto;

use crate::suite::{Secret, Suite};

/// Length of the ciphertext sample from which the mask is computed, in all suites.
pub(crate) const SAMPLE: usize = 16;

/// Header protection in one direction (RFC 9001 section 5.4). It stays the same over key updates.
/// Cheap to clone.
#[derive(Clone)]
pub(crate) enum HeaderKey {
    /// RFC 9001 section 5.4.3. Shared, since it has 244 bytes.
    Aes(Arc<AesKey>),
    /// RFC 9001 section 5.4.4.
    ChaCha20(Arc<Secret>),
}

/// An AES key schedule for encryption.
pub(crate) struct AesKey(ffi::AES_KEY);

impl AesKey {
    /// Writes the schedule at its final place on the heap: it starts with the key, and moving it would
    /// leave a copy on the stack.
    fn new(key: &[u8]) -> Arc<Self> {
        let mut schedule = Arc::<Self>::new_uninit();
        let place = Arc::get_mut(&mut schedule).expect("not shared yet");
        // SAFETY: the key is readable for its length. The structure has one field, so its place is
        // that of the field; it is only written to, and initialized on success.
        unsafe {
            let bits = key.len() as u32 * 8;
            let place: *mut ffi::AES_KEY = &raw mut (*place.as_mut_ptr()).0;
            let failed = ffi::AES_set_encrypt_key(key.as_ptr(), bits, place);
            assert_eq!(failed, 0, "AES takes keys of 128 and 256 bits");
            schedule.assume_init()
        }
    }
}

impl Drop for AesKey {
    fn drop(&mut self) {
        let at: *mut ffi::AES_KEY = &mut self.0;
        // SAFETY: the schedule is ours and writable.
        unsafe { ffi::OPENSSL_cleanse(at.cast(), size_of::<ffi::AES_KEY>()) };
    }
}

impl HeaderKey {
    pub(crate) fn new(secret: &Secret) -> Self {
        let key = secret.derive_of_length("quic hp", secret.suite.key_len());
        match secret.suite {
            Suite::ChaCha20Poly1305 => Self::ChaCha20(Arc::new(key)),
            Suite::Aes128Gcm | Suite::Aes256Gcm => Self::Aes(AesKey::new(key.as_bytes())),
        }
    }

    fn mask(&self, sample: &[u8; SAMPLE]) -> [u8; 5] {
        let mut out = [0; SAMPLE];
        match self {
            // SAFETY: one block in, one block out, and a complete key schedule.
            Self::Aes(key) => unsafe {
                ffi::AES_encrypt(sample.as_ptr(), out.as_mut_ptr(), &key.0);
            },
            Self::ChaCha20(key) => {
                let counter = u32::from_le_bytes([sample[0], sample[1], sample[2], sample[3]]);
                // SAFETY: five bytes in and out, 32 bytes of key, 12 bytes of nonce.
                unsafe {
                    ffi::CRYPTO_chacha_20(
                        out.as_mut_ptr(),
                        [0_u8; 5].as_ptr(),
                        5,
                        key.as_bytes().as_ptr(),
                        sample[4..].as_ptr(),
                        counter,
                    );
                }
            }
        }
        [out[0], out[1], out[2], out[3], out[4]]
    }

    /// The mask for a packet whose packet number starts at `pn_offset`. Returns `None` if the packet is
    /// too short for a sample (RFC 9001 section 5.4.2).
    fn mask_for(&self, pn_offset: usize, packet: &[u8]) -> Option<[u8; 5]> {
        let sample = packet.get(pn_offset + 4..)?.first_chunk()?;
        Some(self.mask(sample))
    }
}

/// Which bits of the first byte are protected: reserved bits (and key phase) and the length of
/// the packet number.
fn protected_bits(first: u8) -> u8 {
    if first & 0x80 != 0 { 0x0f } else { 0x1f }
}

impl crypto::HeaderKey for HeaderKey {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        let Some(mask) = self.mask_for(pn_offset, packet) else { return };
        packet[0] ^= mask[0] & protected_bits(packet[0]);
        let pn_len = usize::from(packet[0] & 0x03) + 1;
        for (byte, mask) in packet[pn_offset..pn_offset + pn_len].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        let Some(mask) = self.mask_for(pn_offset, packet) else { return };
        let pn_len = usize::from(packet[0] & 0x03) + 1;
        packet[0] ^= mask[0] & protected_bits(packet[0]);
        for (byte, mask) in packet[pn_offset..pn_offset + pn_len].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
    }

    fn sample_size(&self) -> usize {
        SAMPLE
    }
}
