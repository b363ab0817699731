use super::replay::Copies;
use super::{Check, Concern, Needs};
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "replay-concurrent",
    title: "copies at the same time",
    section: "RFC 9846 section 8",
    explanation: "Opens four connections and sends the same fresh flight on all of them before any is \
                  completed. One of them may run. A server that records flights when the handshake \
                  ends, or checks and records in two steps, executes several.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

const COPIES: usize = 4;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let nonce = nonce();
    let flight = probe.build(probe.early("GET", &nonce)?);
    let mut sent = Vec::new();
    for _ in 0..COPIES {
        sent.push(probe.copy(&flight)?);
    }
    let mut copies = Copies::default();
    for (number, copy) in sent.iter_mut().enumerate() {
        copies.receive(probe, copy, &format!("copy {}", number + 1));
    }
    if copies.accepted == 0 {
        return Err(Stop("none of the copies of a fresh flight was accepted".to_owned()));
    }
    copies.count(probe, &nonce)?;
    Ok(copies.verdict(0))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, Recorded};

    use super::*;
    use crate::Verdict;
    use crate::checks::replay_at_once;
    use crate::checks::tests::{assert_proven_over_tcp, verdict, verdict_over_quic};

    #[test]
    fn rfc9846_8_a_record_at_the_end_of_the_handshake_is_too_late() {
        let wrong = Behaviour { recorded: Recorded::WhenFinished, ..Behaviour::default() };
        assert_proven_over_tcp(&CHECK, &wrong, Verdict::Fail);
        // Over QUIC the copies have the same ids, so they are one connection.
        assert_eq!(verdict_over_quic(&CHECK, &wrong, true), Verdict::Pass);
        // The copies that follow a completed original do not show it.
        assert_eq!(verdict(&replay_at_once::CHECK, &wrong, true), Verdict::Pass);
    }

    #[test]
    fn rfc9846_8_without_a_witness_one_response_passes() {
        assert_eq!(verdict(&CHECK, &Behaviour::default(), false), Verdict::Pass);
        let wrong = Behaviour { recorded: Recorded::Never, ..Behaviour::default() };
        assert_eq!(verdict(&CHECK, &wrong, false), Verdict::Fail);
    }
}
