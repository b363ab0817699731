use firstflight_first_flight::{Ended, FlightPlan, ProtocolError};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Failure, Probe, Stop, nonce};

pub(super) const CHECK: Check = Check {
    name: "offers",
    title: "what the server offers",
    section: "RFC 8446 section 4.6.1",
    explanation: "Makes a full handshake and reads the tickets. A lifetime of more than seven days \
                  is forbidden. It warns if the URL responds with an error. The evidence lists what \
                  the server offers: versions, cipher suite, protocol, key-share groups, tickets, \
                  their lifetime, early data and its limit, and whether a first flight fits into a \
                  SYN of TCP Fast Open.",
    needs: Needs::Nothing,
    concern: Concern::Tickets,
    run,
};

/// Seven days, in seconds.
const MAX_LIFETIME: u64 = 604_800;
/// Payload of a SYN with the usual options on Ethernet, and of a datagram.
const MAX_SYN_BYTES: usize = 1400;

/// Older versions, by their numbers on the wire.
const OLD_VERSIONS: [(u16, &str); 3] = [(0x0303, "1.2"), (0x0302, "1.1"), (0x0301, "1.0")];

/// Further groups that are common, by their code points at IANA.
const GROUPS: [(u16, &str); 4] = [
    (0x0017, "secp256r1"),
    (0x0018, "secp384r1"),
    (0x0019, "secp521r1"),
    (0x11ec, "X25519MLKEM768"),
];
/// What X25519MLKEM768 adds to a key share of X25519: the encapsulation key (FIPS 203, table 3).
const ML_KEM_768_KEY_BYTES: usize = 1184;

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let facts = &probe.facts;
    let mut evidence = vec![format!(
        "TLS {}, {}, protocol {}, key-share groups {}",
        versions(probe)?.join(" and "),
        facts.suite,
        facts.alpn.as_deref().unwrap_or("not negotiated"),
        groups(probe)?.join(", ")
    )];
    // Tickets of a handshake may differ: the one that permits the most, and the maximum lifetime.
    let Some(ticket) = facts.tickets.iter().max_by_key(|ticket| ticket.max_early_data) else {
        let summary = "no resumption: the server issues no tickets";
        return Ok(Outcome::new(Verdict::Pass, summary).with(evidence));
    };
    let lifetimes = facts.tickets.iter().map(|ticket| ticket.lifetime.as_secs());
    let lifetime = lifetimes.max().unwrap_or_default();
    evidence.push(format!(
        "{} tickets of {} bytes for each handshake, valid for {lifetime} s",
        facts.tickets.len(),
        ticket.identity.len()
    ));
    let early = match ticket.max_early_data {
        Some(max) => {
            let request = probe.request("GET", &nonce());
            let plan = FlightPlan::resume(probe.hello(), ticket).early_data(&request);
            let bytes = probe.build(plan).bytes().len();
            let fits = if bytes <= MAX_SYN_BYTES { "fits" } else { "does not fit" };
            let packet = if probe.settings.http3 { "a datagram" } else { "a SYN" };
            let mut line =
                format!("a first flight takes {bytes} bytes, which {fits} into {packet}");
            if !probe.settings.http3 {
                let bytes = bytes + ML_KEM_768_KEY_BYTES;
                let fits = if bytes <= MAX_SYN_BYTES { "fits" } else { "does not fit" };
                line.push_str(&format!("; with X25519MLKEM768 it takes {bytes}, which {fits}"));
            }
            evidence.push(line);
            match probe.settings.http3 {
                true => "early data".to_owned(),
                false => format!("early data of up to {max} bytes"),
            }
        }
        None => "no early data".to_owned(),
    };
    if lifetime > MAX_LIFETIME {
        let summary = format!("tickets are valid for {lifetime} s, more than seven days");
        return Ok(Outcome::new(Verdict::Fail, summary).with(evidence));
    }
    let status = facts.response.status;
    if status >= 400 {
        let summary = format!(
            "the URL responds {status}: choose one that responds 2xx, or refusals count as executions"
        );
        return Ok(Outcome::new(Verdict::Warn, summary).with_own_remedy().with(evidence));
    }
    let summary = format!("resumption with tickets of {lifetime} s, {early}");
    Ok(Outcome::new(Verdict::Pass, summary).with(evidence))
}

