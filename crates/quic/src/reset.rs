use std::fmt;
use std::net::SocketAddr;

use boring_sys as ffi;
use quinn_proto::crypto::{CryptoError, HmacKey};

/// The key of stateless resets (RFC 9000 section 10.3.2): HMAC-SHA-256. Nodes and processes that
/// share it can end each other's connections after a crash.
#[derive(Clone)]
pub struct ResetKey([u8; 32]);

const DIGEST: usize = 32;

impl ResetKey {
    /// Creates a key from 32 secret bytes.
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Derives the key of one of several ports, which have different connections. With one key for all,
    /// anyone who knows a connection id could make another port send its reset token, and end the
    /// connection (RFC 9000 section 21.11).
    pub fn for_port(&self, address: SocketAddr) -> Self {
        let mut key = Self([0; DIGEST]);
        self.sign(address.to_string().as_bytes(), &mut key.0);
        key
    }
}

impl fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetKey(..)")
    }
}

impl Drop for ResetKey {
    fn drop(&mut self) {
        // SAFETY: the bytes are ours and writable.
        unsafe { ffi::OPENSSL_cleanse(self.0.as_mut_ptr().cast(), self.0.len()) };
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        let (mut out, mut length) = ([0_u8; DIGEST], 0);
        // SAFETY: key and data are readable for their lengths, the output has the digest's room.
        unsafe {
            ffi::HMAC(
                ffi::EVP_sha256(),
                self.0.as_ptr().cast(),
                self.0.len(),
                data.as_ptr(),
                data.len(),
                out.as_mut_ptr(),
                &mut length,
            );
        }
        signature_out.copy_from_slice(&out);
    }

    fn signature_len(&self) -> usize {
        DIGEST
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let mut expected = [0; DIGEST];
        self.sign(data, &mut expected);
        // SAFETY: both are readable for the length.
        let same = signature.len() == DIGEST
            && unsafe {
                ffi::CRYPTO_memcmp(expected.as_ptr().cast(), signature.as_ptr().cast(), DIGEST) == 0
            };
        if same { Ok(()) } else { Err(CryptoError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc4231_4_2_and_other_data_or_signatures_do_not_verify() {
        let mut key = [0; 32];
        // HMAC pads a shorter key with zeros: the test case's 20 bytes of 0x0b.
        key[..20].fill(0x0b);
        let key = ResetKey::new(key);
        let mut signature = [0; DIGEST];
        key.sign(b"Hi There", &mut signature);
        assert_eq!(
            hex::encode(signature),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert!(key.verify(b"Hi There", &signature).is_ok());
        assert!(key.verify(b"Hi There.", &signature).is_err());
        assert!(key.verify(b"Hi There", &signature[..31]).is_err());
    }
}
