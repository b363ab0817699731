//! Shared by the checks that replay flights: copies of an accepted flight, and the verdict.

use std::time::Duration;

use firstflight_first_flight::{Ended, FirstFlight, FlightPlan};

use crate::Verdict;
use crate::finding::Outcome;
use crate::probe::{Exchange, Failure, Probe, Stop, nonce};

/// The summary, if the witness missed a request that got a response.
pub(super) const UNRELIABLE_COUNT: &str = "more requests got a response than the witness counted, so \
    the count is not reliable: all nodes need the same witness, and no cache before it";

/// The line of evidence for the number of executions that the witness counted.
pub(super) fn count_text(executions: u64) -> String {
    let plural = if executions == 1 { "" } else { "s" };
    format!("the witness counted {executions} execution{plural}")
}

/// An original that was accepted and completed.
pub(super) struct Original {
    pub(super) flight: FirstFlight,
    pub(super) nonce: String,
    /// Whether it got another response than 425 (Too Early).
    pub(super) executed: bool,
    pub(super) sent: Duration,
    pub(super) exchange: Exchange,
    pub(super) evidence: Vec<String>,
}

/// Sends a flight as an honest client does, and reads the response.
pub(super) fn original(probe: &Probe<'_>, method: &str) -> Result<Original, Stop> {
    let nonce = nonce();
    let flight = probe.build(probe.early(method, &nonce)?);
    let mut exchange = probe.send(&flight)?;
    let sent = exchange.driver.started();
    let reception = exchange.expect_early_data(probe.settings.limit)?;
    exchange.complete();
    let response = exchange.response(probe.settings.limit);
    let status = match &response {
        Some((response, _)) => format!("status {}", response.status),
        None => "no response".to_owned(),
    };
    let evidence =
        vec![format!("original of {} bytes: {reception}, {status}", flight.bytes().len())];
    let Some((response, _)) = response else {
        return Err(Stop("the original got no response".to_owned()));
    };
    Ok(Original { flight, nonce, executed: response.executed(), sent, exchange, evidence })
}

impl Original {
    /// Starts counting its copies.
    pub(super) fn copies(&mut self) -> Copies {
        let evidence = std::mem::take(&mut self.evidence);
        let original_too_early = !self.executed;
        Copies { evidence, since: Some(self.sent), original_too_early, ..Copies::default() }
    }
}

/// What became of the copies of a flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) sent: usize,
    /// When the original was sent, or the first copy if there is no original. The evidence counts
    /// times from here.
    pub(super) since: Option<Duration>,
    /// Whether the original got 425 (Too Early): it did not run.
    pub(super) original_too_early: bool,
    /// Copies whose early data TLS accepted.
    pub(super) accepted: usize,
    /// Nodes to which no copy could be sent.
    pub(super) unreachable: usize,
    /// Copies without a TLS response: the server may be down.
    pub(super) unanswered: usize,
    /// Copies that the server may have refused silently: it closed the connection, or over QUIC
    /// assigned their packets to the original's connection.
    pub(super) ignored: usize,
    /// Copies that got a Retry over QUIC: only the holder of the flight's keys can continue.
    pub(super) retried: usize,
    /// Copies that got the response to an execution, before any Finished of the client.
    pub(super) responded: usize,
    /// Copies that got 425 (Too Early) before any Finished of the client: they did not run.
    pub(super) too_early: usize,
    /// How often the request ran in all, if a witness counted.
    pub(super) executions: Option<u64>,
    /// Whether a copy without a response waits: this server responds early to what it executes.
    pub(super) silence_means_waiting: bool,
    pub(super) evidence: Vec<String>,
}

impl Copies {
    /// Sends a copy, and reads how it is received. What earlier ones have shown counts also if this
    /// one cannot be sent.
    pub(super) fn send(&mut self, probe: &Probe<'_>, flight: &FirstFlight, label: &str) {
        match probe.copy(flight) {
            Ok(mut copy) => self.receive(probe, &mut copy, label),
            Err(Stop(reason)) => {
                self.sent += 1;
                self.unanswered += 1;
                self.evidence.push(format!("{label}: {reason}"));
            }
        }
    }

    /// Reads how a copy is received, without completing it: an attacker cannot either.
    pub(super) fn receive(&mut self, probe: &Probe<'_>, copy: &mut Exchange, label: &str) {
        self.sent += 1;
        let reception = copy.reception(probe.copy_limit());
        let started = copy.driver.started();
        let time = started.saturating_sub(*self.since.get_or_insert(started));
        let mut line = format!("{label} at +{:.3} s: {reception}", time.as_secs_f64());
        match &reception.ended {
            Some(_) if reception.validated => self.retried += 1,
            Some(Failure::Ended(Ended::TimedOut)) if probe.settings.http3 => self.ignored += 1,
            Some(Failure::Ended(Ended::Closed)) => self.ignored += 1,
            Some(failure) if !failure.is_explicit() => self.unanswered += 1,
            _ => {}
        }
        if reception.early_data && reception.ended.is_none() {
            self.accepted += 1;
            match copy.response(probe.settings.early_limit) {
                Some((response, _)) => {
                    line.push_str(&format!(", status {} before Finished", response.status));
                    self.responded += usize::from(response.executed());
                    self.too_early += usize::from(!response.executed());
                }
                None => line.push_str(", no response before Finished"),
            }
        }
        self.evidence.push(line);
    }

