//! Writes a snapshot as text, in the Prometheus format 0.0.4 or as OpenMetrics 1.0.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::{Family, HistogramValue, Kind, Series, SeriesValue, Snapshot};

impl Snapshot {
    /// The snapshot as a page for scrapers.
    pub fn encode(&self, format: Format) -> String {
        let mut out = String::with_capacity(32 * 1024);
        for family in &self.families {
            // Writing to a string cannot fail.
            let _ = write_family(&mut out, family, format);
        }
        if format == Format::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

fn write_family(out: &mut String, family: &Family, format: Format) -> fmt::Result {
    let description = family.description;
    let name = match format {
        Format::Prometheus => description.name,
        Format::OpenMetrics => description.family(),
    };
    writeln!(out, "# HELP {name} {}", description.help)?;
    writeln!(out, "# TYPE {name} {}", description.kind.name())?;
    if let (Format::OpenMetrics, Some(unit)) = (format, description.unit()) {
        writeln!(out, "# UNIT {name} {unit}")?;
    }
    for series in &family.series {
        match &series.value {
            SeriesValue::Count(count) => {
                writeln!(out, "{}{} {count}", description.name, Braces(series, None))?;
            }
            SeriesValue::Number(number) => {
                writeln!(out, "{}{} {number}", description.name, Braces(series, None))?;
            }
            SeriesValue::Histogram(value) => {
                debug_assert_eq!(description.kind, Kind::Histogram);
                write_histogram(out, description.name, series, value, format)?;
            }
        }
    }
    Ok(())
}

fn write_histogram(
    out: &mut String,
    name: &str,
    series: &Series,
    value: &HistogramValue,
    format: Format,
) -> fmt::Result {
    let mut count = 0;
    for (at, bucket) in value.buckets.iter().enumerate() {
        count += bucket;
        // The same in both formats, so that series continue when a scraper switches formats.
        let bound = match value.bounds.get(at) {
            Some(bound) => format!("{bound:?}"),
            None => "+Inf".to_owned(),
        };
        writeln!(out, "{name}_bucket{} {count}", Braces(series, Some(&bound)))?;
    }
    // OpenMetrics allows no sum that may decrease, as with negative values.
    let may_decrease = value.bounds.first().is_some_and(|bound| *bound < 0.0);
    if format == Format::Prometheus || !may_decrease {
        writeln!(out, "{name}_sum{} {}", Braces(series, None), value.sum)?;
        writeln!(out, "{name}_count{} {count}", Braces(series, None))?;
    }
    Ok(())
}

/// The labels of a series in braces, and the bound of a bucket.
struct Braces<'a>(&'a Series, Option<&'a str>);

impl fmt::Display for Braces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(series, bound) = self;
        let labels = series.labels.iter().map(|(name, value)| (*name, value.as_ref()));
        let mut before = '{';
        for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
            write!(f, "{before}{name}=\"{}\"", escaped(value))?;
            before = ',';
        }
        match before {
            '{' => Ok(()),
            _ => f.write_char('}'),
        }
    }
}

/// Escapes a label's value, so that it cannot end its quotes or its line.
fn escaped(value: &str) -> Cow<'_, str> {
    match value.contains(['\\', '"', '\n']) {
        true => value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into(),
        false => value.into(),
    }
}

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4, which browsers show.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Chooses the format by a request's `Accept` (RFC 9110 section 12.5.1): OpenMetrics if it is
    /// named, with a weight of at least that of plain text.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let accept = accept.unwrap_or_default();
        let weight = |media_type: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let named = parts.next()?.eq_ignore_ascii_case(media_type);
                named.then(|| parts.find_map(quality).unwrap_or(1.0))
            });
            ranges.fold(0.0, f64::max)
        };
        let open = weight(OPEN_METRICS);
        match open > 0.0 && open >= weight("text/plain") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// The response's `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

fn quality(parameter: &str) -> Option<f64> {
    parameter.strip_prefix(['q', 'Q'])?.strip_prefix('=')?.trim().parse().ok()
}

const OPEN_METRICS: &str = "application/openmetrics-text";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{CertificateOrigin, CertificateReading, Metrics, Readings, Transport};

    fn page(format: Format) -> String {
        let metrics = Metrics::default();
        metrics.connections.accepted.add(Transport::Quic, 3);
        metrics.tickets.age_skew.observe((), -1.0);
        metrics.early_data.hold_seconds.observe(crate::metrics::HoldEnd::Disconnected, 0.25);
        let site = "a\"b\\c\nd".to_owned();
        let certificates = vec![CertificateReading {
            site,
            source: CertificateOrigin::Files,
            expires: 1_800_000_000,
        }];
        metrics.snapshot(&Readings { certificates, ..Readings::default() }).encode(format)
    }

    #[test]
    fn prometheus_text() {
        let page = page(Format::Prometheus);
        for line in [
            "# TYPE firstflight_connections_total counter",
            "firstflight_connections_total{transport=\"tcp\"} 0",
            "firstflight_connections_total{transport=\"quic\"} 3",
            "firstflight_certificate_expiry_timestamp_seconds{site=\"a\\\"b\\\\c\\nd\",source=\"files\"} 1800000000",
            "firstflight_hold_seconds_bucket{ended=\"disconnected\",le=\"0.15\"} 0",
            "firstflight_hold_seconds_bucket{ended=\"disconnected\",le=\"0.25\"} 1",
            "firstflight_hold_seconds_bucket{ended=\"disconnected\",le=\"+Inf\"} 1",
            "firstflight_hold_seconds_sum{ended=\"disconnected\"} 0.25",
            "firstflight_ticket_age_skew_seconds_bucket{le=\"-1.0\"} 1",
            "firstflight_ticket_age_skew_seconds_sum -1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(!page.contains("# EOF") && !page.contains("# UNIT"));
    }

    #[test]
    fn openmetrics_names_families_without_total_and_ends() {
        let page = page(Format::OpenMetrics);
        for line in [
            "# TYPE firstflight_connections counter",
            "firstflight_connections_total{transport=\"quic\"} 3",
            "# UNIT firstflight_received_bytes bytes",
            "# UNIT firstflight_hold_seconds seconds",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(!page.contains("skew_seconds_sum") && page.ends_with("\n# EOF\n"));
    }

    #[test]
    fn rfc9110_12_5_1_openmetrics_if_it_is_preferred() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::negotiate(Some(prometheus)), Format::OpenMetrics);
        for other in [
            None,
            Some(""),
            Some("*/*"),
            Some("text/html,application/xhtml+xml,*/*;q=0.8"),
            Some("text/plain;q=0.9, application/openmetrics-text;q=0.5"),
            Some("application/openmetrics-text;q=0"),
            Some("application/openmetrics-text;Q=0"),
            Some(";;,;q=,"),
        ] {
            assert_eq!(Format::negotiate(other), Format::Prometheus, "{other:?}");
        }
    }
}
