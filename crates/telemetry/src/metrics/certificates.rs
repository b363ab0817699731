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
    let series = certificates.iter().map(|one| {
        let source = (SOURCE.name, one.source.name().into());
        let labels = vec![(SITE.name, one.site.clone().into()), source];
        Series::new(labels, SeriesValue::Number(one.expires as f64))
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

counted! {
    /// What an authority asks.
    pub struct Acme {
        challenges: Counters<AcmeChallenge> = counter(
            "firstflight_acme_challenges_total",
            "Questions of authorities that were answered, by the kind of challenge.",
            "None while tries fail: the authority comes to another machine, or something before \
             this one \
             keeps it off.",
        );
    }
}

/// A site whose certificate is an authority's. Times are in seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AcmeReading {
    /// The site's first name.
    pub site: String,
    /// Whether there is none yet.
    pub missing: bool,
    /// When the authority is asked next.
    pub next_attempt: Option<i64>,
    /// When there last was a new one.
    pub last_success: Option<i64>,
    /// Tries in a row that failed.
    pub consecutive_failures: u64,
    /// Tries that brought a certificate.
    pub issued: u64,
    /// Tries that did not.
    pub failed: u64,
    /// Certificates that another node or process had got.
    pub shared: u64,
}

impl Acme {
    pub(super) fn collect(&self, sites: &[AcmeReading], snapshot: &mut Snapshot) {
        let mut gauge = |description, value: fn(&AcmeReading) -> Option<f64>| {
            let values = sites.iter();
            let values = values.filter_map(|one| Some((name(one), value(one)?)));
            snapshot.numbers(description, SITE, values);
        };
        gauge(&MISSING, |one| Some(f64::from(u8::from(one.missing))));
        gauge(&NEXT_ATTEMPT, |one| one.next_attempt.map(|time| time as f64));
        gauge(&LAST_SUCCESS, |one| one.last_success.map(|time| time as f64));
        gauge(&CONSECUTIVE_FAILURES, |one| Some(one.consecutive_failures as f64));
        let attempts = sites.iter().flat_map(|one| {
            let counts = RESULT.values.iter().zip([one.issued, one.failed, one.shared]);
            counts.map(|((result, _), count)| {
                let labels = vec![(SITE.name, name(one)), (RESULT.name, Cow::Borrowed(*result))];
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
        ("failed", "It did not, or could not be asked. The log and the console say why."),
        ("shared", "Another node or process had got one, which is used here too."),
    ],
    meaning: "",
};

static MISSING: Description = Description::gauge(
    "firstflight_acme_certificate_missing",
    "1 while a site with acme = true has no certificate, and shows one that nobody trusts.",
    "At 1 for more than a few minutes: the authority cannot be reached, or does not reach this \
     server at the site's names. docs/certificates.md, troubleshooting.",
);
static NEXT_ATTEMPT: Description = Description::gauge(
    "firstflight_acme_next_attempt_timestamp_seconds",
    "When the authority is asked for a site's certificate next, in seconds since 1970; without a \
     value while it is asked.",
    "After firstflight_certificate_expiry_timestamp_seconds: failures have used up the patience.",
);
static LAST_SUCCESS: Description = Description::gauge(
    "firstflight_acme_last_success_timestamp_seconds",
    "When a site's certificate was issued or taken up last, in seconds since 1970.",
    "Older than the certificate's life: it is not renewed.",
);
static CONSECUTIVE_FAILURES: Description = Description::gauge(
    "firstflight_acme_consecutive_failures",
    "Tries to have a site's certificate issued that failed since the last one that did not.",
    "Growing: the certificate in use goes on until it expires, and not longer. The log and the \
     console say why.",
);
static ATTEMPTS: Description = Description::counter(
    "firstflight_acme_attempts_total",
    "Tries to have a site's certificate issued or renewed, by what came of them.",
    "Many that fail count against the authority's limits. With several nodes that share a store \
     one \
     of them issues, and the others take up.",
);
