//! The networks of a plan: how their samples can be taken, and what a record says of them.

use std::time::Duration;

use firstflight_emulator::{CellSpec, Profile, RateSpec};
use firstflight_report::ProfileFacts;

/// A network of the plan.
#[derive(Clone, Debug)]
pub(crate) struct PlannedPath {
    pub profile: Profile,
    pub family: Family,
}

/// How the samples of a path can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// Mostly waiting: samples overlap each other and those of other paths.
    Long,
    /// A second connection would disturb the first, on the processors: one path at a time, one
    /// connection at a time.
    Short,
    /// A second connection would disturb the first, on the wire: one at a time, side by side with
    /// other paths.
    Rated,
}

impl PlannedPath {
    pub(crate) fn new(profile: Profile) -> Self {
        let mut path = Self { profile, family: Family::Long };
        if path.rtt() < SIDE_BY_SIDE {
            path.family = Family::Short;
        } else if path.down_mbps().or(path.up_mbps()).is_some() {
            path.family = Family::Rated;
        }
        path
    }

    pub(crate) fn name(&self) -> &str {
        &self.profile.name
    }

    pub(crate) fn rtt(&self) -> Duration {
        self.profile.rtt()
    }

    /// What a packet of so many bytes and its response of as many take, with what the rates make of
    /// them.
    pub(crate) fn rtt_of(&self, bytes: usize) -> Duration {
        let each = |mbps: Option<f64>| mbps.map_or(0.0, |mbps| bytes as f64 * 8.0 / (mbps * 1e6));
        self.rtt() + Duration::from_secs_f64(each(self.up_mbps()) + each(self.down_mbps()))
    }

    pub(crate) fn rtt_ms(&self) -> f64 {
        self.rtt().as_secs_f64() * 1e3
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

    /// Whether it drops packets by design, or may make a sender trust that they were dropped.
    pub(crate) fn may_lose(&self) -> bool {
        self.cells().any(CellSpec::may_drop)
    }

    /// When a sample on it has hung: after this beyond the time that its response may take.
    pub(crate) fn limit(&self, response_bytes: usize, patience: Duration) -> Duration {
        let slowest = self.down_mbps().into_iter().chain(self.up_mbps()).fold(f64::MAX, f64::min);
        let sending = response_bytes as f64 * 8.0 / (slowest * 1e6);
        patience + self.rtt() * MAX_ROUND_TRIPS + Duration::from_secs_f64(sending * SLACK)
    }

    /// What a record says of it.
    pub(crate) fn facts(&self) -> ProfileFacts {
        let words = |cells: &[CellSpec]| {
            let told = |cell: &&CellSpec| !matches!(cell, CellSpec::Delay(_) | CellSpec::Rate(_));
            let words: Vec<String> = cells.iter().filter(told).map(CellSpec::to_string).collect();
            words.join(", ")
        };
        let (up, down) = (words(&self.profile.up), words(&self.profile.down));
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

/// Paths at least this long are measured side by side: waiting is most of their time.
const SIDE_BY_SIDE: Duration = Duration::from_millis(10);

/// More than a handshake and slow start take together.
const MAX_ROUND_TRIPS: u32 = 20;
/// A rate is shared with acknowledgements and with what is sent again.
const SLACK: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PlannedPath {
        PlannedPath::new(Profile::parse(name).unwrap())
    }

    #[test]
    fn a_path_is_paced_by_what_would_disturb_it() {
        assert_eq!(path("20").family, Family::Long);
        assert_eq!(path("lan").family, Family::Short);
        assert_eq!(path("fibre").family, Family::Short);
        assert_eq!(path("2g").family, Family::Rated);
    }

    #[test]
    fn a_record_has_the_rates_and_the_rest_in_words() {
        let facts = path("adsl").facts();
        assert_eq!((facts.rtt_ms, facts.down_mbps, facts.up_mbps), (50.0, Some(1.5), Some(0.384)));
        assert!(facts.more.contains("jitter"), "{}", facts.more);
        assert!(!facts.source.is_empty());
        assert!(path("adsl").varies() && path("adsl").may_lose());
        assert!(!path("20").may_lose());
    }

    #[test]
    fn small_packets_take_their_time_on_slow_lines() {
        // 32 bytes at 5 Mbit/s down and 1 up.
        let expected = Duration::from_millis(28) + Duration::from_nanos(51_200 + 256_000);
        assert_eq!(path("cable").rtt_of(32), expected);
        assert_eq!(path("20").rtt_of(32), Duration::from_millis(20));
    }

    #[test]
    fn a_slow_network_is_given_the_time_that_it_needs() {
        let patience = Duration::from_secs(15);
        assert!(path("20").limit(1 << 20, patience) < Duration::from_secs(16));
        assert!(path("2g").limit(1 << 20, patience) > Duration::from_secs(60));
    }
}
