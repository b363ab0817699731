//! Metrics of certificates and of their renewal by ACME.

use std::borrow::Cow;

use super::instruments::counted;
use super::labels::{Label, LabelInfo};
use super::{
    AcmeChallenge, CertificateOrigin, Counters, Description, Family, Series, SeriesValue, Snapshot,
};

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
    let series = certificates.iter().map(|certificate| {
        let source = (SOURCE.name, certificate.source.name().into());
        let labels = vec![(SITE.name, certificate.site.clone().into()), source];
        Series::new(labels, SeriesValue::Number(certificate.expires as f64))
    });
    let series = series.collect();
    snapshot.push(Family { description: &EXPIRES, labels: vec![SITE, SOURCE], series });
}

const SITE: LabelInfo = LabelInfo::configured("site", "the site's first name");
const SOURCE: LabelInfo = CertificateOrigin::INFO;

static EXPIRES: Description = Description::gauge(
    "firstflight_certificate_expiry_timestamp_seconds",
    "Expiry time of a site's certificate in use, in seconds since 1970.",
    "If the file on disk is newer: the renewal did not reload the server.",
);

counted! {
    /// Challenges of ACME authorities.
    pub struct Acme {
        challenges: Counters<AcmeChallenge> = counter(
            "firstflight_acme_challenges_total",
            "ACME challenges responded to, by kind.",
            "None while attempts fail: the authority reaches another machine, or something in \
             between blocks it.",
        );
    }
}

/// A site whose certificate comes from an ACME authority. Times are in seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AcmeReading {
    /// The site's first name.
    pub site: String,
    /// Whether it has no certificate yet.
    pub missing: bool,
    /// When the next attempt starts.
    pub next_attempt: Option<i64>,
    /// When it last got a new certificate.
    pub last_success: Option<i64>,
    /// Consecutive failed attempts.
    pub consecutive_failures: u64,
    /// Attempts that succeeded.
    pub issued: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Certificates that another node or process had obtained.
    pub shared: u64,
}

impl Acme {
    pub(super) fn collect(&self, sites: &[AcmeReading], snapshot: &mut Snapshot) {
        let mut gauge = |description, value: fn(&AcmeReading) -> Option<f64>| {
            let values = sites.iter();
            let values = values.filter_map(|site| Some((name(site), value(site)?)));
            snapshot.numbers(description, SITE, values);
        };
        gauge(&MISSING, |site| Some(f64::from(u8::from(site.missing))));
        gauge(&NEXT_ATTEMPT, |site| site.next_attempt.map(|time| time as f64));
        gauge(&LAST_SUCCESS, |site| site.last_success.map(|time| time as f64));
        gauge(&CONSECUTIVE_FAILURES, |site| Some(site.consecutive_failures as f64));
        let attempts = sites.iter().flat_map(|site| {
            let counts = RESULT.values.iter().zip([site.issued, site.failed, site.shared]);
            counts.map(|((result, _), count)| {
                let labels = vec![(SITE.name, name(site)), (RESULT.name, Cow::Borrowed(*result))];
                Series::new(labels, SeriesValue::Count(count))
            })
        });
        let series = attempts.collect();
        snapshot.push(Family { description: &ATTEMPTS, labels: vec![SITE, RESULT], series });
        self.counted(snapshot);
    }
}

fn name(site: &AcmeReading) -> Cow<'static, str> {
    site.site.clone().into()
}

const RESULT: LabelInfo = LabelInfo {
    name: "result",
    values: &[
        ("issued", "The authority issued a certificate to this process."),
        ("failed", "The log and the console show the reason."),
        ("shared", "Another node or process obtained the certificate that this one uses too."),
    ],
    meaning: "",
};

static MISSING: Description = Description::gauge(
    "firstflight_acme_certificate_missing",
    "1 while a site with acme = true has no certificate and serves a self-signed one.",
    "At 1 for more than a few minutes: the authority cannot be reached, or cannot reach this \
     server at the site's names; docs/operate/certificates.md.",
);
static NEXT_ATTEMPT: Description = Description::gauge(
    "firstflight_acme_next_attempt_timestamp_seconds",
    "When the next attempt to obtain a site's certificate starts, in seconds since 1970; no value \
     during an attempt.",
    "Later than `firstflight_certificate_expiry_timestamp_seconds`: the certificate will expire \
     before it.",
);
static LAST_SUCCESS: Description = Description::gauge(
    "firstflight_acme_last_success_timestamp_seconds",
    "When a site last got a new certificate, in seconds since 1970; of one adopted from another \
     node, the start of its validity.",
    "Longer ago than the certificate's lifetime: it is not renewed.",
);
static CONSECUTIVE_FAILURES: Description = Description::gauge(
    "firstflight_acme_consecutive_failures",
    "Failed attempts to obtain a site's certificate since the last success.",
    "Growing: the certificate will expire without a successor. The log and the console show the \
     reason.",
);
static ATTEMPTS: Description = Description::counter(
    "firstflight_acme_attempts_total",
    "Attempts to obtain or renew a site's certificate, by result.",
    "Failures count against the authority's rate limits.",
);
