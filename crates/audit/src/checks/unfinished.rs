use firstflight_first_flight::Ended;

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "unfinished",
    title: "a handshake that is never completed",
    section: "RFC 8470 section 6.1",
    explanation: "Sends an accepted first flight, and nothing more. A server that waits for ever lets each \
                  copy of a flight hold a connection, and with it a request.",
    needs: Needs::EarlyData,
    concern: Concern::Limits,
    run,
};

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    if probe.settings.http3 {
        let summary = "over QUIC a server gives up in silence";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    }
    let flight = probe.build(probe.early("GET", &nonce())?);
    let mut exchange = probe.send(&flight)?;
    let reception = exchange.expect_early_data(probe.settings.limit)?;
    let (start, limit) = (probe.now(), probe.settings.unfinished_limit);
    let ended = exchange.driver.wait_for(limit, |_| false);
    let after = (probe.now() - start).as_secs();
    let what = match &ended {
        Err(ended) => ended.to_string(),
        Ok(_) => "still open".to_owned(),
    };
    let evidence = vec![format!("{reception}, no Finished sent; after {after} s: {what}")];
    let outcome = match ended {
        Err(Ended::TimedOut) => {
            let summary = format!("the connection was still open after {after} s");
            Outcome::new(Verdict::Warn, summary)
        }
        _ => Outcome::new(Verdict::Pass, format!("the connection was closed after {after} s")),
    };
    Ok(outcome.with(evidence))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::checks::tests::assert_proven;

    #[test]
    fn rfc8470_6_1_an_unfinished_handshake_ends() {
        let wrong = Behaviour { handshake_timeout: None, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Warn);
    }
}