    /// Queries the witness. Without one, finds out what a missing response means.
    pub(super) fn count(&mut self, probe: &Probe<'_>, nonce: &str) -> Result<(), Stop> {
        self.executions = match probe.executions(nonce) {
            // One of two copies that got responses ran in any case.
            Err(Stop(reason)) if self.responded > 1 => {
                self.evidence.push(reason);
                None
            }
            counted => counted?,
        };
        if self.executions.is_none() && self.ignored > 0 {
            self.expect_server(probe);
        }
        match self.executions {
            Some(executions) => {
                self.evidence.push(count_text(executions));
            }
            None if self.silent() > 0 => {
                self.silence_means_waiting = probe.responds_early();
                self.evidence.push(match self.silence_means_waiting {
                    true => "other first flights get their response before Finished".to_owned(),
                    false => "no first flight gets its response before Finished".to_owned(),
                });
            }
            None => {}
        }
        Ok(())
    }

    /// Makes a full handshake. If it fails, the server was down and did not ignore the copies.
    fn expect_server(&mut self, probe: &Probe<'_>) {
        let sent = probe.send(&probe.build(FlightPlan::full(probe.hello())));
        let limit = probe.settings.limit;
        if let Err(Stop(reason)) = sent.and_then(|mut exchange| exchange.expect_finished(limit)) {
            self.unanswered += self.ignored;
            self.evidence.push(format!("after the copies: {reason}"));
        }
    }

    /// The number of copies that TLS accepted and that got no response.
    fn silent(&self) -> usize {
        self.accepted.saturating_sub(self.responded + self.too_early)
    }

    /// The verdict. One of the executions is the original's; `originals` is 0 where only copies were
    /// sent, one of which may run.
    pub(super) fn verdict(mut self, originals: usize) -> Outcome {
        let copies = self.number();
        let evidence = std::mem::take(&mut self.evidence);
        let runs_of_copies = self.responded.saturating_sub(1 - originals.min(1));
        let responses = self.responded + if self.original_too_early { 0 } else { originals };
        let (verdict, summary) = match self.executions {
            Some(count) if count > 1 => (
                Verdict::Fail,
                format!("the request ran {count} times, counted by the witness; {copies} sent"),
            ),
            Some(count) if responses as u64 > count => {
                (Verdict::Inconclusive, UNRELIABLE_COUNT.to_owned())
            }
            Some(0)
                if self.accepted == self.too_early
                    && (self.too_early > 0 || self.original_too_early) =>
            {
                (
                    Verdict::Pass,
                    format!("it did not run: early requests get 425 (Too Early); {copies} sent"),
                )
            }
            Some(0) => {
                (Verdict::Pass, format!("it did not run: no copy of {copies} sent its Finished"))
            }
            Some(_) if self.accepted > 1 - originals.min(1) => (
                Verdict::Pass,
                format!(
                    "it ran once: TLS accepted {} of {copies}, but the server waits for the Finished, \
                     which a copy never sends",
                    self.accepted
                ),
            ),
            Some(_) => (Verdict::Pass, format!("it ran once; {copies} sent")),
            None if runs_of_copies > 0 => (
                Verdict::Fail,
                format!("{} of {copies} got a response before any Finished", self.responded),
            ),
            None if self.accepted > 0 && self.accepted == self.too_early => (
                Verdict::Pass,
                format!(
                    "TLS accepted {} of {copies}, all of which got 425 (Too Early)",
                    self.accepted
                ),
            ),
            None if self.silent() > 0 && self.accepted > 1 - originals.min(1) => {
                let (accepted, silent) = (self.accepted, self.silent());
                match self.silence_means_waiting {
                    true => (
                        Verdict::Pass,
                        format!(
                            "TLS accepted {accepted} of {copies}, {silent} of which wait: other than \
                             fresh flights they got no response before their Finished"
                        ),
                    ),
                    false => (
                        Verdict::Warn,
                        format!(
                            "TLS accepted {accepted} of {copies}, {silent} of which got no response \
                             before their Finished; only a witness can tell whether they ran"
                        ),
                    ),
                }
            }
            None => (Verdict::Pass, format!("early data was not accepted again; {copies} sent")),
        };
        let (verdict, summary) = self.qualify((verdict, summary));
        Outcome::new(verdict, summary).with(evidence)
    }

