use std::time::Duration;

use firstflight_first_flight::{FlightPlan, Ticket};

use super::{Check, Concern, Needs};
use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Probe, Stop};

pub(super) const CHECK: Check = Check {
    name: "key-life",
    title: "how long ticket keys live",
    section: "RFC 8446 section 4.6.1",
    explanation: "With --watch TIME only. Takes tickets, and resumes with another one of them at 24 points of \
                  that time, without early data. The point at which they are refused is the life of the key \
                  that seals them, which decides how much early data a stolen key opens. Tickets that are \
                  accepted after their announced lifetime are reported.",
    needs: Needs::Resumption,
    concern: Concern::Tickets,
    run,
};

const POINTS: u32 = 24;
/// Used if a ticket is refused although its key still exists: a server may drop a session.
const SPARE_TICKETS: u32 = 2;
/// Servers count in whole seconds.
const TOLERANCE: Duration = Duration::from_secs(2);

fn run(probe: &Probe<'_>) -> Result<Outcome, Stop> {
    let Some(watch) = probe.settings.watch else {
        let summary = "keys are watched for as long as --watch says, such as --watch 24h";
        return Ok(Outcome::new(Verdict::NotApplicable, summary));
    };
    let issued: Result<Vec<Ticket>, Stop> =
        (0..POINTS + SPARE_TICKETS).map(|_| probe.ticket()).collect();
    let mut tickets = issued?;
    let lifetime = tickets.iter().map(|ticket| ticket.lifetime).max().unwrap_or_default();
    let start = probe.now();
    let (mut accepted, mut refused, mut evidence) = (None, None, Vec::new());
    for at in (1..=POINTS).map(|point| watch * point / POINTS) {
        probe.wait((start + at).saturating_sub(probe.now()));
        let outcome = match resumes(probe, &mut tickets) {
            // A second ticket decides.
            Ok(false) => resumes(probe, &mut tickets),
            other => other,
        };
        let what = match &outcome {
            Ok(true) => "a ticket is accepted",
            Ok(false) => "tickets are refused",
            // The server may be back at the next point.
            Err(Stop(why)) => why,
        };
        evidence.push(format!("after {} s: {what}", at.as_secs()));
        match outcome {
            Ok(true) => accepted = Some(at),
            Ok(false) => refused = Some(at),
            Err(_) => {}
        }
        if refused.is_some() || at > lifetime + TOLERANCE && accepted == Some(at) {
            break;
        }
    }
    let announced = lifetime.as_secs();
    let (verdict, summary) = match (accepted, refused) {
        (Some(accepted), _) if accepted > lifetime + TOLERANCE => (
            Verdict::Warn,
            format!("tickets of {announced} s are still accepted after {} s", accepted.as_secs()),
        ),
        (accepted, Some(refused)) => (
            Verdict::Pass,
            format!(
                "the keys of tickets of {announced} s lived for {} to {} s",
                accepted.unwrap_or_default().as_secs(),
                refused.as_secs()
            ),
        ),
        (Some(accepted), None) => (
            Verdict::Pass,
            format!(
                "the keys of tickets of {announced} s lived for {} s and longer",
                accepted.as_secs()
            ),
        ),
        (None, None) => return Err(Stop("no handshake succeeded in that time".to_owned())),
    };
    Ok(Outcome::new(verdict, summary).with(evidence))
}

/// Whether the next ticket is accepted. Each is used once, as some servers permit no more.
fn resumes(probe: &Probe<'_>, tickets: &mut Vec<Ticket>) -> Result<bool, Stop> {
    let Some(ticket) = tickets.pop() else { return Err(Stop("no ticket is left".to_owned())) };
    let mut exchange = probe.send(&probe.build(FlightPlan::resume(probe.hello(), &ticket)))?;
    let reception = exchange.expect_finished(probe.settings.limit)?;
    exchange.complete();
    exchange.close();
    Ok(reception.resumed)
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::test_server::{Behaviour, UsedTicket};

    use super::*;
    use crate::Settings;
    use crate::audit;
    use crate::checks::tests::{TestTarget, assert_proven_with, settings, verdict};

    const HOUR: Duration = Duration::from_secs(3600);

    fn watching() -> Settings {
        Settings { watch: Some(24 * HOUR), ..settings() }
    }

    #[test]
    fn rfc8446_4_6_1_keys_end_with_their_tickets() {
        let wrong = Behaviour { enforces_lifetime: false, ..Behaviour::default() };
        assert_proven_with(&CHECK, &Behaviour::default(), &wrong, Verdict::Warn, &watching());
        assert_eq!(verdict(&CHECK, &wrong, true), Verdict::NotApplicable, "without --watch");
    }

    #[test]
    fn rfc8446_4_6_1_the_life_of_a_key_is_found() {
        let lifetime = 604_800;
        for (key_life, used_tickets, expected) in [
            (Some(5 * HOUR), UsedTicket::Accept, "lived for 18000 to 21600 s"),
            (Some(5 * HOUR), UsedTicket::FullHandshake, "lived for 18000 to 21600 s"),
            (Some(HOUR / 2), UsedTicket::Accept, "lived for 0 to 3600 s"),
            (None, UsedTicket::Accept, "lived for 86400 s and longer"),
        ] {
            let behaviour = Behaviour { lifetime, key_life, used_tickets, ..Behaviour::default() };
            for http3 in [false, true] {
                let settings = Settings { http3, ..watching() };
                let target = TestTarget::new(behaviour.clone(), http3);
                let probe = Probe::survey(&target, &[], &settings).unwrap();
                let outcome = audit::run(&CHECK, &probe);
                assert_eq!(outcome.verdict, Verdict::Pass);
                assert!(outcome.summary.ends_with(expected), "{expected}: {outcome:#?}");
            }
        }
    }
}
