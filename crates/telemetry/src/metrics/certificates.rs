//! Certificates and how long they last.

use super::label::LabelInfo;
use super::{Description, Snapshot};

/// A site's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateReading {
    /// The site's first name.
    pub site: String,
    /// When it expires, in seconds since 1970.
    pub expires: i64,
}

pub(super) fn collect(certificates: &[CertificateReading], snapshot: &mut Snapshot) {
    let values = certificates.iter().map(|one| (one.site.clone().into(), one.expires as f64));
    snapshot.numbers(&EXPIRES, SITE, values);
}

const SITE: LabelInfo = LabelInfo::configured("site", "the site's first name");

static EXPIRES: Description = Description::gauge(
    "firstflight_certificate_expiry_timestamp_seconds",
    "When the certificate that a site serves now expires, in seconds since 1970.",
    "Renewed on disk and not here: the renewal did not reload the server.",
);
