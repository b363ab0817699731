//! In which form a scraper wants the page of metrics.

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4, which people can read in a browser.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// By a request's `Accept` (RFC 9110 section 12.5.1): OpenMetrics for who names it and likes
    /// it no less than plain text.
    pub fn accepted(accept: Option<&str>) -> Self {
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
    parameter.strip_prefix("q=")?.trim().parse().ok()
}

const OPEN_METRICS: &str = "application/openmetrics-text";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_12_5_1_openmetrics_for_who_asks_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        for other in [
            None,
            Some(""),
            Some("*/*"),
            Some("text/html,application/xhtml+xml,*/*;q=0.8"),
            Some("text/plain;q=0.9, application/openmetrics-text;q=0.5"),
            Some("application/openmetrics-text;q=0"),
            Some(";;,;q=,"),
        ] {
            assert_eq!(Format::accepted(other), Format::Prometheus, "{other:?}");
        }
    }
}
