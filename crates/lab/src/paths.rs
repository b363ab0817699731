//! The networks of a plan: how their samples are taken, and how the record describes them.

use std::time::Duration;

use firstflight_emulator::{CellSpec, Profile, RateSpec};
use firstflight_report::ProfileFacts;

/// A network of the plan.
#[derive(Clone, Debug)]
pub(crate) struct PlannedPath {
    pub profile: Profile,
    pub class: PathClass,
    median_rtt: Duration,
}

/// How the samples of a path can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PathClass {
    /// Long delay: connections mostly wait. Samples overlap, also with those of other paths.
    Long,
    /// Short delay: a second connection would compete for the processors. One path at a time, one
    /// connection at a time.
    Short,
    /// Limited rate: a second connection would compete for the link. One connection at a time, in
    /// parallel with other paths.
    RateLimited,
}

impl PlannedPath {
    pub(crate) fn new(profile: Profile) -> Self {
        let median_rtt = profile.median_rtt();
        let mut path = Self { profile, class: PathClass::Long, median_rtt };
        if path.rtt() < MIN_LONG_RTT {
            path.class = PathClass::Short;
        } else if path.down_mbps().or(path.up_mbps()).is_some() {
            path.class = PathClass::RateLimited;
        }
        path
    }

    pub(crate) fn name(&self) -> &str {
        &self.profile.name
    }

    /// The round-trip time without jitter.
    pub(crate) fn rtt(&self) -> Duration {
        self.profile.rtt()
    }

    /// The round-trip time of an echo of `bytes`, including serialisation at the path's rates.
    /// `None` if the delay varies by design, since the link's own error cannot be distinguished.
    pub(crate) fn echo_rtt(&self, bytes: usize) -> Option<Duration> {
        let each = |mbps: Option<f64>| mbps.map_or(0.0, |mbps| bytes as f64 * 8.0 / (mbps * 1e6));
        let serialisation = Duration::from_secs_f64(each(self.up_mbps()) + each(self.down_mbps()));
        (!self.varies()).then(|| self.rtt() + serialisation)
    }

    /// The median round-trip time in milliseconds, jitter included: the unit of round trips.
    pub(crate) fn rtt_ms(&self) -> f64 {
        self.median_rtt.as_nanos() as f64 / 1e6
    }

    /// The bottleneck to the client, in Mbit/s.
    pub(crate) fn down_mbps(&self) -> Option<f64> {
        bottleneck(&self.profile.down)
    }

    /// The bottleneck to the server, in Mbit/s.
    pub(crate) fn up_mbps(&self) -> Option<f64> {
        bottleneck(&self.profile.up)
    }

    /// Whether its delay varies by design.
    pub(crate) fn varies(&self) -> bool {
        self.cells().any(CellSpec::varies_delay)
    }

    /// Whether it drops packets by design, or delays them so that a sender may consider them lost.
    pub(crate) fn may_lose(&self) -> bool {
        self.cells().any(CellSpec::may_drop)
    }

    /// The timeout of a sample: `base`, and the time that the response may take on this path.
    pub(crate) fn sample_timeout(&self, response_bytes: usize, base: Duration) -> Duration {
        let slowest = self.down_mbps().into_iter().chain(self.up_mbps()).fold(f64::MAX, f64::min);
        let sending = response_bytes as f64 * 8.0 / (slowest * 1e6);
        base + self.rtt() * MAX_ROUND_TRIPS + Duration::from_secs_f64(sending * SENDING_TIME_FACTOR)
    }

    /// The description in the record.
    pub(crate) fn facts(&self) -> ProfileFacts {
        let describe = |cells: &[CellSpec]| {
            let others: Vec<String> =
                cells.iter().filter_map(|cell| self.other_settings(cell)).collect();
            others.join(", ")
        };
        let (up, down) = (describe(&self.profile.up), describe(&self.profile.down));
        let mut more: Vec<String> = Vec::new();
        match (up.is_empty(), down.is_empty()) {
            (true, true) => {}
            _ if up == down => more.push(format!("each way: {up}")),
            (no_up, no_down) => {
                more.extend((!no_up).then(|| format!("to the server: {up}")));
                more.extend((!no_down).then(|| format!("to the client: {down}")));
            }
        }
        if !self.profile.description.is_empty() {
            more.push(self.profile.description.clone());
        }
        ProfileFacts {
            name: self.name().to_owned(),
            rtt_ms: self.rtt_ms(),
            down_mbps: self.down_mbps(),
            up_mbps: self.up_mbps(),
            more: more.join("; "),
            source: self.profile.source.clone(),
        }
    }

