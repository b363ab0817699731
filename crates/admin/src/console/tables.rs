//! The tables of the console: refusals, latencies, requests, replays, keys, register, server.

use std::sync::LazyLock;

use maud::{Markup, html};

use super::chart;
use super::overview::NONE;
use crate::answers::count_replays;
use crate::format::{ago, length, number, percent, time, until};
use crate::reasons;
use crate::status::{
    Certificate, KeyState, Kind, Moment, Percentiles, PuncturedTickets, Replay, Status, Store,
    Window,
};

/// Why early data was refused or held, in the last minute, five minutes and hour.
pub(super) fn refusals(status: &Status) -> Markup {
    let [minute, five, hour] = windows(status);
    let mut reasons: Vec<&str> = Vec::new();
    for reason in [hour, five, minute].iter().flat_map(|window| &window.refused) {
        if !reasons.contains(&reason.reason.as_str()) {
            reasons.push(&reason.reason);
        }
    }
    let refused = |window: &Window, name: &str| -> u64 {
        let found = window.refused.iter().find(|reason| reason.reason == name);
        found.map_or(0, |reason| reason.count)
    };
    let all = [minute, five, hour];
    // Copies of flights are not clients.
    let client_offers = hour.offered.saturating_sub(count_replays(hour));
    let all_refused = hour.refused.iter().map(|reason| reason.count).sum();
    let body = html! {
        table {
            thead {
                tr {
                    th scope="col" { "Early data" }
                    th.n scope="col" { "1 min" }
                    th.n scope="col" { "5 min" }
                    th.n scope="col" { "1 h" }
                    th.bar scope="col" { "Share of 1 h" }
                }
            }
            tbody {
                tr.strong {
                    th scope="row" { "offered" }
                    @for window in all { td.n { (number(window.offered)) } }
                    td.bar {}
                }
                tr.strong {
                    th scope="row" { "accepted" }
                    @for window in all {
                        td.n { (number(window.accepted)) }
                    }
                    td.bar { @if client_offers > 0 { (percent(hour.accepted, client_offers)) } }
                }
                @for name in &reasons {
                    tr {
                        th scope="row" {
                            (reasons::title(name))
                            span.sub { (fix(name)) }
                        }
                        @for window in all { td.n { (number(refused(window, name))) } }
                        td.bar {
                            @let class = if reasons::is_replay(name) { "replay" } else { "refused" };
                            (chart::share(refused(hour, name), all_refused, class))
                        }
                    }
                }
            }
        }
        @if hour.held.iter().any(|reason| reason.count > 0) {
            p.note {
                "Early requests held for the handshake in the last hour: "
                @for (at, reason) in hour.held.iter().enumerate() {
                    @if at > 0 { ", " }
                    (number(reason.count)) " by " (reasons::title(&reason.reason))
                }
                "."
            }
        }
    };
    section("refusals", "Early data and refusals", body)
}

/// What happened to requests in the last minute, five minutes and hour.
pub(super) fn requests(status: &Status) -> Markup {
    let rows = windows(status).map(|window| window.totals.rows());
    let [names, ..] = &rows;
    let body = html! {
        table {
            thead {
                tr {
                    th scope="col" { "Requests" }
                    th.n scope="col" { "1 min" }
                    th.n scope="col" { "5 min" }
                    th.n scope="col" { "1 h" }
                }
            }
            tbody {
                @for (at, (name, _)) in names.iter().enumerate() {
                    tr {
                        th scope="row" { (name) }
                        @for window in &rows { td.n { (number(window[at].1)) } }
                    }
                }
            }
        }
    };
    section("request-counts", "Requests", body)
}

/// Connections by kind and transport, with the latency of their first responses.
pub(super) fn kinds(status: &Status) -> Markup {
    let [_, five, _] = windows(status);
    let rows: Vec<_> = five.kinds.iter().filter(|kind| kind.connections > 0).collect();
    let body = html! {
        @if rows.is_empty() {
            p.nothing { "No connections in the last 5 minutes." }
        } @else {
            table {
                thead {
                    tr {
                        th scope="col" { "Kind" }
                        th.n scope="col" { "Connections" }
                        th.n scope="col" { "p50" }
                        th.n.spare scope="col" { "p90" }
                        th.n scope="col" { "p99" }
                        th.bar scope="col" { span.hidden { "Spread" } }
                    }
                }
                tbody { @for kind in &rows { (kind_row(kind)) } }
            }
            p.note {
                "From the start of a connection to the head of its first response, in the last 5 \
                 minutes; the bars run from p50 to p99, 0.5 ms to 10 s."
            }
        }
    };
    section("kinds", "First responses by kind", body)
}