/// The versions of TLS that a server supports. QUIC supports only 1.3.
fn versions(probe: &Probe<'_>) -> Result<Vec<&'static str>, Stop> {
    let mut found = vec!["1.3"];
    if probe.settings.http3 {
        return Ok(found);
    }
    for (version, name) in OLD_VERSIONS {
        let flight = probe.build(FlightPlan::full(probe.hello().with_version_only(version)));
        match probe.send(&flight)?.reception(probe.settings.limit).ended {
            Some(Failure::Ended(Ended::Protocol(ProtocolError::Version))) => found.push(name),
            // The server may be slow, which is no reason to fail.
            Some(Failure::Ended(Ended::TimedOut)) => break,
            _ => {}
        }
    }
    Ok(found)
}

/// The groups that a server supports. Each is offered alone, without a share: the server requests
/// one, or the handshake fails.
fn groups(probe: &Probe<'_>) -> Result<Vec<&'static str>, Stop> {
    let mut found = vec!["X25519"];
    for (group, name) in GROUPS {
        let flight = probe.build(FlightPlan::full(probe.hello().with_group_only(group)));
        let reception = probe.send(&flight)?.reception(probe.settings.limit);
        match reception.ended {
            Some(Failure::Ended(Ended::Protocol(ProtocolError::Group(requested)))) => {
                found.extend((requested == group).then_some(name));
            }
            // The server may be slow, which is no reason to fail.
            Some(Failure::Ended(Ended::TimedOut)) => break,
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_first_flight::test_server::Behaviour;

    use super::*;
    use crate::Settings;
    use crate::audit;
    use crate::checks::tests::{TestTarget, assert_proven, assert_proven_with, settings};

    #[test]
    fn rfc8446_4_6_1_tickets_live_for_seven_days_at_most() {
        let wrong = Behaviour { lifetime: 604_801, ..Behaviour::default() };
        assert_proven(&CHECK, &wrong, Verdict::Fail);
    }

    #[test]
    fn rfc8446_4_6_1_every_ticket_of_a_handshake_counts() {
        let target = TestTarget::new(Behaviour::default(), false);
        let settings = settings();
        let mut probe = Probe::survey(&target, &[], &settings).unwrap();
        probe.facts.tickets[0].max_early_data = None;
        let outcome = audit::run(&CHECK, &probe);
        assert!(outcome.summary.ends_with("early data of up to 14336 bytes"), "{outcome:#?}");
        probe.facts.tickets[1].lifetime = Duration::from_secs(MAX_LIFETIME + 1);
        assert_eq!(audit::run(&CHECK, &probe).verdict, Verdict::Fail);
    }

    #[test]
    fn rfc8446_4_2_1_the_versions_of_a_server_are_found() {
        for (old_versions, http3, expected) in [
            (&[][..], false, "TLS 1.3, TLS_"),
            (&[0x0303], false, "TLS 1.3 and 1.2, TLS_"),
            (&[0x0303, 0x0302, 0x0301], false, "TLS 1.3 and 1.2 and 1.1 and 1.0, TLS_"),
            (&[0x0303], true, "TLS 1.3, TLS_"),
        ] {
            let settings = Settings { http3, ..settings() };
            let target = TestTarget::new(Behaviour { old_versions, ..Behaviour::default() }, http3);
            let probe = Probe::survey(&target, &[], &settings).unwrap();
            let outcome = audit::run(&CHECK, &probe);
            assert!(outcome.evidence[0].starts_with(expected), "{outcome:#?}");
        }
    }

    /// Over TCP and QUIC; without a witness, since the audit requires that a witness responds 2xx.
    #[test]
    fn a_url_that_responds_with_an_error_is_a_warning() {
        let wrong = Behaviour { not_found: true, ..Behaviour::default() };
        for http3 in [false, true] {
            let settings = Settings { http3, witness: false, ..settings() };
            assert_proven_with(&CHECK, &Behaviour::default(), &wrong, Verdict::Warn, &settings);
        }
    }

    #[test]
    fn rfc8446_4_2_7_the_groups_of_a_server_are_found() {
        for (groups, expected) in [
            (&[0x001d][..], "groups X25519"),
            (&[0x11ec, 0x001d, 0x0017], "groups X25519, secp256r1, X25519MLKEM768"),
        ] {
            for http3 in [false, true] {
                let settings = Settings { http3, ..settings() };
                let target = TestTarget::new(Behaviour { groups, ..Behaviour::default() }, http3);
                let probe = Probe::survey(&target, &[], &settings).unwrap();
                let outcome = audit::run(&CHECK, &probe);
                assert!(outcome.evidence[0].ends_with(expected), "{outcome:#?}");
            }
        }
    }
}
