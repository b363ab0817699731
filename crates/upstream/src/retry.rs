//! Decides whether a failed request is sent again, and limits how many are.

use http::{header, request};

use crate::RetryRule;

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection.
    Connect,
    /// A reused connection ended before any byte of a response: most likely the server closed the
    /// idle connection while the request was on its way. The server may be healthy.
    Stale,
    /// A new connection ended before a response, or the response is invalid.
    Broken,
    /// The server reports that it has not processed the request (RFC 9113 section 8.7).
    Refused,
    /// No response in time.
    Timeout,
    /// The client did not send the rest of its request.
    Client,
}

/// Whether and where to send a request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// Do not retry.
    No,
    /// Retry at once, over a new connection, on any server on which the request has not failed yet, or
    /// on the only one.
    Fresh,
    /// Retry on another server, if the budget allows.
    Elsewhere,
}

/// When a request can be sent again although bytes of it were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeatable {
    /// Never: it has a body, which is not buffered, or starts a tunnel.
    Never,
    /// If the server has certainly not processed it.
    Unprocessed,
    /// Even if it may have been executed: its method is safe (RFC 9110 section 9.2.1), and nothing
    /// else says that it must run only once.
    Always,
}

impl Repeatable {
    /// `empty`: the request has no body. `once`: it must not run twice.
    pub(crate) fn of(head: &request::Parts, empty: bool, once: bool) -> Self {
        match head.method.is_safe() && !once {
            _ if !empty || head.headers.contains_key(header::UPGRADE) => Self::Never,
            true => Self::Always,
            false => Self::Unprocessed,
        }
    }

    fn allows(self, failure: Failure) -> bool {
        match self {
            Self::Never => false,
            Self::Unprocessed => failure == Failure::Refused,
            Self::Always => true,
        }
    }
}

/// Decides about a retry. `unsent`: certainly no byte of the request was sent. `attempts` of
/// `max_attempts` have failed, not counting stale connections; `stale`: whether there was a stale
/// connection before.
pub(crate) fn decide(
    failure: Failure,
    unsent: bool,
    repeatable: Repeatable,
    attempts: u32,
    max_attempts: u32,
    stale: bool,
) -> RetryDecision {
    let elsewhere =
        if attempts < max_attempts { RetryDecision::Elsewhere } else { RetryDecision::No };
    match failure {
        _ if !unsent && !repeatable.allows(failure) => RetryDecision::No,
        Failure::Stale if max_attempts > 1 && !stale => RetryDecision::Fresh,
        Failure::Stale | Failure::Connect | Failure::Refused | Failure::Broken => elsewhere,
        // The client has waited long enough, and the request itself may be slow.
        Failure::Timeout | Failure::Client => RetryDecision::No,
    }
}

/// Limits retries to a share of the requests plus a burst, so that a failing pool does not get a
/// multiple of its load.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    percent: u64,
    max: u64,
    /// In hundredths of a retry.
    available: u64,
}

impl Budget {
    /// Full at the start.
    pub(crate) fn new(rule: &RetryRule) -> Self {
        let max = u64::from(rule.burst) * 100;
        Self { percent: rule.percent.into(), max, available: max }
    }

    /// Adds the share of a new request.
    pub(crate) fn deposit(&mut self) {
        self.available = (self.available + self.percent).min(self.max);
    }

    /// Takes a retry out of the budget; returns whether there was one.
    pub(crate) fn withdraw(&mut self) -> bool {
        match self.available.checked_sub(100) {
            Some(available) => {
                self.available = available;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc9110_9_2_2_only_safe_requests_without_body_are_repeated() {
        let head = |method: &str, upgrade: bool| {
            let mut request = Request::builder().method(method);
            if upgrade {
                request = request.header("upgrade", "websocket");
            }
            request.body(()).unwrap().into_parts().0
        };
        for (method, repeatable) in [
            ("GET", Repeatable::Always),
            ("HEAD", Repeatable::Always),
            ("OPTIONS", Repeatable::Always),
            ("POST", Repeatable::Unprocessed),
            ("PUT", Repeatable::Unprocessed),
            ("DELETE", Repeatable::Unprocessed),
            ("PATCH", Repeatable::Unprocessed),
            ("BREW", Repeatable::Unprocessed),
        ] {
            let of = |upgrade, empty, once| Repeatable::of(&head(method, upgrade), empty, once);
            assert_eq!(of(false, true, false), repeatable, "{method}");
            assert_eq!(of(false, true, true), Repeatable::Unprocessed, "{method}");
            assert_eq!(of(false, false, false), Repeatable::Never, "{method}");
            assert_eq!(of(true, true, false), Repeatable::Never, "{method}");
        }
    }

    fn failure() -> impl Strategy<Value = Failure> {
        prop::sample::select(vec![
            Failure::Connect,
            Failure::Stale,
            Failure::Broken,
            Failure::Refused,
            Failure::Timeout,
            Failure::Client,
        ])
    }

    proptest! {
        #[test]
        fn nothing_that_may_have_been_executed_is_repeated_unless_it_is_safe(
            failure in failure(),
            attempts in 0u32..4,
            stale: bool,
        ) {
            let decision = |repeatable| decide(failure, false, repeatable, attempts, 3, stale);
            prop_assert_eq!(decision(Repeatable::Never), RetryDecision::No);
            if failure != Failure::Refused {
                prop_assert_eq!(decision(Repeatable::Unprocessed), RetryDecision::No);
            }
        }

        #[test]
        fn rfc9113_8_7_unprocessed_requests_are_repeated(
            safe: bool,
            attempts in 1u32..3,
            stale: bool,
        ) {
            let repeatable = if safe { Repeatable::Always } else { Repeatable::Unprocessed };
            let decision = decide(Failure::Refused, false, repeatable, attempts, 3, stale);
            prop_assert_eq!(decision, RetryDecision::Elsewhere);
        }

        #[test]
        fn the_number_of_attempts_is_limited(
            failures in prop::collection::vec((failure(), any::<bool>()), 50),
        ) {
            let (mut attempts, mut stale) = (0, false);
            let sent = failures
                .into_iter()
                .take_while(|(failure, unsent)| {
                    attempts += u32::from(*failure != Failure::Stale || stale);
                    let repeatable = Repeatable::Always;
                    let decision = decide(*failure, *unsent, repeatable, attempts, 3, stale);
                    stale |= *failure == Failure::Stale;
                    decision != RetryDecision::No
                })
                .count();
            prop_assert!(sent <= 3);
        }
    }

    proptest! {
        #[test]
        fn retries_never_exceed_the_burst_and_the_share(
            events in prop::collection::vec(any::<bool>(), 0..2000),
            percent in 0u32..100,
            burst in 0u32..50,
        ) {
            let mut budget = Budget::new(&RetryRule { tries: 2, percent, burst });
            let (mut requests, mut retries) = (0u64, 0u64);
            for request in events {
                if request {
                    budget.deposit();
                    requests += 1;
                } else if budget.withdraw() {
                    retries += 1;
                }
                prop_assert!(retries * 100 <= u64::from(burst) * 100 + requests * u64::from(percent));
            }
        }
    }

    #[test]
    fn requests_refill_the_budget() {
        let mut budget = Budget::new(&RetryRule { tries: 2, percent: 20, burst: 1 });
        assert!(budget.withdraw());
        (0..4).for_each(|_| budget.deposit());
        assert!(!budget.withdraw());
        budget.deposit();
        assert!(budget.withdraw());
    }
}
