use std::fmt;

use std::str::FromStr;

use boring::error::ErrorStack;
use boring::ssl::SslContextBuilder;
use boring_sys as ffi;

use crate::{CipherPolicy, TlsError};

/// Whose order counts among ciphers that are all good, on a server. It orders what a
/// [`CipherPolicy`] leaves to the library; a list for TLS 1.2 that is given stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CipherPreference {
    /// What is cheap here and there. With AES instructions, AES and ChaCha20 cost this machine
    /// about the same, so the client's order counts: a phone without them names ChaCha20 first.
    /// Without them ChaCha20 comes first for whoever has it. The default.
    #[default]
    Hardware,
    /// The client's order, whatever this machine has.
    Client,
}

/// The AEAD ciphers of TLS 1.2 in two groups of equals, and then all others as the library has
/// them. (By itself it puts AES first, with AES instructions, whatever the client says.)
const EQUALS_1_2: &str = "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305|\
    ECDHE-ECDSA-AES256-GCM-SHA384]:[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305|\
    ECDHE-RSA-AES256-GCM-SHA384]:ALL";

/// Those of TLS 1.3.
const EQUALS_1_3: [u16; 3] = [0x1301, 0x1302, 0x1303];

impl CipherPreference {
    pub(crate) fn apply(
        self,
        policy: &CipherPolicy,
        context: &mut SslContextBuilder,
    ) -> Result<(), TlsError> {
        // SAFETY: a look at the processor.
        let aes = unsafe { ffi::EVP_has_aes_hardware() } == 1;
        if self == Self::Hardware && !aes {
            // The library's own order: ChaCha20 first.
            return Ok(());
        }
        let refused = TlsError::setup("the order of ciphers");
        if policy.ciphers.is_none() {
            context.set_strict_cipher_list(EQUALS_1_2).map_err(&refused)?;
        }
        // With AES instructions the library takes the client's order by itself in TLS 1.3.
        if self == Self::Client && policy.tls13_ciphers.is_none() {
            let flags = [ffi::SSL_CIPHER_FLAG_EQUAL_PREFERENCE_WITH_NEXT as u32; 2];
            let flags = [flags[0], flags[1], 0];
            let ids = EQUALS_1_3;
            // SAFETY: both arrays are readable for the length given, and copied.
            let done = unsafe {
                ffi::SSL_CTX_set1_tls13_ciphers(
                    context.as_ptr(),
                    ids.as_ptr(),
                    flags.as_ptr(),
                    ids.len(),
                )
            };
            if done != 1 {
                return Err(refused(ErrorStack::get()));
            }
        }
        Ok(())
    }
}

impl FromStr for CipherPreference {
    type Err = TlsError;

    fn from_str(word: &str) -> Result<Self, TlsError> {
        match word {
            "hardware" => Ok(Self::Hardware),
            "client" => Ok(Self::Client),
            _ => Err(TlsError::UnknownPreference(word.to_owned())),
        }
    }
}

impl fmt::Display for CipherPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Client => "client",
        })
    }
}
