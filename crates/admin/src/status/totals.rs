//! What happened to requests in a period: one list for the history, `/status.json` and the console.

use firstflight_telemetry::metrics::Snapshot;
use schemars::JsonSchema;
use serde::Serialize;

/// Defines [`Totals`]. An entry is a field of `/status.json` with its description, the metric (and
/// the label, if only some of its series count), and the row's name on the console.
macro_rules! totals {
    ($(
        $(#[$description:meta])*
        $field:ident: $metric:literal $([$label:literal = $value:literal])?, $row:literal;
    )*) => {
        /// Counts of requests.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct Totals {
            $($(#[$description])* pub $field: u64,)*
        }

        impl Totals {
            /// Reads the counts of a snapshot.
            pub(crate) fn from_snapshot(snapshot: &Snapshot) -> Self {
                Self { $($field: snapshot.sum($metric, &[$(($label, $value))?]) as u64,)* }
            }

            /// Returns the difference to an earlier snapshot.
            pub(crate) fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field),)* }
            }

            /// The rows of the console.
            pub(crate) fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($row, self.$field)),*]
            }
        }

        #[cfg(test)]
        const METRICS: &[&str] = &[$($metric),*];
    };
}

totals! {
    /// Number of requests.
    requests: "firstflight_requests_total", "all";
    /// Early requests that were executed immediately.
    ran_early: "firstflight_requests_total" ["early" = "ran"], "executed early";
    /// Responses with status 425 (Too Early).
    too_early: "firstflight_too_early_total", "response 425";
    /// Responses with status 421 (Misdirected Request).
    misdirected: "firstflight_requests_misdirected_total", "response 421";
}

#[cfg(test)]
mod tests {
    use firstflight_telemetry::metrics::{Metrics, Readings};

    use super::*;

    #[test]
    fn each_metric_exists() {
        let snapshot = Metrics::default().snapshot(&Readings::default());
        for metric in METRICS {
            let mut families = snapshot.families.iter();
            assert!(families.any(|family| family.description.name == *metric), "{metric}");
        }
    }
}
