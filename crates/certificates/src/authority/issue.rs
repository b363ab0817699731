//! Certificates: of the authority, signed by it, and self-signed.

use std::time::Duration;

use firstflight_tls::{Identity, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};

use crate::authority::{AuthorityError, constraints};

/// Lifetime of the authority's certificate: ten years, in seconds.
const AUTHORITY_LIFETIME: u64 = 3652 * DAY;
/// Lifetime of the certificates that it signs. A server renews them earlier.
const LEAF_LIFETIME: u64 = 7 * DAY;
/// Tolerated clock skew.
const CLOCK_SKEW: u64 = 3600;
const DAY: u64 = 86_400;

/// A certificate with its private key. ECDSA P-256.
pub struct CertifiedKey {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: String,
}

impl std::fmt::Debug for CertifiedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not appear in logs.
        f.debug_struct("CertifiedKey")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl CertifiedKey {
    /// Certificate and key for a TLS server.
    ///
    /// # Errors
    /// [`TlsError`] if the TLS library cannot read them.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }
}

/// When to renew a certificate that was issued at `now` and expires at `expires`: after two thirds
/// of its lifetime.
pub fn renew_at(now: u64, expires: u64) -> u64 {
    now + expires.saturating_sub(now) / 3 * 2
}

/// Creates a self-signed certificate for these host names and addresses. Clients trust it only if
/// it is given to them.
///
/// # Errors
/// [`AuthorityError::Names`] or [`AuthorityError::Key`].
pub fn self_signed(names: &[String]) -> Result<CertifiedKey, AuthorityError> {
    let key = new_key()?;
    let mut params = CertificateParams::new(names).map_err(refused(names))?;
    params.distinguished_name.push(DnType::CommonName, "firstflight, self-signed");
    let created = params.self_signed(&key).map_err(refused(names))?;
    Ok(CertifiedKey { certificate: created.pem(), key: key.serialize_pem() })
}

/// The authority's name and key.
pub(crate) type Signer = Issuer<'static, KeyPair>;

pub(crate) fn new_key() -> Result<KeyPair, AuthorityError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|error| AuthorityError::Key(error.to_string()))
}

/// The name of the authority with this key. Names are unique: otherwise a client that knows two
/// authorities could try the wrong key.
pub(crate) fn authority_name(key: &KeyPair) -> String {
    let id = CertificateParams::default().key_identifier(key);
    let id: String = id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("firstflight development authority {id}")
}

/// The signer for a key. Everything but the validity follows from the key.
pub(crate) fn signer(key: KeyPair) -> Signer {
    Issuer::new(authority_params(&key), key)
}

/// The certificate of the authority, PEM.
pub(crate) fn authority_certificate(key: &KeyPair, now: u64) -> Result<String, AuthorityError> {
    let mut params = authority_params(key);
    set_validity(&mut params, now, AUTHORITY_LIFETIME);
    let created = params.self_signed(key);
    Ok(created.map_err(|error| AuthorityError::Key(error.to_string()))?.pem())
}

fn authority_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, authority_name(key));
    // It signs server certificates only, and no other authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = Some(constraints::constraints());
    params
}

/// Issues a server certificate. The caller has checked that `names` are permitted.
pub(crate) fn leaf(
    signer: &Signer,
    names: &[String],
    now: u64,
) -> Result<CertifiedKey, AuthorityError> {
    let key = new_key()?;
    let mut params = CertificateParams::new(names).map_err(refused(names))?;
    params.distinguished_name.push(DnType::CommonName, "firstflight, development");
    set_validity(&mut params, now, LEAF_LIFETIME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let created = params.signed_by(&key, signer).map_err(refused(names))?;
    Ok(CertifiedKey { certificate: created.pem(), key: key.serialize_pem() })
}

fn refused(names: &[String]) -> impl Fn(rcgen::Error) -> AuthorityError {
    let names = names.join(", ");
    move |error| AuthorityError::Names { names: names.clone(), reason: error.to_string() }
}

/// Sets the validity, backdated for clock skew.
fn set_validity(params: &mut CertificateParams, now: u64, lifetime: u64) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(CLOCK_SKEW));
    params.not_after = epoch + Duration::from_secs(now.saturating_add(lifetime));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_after_two_thirds_of_their_lifetime() {
        assert_eq!(renew_at(1_000, 1_300), 1_200);
        assert_eq!(renew_at(1_000, 900), 1_000);
    }

    #[test]
    fn self_signed_for_names_and_addresses() {
        let names = ["example.com", "192.0.2.1", "::1"].map(str::to_owned);
        let identity = self_signed(&names).unwrap().identity().unwrap();
        assert!(names.iter().all(|name| identity.covers(name)) && !identity.covers("other.com"));
    }

    #[test]
    fn an_impossible_name_is_named() {
        let error = self_signed(&["not a name\u{e9}".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("not a name"), "{error}");
    }

    #[test]
    fn keys_stay_out_of_logs() {
        let created = self_signed(&["localhost".to_owned()]).unwrap();
        assert!(!format!("{created:?}").contains("PRIVATE"));
    }
}