    /// Makes a pass inconclusive if the server may not have received or read each copy.
    pub(super) fn qualify(&self, (verdict, summary): (Verdict, String)) -> (Verdict, String) {
        match verdict {
            Verdict::Pass if self.retried > 0 => (
                Verdict::Inconclusive,
                format!(
                    "{} of {} got a Retry, and what clients send after one was not copied",
                    self.retried,
                    self.number()
                ),
            ),
            Verdict::Pass if self.unreachable > 0 => (
                Verdict::Inconclusive,
                format!("no copy could be sent to {} of the other addresses", self.unreachable),
            ),
            Verdict::Pass if self.unanswered > 0 => (
                Verdict::Inconclusive,
                format!(
                    "{} of {} got no response, not even of TLS: the server is slow, or down",
                    self.unanswered,
                    self.number()
                ),
            ),
            _ => (verdict, summary),
        }
    }

    fn number(&self) -> String {
        match self.sent {
            1 => "1 copy".to_owned(),
            sent => format!("{sent} copies"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(accepted: usize, responded: usize, executions: Option<u64>) -> Verdict {
        let copies = Copies { sent: 3, accepted, responded, executions, ..Copies::default() };
        copies.verdict(1).verdict
    }

    #[test]
    fn the_witness_decides_if_there_is_one() {
        assert_eq!(verdict(0, 0, Some(1)), Verdict::Pass);
        assert_eq!(verdict(3, 0, Some(1)), Verdict::Pass);
        assert_eq!(verdict(3, 0, Some(2)), Verdict::Fail);
        assert_eq!(verdict(3, 3, Some(1)), Verdict::Inconclusive, "a cache, or another witness");
        assert_eq!(verdict(0, 0, Some(0)), Verdict::Inconclusive);
    }

    #[test]
    fn rfc8470_5_2_an_original_that_gets_425_does_not_run() {
        let verdict = |original_too_early, too_early, responded| {
            let (sent, accepted) = (3, too_early + responded);
            let copies = Copies { sent, original_too_early, accepted, ..Copies::default() };
            Copies { too_early, responded, executions: Some(0), ..copies }.verdict(1).verdict
        };
        assert_eq!(verdict(true, 0, 0), Verdict::Pass, "the copies are refused");
        assert_eq!(verdict(true, 3, 0), Verdict::Pass);
        let missed = Verdict::Inconclusive;
        assert_eq!(verdict(false, 3, 0), missed, "the original was counted by another witness");
        assert_eq!(verdict(true, 0, 1), missed, "a copy was counted by another witness");
    }

    #[test]
    fn without_a_witness_a_response_before_finished_decides() {
        assert_eq!(verdict(0, 0, None), Verdict::Pass);
        assert_eq!(verdict(3, 1, None), Verdict::Fail);
        assert_eq!(verdict(3, 0, None), Verdict::Warn);
        let waits = |responded| {
            let copies = Copies { sent: 3, accepted: 3, responded, ..Copies::default() };
            Copies { silence_means_waiting: true, ..copies }.verdict(1).verdict
        };
        assert_eq!(waits(0), Verdict::Pass);
        assert_eq!(waits(1), Verdict::Fail, "one ran");
    }

    #[test]
    fn copies_without_a_response_of_tls_were_not_refused() {
        for (executions, expected) in [
            (None, Verdict::Inconclusive),
            (Some(1), Verdict::Inconclusive),
            (Some(2), Verdict::Fail),
        ] {
            let copies = Copies { sent: 3, unanswered: 1, executions, ..Copies::default() };
            assert_eq!(copies.verdict(1).verdict, expected, "{executions:?}");
        }
    }

    #[test]
    fn rfc8470_5_2_copies_that_get_425_did_not_run() {
        let copies = |too_early| {
            let copies = Copies { sent: 3, accepted: 3, too_early, ..Copies::default() };
            copies.verdict(1).verdict
        };
        assert_eq!(copies(3), Verdict::Pass);
        assert_eq!(copies(2), Verdict::Warn, "the third one is silent");
    }

    #[test]
    fn without_an_original_one_copy_may_run() {
        let copies = |accepted, responded, executions| {
            Copies { sent: 4, accepted, responded, executions, ..Copies::default() }
                .verdict(0)
                .verdict
        };
        assert_eq!(copies(1, 1, None), Verdict::Pass);
        assert_eq!(copies(2, 2, None), Verdict::Fail);
        assert_eq!(copies(1, 1, Some(1)), Verdict::Pass);
        assert_eq!(copies(4, 4, Some(4)), Verdict::Fail);
        assert_eq!(copies(4, 4, Some(0)), Verdict::Inconclusive, "counted by another witness");
    }
}
