//! The top of the console: the three answers, notices, and a row of figures.

use maud::{Markup, html};

use super::chart;
use crate::format::{ago, number, percent, rate, until};
use crate::reasons;
use crate::status::{
    Answer, Answers, Certificate, Moment, Register, ServerState, Severity, Status, Store,
};

/// The answers to the three questions.
pub(super) fn answers(answers: &Answers) -> Markup {
    let questions = [
        ("used", "Is 0-RTT used?", &answers.used),
        ("why-not", "Where not, why not?", &answers.why_not),
        ("replayed", "Has anyone tried to replay?", &answers.replayed),
    ];
    html! {
        section.answers aria-label="The three questions" {
            @for (id, question, answer) in questions {
                (card(id, question, answer))
            }
        }
    }
}

fn card(id: &str, question: &str, answer: &Answer) -> Markup {
    let (class, sign) = sign(answer.severity);
    html! {
        article.card.(class) id=(id) {
            h2 { (question) }
            // Screen readers announce changes of the headline, but not of the figures in the sentence.
            p.word aria-live="polite" {
                span.sign aria-hidden="true" { (sign) } (capital(&answer.headline))
            }
            p.sentence { (answer.sentence) }
        }
    }
}

/// The CSS class of a severity, and its sign, because colour alone is not accessible.
fn sign(severity: Severity) -> (&'static str, &'static str) {
    match severity {
        Severity::Good => ("good", "\u{2713}"),
        Severity::Neutral => ("quiet", "\u{2013}"),
        Severity::Warning => ("look", "!"),
        Severity::Critical => ("bad", "\u{2715}"),
    }
}

/// A row of figures.
pub(super) fn tiles(status: &Status) -> Markup {
    let (now, minute) = (&status.now, status.windows.first().cloned().unwrap_or_default());
    let connections = now.tcp_connections + now.quic_connections;
    let early = match minute.totals.requests {
        0 => NONE.to_owned(),
        all => percent(minute.totals.ran_early, all),
    };
    html! {
        section.tiles aria-label="Now" {
            (tile("requests", "Requests per second", &rate(minute.requests_per_second),
                chart::spark(&status.steps.requests)))
            (tile("early-requests", "Executed early", &early, html! {
                (number(minute.totals.ran_early)) " in the last minute"
            }))
            (tile("connections", "Connections open", &number(connections), html! {
                (number(now.tcp_connections)) " TCP, " (number(now.quic_connections)) " QUIC"
            }))
            (tile("held", "Requests held now", &number(now.held), html! {
                (number(now.requests)) " in progress"
            }))
            (tile("too-early", "Responses 425", &number(minute.totals.too_early), html! {
                "in the last minute"
            }))
        }
    }
}

fn tile(id: &str, name: &str, figure: &str, more: Markup) -> Markup {
    html! {
        div.tile id=(id) {
            p.what { (name) }
            p.figure { (figure) }
            div.more { (more) }
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Shown instead of a figure that does not exist.
pub(super) const NONE: &str = "\u{2013}";

/// What an operator should check, one line each. Empty if everything works.
pub(super) fn notices(status: &Status) -> Markup {
    let lines = lines(status);
    html! {
        @if !lines.is_empty() {
            section #notices aria-label="Notices" {
                ul {
                    @for (severity, line) in lines {
                        @let (class, sign) = sign(severity);
                        li.(class) { span.sign aria-hidden="true" { (sign) } span { (line) } }
                    }
                }
            }
        }
    }
}

fn lines(status: &Status) -> Vec<(Severity, String)> {
    let mut lines = Vec::new();
    lines.extend(readiness(&status.server));
    lines.extend(reload(&status.server, status.at));
    lines.extend(status.store.as_ref().and_then(store));
    for upstream in status.upstreams.iter().filter(|upstream| !upstream.up) {
        let line = format!(
            "{} of upstream {} gets no requests, because it failed.",
            upstream.server, upstream.pool
        );
        lines.push((Severity::Critical, line));
    }
    lines.extend(status.certificates.iter().filter_map(|site| certificate(site, status.at)));
    lines.extend(register(&status.register));
    lines.extend(status.keys.warnings.iter().map(|warning| (Severity::Warning, warning.clone())));
    lines
}

fn readiness(server: &ServerState) -> Option<(Severity, String)> {
    let why = server.not_ready_because.as_ref().filter(|_| !server.ready)?;
    Some((Severity::Critical, format!("Not ready for new connections: {why}.")))
}

fn reload(server: &ServerState, now: Moment) -> Option<(Severity, String)> {
    let reload = server.last_reload.as_ref()?;
    let (when, error) = (ago(now, reload.at), reload.error.as_ref()?);
    let line =
        format!("Reload failed {when}; configuration {} stays in use: {error}", server.generation);
    Some((Severity::Critical, line))
}

fn store(store: &Store) -> Option<(Severity, String)> {
    if store.up {
        return None;
    }
    let reason = store.resting_because.as_deref().unwrap_or("store_down");
    let (meaning, fix) = (reasons::meaning(reason), reasons::fix(reason));
    Some((Severity::Critical, format!("No claims in the store: {meaning}. {fix}")))
}

fn certificate(certificate: &Certificate, now: Moment) -> Option<(Severity, String)> {
    let site = &certificate.site;
    let failed = certificate.last_error.as_ref().map(|failure| {
        let (count, when) = (failure.in_a_row, ago(now, failure.at));
        let failures = match count {
            1 => "1 order failed".to_owned(),
            _ => format!("{count} orders failed"),
        };
        format!("{failures}, the last {when}: {}", failure.reason)
    });
    let Some(expires_at) = certificate.expires_at else {
        let why = failed.unwrap_or_else(|| "An order is in progress.".to_owned());
        let line =
            format!("{site} has no certificate yet; clients get one that they do not trust. {why}");
        return certificate.missing.then_some((Severity::Critical, line));
    };
    let when = until(now, expires_at);
    match (expires_at.0 - now.0, failed) {
        (..=0, why) => {
            let line =
                format!("The certificate of {site} expired {when}. {}", why.unwrap_or_default());
            Some((Severity::Critical, line.trim_end().to_owned()))
        }
        (_, Some(why)) => Some((
            Severity::Warning,
            format!("The certificate of {site}, which expires {when}, is not renewed. {why}"),
        )),
        // Certificates from an authority are renewed in time, however short their lifetime is.
        (1..EXPIRY_WARNING_SECS, None) if certificate.source == "files" => {
            Some((Severity::Warning, format!("The certificate of {site} expires {when}.")))
        }
        _ => None,
    }
}

fn register(register: &Register) -> Option<(Severity, String)> {
    let (records, capacity) = (number(register.records), number(register.capacity));
    let full = register.capacity > 0 && register.records * 10 >= register.capacity * 9;
    full.then(|| {
        let line = format!(
            "The strike register is nearly full ({records} of {capacity}): raise \
             early_data.register_capacity."
        );
        (Severity::Warning, line)
    })
}

/// Two weeks: certificates of 90 days are usually renewed earlier.
const EXPIRY_WARNING_SECS: i64 = 14 * 86_400;