fn kind_row(kind: &Kind) -> Markup {
    let name = match kind.kind.as_str() {
        "early" => "0-RTT",
        other => other,
    };
    let transport = if kind.transport == "quic" { "QUIC" } else { "TCP" };
    let spread = kind.first_response.as_ref();
    let figure =
        |of: fn(&Percentiles) -> f64| spread.map_or(NONE.to_owned(), |spread| time(of(spread)));
    html! {
        tr {
            th scope="row" { span.swatch.(kind.kind) {} (name) " " span.faint { (transport) } }
            td.n { (number(kind.connections)) }
            td.n { (figure(|spread| spread.p50)) }
            td.n.spare { (figure(|spread| spread.p90)) }
            td.n { (figure(|spread| spread.p99)) }
            td.bar { @if let Some(spread) = spread { (chart::spread(spread, &kind.kind)) } }
        }
    }
}

/// Flights that were received more than once.
pub(super) fn replays(status: &Status) -> Markup {
    let recent = &status.replays.recent;
    let body = html! {
        @if recent.is_empty() {
            p.nothing { "None since the start, " (ago(status.at, status.server.started_at)) "." }
        } @else {
            table {
                thead {
                    tr {
                        th scope="col" { "Last copy" }
                        th.n scope="col" { "Copies" }
                        th scope="col" { "Transport" }
                        th scope="col" { "From" }
                        th.spare scope="col" { "First copy" }
                    }
                }
                tbody { @for replay in recent.iter().take(MAX_REPLAY_ROWS) { (replay_row(replay, status.at)) } }
            }
            p.note {
                "Each row is one flight that was received more than once. It was executed at most \
                 once; all copies were stopped. Networks are /24 or /48; over UDP they may be forged."
                @if recent.len() > MAX_REPLAY_ROWS { " Only the last " (MAX_REPLAY_ROWS) " are shown." }
            }
        }
    };
    section("replays", "Replays stopped", body)
}

fn replay_row(replay: &Replay, now: Moment) -> Markup {
    html! {
        tr {
            th scope="row" { (when(now, replay.last_at)) }
            td.n { (number(replay.copies)) }
            td { (if replay.transport == "quic" { "QUIC" } else { "TCP" }) }
            td { (replay.networks.join(", ")) }
            td.spare { (when(now, replay.first_at)) }
        }
    }
}

/// The ticket keys.
pub(super) fn keys(status: &Status) -> Markup {
    let keys = &status.keys;
    let next = keys.ring.iter().find(|key| key.state == "next");
    let body = html! {
        @if let Some(tickets) = &status.punctured { (punctured(tickets)) }
        table {
            thead {
                tr {
                    th scope="col" { "Key" }
                    th scope="col" { "State" }
                    th scope="col" { "Current" }
                    th scope="col" { "Last encrypted" }
                    th scope="col" { "Last decrypted" }
                }
            }
            tbody { @for key in &keys.ring { (key_row(key, status.at)) } }
        }
        p.note {
            "Keys of " (source(&keys.source))
            @if keys.source == "punctured" { ", for TLS 1.2 and address tokens" }
            @if let Some(zone) = &keys.zone { ", zone " (zone) }
            ". A key encrypts for " (length(seconds(keys.period_seconds)))
            ", a ticket is valid for " (length(seconds(keys.lifetime_seconds))) ". "
            @match next {
                Some(next) => { "The next key becomes current " (until(status.at, next.current_from)) "." },
                None => { "There is no next key." },
            }
        }
    };
    section("keys", "Ticket keys", body)
}

/// The tickets with keys of their own.
fn punctured(tickets: &PuncturedTickets) -> Markup {
    html! {
        dl {
            dt { "Punctured tickets" }
            dd {
                (number(tickets.outstanding)) " outstanding, " (number(tickets.used)) " used, "
                (number(tickets.expired)) " expired unused"
                @if tickets.given_up > 0 {
                    ", " (number(tickets.given_up)) " given up at the limit of memory"
                }
            }
            dt { "Their keys" }
            dd { (number(tickets.key_bytes.div_ceil(1024))) " KiB" }
        }
    }
}

fn key_row(key: &KeyState, now: Moment) -> Markup {
    let used = |at: Option<Moment>| at.map_or(NONE.to_owned(), |at| ago(now, at));
    html! {
        tr.(key.state) {
            th scope="row" title=(key.name) { code { (key.name.get(..8).unwrap_or(&key.name)) } }
            td { (key.state) }
            td title=(key.current_from.text()) { (until(now, key.current_from)) }
            td { (used(key.last_sealed)) }
            td { (used(key.last_opened)) }
        }
    }
}

fn source(source: &str) -> &str {
    match source {
        "process" | "punctured" => "this process alone",
        "file" => "a file",
        "store" => "the store",
        other => other,
    }
}

/// The strike register, and the store.
pub(super) fn register(status: &Status) -> Markup {
    let register = &status.register;
    let body = html! {
        dl {
            dt { (if status.store.is_some() { "Local filter" } else { "Register" }) }
            dd {
                (number(register.records)) " of " (number(register.capacity)) " flights"
                (chart::share(register.records, register.capacity, "early"))
            }
            @match &status.store {
                Some(store) => { (store_rows(store)) },
                None => {
                    dt { "Store" }
                    dd { "none: only this process records flights" }
                }
            }
        }
    };
    section("memory", "Strike register", body)
}

