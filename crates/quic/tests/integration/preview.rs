//! A preview agrees with the connection that follows.

use std::sync::{Arc, Mutex};

use firstflight_quic::{FirstFlightPreview, Handshake, Remembered, ServerCrypto};
use firstflight_tls::{EarlyData, KeyLogLines, OpenedTicket};
use proptest::prelude::*;

use crate::support::sessions::{Peers, client_hello, server};
use crate::support::{Opens, Setup, resuming};

fn early_data(preview: FirstFlightPreview) -> Option<Handshake> {
    match preview {
        FirstFlightPreview::EarlyData(facts) => Some(*facts),
        FirstFlightPreview::Nothing => None,
        FirstFlightPreview::NeedsSession(_) => panic!("the session is in the ticket"),
    }
}

/// The facts that a judge gets when this ClientHello arrives, or `None` if it is not called.
fn judged(crypto: &Arc<ServerCrypto>, hello: &[u8]) -> Option<Handshake> {
    let judged = Arc::new(Mutex::new(None));
    let judge_output = Arc::clone(&judged);
    let judge = Box::new(move |facts: &Handshake| {
        *judge_output.lock().unwrap() = Some(facts.clone());
        true
    });
    let mut server = server(crypto.for_connection(judge, None));
    let _ = server.read(hello);
    judged.lock().unwrap().take()
}

fn remembered(setup: &Setup) -> Remembered {
    let mut peers = Peers::new(setup, Remembered::default(), true);
    peers.complete();
    resuming(peers.inbox.take_resumptions().pop().expect("a ticket"))
}

#[test]
fn a_preview_has_the_facts_of_the_connection() {
    let log = Arc::new(KeyLogLines::default());
    let setup = Setup { server_log: Some(log.clone()), ..Setup::default() };
    let mut remembered = remembered(&setup);
    let resumption = remembered.resumption.as_mut().unwrap();
    // A client states a ticket age one second below its own calculation.
    resumption.session = resumption.session.issued_earlier(11).unwrap();
    let hello = client_hello(&setup, remembered);
    // Before its first connection, and after it.
    let crypto = setup.server();
    log.take();
    let before = early_data(crypto.preview(&hello, None).unwrap()).unwrap();
    assert_eq!(log.take(), "");
    let connection = judged(&crypto, &hello).unwrap();
    let after = early_data(crypto.preview(&hello, None).unwrap()).unwrap();
    for facts in [before, after] {
        assert_eq!(facts.client_random, connection.client_random);
        assert_eq!((facts.ticket_age_skew, connection.ticket_age_skew), (10, 10));
        assert_eq!(facts.early_data, EarlyData::Accepted);
        assert_eq!(facts.server_name.as_deref(), Some("localhost"));
        assert_eq!(facts.alpn, connection.alpn);
    }
}

#[test]
fn a_preview_is_nothing_if_tls_would_not_accept_early_data() {
    let setup = Setup::default();
    let crypto = setup.server();
    let nothing = |crypto: &ServerCrypto, hello: &[u8]| {
        matches!(crypto.preview(hello, None), Ok(FirstFlightPreview::Nothing))
    };
    assert!(nothing(&crypto, &client_hello(&setup, Remembered::default())));
    let mut resumed = remembered(&setup);
    resumed.early_data = false;
    assert!(nothing(&crypto, &client_hello(&setup, resumed)));
    let hello = client_hello(&setup, remembered(&setup));
    assert!(!nothing(&crypto, &hello));
    for other in [
        Setup { sealer_key: 2, ..Setup::default() },
        Setup { opens: Opens::WithoutEarlyData, ..Setup::default() },
        Setup { early_data: false, ..Setup::default() },
        Setup { server_alpn: vec![b"other".to_vec()], ..Setup::default() },
        Setup { server_groups: Some("P-384".to_owned()), ..Setup::default() },
    ] {
        assert!(nothing(&other.server(), &hello));
    }
    let mut old = remembered(&setup);
    let resumption = old.resumption.as_mut().unwrap();
    resumption.session = resumption.session.issued_earlier(100).unwrap();
    assert!(nothing(&crypto, &client_hello(&setup, old)));
    assert!(nothing(&crypto, &[]));
}

#[test]
fn changed_limits_are_noticed_after_the_first_connection() {
    let setup = Setup::default();
    let before = setup.remembered();
    let hello = client_hello(&setup, before);
    let changed = Setup { streams: 50, ..Setup::default() };
    let mut pair = changed.pair();
    assert!(early_data(pair.crypto.preview(&hello, None).unwrap()).is_some());
    pair.connect(Remembered::default());
    assert!(early_data(pair.crypto.preview(&hello, None).unwrap()).is_none());
}

#[test]
fn a_session_that_is_not_in_the_ticket_is_requested() {
    let plain = Setup::default();
    let needs_lookup = Setup { opens: Opens::NeedsLookup, ..plain.clone() };
    let hello = client_hello(&plain, remembered(&plain));
    let session = plain.sealed.lock().unwrap().last().cloned().unwrap();
    let crypto = needs_lookup.server();
    let FirstFlightPreview::NeedsSession(key) = crypto.preview(&hello, None).unwrap() else {
        panic!("the session is not in the ticket");
    };
    assert_eq!(key, [&[1][..], &session].concat());
    let found = Some(OpenedTicket::Session(session));
    assert!(early_data(crypto.preview(&hello, found).unwrap()).is_some());
    let gone = Some(OpenedTicket::Ignored);
    assert!(early_data(crypto.preview(&hello, gone).unwrap()).is_none());
}

/// A ClientHello with early data, and the server for it; made once for all cases.
fn case() -> &'static (Vec<u8>, Arc<ServerCrypto>) {
    static CASE: std::sync::OnceLock<(Vec<u8>, Arc<ServerCrypto>)> = std::sync::OnceLock::new();
    CASE.get_or_init(|| {
        let setup = Setup::default();
        (client_hello(&setup, remembered(&setup)), setup.server())
    })
}

proptest! {
    #[test]
    fn a_preview_agrees_with_the_connection_for_any_client_hello(
        at: proptest::sample::Index,
        flip in prop_oneof![1 => Just(0_u8), 5 => any::<u8>()],
        cut in prop_oneof![5 => Just(None), 1 => any::<proptest::sample::Index>().prop_map(Some)],
    ) {
        let (hello, crypto) = case();
        let mut hello = hello.clone();
        let at = at.index(hello.len());
        hello[at] ^= flip;
        if let Some(cut) = cut {
            hello.truncate(cut.index(hello.len()));
        }
        let previewed = early_data(crypto.preview(&hello, None).unwrap());
        let judged = judged(crypto, &hello);
        prop_assert_eq!(
            previewed.as_ref().map(|facts| facts.client_random),
            judged.as_ref().map(|facts| facts.client_random)
        );
        if let (Some(previewed), Some(judged)) = (previewed, judged) {
            // A second may have passed between the two.
            let between = previewed.ticket_age_skew - judged.ticket_age_skew;
            prop_assert!((-1..=1).contains(&between), "{between}");
        }
    }

    #[test]
    fn any_bytes_are_previewed_without_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        prop_assert!(case().1.preview(&bytes, None).is_ok());
    }
}
