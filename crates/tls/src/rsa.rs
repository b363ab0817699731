use boring::pkey::PKey;
use boring::rsa::Rsa;

use crate::TlsError;

/// Makes an RSA key of `bits` bits, as PKCS #8 in PEM.
///
/// # Errors
/// [`TlsError::Setup`] when the library makes no key of that size.
pub fn new_rsa_key(bits: u32) -> Result<String, TlsError> {
    let pem = Rsa::generate(bits)
        .and_then(PKey::from_rsa)
        .and_then(|key| key.private_key_to_pem_pkcs8())
        .map_err(TlsError::setup("a new RSA key"))?;
    Ok(String::from_utf8(pem).expect("PEM is ASCII"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_of_the_size_that_was_asked_for() {
        let key = PKey::private_key_from_pem(new_rsa_key(2048).unwrap().as_bytes()).unwrap();
        assert_eq!((key.rsa().unwrap().size(), key.bits()), (256, 2048));
        let error = new_rsa_key(1).unwrap_err();
        assert!(error.to_string().contains("RSA key"), "{error}");
    }
}