fn store_rows(store: &Store) -> Markup {
    let reason = store.resting_because.as_deref().unwrap_or("store_down");
    html! {
        dt { "Store" }
        dd.(if store.up { "up" } else { "down" }) {
            @if store.up { "in use" } @else { "not in use: " (reasons::meaning(reason)) }
        }
        dt { "Claims" }
        dd {
            (number(store.won)) " won, " (number(store.lost)) " lost, " (number(store.unknown))
            " unknown"
        }
        dt { "Duration of a claim" }
        dd {
            @match &store.claim {
                Some(claim) => {
                    (time(claim.p50)) " p50, " (time(claim.p99)) " p99 in the last 5 minutes"
                },
                None => { "none in the last 5 minutes" },
            }
        }
        dt { "Connections" }
        dd { (number(store.connections)) " made since the start" }
    }
}

/// The server process and its configuration.
pub(super) fn server(status: &Status) -> Markup {
    let server = &status.server;
    let body = html! {
        dl {
            dt { "State" }
            dd.(if server.ready { "up" } else { "down" }) {
                @match &server.not_ready_because {
                    Some(why) if !server.ready => { "not ready: " (why) },
                    _ => { "ready" },
                }
            }
            dt { "Addresses" }
            dd { (server.addresses.join(", ")) }
            dt { "Running for" }
            dd title=(server.started_at.text()) { (length(status.at.0 - server.started_at.0)) }
            dt { "Configuration" }
            dd {
                "number " (number(server.generation)) ", loaded "
                (when(status.at, server.loaded_at))
            }
            dt { "Version" }
            dd { (server.version) ", process " (server.pid) }
        }
    };
    section("server", "Server", body)
}

/// The servers of the upstreams.
pub(super) fn upstreams(status: &Status) -> Markup {
    if status.upstreams.is_empty() {
        return html! {};
    }
    let body = html! {
        table {
            thead {
                tr {
                    th scope="col" { "Upstream" }
                    th scope="col" { "Server" }
                    th scope="col" { "State" }
                    th.n scope="col" { "Requests" }
                    th.n scope="col" { "Failures" }
                }
            }
            tbody {
                @for upstream in &status.upstreams {
                    tr {
                        th scope="row" { (upstream.pool) }
                        td { (upstream.server) }
                        td.(if upstream.up { "up" } else { "down" }) {
                            (if upstream.up { "up" } else { "down" })
                        }
                        td.n { (number(upstream.requests)) }
                        td.n { (number(upstream.failures)) }
                    }
                }
            }
        }
    };
    section("upstreams", "Upstreams", body)
}

/// The certificates of the sites.
pub(super) fn certificates(status: &Status) -> Markup {
    let body = html! {
        @if status.certificates.is_empty() {
            p.nothing { "None." }
        } @else {
            dl {
                @for certificate in &status.certificates {
                    dt { (certificate.site) }
                    dd { (certificate_state(certificate, status.at)) }
                }
            }
        }
    };
    section("certificates", "Certificates", body)
}

fn certificate_state(certificate: &Certificate, now: Moment) -> Markup {
    html! {
        @match certificate.expires_at {
            Some(at) => {
                (if at > now { "expires " } else { "expired " })
                time datetime=(at.text()) title=(at.text()) { (until(now, at)) }
            }
            None => { "none yet" }
        }
        @if certificate.source == "acme" {
            @match certificate.next_try_at {
                Some(at) => { span.faint title=(at.text()) { " ACME, next order " (until(now, at)) } }
                None => { span.faint { " ACME, order in progress" } }
            }
        } @else {
            span.faint { " " (certificate.source) }
        }
    }
}

fn section(id: &str, title: &str, body: Markup) -> Markup {
    let heading = format!("{id}-h");
    html! {
        section id=(id) aria-labelledby=(heading) {
            h2 id=(heading) { (title) }
            // Wide tables scroll independently, also by keyboard.
            div.scroll tabindex="0" role="group" aria-labelledby=(heading) { (body) }
        }
    }
}

/// How long ago something was, with the exact time as a tooltip.
fn when(now: Moment, then: Moment) -> Markup {
    html! { time datetime=(then.text()) title=(then.text()) { (ago(now, then)) } }
}

/// What to do about a reason, with text in backticks as code.
fn fix(reason: &str) -> Markup {
    html! {
        @for (at, part) in reasons::fix(reason).split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn windows(status: &Status) -> [&Window; 3] {
    [0, 1, 2].map(|at| status.windows.get(at).unwrap_or(&NO_WINDOW))
}

fn seconds(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

static NO_WINDOW: LazyLock<Window> = LazyLock::new(Window::default);

/// Limits the rows of the table of replays.
const MAX_REPLAY_ROWS: usize = 12;
