//! Runs the checks.

use std::time::Duration;

use crate::capture::Capture;
use crate::checks::{CHECKS, Check, Needs};
use crate::finding::{Connection, Finding, Outcome, Report, Verdict};
use crate::probe::Probe;
use crate::recorder::{Recorder, Recording};
use crate::software::Software;
use crate::target::Node;

/// What to audit, and how long to wait.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The host: the server name of the handshakes.
    pub host: String,
    /// The value of the header field `Host`.
    pub authority: String,
    /// Path and query of the requests, such as `/witness`.
    pub path: String,
    /// Whether the path leads to a [`Witness`](crate::Witness).
    pub witness: bool,
    /// Whether requests go over HTTP/3. The target must then use QUIC.
    pub http3: bool,
    /// How long a handshake or a response may take.
    pub limit: Duration,
    /// How long to wait for the response to a copy, which does not come if the copy is held.
    pub early_limit: Duration,
    /// When copies are sent, counted from the acceptance of the original.
    pub delays: Vec<Duration>,
    /// How much too large the stated ticket age is in flights that the server should refuse, the
    /// smallest first.
    pub refused_ages: Vec<Duration>,
    /// The names of the checks to run; empty for all.
    pub only: Vec<String>,
    /// The server's software; `None` to recognise it.
    pub software: Option<Software>,
    /// For how long to watch ticket keys.
    pub watch: Option<Duration>,
    /// How long to wait until the server ends an unfinished handshake.
    pub unfinished_limit: Duration,
}

impl Settings {
    /// The defaults for a host, a `Host` field and a path.
    pub fn new(host: &str, authority: &str, path: &str) -> Self {
        Self {
            host: host.to_owned(),
            authority: authority.to_owned(),
            path: path.to_owned(),
            witness: false,
            http3: false,
            limit: Duration::from_secs(10),
            early_limit: Duration::from_secs(1),
            delays: [1, 5, 10, 20, 60, 120].map(Duration::from_secs).to_vec(),
            // Beyond the usual windows of 10 and 60 s.
            refused_ages: [12, 70].map(Duration::from_secs).to_vec(),
            only: Vec::new(),
            software: None,
            watch: None,
            unfinished_limit: Duration::from_secs(75),
        }
    }
}

/// Why a server cannot be audited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Nothing listens there.
    #[error("cannot connect: {0}; check the address, and that the server runs")]
    Down(String),
    /// No response in time.
    #[error("the server does not respond in time; allow more with --timeout")]
    Slow,
    /// Other bytes than TLS.
    #[error("the server does not speak TLS at this port; give the port of its TLS listener")]
    NoTls,
    /// No response over QUIC.
    #[error(
        "no response over QUIC: the server may have no HTTP/3 at this port, or a firewall drops UDP; \
         audit it over TCP, or allow more with --timeout"
    )]
    NoQuic,
    /// Another version of QUIC.
    #[error("the server does not support QUIC version 1 (RFC 9000)")]
    QuicVersion,
    /// TLS 1.2 and before.
    #[error("the server does not support TLS 1.3, without which there is no early data to audit")]
    OldVersion,
    /// The handshake fails otherwise.
    #[error("a full handshake fails: {0}")]
    Handshake(String),
    /// No HTTP response after the handshake.
    #[error("the server sends no HTTP response; give a URL that responds to GET within --timeout")]
    NoResponse,
    /// A redirect.
    #[error("the URL redirects to {0}; audit the URL where that ends")]
    Redirects(String),
    /// The path does not lead to a witness.
    #[error(
        "the response is not from a witness; forward this path to `firstflight audit \
         --serve-witness`, or leave out --witness"
    )]
    NoWitness,
    /// The file of the capture.
    #[error("cannot write the capture: {0}; choose another file")]
    Capture(String),
}

