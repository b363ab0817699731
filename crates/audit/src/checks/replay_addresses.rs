use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::replay::original;
use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "replay-addresses",
    title: "the same datagrams from other addresses",
    section: "RFC 9846 section 8",
    explanation: "Over QUIC. Sends an original, closes its connection, and sends its datagrams again a \
                  second later: on loopback from another address, from another port, and from the same \
                  address and port. A server knows a connection by its ids and its address only while it \
                  lasts; the flight must stay used after that.",
    needs: Needs::EarlyDataOverQuic,
    concern: Concern::Replay,
    run,
};

/// A server that has closed a connection ignores its packets for a while (RFC 9000 section 10.2).
const CLOSING_PERIOD: Duration = Duration::from_secs(1);

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let mut original = original(probe, "GET")?;
    original.exchange.close();
    let local = original.exchange.driver.local_address();
    let mut copies = original.copies();
    // Frees the port.
    drop(original.exchange);
    probe.wait(CLOSING_PERIOD);
    let mut sources: Vec<(&str, SocketAddr)> = Vec::new();
    if let Some(local) = local {
        // The most different address first: a server that finds connections by their ids assigns
        // later copies to the first one's connection.
        if local.ip() == Ipv4Addr::LOCALHOST {
            sources.push(("another address", (Ipv4Addr::new(127, 0, 0, 2), 0).into()));
        }
        sources.push(("another port", SocketAddr::new(local.ip(), 0)));
        sources.push(("the same address and port", local));
    }
    for (label, source) in sources {
        match probe.copy_from(source, &original.flight) {
            Ok(mut copy) => copies.receive(probe, &mut copy, &format!("copy from {label}")),
            Err(error) => copies.evidence.push(format!("no copy from {label}: {error}")),
        }
    }
    if copies.sent == 0 {
        let summary = "no socket could send copies";
        return Ok(Outcome::new(Verdict::Inconclusive, summary).with(copies.evidence));
    }
    copies.count(probe, &original.nonce)?;
    Ok(copies.verdict(1))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, KnownBy, Recorded};

    use super::*;
    use crate::checks::tests::{assert_proven_over_quic, verdict, verdict_over_quic};

    #[test]
    fn rfc9846_8_a_flight_stays_used_when_its_connection_is_forgotten() {
        let wrong = Behaviour { recorded: Recorded::Never, ..Behaviour::default() };
        assert_proven_over_quic(&CHECK, &wrong, Verdict::Fail);
        assert_eq!(verdict_over_quic(&CHECK, &wrong, false), Verdict::Fail);
        assert_eq!(verdict_over_quic(&CHECK, &Behaviour::default(), false), Verdict::Pass);
    }

    #[test]
    fn rfc9846_8_a_flight_is_known_from_any_address() {
        let wrong = Behaviour { known_by: KnownBy::Address, ..Behaviour::default() };
        assert_proven_over_quic(&CHECK, &wrong, Verdict::Fail);
        let naive = Behaviour { known_by: KnownBy::ConnectionId, ..Behaviour::default() };
        assert_eq!(
            verdict_over_quic(&CHECK, &naive, true),
            Verdict::Pass,
            "another check shows it"
        );
        assert_eq!(verdict(&CHECK, &wrong, true), Verdict::NotApplicable, "over TCP");
    }
}
