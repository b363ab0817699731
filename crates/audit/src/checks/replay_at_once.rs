use super::replay::original;
use super::{Check, Concern, Needs};
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "replay-at-once",
    title: "copies right after the original",
    section: "RFC 9846 section 8",
    explanation: "Sends a first flight with a request, completes it, and sends the same bytes three \
                  times more on new connections that are not completed, as an attacker on the path \
                  can. A server instance must accept a given flight at most once.",
    needs: Needs::EarlyData,
    concern: Concern::Replay,
    run,
};

const COPIES: usize = 3;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let mut original = original(probe, "GET")?;
    original.exchange.close();
    let mut copies = original.copies();
    for number in 1..=COPIES {
        copies.send(probe, &original.flight, &format!("copy {number}"));
    }
    copies.count(probe, &original.nonce)?;
    Ok(copies.verdict(1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use firstflight_first_flight::test_server::{
        Behaviour, CopyPolicy, EarlyRequest, Fault, FaultyPart, Recorded,
    };

    use super::*;
    use crate::checks::tests::{
        RefusesAfter, TestTarget, assert_proven, settings, verdict, verdict_over_quic,
    };
    use crate::checks::{
        refused_flight, replay_addresses, replay_concurrent, replay_connection_ids, replay_delayed,
    };
    use crate::{Settings, Verdict, audit};

    fn wrong() -> Behaviour {
        Behaviour { recorded: Recorded::Never, ..Behaviour::default() }
    }

    #[test]
    fn rfc9846_8_a_server_without_records_executes_copies() {
        assert_proven(&CHECK, &wrong(), Verdict::Fail);
    }

    #[test]
    fn rfc9846_8_a_response_before_finished_shows_an_execution_without_a_witness() {
        assert_eq!(verdict(&CHECK, &wrong(), false), Verdict::Fail);
        assert_eq!(verdict(&CHECK, &Behaviour::default(), false), Verdict::Pass);
    }

    #[test]
    fn rfc8470_3_a_server_that_holds_requests_executes_no_copy() {
        let holds = Behaviour { safe: EarlyRequest::Hold, ..wrong() };
        assert_eq!(verdict(&CHECK, &holds, true), Verdict::Pass);
        assert_eq!(verdict(&CHECK, &holds, false), Verdict::Warn, "nothing shows it");
    }

    #[test]
    fn rfc8470_5_2_a_server_that_responds_425_to_early_requests_executes_no_copy() {
        let refuses = Behaviour { safe: EarlyRequest::TooEarly, ..wrong() };
        assert_eq!(verdict(&CHECK, &refuses, true), Verdict::Pass);
        assert_eq!(verdict(&CHECK, &refuses, false), Verdict::Pass);
    }

    #[test]
    fn rfc9846_8_a_held_copy_is_told_from_one_that_is_executed_silently() {
        // A server that responds early to fresh flights, and holds their copies.
        let right = Behaviour { copies: CopyPolicy::Hold, ..Behaviour::default() };
        let silent = Behaviour { safe: EarlyRequest::ExecuteSilently, ..wrong() };
        for check in [&CHECK, &replay_concurrent::CHECK, &replay_delayed::CHECK] {
            assert_eq!(verdict(check, &right, true), Verdict::Pass);
            assert_eq!(verdict(check, &right, false), Verdict::Pass);
            assert_eq!(verdict(check, &silent, true), Verdict::Fail);
            assert_eq!(verdict(check, &silent, false), Verdict::Warn, "nothing shows it");
        }
    }

    #[test]
    fn a_copy_that_cannot_be_sent_hides_no_execution() {
        let server = TestTarget::new(Behaviour { witness: false, ..wrong() }, false);
        // The survey, the ticket, the original and the first copy.
        let target = RefusesAfter { server, left: Cell::new(4) };
        let settings = Settings { witness: false, ..settings() };
        let probe = Probe::survey(&target, &[], &settings).unwrap();
        let outcome = audit::run(&CHECK, &probe);
        assert_eq!(outcome.verdict, Verdict::Fail, "{outcome:#?}");
        assert!(outcome.evidence.join("\n").contains("status 200 before Finished"));
    }

    #[test]
    fn a_server_that_is_down_after_the_original_does_not_ignore_its_copies() {
        for fault in [Fault::Silent, Fault::Reset] {
            // The first three connections: the survey, the ticket and the original.
            let fault = Some((FaultyPart::Handshake, fault));
            let crashes = Behaviour { fault, faultless_connections: 3, ..Behaviour::default() };
            for check in [&CHECK, &replay_addresses::CHECK, &replay_connection_ids::CHECK] {
                for witness in [false, true] {
                    let found = verdict_over_quic(check, &crashes, witness);
                    assert_eq!(found, Verdict::Inconclusive, "{}: {fault:?}", check.name);
                }
            }
        }
    }

    #[test]
    fn rfc9000_8_1_2_copies_that_get_a_retry_were_not_tested() {
        let right = Behaviour { validates_addresses: true, ..Behaviour::default() };
        for check in [
            &CHECK,
            &replay_concurrent::CHECK,
            &replay_addresses::CHECK,
            &replay_connection_ids::CHECK,
            &replay_delayed::CHECK,
            &refused_flight::CHECK,
        ] {
            for witness in [false, true] {
                let settings = Settings { http3: true, witness, ..settings() };
                let behaviour = Behaviour { witness, ..right.clone() };
                let target = TestTarget::new(behaviour, true);
                let probe = Probe::survey(&target, &[], &settings).unwrap();
                let outcome = audit::run(check, &probe);
                assert_eq!(outcome.verdict, Verdict::Inconclusive, "{}: {outcome:#?}", check.name);
                if check.name != "replay-concurrent" {
                    let evidence = outcome.evidence.join("\n");
                    assert!(evidence.contains("s: Retry"), "{}: {evidence}", check.name);
                    assert!(
                        !evidence.contains("no response in time"),
                        "{}: {evidence}",
                        check.name
                    );
                }
            }
        }
    }
}
