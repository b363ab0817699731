//! What is sent a second time.

use http::{header, request};

/// How a try failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection.
    Connect,
    /// A kept connection ended before anything of a response came: most likely the server closed it
    /// while the request was on its way, which says nothing of the server.
    Stale,
    /// A new connection ended before a response, or what came on it is none.
    Broken,
    /// The server says that it has not processed the request (RFC 9113 section 8.7).
    Refused,
    /// No response in time.
    Timeout,
    /// By the client, who did not send the rest.
    Client,
}

/// On what terms a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryTerms {
    /// No.
    No,
    /// At once, to any server, over a new connection.
    Fresh,
    /// To another server, if the budget has it.
    Elsewhere,
}

/// Whether a request can be sent again though it may have been executed: only a safe one (RFC 9110
/// section 9.2.1), and without a body nothing of it has to be kept for that.
pub(crate) fn is_repeatable(head: &request::Parts, empty: bool) -> bool {
    // An upgrade is the start of a conversation.
    empty && head.method.is_safe() && !head.headers.contains_key(header::UPGRADE)
}

/// `unsent`: certainly no byte of the request was sent, and it is whole. `repeatable`: see
/// [`is_repeatable`]; then a second one can be made. `tries` of `most` have failed, those on stale
/// connections apart, and `stale` says whether there was one of these before.
pub(crate) fn again(
    failure: Failure,
    unsent: bool,
    repeatable: bool,
    tries: u32,
    most: u32,
    stale: bool,
) -> RetryTerms {
    let elsewhere = if tries < most { RetryTerms::Elsewhere } else { RetryTerms::No };
    match failure {
        _ if !unsent && !repeatable => RetryTerms::No,
        Failure::Stale if most > 1 && !stale => RetryTerms::Fresh,
        Failure::Stale | Failure::Connect | Failure::Refused | Failure::Broken => elsewhere,
        // The client has waited long enough, and the request may be what is slow.
        Failure::Timeout | Failure::Client => RetryTerms::No,
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
            ("GET", true),
            ("HEAD", true),
            ("OPTIONS", true),
            ("POST", false),
            ("PUT", false),
            ("DELETE", false),
            ("PATCH", false),
            ("BREW", false),
        ] {
            assert_eq!(is_repeatable(&head(method, false), true), repeatable, "{method}");
            assert!(!is_repeatable(&head(method, false), false), "{method}");
        }
        assert!(!is_repeatable(&head("GET", true), true));
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
            tries in 0u32..4,
            stale: bool,
        ) {
            prop_assert_eq!(again(failure, false, false, tries, 3, stale), RetryTerms::No);
        }

        #[test]
        fn the_tries_have_an_end(failures in prop::collection::vec((failure(), any::<bool>()), 50)) {
            let (mut tries, mut stale) = (0, false);
            let sent = failures
                .into_iter()
                .take_while(|(failure, unsent)| {
                    tries += u32::from(*failure != Failure::Stale || stale);
                    let again = again(*failure, *unsent, true, tries, 3, stale);
                    stale |= *failure == Failure::Stale;
                    again != RetryTerms::No
                })
                .count();
            prop_assert!(sent <= 3);
        }
    }
}
