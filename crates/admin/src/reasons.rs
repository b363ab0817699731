//! Explains the reasons of the metrics: title, meaning, and what to do.

use firstflight_telemetry::metrics::RefusedReason;

/// The texts for one reason.
struct ReasonText {
    name: &'static str,
    title: &'static str,
    /// Completes a sentence after "because".
    meaning: &'static str,
    fix: &'static str,
}

/// The title for tables.
pub(crate) fn title(reason: &str) -> String {
    find(reason).map_or_else(|| reason.replace('_', " "), |text| text.title.to_owned())
}

/// The meaning, as the end of a sentence after "because".
pub(crate) fn meaning(reason: &str) -> String {
    find(reason).map_or_else(|| reason.replace('_', " "), |text| text.meaning.to_owned())
}

/// What to do about it. Empty for some reasons.
pub(crate) fn fix(reason: &str) -> &'static str {
    find(reason).map_or("", |text| text.fix)
}

/// Whether the flight was a copy.
pub(crate) fn is_replay(reason: &str) -> bool {
    REPLAYS.iter().any(|replay| replay.name() == reason)
}

/// The reasons for which copies of flights are refused.
pub(crate) const REPLAYS: [RefusedReason; 2] =
    [RefusedReason::Replayed, RefusedReason::RefusedBefore];

fn find(reason: &str) -> Option<&'static ReasonText> {
    REASONS.iter().find(|text| text.name == reason)
}

const fn entry(
    name: &'static str,
    title: &'static str,
    meaning: &'static str,
    fix: &'static str,
) -> ReasonText {
    ReasonText { name, title, meaning, fix }
}

const REASONS: [ReasonText; 30] = [
    entry("disabled", "disabled", "the configuration disables it", ""),
    entry(
        "replayed",
        "replayed",
        "the flight was received before",
        "Somebody replays flights. Nothing was executed twice; see the table of replays.",
    ),
    entry(
        "refused_before",
        "replayed, refused before",
        "the flight was received before, and refused",
        "Somebody replays flights. Nothing was executed twice.",
    ),
    entry("handed_over", "upgrade", "the process is being replaced", "Ends with the old process."),
    entry(
        "age",
        "ticket age",
        "the ticket age stated by the client was too far off",
        "Delays on the path, or clocks that differ; `early_data.freshness` is the limit.",
    ),
    entry(
        "ticket_epoch",
        "earlier ticket",
        "the ticket was issued before a restart, a clock step or an overflow",
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
        "Clients move between zones. They resume without 0-RTT.",
    ),
    entry(
        "store_timeout",
        "store too slow",
        "the store did not reply within its budget",
        "Check the claim times of the store; `store.budget` is the limit.",
    ),
    entry(
        "store_down",
        "store unreachable",
        "there is no connection to the store",
        "Check the store. Everything except 0-RTT works meanwhile.",
    ),
    entry("store_refused", "store error", "the store replied with an error", "See the log."),
    entry(
        "store_unreplicated",
        "store not replicated",
        "too few replicas had the claim",
        "Check the replicas of the store.",
    ),
    entry(
        "store_window",
        "store just started",
        "the store may have lost claims",
        "It was restarted or emptied. Ends by itself in a few minutes.",
    ),
    entry(
        "store_clock",
        "store clock",
        "the clocks of node and store are too far apart",
        "Synchronize the clocks.",
    ),
    entry(
        "store_evicting",
        "store may evict",
        "the store may drop claims when its memory is full",
        "Set the store's `maxmemory-policy` to `noeviction`.",
    ),
    entry("unseen", "flight not captured", "the first packets were not captured in time", ""),
    entry(
        "session_not_resumed",
        "session expired",
        "the session or its ticket key has expired",
        "If frequent, check that all nodes share their ticket keys.",
    ),
    entry(
        "ticket_used",
        "ticket used before",
        "the ticket was used before",
        "Clients that use a ticket twice; `keys = \"process\"` in [tickets] lets them.",
    ),
    entry("no_session_offered", "no session", "early data was offered without a session", ""),
    entry(
        "unsupported_for_session",
        "ticket without 0-RTT",
        "the ticket was issued without early data",
        "The ticket is from before 0-RTT was enabled. Ends as tickets expire.",
    ),
    entry(
        "hello_retry_request",
        "other key share",
        "another key share had to be requested",
        "Allow the group that clients offer first: `tls.groups`.",
    ),
    entry(
        "alpn_mismatch",
        "other protocol",
        "the application protocol differs from the session",
        "",
    ),
    entry(
        "ticket_age_skew",
        "ticket age, by TLS",
        "the ticket age stated by the client was off by more than 60 s",
        "Clocks of clients, or delayed flights.",
    ),
    entry(
        "quic_parameters",
        "other QUIC limits",
        "the session was issued under other QUIC settings",
        "The limits were changed. Ends as tickets are renewed.",
    ),
    entry("protocol_version", "older TLS", "the negotiated version has no early data", ""),
    entry("peer_declined", "declined", "the peer declined", ""),
    entry("other", "other", "the TLS library refused it", ""),
    entry(
        "policy",
        "policy",
        "the policy of the route forbids early execution",
        "Change the policy of routes whose requests are safe to replay.",
    ),
    entry(
        "unrecorded",
        "not recorded yet",
        "early data was refused, and the store has no record of the flight",
        "Check the store: requests wait for it, or until no copy of their flight is fresh.",
    ),
    entry("unknown", "unknown", "the handshake failed before the reason was known", ""),
];

#[cfg(test)]
mod tests {
    use firstflight_telemetry::metrics::HeldReason;

    use super::*;

    #[test]
    fn every_reason_of_the_metrics_is_explained() {
        let refused = RefusedReason::ALL.iter().map(|reason| reason.name());
        for reason in refused.chain(HeldReason::ALL.iter().map(|reason| reason.name())) {
            assert!(find(reason).is_some(), "{reason}");
        }
        assert_eq!(title("some_thing"), "some thing");
    }
}
