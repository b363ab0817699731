use std::fmt;
use std::mem::MaybeUninit;

use boring_sys as ffi;

/// The cipher suites of TLS 1.3 (RFC 8446 appendix B.4) that QUIC allows (RFC 9001 section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Suite {
    /// Returns the suite with this IANA number.
    pub(crate) fn from_id(id: u16) -> Option<Self> {
        match id {
            0x1301 => Some(Self::Aes128Gcm),
            0x1302 => Some(Self::Aes256Gcm),
            0x1303 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Length in bytes of the packet protection key and of the header protection key.
    pub(crate) fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Maximum number of packets that one key may protect (RFC 9001 section 6.6).
    pub(crate) fn confidentiality_limit(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 23,
            // More than there are packet numbers.
            Self::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// Maximum number of forged packets on a connection (RFC 9001 section 6.6).
    pub(crate) fn integrity_limit(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 52,
            Self::ChaCha20Poly1305 => 1 << 36,
        }
    }

    pub(crate) fn aead(self) -> *const ffi::EVP_AEAD {
        // SAFETY: these return static tables.
        unsafe {
            match self {
                Self::Aes128Gcm => ffi::EVP_aead_aes_128_gcm(),
                Self::Aes256Gcm => ffi::EVP_aead_aes_256_gcm(),
                Self::ChaCha20Poly1305 => ffi::EVP_aead_chacha20_poly1305(),
            }
        }
    }

    fn digest(self) -> *const ffi::EVP_MD {
        // SAFETY: these return static tables.
        unsafe {
            match self {
                Self::Aes256Gcm => ffi::EVP_sha384(),
                Self::Aes128Gcm | Self::ChaCha20Poly1305 => ffi::EVP_sha256(),
            }
        }
    }
}

/// Length of the longest secret, that of a suite with SHA-384.
pub(crate) const MAX_SECRET: usize = 48;

/// A traffic secret with its suite (RFC 9001 section 5.1). Wiped when dropped. Its bytes are on the
/// heap: a value that is moved would leave a copy of them on the stack, which nothing wipes.
#[derive(Clone)]
pub(crate) struct Secret {
    pub(crate) suite: Suite,
    bytes: Box<[u8; MAX_SECRET]>,
    length: usize,
}

impl Secret {
    /// Returns `None` if `secret` is longer than any suite's.
    pub(crate) fn new(suite: Suite, secret: &[u8]) -> Option<Self> {
        let mut bytes = Box::new([0; MAX_SECRET]);
        bytes.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(Self { suite, bytes, length: secret.len() })
    }

    /// HKDF-Extract (RFC 5869 section 2.2) with SHA-256, for the Initial secret.
    pub(crate) fn extract(salt: &[u8], input: &[u8]) -> Self {
        let mut secret =
            Self { suite: Suite::Aes128Gcm, bytes: Box::new([0; MAX_SECRET]), length: 0 };
        // SAFETY: the output has room for the longest digest, the inputs are readable for their
        // lengths.
        let done = unsafe {
            ffi::HKDF_extract(
                secret.bytes.as_mut_ptr(),
                &mut secret.length,
                ffi::EVP_sha256(),
                input.as_ptr(),
                input.len(),
                salt.as_ptr(),
                salt.len(),
            )
        };
        assert_eq!(done, 1, "HKDF-Extract fails only when memory is exhausted");
        secret
    }

    /// HKDF-Expand-Label (RFC 8446 section 7.1) with an empty context.
    pub(crate) fn expand(&self, label: &str, out: &mut [u8]) {
        let mut info = [0_u8; 32];
        let label_len = 6 + label.len();
        info[1] = out.len() as u8;
        info[2] = label_len as u8;
        info[3..9].copy_from_slice(b"tls13 ");
        info[9..3 + label_len].copy_from_slice(label.as_bytes());
        // SAFETY: all buffers are valid for their lengths.
        let done = unsafe {
            ffi::HKDF_expand(
                out.as_mut_ptr(),
                out.len(),
                self.suite.digest(),
                self.bytes.as_ptr(),
                self.length,
                info.as_ptr(),
                4 + label_len,
            )
        };
        assert_eq!(done, 1, "HKDF-Expand fails only for lengths that are not used here");
        wipe_stack();
    }

    /// Derives a secret of the same length and suite for `label`.
    pub(crate) fn derive(&self, label: &str) -> Self {
        self.derive_of_length(label, self.length)
    }

    /// Derives a secret of this many bytes, such as a key of the suite, for `label`.
    ///
    /// # Panics
    /// If it is longer than any suite's secret.
    pub(crate) fn derive_of_length(&self, label: &str, length: usize) -> Self {
        let mut next = Self { suite: self.suite, bytes: Box::new([0; MAX_SECRET]), length };
        self.expand(label, &mut next.bytes[..length]);
        next
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the secret of the next key phase (RFC 9001 section 6.1).
    pub(crate) fn next(&self) -> Self {
        self.derive("quic ku")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: the bytes are owned and writable.
        unsafe { ffi::OPENSSL_cleanse(self.bytes.as_mut_ptr().cast(), self.bytes.len()) };
    }
}

/// Overwrites what the preceding call left on the stack: BoringSSL does not wipe the last block of
/// HKDF-Expand, which is the output.
#[inline(never)]
fn wipe_stack() {
    let mut area = MaybeUninit::<[u8; WIPED_STACK_BYTES]>::uninit();
    // SAFETY: the bytes are ours and writable.
    unsafe { ffi::OPENSSL_cleanse(area.as_mut_ptr().cast(), WIPED_STACK_BYTES) };
}

/// Exceeds the stack use of HKDF-Expand: 1,500 bytes with SHA-256, 1,650 with SHA-384.
const WIPED_STACK_BYTES: usize = 2048;

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("suite", &self.suite).finish_non_exhaustive()
    }
}
