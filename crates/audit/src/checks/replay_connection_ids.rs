use std::time::Duration;

use firstflight_first_flight::{FirstFlight, ZeroRttPackets};

use super::replay::{Copies, UNRELIABLE_COUNT, original};
use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop, connection_id};

pub(super) const CHECK: Check = Check {
    name: "replay-connection-ids",
    title: "a flight under other connection ids",
    section: "RFC 9846 section 8",
    explanation: "Over QUIC. Sends an original, and its ClientHello again under other connection ids. \
                  Everybody can do that with the Initial packet, whose keys follow from the id. 0-RTT \
                  packets authenticate their id, so an attacker can only leave them as they are, in the \
                  same datagram or in others, or give them an id that they do not fit; a server must \
                  not execute them. At last the check protects them anew with the ticket's secret, which \
                  no attacker has: a server that knows a flight by its connection ids accepts that.",
    needs: Needs::EarlyDataOverQuic,
    concern: Concern::Replay,
    run,
};

/// Copies that an attacker can build.
const FORGED: [(&str, ZeroRttPackets); 3] = [
    ("0-RTT packets unchanged, in the same datagram", ZeroRttPackets::Kept),
    ("0-RTT packets unchanged, in other datagrams", ZeroRttPackets::KeptApart),
    ("0-RTT packets with the new id", ZeroRttPackets::Relabelled),
];

/// After this time, the server has forgotten the original's connection.
const CLOSING_PERIOD: Duration = Duration::from_secs(1);

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let mut original = original(probe, "GET")?;
    original.exchange.close();
    let mut copies = original.copies();
    probe.wait(CLOSING_PERIOD);
    for (label, zero_rtt) in FORGED {
        let mut copy = probe.copy(&with_new_id(&original.flight, zero_rtt)?)?;
        copies.receive(probe, &mut copy, label);
    }
    copies.count(probe, &original.nonce)?;
    let forged = copies.clone();
    if forged.executions.map_or(forged.responded > 0, |count| count > 1) {
        return Ok(forged.verdict(1));
    }
    let mut reprotected =
        Copies { evidence: copies.evidence, since: copies.since, ..Copies::default() };
    let mut copy = probe.copy(&with_new_id(&original.flight, ZeroRttPackets::Protected)?)?;
    reprotected.receive(probe, &mut copy, "0-RTT packets protected anew");
    reprotected.count(probe, &original.nonce)?;
    let (verdict, summary) = judge(&forged, &reprotected);
    Ok(Outcome::new(verdict, summary).with(reprotected.evidence))
}

/// The verdict if no forged copy ran.
fn judge(forged: &Copies, reprotected: &Copies) -> (Verdict, String) {
    // The first query of the witness was an execution too.
    let counted = reprotected.executions.zip(forged.executions);
    let ran = counted.map_or(reprotected.responded > 0, |(now, before)| now > before + 1);
    let found = match (ran, forged.accepted + reprotected.accepted, counted) {
        (true, ..) => (
            Verdict::Warn,
            "the request ran again under another connection id; only who has the ticket's secret can \
             build that flight"
                .to_owned(),
        ),
        _ if (forged.executions == Some(0) && !forged.original_too_early)
            || (counted.is_some() && forged.responded + reprotected.responded > 0) =>
        {
            (Verdict::Inconclusive, UNRELIABLE_COUNT.to_owned())
        }
        (false, 0, _) => {
            (Verdict::Pass, "early data was not accepted again; 4 copies sent".to_owned())
        }
        (false, accepted, Some(_)) => (
            Verdict::Pass,
            format!("it ran once: TLS accepted {accepted} of 4 copies, none of which ran"),
        ),
        (false, accepted, None) => (
            Verdict::Warn,
            format!(
                "TLS accepted {accepted} of 4 copies, none got a response before its Finished; only a \
                 witness can tell whether they ran"
            ),
        ),
    };
    reprotected.qualify(forged.qualify(found))
}

fn with_new_id(flight: &FirstFlight, zero_rtt: ZeroRttPackets) -> Result<FirstFlight, Stop> {
    let renamed = flight.with_connection_id(&connection_id(), zero_rtt);
    renamed.ok_or_else(|| Stop("the flight's packets cannot be rewritten".to_owned()))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, KnownBy, StrayPackets};

    use super::*;
    use crate::checks::tests::{assert_proven_over_quic, verdict_over_quic};

    #[test]
    fn rfc9846_8_a_server_that_knows_flights_by_their_ids_executes_them_under_new_ids() {
        let naive = Behaviour { known_by: KnownBy::ConnectionId, ..Behaviour::default() };
        assert_proven_over_quic(&CHECK, &naive, Verdict::Warn);
        assert_eq!(verdict_over_quic(&CHECK, &naive, false), Verdict::Warn);
        assert_eq!(verdict_over_quic(&CHECK, &Behaviour::default(), false), Verdict::Pass);
    }

    #[test]
    fn rfc9000_12_2_packets_with_another_id_are_not_executed() {
        let naive = Behaviour { known_by: KnownBy::ConnectionId, ..Behaviour::default() };
        for stray_packets in [StrayPackets::OfDatagram, StrayPackets::OfAddress] {
            let wrong = Behaviour { stray_packets, ..naive.clone() };
            assert_proven_over_quic(&CHECK, &wrong, Verdict::Fail);
            assert_eq!(verdict_over_quic(&CHECK, &wrong, false), Verdict::Fail);
            // With the ClientHello recorded that is harmless.
            let recorded = Behaviour { stray_packets, ..Behaviour::default() };
            assert_eq!(verdict_over_quic(&CHECK, &recorded, true), Verdict::Pass);
        }
    }

    fn verdict(accepted: usize, responded: usize, counted: Option<(u64, u64)>) -> Verdict {
        let forged = Copies { executions: counted.map(|(before, _)| before), ..Copies::default() };
        let executions = counted.map(|(_, now)| now);
        judge(&forged, &Copies { accepted, responded, executions, ..Copies::default() }).0
    }

    #[test]
    fn rfc9846_8_a_flight_is_known_by_its_client_hello() {
        assert_eq!(verdict(1, 1, Some((1, 3))), Verdict::Warn);
        assert_eq!(
            verdict(1, 1, Some((1, 2))),
            Verdict::Inconclusive,
            "counted by another witness"
        );
        assert_eq!(verdict(1, 0, Some((1, 2))), Verdict::Pass);
        assert_eq!(verdict(1, 1, None), Verdict::Warn);
        assert_eq!(verdict(1, 0, None), Verdict::Warn);
        assert_eq!(verdict(0, 0, None), Verdict::Pass);
        let missed = Some((0, 1));
        assert_eq!(verdict(0, 0, missed), Verdict::Inconclusive, "the original was not counted");
    }
}
