//! Certificates: the authority's own, those that it signs, and those that nobody signs.

use std::time::Duration;

use firstflight_tls::{Identity, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};

use crate::authority::{AuthorityError, bounds};

/// How long the authority's certificate is good: ten years, in seconds.
const AUTHORITY_LIFE: u64 = 3652 * DAY;
/// How long those are good that it signs. A server makes a new one before.
const LEAF_LIFE: u64 = 7 * DAY;
/// How far clocks may be apart.
const SKEW: u64 = 3600;
const DAY: u64 = 86_400;

/// A certificate that was made, and its key. ECDSA P-256.
pub struct IssuedCertificate {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: String,
}

impl std::fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Made").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl IssuedCertificate {
    /// The two as a server shows them.
    ///
    /// # Errors
    /// [`TlsError`]: the libraries do not understand each other.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes())
    }
}

/// When a certificate that ends at `expires` should be made again, if it was made at `now`: after
/// two thirds of its life.
pub fn renew_at(now: u64, expires: u64) -> u64 {
    now + expires.saturating_sub(now) / 3 * 2
}

/// A certificate for these host names and addresses that nobody has signed. Clients trust it if
/// they are given it.
///
/// # Errors
/// [`AuthorityError::Names`] or [`AuthorityError::Key`].
pub fn self_signed(names: &[String]) -> Result<IssuedCertificate, AuthorityError> {
    let key = new_key()?;
    let mut params = CertificateParams::new(names).map_err(refused(names))?;
    params.distinguished_name.push(DnType::CommonName, "firstflight, self-signed");
    let made = params.self_signed(&key).map_err(refused(names))?;
    Ok(IssuedCertificate { certificate: made.pem(), key: key.serialize_pem() })
}

/// What signs in the authority's name.
pub(crate) type Signer = Issuer<'static, KeyPair>;

pub(crate) fn new_key() -> Result<KeyPair, AuthorityError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|error| AuthorityError::Key(error.to_string()))
}

/// The name of the authority with this key. Each has its own, or a client that knows two would try
/// the wrong one's key.
pub(crate) fn name_of(key: &KeyPair) -> String {
    let id = CertificateParams::default().key_identifier(key);
    let id: String = id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("firstflight development authority {id}")
}

/// All of the authority's certificate but its life: the same for the same key.
pub(crate) fn signer(key: KeyPair) -> Signer {
    Issuer::new(authority_params(&key), key)
}

/// The authority's own certificate, PEM.
pub(crate) fn authority_certificate(key: &KeyPair, now: u64) -> Result<String, AuthorityError> {
    let mut params = authority_params(key);
    good_for(&mut params, now, AUTHORITY_LIFE);
    let made = params.self_signed(key);
    Ok(made.map_err(|error| AuthorityError::Key(error.to_string()))?.pem())
}

fn authority_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name_of(key));
    // It signs servers' certificates alone, and no other authority's.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = Some(bounds::constraints());
    params
}

/// A server's certificate. `names` are all within the authority's bounds.
pub(crate) fn leaf(
    signer: &Signer,
    names: &[String],
    now: u64,
) -> Result<IssuedCertificate, AuthorityError> {
    let key = new_key()?;
    let mut params = CertificateParams::new(names).map_err(refused(names))?;
    params.distinguished_name.push(DnType::CommonName, "firstflight, development");
    good_for(&mut params, now, LEAF_LIFE);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let made = params.signed_by(&key, signer).map_err(refused(names))?;
    Ok(IssuedCertificate { certificate: made.pem(), key: key.serialize_pem() })
}

fn refused(names: &[String]) -> impl Fn(rcgen::Error) -> AuthorityError {
    let names = names.join(", ");
    move |error| AuthorityError::Names { names: names.clone(), reason: error.to_string() }
}

/// From a little before `now` on.
fn good_for(params: &mut CertificateParams, now: u64, life: u64) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(SKEW));
    params.not_after = epoch + Duration::from_secs(now.saturating_add(life));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_anew_after_two_thirds_of_its_life() {
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
        let made = self_signed(&["localhost".to_owned()]).unwrap();
        assert!(!format!("{made:?}").contains("PRIVATE"));
    }
}