    /// Describes the settings of a cell that have no field in the record.
    fn other_settings(&self, cell: &CellSpec) -> Option<String> {
        match cell {
            CellSpec::Delay(_) => None,
            CellSpec::Rate(RateSpec { mbits, queue_bytes, burst_bytes }) => {
                let default = RateSpec::default_queue_bytes(*mbits, self.rtt());
                let queue = (*queue_bytes != default).then(|| format!("queue {queue_bytes} bytes"));
                let burst = (*burst_bytes > 0).then(|| format!("burst {burst_bytes} bytes"));
                let all: Vec<String> = queue.into_iter().chain(burst).collect();
                (!all.is_empty()).then(|| all.join(", "))
            }
            other => Some(other.to_string()),
        }
    }

    fn cells(&self) -> impl Iterator<Item = &CellSpec> {
        self.profile.up.iter().chain(&self.profile.down)
    }
}

fn bottleneck(cells: &[CellSpec]) -> Option<f64> {
    let rates = cells.iter().filter_map(|cell| match cell {
        CellSpec::Rate(RateSpec { mbits, .. }) => Some(*mbits),
        _ => None,
    });
    rates.reduce(f64::min)
}

/// Paths with at least this round-trip time are measured in parallel, since they mostly wait.
const MIN_LONG_RTT: Duration = Duration::from_millis(10);

/// More round trips than a handshake and slow start need together.
const MAX_ROUND_TRIPS: u32 = 20;
/// Allows for acknowledgements and retransmissions, which share the rate.
const SENDING_TIME_FACTOR: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PlannedPath {
        PlannedPath::new(Profile::parse(name).unwrap())
    }

    #[test]
    fn the_class_of_a_path_follows_from_its_delay_and_rate() {
        assert_eq!(path("20").class, PathClass::Long);
        assert_eq!(path("lan").class, PathClass::Short);
        assert_eq!(path("fibre").class, PathClass::Short);
        assert_eq!(path("2g").class, PathClass::RateLimited);
    }

    #[test]
    fn the_record_has_rates_as_fields_and_other_cells_as_text() {
        let facts = path("adsl").facts();
        assert_eq!((facts.rtt_ms, facts.down_mbps, facts.up_mbps), (50.0, Some(1.5), Some(0.384)));
        assert!(facts.more.contains("jitter"), "{}", facts.more);
        assert!(!facts.source.is_empty());
        assert!(path("adsl").varies() && path("adsl").may_lose());
        assert!(!path("20").may_lose());
    }

    #[test]
    fn the_record_describes_settings_that_differ_from_the_default() {
        for name in ["4g", "geo", "leo"] {
            assert!(!path(name).facts().more.contains("queue"), "{name}");
        }
        let text = r#"
            [profile.office]
            rtt_ms = 20
            down = { rate_mbps = 80, queue_bytes = 64000 }
            [profile.office.up]
            rate_mbps = 8
            burst_bytes = 3000
            jitter = { distribution = "uniform", spread_ms = 2, hold_ms = 5, overtakes = true }
        "#;
        let profile = Profile::from_toml("office.toml", text).unwrap().remove(0);
        assert_eq!(
            PlannedPath::new(profile).facts().more,
            "to the server: burst 3000 bytes, delay 10ms, jitter uniform, +-2 ms, held 5ms, \
             overtakes; to the client: queue 64000 bytes"
        );
    }

    #[test]
    fn round_trips_over_wi_fi_are_in_units_of_the_whole_path() {
        let wifi = path("fibre+wifi");
        assert!((wifi.rtt_ms() - 14.0).abs() <= 0.1, "{}", wifi.rtt_ms());
        assert_eq!(wifi.rtt(), Duration::from_millis(4));
    }

    #[test]
    fn an_echo_includes_the_serialisation_of_its_packets() {
        // 32 bytes at 5 Mbit/s down and 1 up.
        let expected = Duration::from_millis(28) + Duration::from_nanos(51_200 + 256_000);
        assert_eq!(path("cable").echo_rtt(32), Some(expected));
        assert_eq!(path("20").echo_rtt(32), Some(Duration::from_millis(20)));
        assert_eq!(path("fibre+wifi").echo_rtt(32), None, "its delay varies");
    }

    #[test]
    fn the_timeout_of_a_sample_includes_the_time_that_its_response_takes() {
        let base = Duration::from_secs(15);
        assert!(path("20").sample_timeout(1 << 20, base) < Duration::from_secs(16));
        assert!(path("2g").sample_timeout(1 << 20, base) > Duration::from_secs(60));
    }
}