/// Audits the first of these nodes, and sends copies to the others. `progress` is called before each
/// check. `date` is for the report.
///
/// # Panics
/// Without a node.
///
/// # Errors
/// If the server cannot be audited at all. A check that cannot be decided is a finding.
pub fn audit(
    nodes: &[Node<'_>],
    settings: &Settings,
    date: &str,
    progress: impl FnMut(&'static Check),
) -> Result<Report, AuditError> {
    audit_captured(nodes, settings, date, None, progress)
}

/// As [`audit`], with a capture of what is sent and received, check by check.
///
/// # Panics
/// As [`audit`].
///
/// # Errors
/// As [`audit`], and if the capture cannot be written.
pub fn audit_captured(
    nodes: &[Node<'_>],
    settings: &Settings,
    date: &str,
    mut capture: Option<&mut Capture>,
    mut progress: impl FnMut(&'static Check),
) -> Result<Report, AuditError> {
    let start = nodes.first().expect("a node to audit").target.now();
    let recorder = Recorder::new(start, capture.is_some());
    let targets: Vec<_> = nodes.iter().map(|node| recorder.record(node)).collect();
    let nodes: Vec<Node<'_>> = nodes
        .iter()
        .zip(&targets)
        .map(|(node, target)| Node { address: node.address.clone(), target })
        .collect();
    let (first, others) = nodes.split_first().expect("a node to audit");
    let mut take_connections = |part: &str| {
        let recordings = recorder.take();
        if let Some(capture) = &mut capture {
            let written = capture.add(part, &recordings);
            written.map_err(|error| AuditError::Capture(error.to_string()))?;
        }
        Ok(recordings.iter().map(Recording::summary).collect())
    };
    let probe = Probe::survey(first.target, others, settings);
    let _: Vec<Connection> = take_connections("survey")?;
    let probe = probe?;
    let is_selected = |check: &Check| {
        settings.only.is_empty() || settings.only.iter().any(|name| name == check.name)
    };
    let mut findings = Vec::new();
    for check in CHECKS.iter().filter(|check| is_selected(check)) {
        progress(check);
        let outcome = run(check, &probe);
        let needs_remedy = outcome.verdict <= Verdict::Warn && !outcome.has_own_remedy;
        let finding = Finding {
            check: check.name.to_owned(),
            title: check.title.to_owned(),
            section: check.section.to_owned(),
            verdict: outcome.verdict,
            summary: outcome.summary,
            evidence: outcome.evidence,
            remedy: None,
            connections: take_connections(check.name)?,
        };
        findings.push((finding, needs_remedy.then_some(check.concern)));
    }
    let software = settings.software.unwrap_or_else(|| {
        Software::recognise(&probe.facts.response, probe.response_to_invalid().as_ref())
    });
    let _: Vec<Connection> = take_connections("recognition")?;
    let mut findings: Vec<Finding> = findings
        .into_iter()
        .map(|(finding, concern)| {
            let remedy = concern.map(|concern| software.remedy(concern).to_owned());
            Finding { remedy, ..finding }
        })
        .collect();
    findings.sort_by_key(|finding| finding.verdict);
    let server_field = &probe.facts.response.software;
    Ok(Report {
        schema: Report::SCHEMA,
        target: format!("https://{}{}", settings.authority, settings.path),
        address: first.address.clone(),
        date: date.to_owned(),
        server: match server_field.is_empty() {
            true => format!("no server field ({})", software.name()),
            false => format!("{server_field} ({})", software.name()),
        },
        witness: settings.witness,
        findings,
    })
}

/// Runs a check, if the server offers what it needs.
pub(crate) fn run(check: &Check, probe: &Probe<'_>) -> Outcome {
    let missing = match check.needs {
        Needs::EarlyDataOverQuic if !probe.settings.http3 => {
            Some("only QUIC has connection ids and datagrams; add --http3")
        }
        Needs::OtherAddresses if probe.others.is_empty() => {
            Some("the name has one address; give more with --resolve HOST:PORT:ADDRESS,ADDRESS")
        }
        Needs::Resumption if probe.facts.tickets.is_empty() => {
            Some("the server issues no tickets: it has no resumption")
        }
        Needs::EarlyData | Needs::EarlyDataOverQuic | Needs::OtherAddresses | Needs::Witness
            if probe.facts.tickets.is_empty() =>
        {
            Some("the server issues no tickets: it has no resumption and no early data")
        }
        Needs::EarlyData | Needs::EarlyDataOverQuic | Needs::OtherAddresses | Needs::Witness
            if !probe.offers_early_data() =>
        {
            Some("the server's tickets allow no early data")
        }
        Needs::Witness if !probe.settings.witness => {
            Some("only a witness sees what an upstream receives; give one with --witness")
        }
        _ => None,
    };
    if let Some(missing) = missing {
        return Outcome::new(Verdict::NotApplicable, missing);
    }
    (check.run)(probe).unwrap_or_else(|stop| Outcome::new(Verdict::Inconclusive, stop.0))
}

#[cfg(test)]
mod tests {
    use firstflight_first_flight::Ended;
    use firstflight_first_flight::test_server::{Behaviour, Fault, FaultyPart, UsedTicket};

    use super::*;
    use crate::Target;
    use crate::checks::tests::{TestTarget, settings};

    fn report(behaviour: Behaviour, witness: bool) -> Result<Report, AuditError> {
        report_over(behaviour, Settings { witness, ..settings() })
    }

    fn report_over(behaviour: Behaviour, settings: Settings) -> Result<Report, AuditError> {
        report_of(&TestTarget::new(behaviour, settings.http3), &settings)
    }

    fn report_of(target: &TestTarget, settings: &Settings) -> Result<Report, AuditError> {
        audit(&[Node { address: "127.0.0.1:443".to_owned(), target }], settings, "", |_| {})
    }

    /// Audits a server with each fault, over TCP and QUIC.
    fn for_each_fault(
        faultless_connections: u64,
        mut check: impl FnMut(FaultyPart, Fault, &Settings, Result<Report, AuditError>, Duration),
    ) {
        for http3 in [false, true] {
            for part in [FaultyPart::Handshake, FaultyPart::Response] {
                for fault in Fault::ALL {
                    let behaviour = Behaviour {
                        fault: Some((part, fault)),
                        faultless_connections,
                        ..Behaviour::default()
                    };
                    let target = TestTarget::new(behaviour, http3);
                    let settings = Settings { http3, ..settings() };
                    let start = target.now();
                    let outcome = report_of(&target, &settings);
                    check(part, fault, &settings, outcome, target.now() - start);
                }
            }
        }
    }

    #[test]
    fn a_url_that_responds_with_an_error_needs_no_change_of_the_server() {
        let missing = Behaviour { not_found: true, software: "nginx", ..Behaviour::default() };
        let report = report(missing, false).unwrap();
        let offers = report.findings.iter().find(|finding| finding.check == "offers").unwrap();
        assert_eq!((offers.verdict, &offers.remedy), (Verdict::Warn, &None));
    }

    #[test]
    fn a_failing_server_ends_the_audit_in_time_with_an_error() {
        for_each_fault(0, |part, fault, settings, outcome, took| {
            let failed = |ended: Ended| AuditError::Handshake(ended.to_string());
            let expected = match (part, settings.http3, fault) {
                (FaultyPart::Response, ..) => AuditError::NoResponse,
                (_, true, Fault::Reset) => AuditError::Down(Ended::Refused.to_string()),
                // No packet that can be decrypted, or none in time.
                (_, true, _) => AuditError::NoQuic,
                (_, false, Fault::Silent | Fault::Slow) => AuditError::Slow,
                (_, false, Fault::Garbage) => AuditError::NoTls,
                (_, false, Fault::Endless) => failed(Ended::TooMuch),
                (_, false, Fault::Reset | Fault::HalfClosed) => failed(Ended::Closed),
            };
            let what = format!("{part:?} {fault:?} over QUIC: {}", settings.http3);
            assert_eq!(outcome, Err(expected), "{what}");
            assert!(took <= 2 * settings.limit, "{what}: {took:?} of simulated time");
        });
    }

    #[test]
    fn a_server_that_starts_to_fail_neither_fails_nor_passes() {
        for_each_fault(1, |part, fault, settings, outcome, _| {
            for finding in outcome.expect("the first connection is without faults").findings {
                let what = format!("{part:?} {fault:?}, {}: {finding:?}", settings.http3);
                let depends_on_responses = finding.check.starts_with("replay-")
                    || finding.check == "refused-flight"
                    || part == FaultyPart::Handshake && finding.check != "offers";
                assert!(finding.verdict >= Verdict::Inconclusive, "{what}");
                assert!(!depends_on_responses || finding.verdict != Verdict::Pass, "{what}");
            }
        });
    }

    #[test]
    fn a_correct_server_passes_every_check() {
        for http3 in [false, true] {
            let report =
                report_over(Behaviour::default(), Settings { http3, ..settings() }).unwrap();
            let failed: Vec<_> =
                report.findings.iter().filter(|finding| finding.verdict < Verdict::Pass).collect();
            assert!(failed.is_empty(), "{failed:#?}");
            assert!(report.headline().contains("executed no replayed early data"));
        }
    }

    #[test]
    fn a_server_that_takes_each_ticket_once_passes_every_check() {
        let once = Behaviour { used_tickets: UsedTicket::FullHandshake, ..Behaviour::default() };
        for witness in [false, true] {
            let report = report(once.clone(), witness).unwrap();
            assert!(report.worst().unwrap() >= Verdict::Pass, "{report:#?}");
        }
    }

    #[test]
    fn a_server_without_early_data_has_nothing_to_replay() {
        for behaviour in [
            Behaviour { max_early_data: None, ..Behaviour::default() },
            Behaviour { tickets: 0, ..Behaviour::default() },
        ] {
            let report = report(behaviour, true).unwrap();
            assert!(report.worst().unwrap() >= Verdict::Pass, "{report:#?}");
            assert!(report.headline().contains("no early data to replay"));
        }
    }

    #[test]
    fn a_server_that_cannot_be_audited_is_an_error() {
        let old = Behaviour { tls13: false, ..Behaviour::default() };
        assert_eq!(report(old, true), Err(AuditError::OldVersion));
        let without_witness = Behaviour { witness: false, ..Behaviour::default() };
        assert_eq!(report(without_witness.clone(), true), Err(AuditError::NoWitness));
        assert!(report(without_witness, false).is_ok());
    }
}
