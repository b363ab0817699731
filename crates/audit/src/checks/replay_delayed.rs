use std::time::Duration;

use super::replay::original;
use super::{Check, Concern, Needs};
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "replay-delayed",
    title: "copies that are held back",
    section: "RFC 9846 section 8.2",
    explanation: "Sends an original, and copies of it after 1, 5, 10, 20, 60 and 120 seconds (--delay). \
                  Over QUIC, each copy has an original of its own. A record of a flight has to live \
                  for as long as the server considers the flight fresh; if it expires before, a copy \
                  only has to wait.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let mut delays: Vec<Duration> = probe.settings.delays.clone();
    delays.sort_unstable();
    // Over QUIC a server assigns a copy to an earlier copy's connection, as both have the same ids.
    let delays_per_original = if probe.settings.http3 { 1 } else { delays.len().max(1) };
    let mut originals = Vec::new();
    for delays in delays.chunks(delays_per_original) {
        let mut original = original(probe, "GET")?;
        original.exchange.close();
        originals.push((original, delays));
    }
    let mut outcomes = Vec::new();
    for (mut original, delays) in originals {
        let mut copies = original.copies();
        for delay in delays {
            probe.wait((original.sent + *delay).saturating_sub(probe.now()));
            copies.send(probe, &original.flight, "copy");
        }
        copies.count(probe, &original.nonce)?;
        outcomes.push(copies.verdict(1));
    }
    Outcome::worst(outcomes).ok_or_else(|| Stop("no time to wait for was given".to_owned()))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::Verdict;
    use crate::checks::tests::{assert_proven, verdict};
    use crate::checks::{replay_at_once, replay_concurrent};

    #[test]
    fn rfc9846_8_2_a_record_must_outlive_freshness() {
        let wrong = Behaviour { record_lifetime: Duration::from_secs(3), ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
        // Only a delayed copy shows it.
        for check in [&replay_at_once::CHECK, &replay_concurrent::CHECK] {
            assert_eq!(verdict(check, &wrong, true), Verdict::Pass);
        }
    }

    #[test]
    fn rfc8446_8_3_freshness_alone_stops_only_late_copies() {
        let wide = Behaviour {
            record_lifetime: Duration::from_secs(12),
            freshness: Some(Duration::from_secs(60)),
            ..Behaviour::default()
        };
        assert_eq!(verdict(&CHECK, &wide, true), Verdict::Fail);
        assert_eq!(verdict(&CHECK, &wide, false), Verdict::Fail);
    }
}
