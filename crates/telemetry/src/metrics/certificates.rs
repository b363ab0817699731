//! Certificates and how long they last.

use super::label::{Label, LabelInfo};
use super::{CertificateOrigin, Description, Family, Series, Snapshot, Value};

/// A site's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateReading {
    /// The site's first name.
    pub site: String,
    /// Where it comes from.
    pub source: CertificateOrigin,
    /// When it expires, in seconds since 1970.
    pub expires: i64,
}

pub(super) fn collect(certificates: &[CertificateReading], snapshot: &mut Snapshot) {
    let series = certificates.iter().map(|one| {
        let source = (SOURCE.name, one.source.name().into());
        let labels = vec![(SITE.name, one.site.clone().into()), source];
        Series::new(labels, Value::Number(one.expires as f64))
    });
    let series = series.collect();
    snapshot.push(Family { description: &EXPIRES, labels: vec![SITE, SOURCE], series });
}

const SITE: LabelInfo = LabelInfo::configured("site", "the site's first name");
const SOURCE: LabelInfo = CertificateOrigin::INFO;

static EXPIRES: Description = Description::gauge(
    "firstflight_certificate_expiry_timestamp_seconds",
    "When the certificate that a site serves now expires, in seconds since 1970.",
    "Renewed on disk and not here: the renewal did not reload the server.",
);
