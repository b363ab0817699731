//! The metrics' reasons in an operator's words: what it is called, what it means, what to do.

use firstflight_telemetry::metrics::RefusedReason;

/// What is said of a reason.
struct ReasonText {
    name: &'static str,
    title: &'static str,
    /// Goes on from "because".
    meaning: &'static str,
    mend: &'static str,
}

/// What a reason is called in a table.
pub(crate) fn title(reason: &str) -> String {
    words(reason).map_or_else(|| reason.replace('_', " "), |words| words.title.to_owned())
}

/// What it means, as the end of a sentence.
pub(crate) fn meaning(reason: &str) -> String {
    words(reason).map_or_else(|| reason.replace('_', " "), |words| words.meaning.to_owned())
}

/// What to do about it; nothing for some.
pub(crate) fn mend(reason: &str) -> &'static str {
    words(reason).map_or("", |words| words.mend)
}

/// Whether it is somebody sending a flight a second time, and no client that lost something.
pub(crate) fn is_replay(reason: &str) -> bool {
    REPLAYS.iter().any(|replay| replay.name() == reason)
}

/// The reasons that a flight is sent a second time for.
pub(crate) const REPLAYS: [RefusedReason; 2] =
    [RefusedReason::Replayed, RefusedReason::RefusedBefore];

fn words(reason: &str) -> Option<&'static ReasonText> {
    WORDS.iter().find(|words| words.name == reason)
}

const fn entry(
    name: &'static str,
    title: &'static str,
    meaning: &'static str,
    mend: &'static str,
) -> ReasonText {
    ReasonText { name, title, meaning, mend }
}

const WORDS: [ReasonText; 29] = [
    entry("disabled", "switched off", "the configuration switches it off", ""),
    entry(
        "replayed",
        "replayed",
        "the flight had come before",
        "Somebody sends flights again. Nothing ran twice; see the table of replays.",
    ),
    entry(
        "refused_before",
        "replayed, refused before",
        "the flight had come before, and was refused",
        "Somebody sends flights again. Nothing ran twice.",
    ),
    entry(
        "handed_over",
        "upgrade",
        "the process is being replaced",
        "It ends by itself, with the old process.",
    ),
    entry(
        "age",
        "ticket age",
        "the ticket's stated age was too far off",
        "Detours on the way, or clocks that run apart: `early_data.freshness` is the bound.",
    ),
    entry(
        "ticket_epoch",
        "earlier ticket",
        "the ticket was issued before a start, a step of the clock or an overflow",
        "Each client gets a new ticket with that connection. An upgrade by SIGUSR2 avoids it.",
    ),
    entry(
        "register_full",
        "register full",
        "the strike register is nearly full",
        "Raise `early_data.register_capacity`.",
    ),
    entry(
        "zone",
        "another zone",
        "the ticket was issued in another zone",
        "Clients move between zones. They resume, without 0-RTT.",
    ),
    entry(
        "store_timeout",
        "store too slow",
        "the store did not answer within its budget",
        "Look at the store's claim times; `store.budget` is the bound.",
    ),
    entry(
        "store_down",
        "store away",
        "there is no connection to the store",
        "Look after the store. All but 0-RTT works meanwhile.",
    ),
    entry("store_refused", "store error", "the store answered with an error", "See the log."),
    entry(
        "store_unreplicated",
        "store not replicated",
        "too few replicas had the claim",
        "Look after the store's replicas.",
    ),
    entry(
        "store_window",
        "store just started",
        "the store may have forgotten claims",
        "It was restarted or emptied. It ends by itself, in a few minutes.",
    ),
    entry(
        "store_clock",
        "store clock",
        "the clocks of node and store are too far apart",
        "Set the clocks.",
    ),
    entry(
        "store_evicting",
        "store may forget",
        "the store may drop claims when its memory is full",
        "Set the store's `maxmemory-policy` to `noeviction`.",
    ),
    entry("unseen", "flight not seen", "the first packets were not seen in time", ""),
    entry(
        "session_not_resumed",
        "session gone",
        "the session is gone: its key was rotated out, or it has expired",
        "Many of these: do all nodes share their ticket keys?",
    ),
    entry("no_session_offered", "no session", "it was offered without a session", ""),
    entry(
        "unsupported_for_session",
        "ticket without 0-RTT",
        "the ticket was issued without early data",
        "Tickets from before 0-RTT was switched on. They expire.",
    ),
    entry(
        "hello_retry_request",
        "other key share",
        "another key share had to be asked for",
        "Allow the group that clients offer first: `tls.groups`.",
    ),
    entry("alpn_mismatch", "other protocol", "the application protocol is not the session's", ""),
    entry(
        "ticket_age_skew",
        "ticket age, by TLS",
        "the ticket's stated age was off by more than 60 s",
        "Clients' clocks, or flights that were held back.",
    ),
    entry(
        "quic_parameters",
        "other QUIC limits",
        "the session was issued under other QUIC settings",
        "After a change of limits. It ends as tickets are renewed.",
    ),
    entry("protocol_version", "older TLS", "the negotiated version has no early data", ""),
    entry("peer_declined", "declined", "the other side declined", ""),
    entry("other", "other", "the library said no", ""),
    entry(
        "policy",
        "policy",
        "the route's policy does not let it run early",
        "Your routes' own rule: let more run early if their answers allow it.",
    ),
    entry(
        "unrecorded",
        "not recorded yet",
        "early data was refused, and the store has no record of the flight",
        "Look at the store: requests wait for it, or until no copy of their flight is fresh.",
    ),
    entry("unknown", "unknown", "the handshake broke off before it was known", ""),
];

#[cfg(test)]
mod tests {
    use firstflight_telemetry::metrics::HeldReason;

    use super::*;

    #[test]
    fn every_reason_of_the_metrics_has_words() {
        let refused = RefusedReason::ALL.iter().map(|reason| reason.name());
        for reason in refused.chain(HeldReason::ALL.iter().map(|reason| reason.name())) {
            assert!(words(reason).is_some(), "{reason}");
        }
        assert_eq!(title("some_thing"), "some thing");
    }
}
