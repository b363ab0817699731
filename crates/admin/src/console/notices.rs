//! What somebody should look at: one line each, and nothing where all is well.

use maud::{Markup, html};

use super::figures::{ago, number, until};
use super::overview::sign;
use crate::reasons;
use crate::status::{Certificate, Moment, Mood, Register, ServerState, Status, Store};

/// The lines, if there are any.
pub(super) fn list(status: &Status) -> Markup {
    let lines = lines(status);
    html! {
        @if !lines.is_empty() {
            section #notices aria-label="To look at" {
                ul {
                    @for (mood, line) in lines {
                        @let (class, sign) = sign(mood);
                        li.(class) { span.sign aria-hidden="true" { (sign) } span { (line) } }
                    }
                }
            }
        }
    }
}

fn lines(status: &Status) -> Vec<(Mood, String)> {
    let mut lines = Vec::new();
    lines.extend(readiness(&status.server));
    lines.extend(reload(&status.server, status.at));
    lines.extend(status.store.as_ref().and_then(store));
    for upstream in status.upstreams.iter().filter(|upstream| !upstream.up) {
        let line = format!(
            "{} of upstream {} gets no requests: it fails.",
            upstream.server, upstream.pool
        );
        lines.push((Mood::Bad, line));
    }
    lines.extend(status.certificates.iter().filter_map(|one| certificate(one, status.at)));
    lines.extend(register(&status.register));
    lines.extend(status.keys.warnings.iter().map(|warning| (Mood::Look, warning.clone())));
    lines
}

fn readiness(server: &ServerState) -> Option<(Mood, String)> {
    let why = server.not_ready_because.as_ref().filter(|_| !server.ready)?;
    Some((Mood::Bad, format!("Not ready for new connections: {why}.")))
}

fn reload(server: &ServerState, now: Moment) -> Option<(Mood, String)> {
    let reload = server.last_reload.as_ref()?;
    let (when, error) = (ago(now, reload.at), reload.error.as_ref()?);
    let line =
        format!("Reload failed {when}; configuration {} serves on: {error}", server.generation);
    Some((Mood::Bad, line))
}

fn store(store: &Store) -> Option<(Mood, String)> {
    if store.up {
        return None;
    }
    let reason = store.resting_because.as_deref().unwrap_or("store_down");
    let (meaning, mend) = (reasons::meaning(reason), reasons::mend(reason));
    Some((Mood::Bad, format!("No claims in the store: {meaning}. {mend}")))
}

fn certificate(certificate: &Certificate, now: Moment) -> Option<(Mood, String)> {
    let site = &certificate.site;
    let failed = certificate.last_error.as_ref().map(|failure| {
        let (count, when) = (failure.in_a_row, ago(now, failure.at));
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        format!("The authority was asked {times}, {when} last: {}", failure.reason)
    });
    let Some(expires_at) = certificate.expires_at else {
        let why = failed.unwrap_or_else(|| "The authority is asked.".to_owned());
        let line =
            format!("{site} has no certificate yet, and no client trusts what it shows. {why}");
        return certificate.missing.then_some((Mood::Bad, line));
    };
    let when = until(now, expires_at);
    match (expires_at.0 - now.0, failed) {
        (..=0, why) => {
            let line =
                format!("The certificate of {site} expired {when}. {}", why.unwrap_or_default());
            Some((Mood::Bad, line.trim_end().to_owned()))
        }
        (_, Some(why)) => Some((
            Mood::Look,
            format!("The certificate of {site}, which expires {when}, is not renewed. {why}"),
        )),
        // The others are renewed in time, however short their life is.
        (1..SOON, None) if certificate.source == "files" => {
            Some((Mood::Look, format!("The certificate of {site} expires {when}.")))
        }
        _ => None,
    }
}

fn register(register: &Register) -> Option<(Mood, String)> {
    let (records, capacity) = (number(register.records), number(register.capacity));
    let full = register.capacity > 0 && register.records * 10 >= register.capacity * 9;
    full.then(|| {
        let line = format!(
            "The strike register is nearly full ({records} of {capacity}): raise \
             early_data.register_capacity."
        );
        (Mood::Look, line)
    })
}

/// Two weeks, in seconds: certificates of 90 days are renewed before.
const SOON: i64 = 14 * 86_400;
