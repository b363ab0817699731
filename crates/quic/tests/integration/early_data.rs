//! Early data over QUIC: accepted, refused, and what follows from it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use firstflight_quic::{ConnectionOptions, Remembered};
use firstflight_tls::{
    EarlyData, EarlyDataReason, OpenedTicket, TicketSealer, TicketUse, TlsError, WithheldReason,
};

use crate::support::{Admission, Opens, Pair, Setup, facts, resuming};

#[test]
fn a_full_handshake_yields_two_tickets_for_early_data() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let connected = pair.connect(Remembered::default());
    let resumptions = connected.inbox.take_resumptions();
    assert_eq!(resumptions.len(), 2);
    assert!(resumptions.iter().all(|found| found.session.early_data_capable()));
    assert!(resumptions.iter().all(|found| !found.transport_parameters.is_empty()));
    let stream = pair.send(connected.client, b"hello");
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"hello"]);
    assert_eq!(stream.index(), 0);
    let facts = facts(pair.server(connected.server));
    assert_eq!(facts.alpn.as_deref(), Some(&b"test"[..]));
    assert_eq!(facts.server_name.as_deref(), Some("localhost"));
    assert!(facts.complete && !facts.resumed);
}

#[test]
fn rfc9001_4_6_early_data_arrives_before_the_handshake_is_complete() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let started = pair.start(setup.remembered());
    assert!(pair.client(started.client).has_0rtt());
    pair.send(started.client, b"early");
    // One way: the ClientHello and the early data.
    pair.exchange();
    pair.now += crate::support::LATENCY;
    pair.exchange();
    let connected = pair.connected(started);
    assert!(pair.server(connected.server).is_handshaking());
    assert_eq!(pair.received(connected.server), [b"early"]);
    pair.drive();
    assert!(pair.client(connected.client).accepted_0rtt());
    let seen = facts(pair.client(connected.client));
    assert_eq!(seen.early_data, EarlyData::Accepted);
    assert!(seen.resumed && seen.complete);
    assert_eq!(facts(pair.server(connected.server)).early_data, EarlyData::Accepted);
    assert_eq!(connected.inbox.take_resumptions().len(), 1, "in place of the used ticket");
}

/// A client whose address is validated gets a second ticket after its Finished, since an address token
/// accompanies the first ticket.
#[test]
fn rfc8446_4_6_1_tickets_come_before_or_after_the_finished() {
    let setup = Setup::default();
    for validated in [false, true] {
        let mut pair = setup.pair();
        let (crypto, made) = (pair.crypto.clone(), setup.clone());
        pair.policy = Box::new(move |_| {
            let judge = Box::new(|_: &_| true);
            let options =
                ConnectionOptions { address_validated: validated, ..ConnectionOptions::default() };
            Admission::Accept(made.server_config(crypto.with_options(judge, options)))
        });
        let started = pair.start(setup.remembered());
        pair.send(started.client, b"early");
        // The first flight, and the server's.
        for _ in 0..2 {
            pair.exchange();
            pair.now += crate::support::LATENCY;
        }
        let connected = pair.connected(started);
        assert_eq!(pair.received(connected.server), [b"early"]);
        pair.exchange();
        assert!(pair.server(connected.server).is_handshaking());
        let before = connected.inbox.take_resumptions().len();
        pair.drive();
        let after = connected.inbox.take_resumptions().len();
        assert_eq!((before, after), (1, usize::from(validated)));
        assert!(pair.client(connected.client).accepted_0rtt());
    }
}

#[test]
fn early_data_that_the_judge_refuses_arrives_only_when_sent_again() {
    let setup = Setup::default();
    let remembered = setup.remembered();
    let mut pair = setup.pair();
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, crypto, made) = (calls.clone(), pair.crypto.clone(), setup.clone());
    pair.policy = Box::new(move |_| {
        let count = count.clone();
        let judged = crypto.for_connection(
            Box::new(move |facts| {
                assert_eq!(facts.early_data, EarlyData::Accepted);
                assert!(facts.resumed && !facts.complete);
                count.fetch_add(1, Ordering::Relaxed);
                false
            }),
            None,
        );
        Admission::Accept(made.server_config(judged))
    });
    let started = pair.start(remembered);
    pair.send(started.client, b"early");
    pair.exchange();
    pair.now += crate::support::LATENCY;
    pair.exchange();
    let connected = pair.connected(started);
    assert!(pair.received(connected.server).is_empty());
    pair.drive();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert!(!pair.client(connected.client).accepted_0rtt());
    assert_eq!(facts(pair.client(connected.client)).early_data, EarlyData::Refused);
    let seen = facts(pair.server(connected.server));
    assert_eq!(seen.early_data, EarlyData::Refused);
    assert_eq!(seen.early_data_reason, EarlyDataReason::Disabled);
    assert!(seen.resumed);
    // quinn gives rejected streams back to the application, which sends again.
    assert!(pair.received(connected.server).is_empty());
    pair.send(connected.client, b"again");
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"again"]);
    // The new tickets allow early data on the next connection.
    let next = connected.inbox.take_resumptions().pop().unwrap();
    pair.judge(true);
    let next = pair.connect(resuming(next));
    assert!(pair.client(next.client).accepted_0rtt());
}

/// Sends early data with what is remembered to a server of this setup, which must refuse it. Returns
/// the server's reason, and whether the session was resumed.
fn refused_by(server: &Setup, client: &Setup, remembered: Remembered) -> (EarlyDataReason, bool) {
    let mut pair = Pair::with_server(client.clone(), server.server());
    let (crypto, made) = (pair.crypto.clone(), server.clone());
    pair.policy = Box::new(move |_| {
        let judged = crypto.for_connection(Box::new(|_| true), None);
        Admission::Accept(made.server_config(judged))
    });
    let started = pair.start(remembered);
    assert!(pair.client(started.client).has_0rtt());
    pair.send(started.client, b"early");
    pair.drive();
    let connected = pair.connected(started);
    assert!(pair.client.has_event(connected.client, "Connected"), "{:?}", pair.client.lost);
    assert!(!pair.client(connected.client).accepted_0rtt());
    assert_eq!(facts(pair.client(connected.client)).early_data, EarlyData::Refused);
    assert!(pair.received(connected.server).is_empty());
    pair.send(connected.client, b"again");
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"again"]);
    // The new ticket allows early data again, if this server accepts any.
    let next = connected.inbox.take_resumptions().pop().expect("a ticket");
    let may_accept = matches!(server.opens, Opens::Session) && server.server_groups.is_none();
    let next = pair.connect(resuming(next));
    assert_eq!(pair.client(next.client).accepted_0rtt(), may_accept);
    let seen = facts(pair.server(connected.server));
    (seen.early_data_reason, seen.resumed)
}

#[test]
fn rfc9001_4_6_2_a_connection_succeeds_without_its_refused_early_data() {
    let setup = Setup::default();
    let refused = |server: &Setup| refused_by(server, &setup, setup.remembered());
    let other_keys = Setup { sealer_key: 2, ..Setup::default() };
    assert_eq!(refused(&other_keys), (EarlyDataReason::SessionNotResumed, false));
    let withheld = Setup { opens: Opens::WithoutEarlyData, ..Setup::default() };
    assert_eq!(refused(&withheld), (EarlyDataReason::Withheld(WithheldReason::Zone), true));
    let needs_lookup = Setup { opens: Opens::NeedsLookup, ..Setup::default() };
    assert_eq!(refused(&needs_lookup), (EarlyDataReason::SessionNotResumed, false));
    let groups = Setup { server_groups: Some("P-384".to_owned()), ..Setup::default() };
    let other_group = refused_by(&groups, &setup, setup.remembered());
    assert_eq!(other_group, (EarlyDataReason::HelloRetryRequest, true));
}

/// A sealer whose tickets other connections use up between `open` and `use_up`.
#[derive(Debug)]
struct TooLate {
    /// How many calls of `use_up` return `outcome`.
    times: AtomicUsize,
    outcome: TicketUse,
}

impl TicketSealer for TooLate {
    fn max_overhead(&self) -> usize {
        1
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        Some([&[1], session].concat())
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        OpenedTicket::Session(ticket[1..].to_vec())
    }

    fn uses_up_tickets(&self) -> bool {
        true
    }

    fn use_up(&self, _: &[u8]) -> TicketUse {
        let late = self.times.fetch_update(SeqCst, SeqCst, |times| times.checked_sub(1)).is_ok();
        if late { self.outcome } else { TicketUse::First }
    }
}

#[test]
fn a_ticket_that_another_connection_has_used_meanwhile_costs_a_full_handshake() {
    let setup = Setup::default();
    let sealer = TooLate { times: AtomicUsize::new(1), outcome: TicketUse::Again };
    let late = Setup { sealer: Some(Arc::new(sealer)), ..Setup::default() };
    let refused = refused_by(&late, &setup, setup.remembered());
    assert_eq!(refused, (EarlyDataReason::TicketUsed, false));
}

#[test]
fn keys_that_are_handed_over_meanwhile_are_requested_again() {
    let setup = Setup::default();
    // The keys are back before the second attempt.
    let sealer = TooLate { times: AtomicUsize::new(1), outcome: TicketUse::HandedOver };
    let back = Setup { sealer: Some(Arc::new(sealer)), ..Setup::default() };
    let remembered = setup.remembered();
    let mut pair = Pair::with_server(setup, back.server());
    let connected = pair.connect(remembered);
    assert!(pair.client(connected.client).accepted_0rtt());
}

#[test]
fn rfc8446_8_3_early_data_with_a_wrong_ticket_age_is_refused() {
    let setup = Setup::default();
    let mut found = setup.resumption();
    found.session = found.session.issued_earlier(100).unwrap();
    let reason = refused_by(&setup, &setup, resuming(found));
    assert_eq!(reason, (EarlyDataReason::TicketAgeSkew, true));
}

#[test]
fn rfc9000_7_4_1_a_server_with_other_limits_refuses() {
    let setup = Setup::default();
    for streams in [99, 101] {
        let changed = Setup { streams, ..Setup::default() };
        let reason = refused_by(&changed, &setup, setup.remembered());
        assert_eq!(reason, (EarlyDataReason::QuicParameters, true));
    }
}

#[test]
fn rfc8446_4_2_10_early_data_of_another_protocol_is_refused() {
    let alpn = || vec![b"test".to_vec(), b"other".to_vec()];
    let client = Setup { client_alpn: alpn(), ..Setup::default() };
    let server = Setup { server_alpn: vec![b"other".to_vec()], ..Setup::default() };
    let reason = refused_by(&server, &client, client.remembered());
    assert_eq!(reason, (EarlyDataReason::AlpnMismatch, true));
}

#[test]
fn any_server_with_the_ticket_keys_accepts_early_data() {
    let setup = Setup::default();
    let remembered = setup.remembered();
    // A pair has a ServerCrypto of its own.
    let mut pair = setup.pair();
    let connected = pair.connect(remembered);
    assert!(pair.client(connected.client).accepted_0rtt());
}

#[test]
fn without_a_judge_early_data_is_refused() {
    let setup = Setup::default();
    let remembered = setup.remembered();
    let mut pair = setup.pair();
    let config = setup.server_config(pair.crypto.clone());
    pair.policy = Box::new(move |_| Admission::Accept(config.clone()));
    let connected = pair.connect(remembered);
    assert!(!pair.client(connected.client).accepted_0rtt());
    let reason = facts(pair.server(connected.server)).early_data_reason;
    assert_eq!(reason, EarlyDataReason::Disabled);
}

#[test]
fn a_session_that_was_looked_up_is_resumed_and_its_early_data_judged() {
    // The ticket was sealed plainly, and a copy of its session kept.
    let plain = Setup::default();
    let setup = Setup { opens: Opens::NeedsLookup, ..plain.clone() };
    for accepts in [true, false] {
        let remembered = plain.remembered();
        let sealed = plain.sealed.lock().unwrap().last().cloned().unwrap();
        let mut pair = setup.pair();
        let (crypto, made) = (pair.crypto.clone(), setup.clone());
        pair.policy = Box::new(move |_| {
            let session = Some(OpenedTicket::Session(sealed.clone()));
            let judged = crypto.for_connection(Box::new(move |_| accepts), session);
            Admission::Accept(made.server_config(judged))
        });
        let connected = pair.connect(remembered);
        assert_eq!(pair.client(connected.client).accepted_0rtt(), accepts);
        assert!(facts(pair.server(connected.server)).resumed);
    }
}

#[test]
fn early_data_is_offered_only_if_requested_and_a_ticket_used_once() {
    let setup = Setup::default();
    let mut remembered = setup.remembered();
    remembered.early_data = false;
    let mut pair = setup.pair();
    let connected = pair.connect(remembered);
    let seen = facts(pair.client(connected.client));
    assert_eq!((seen.resumed, seen.early_data), (true, EarlyData::NotOffered));

    let (config, _) = setup.client_config(setup.remembered());
    let (first, second) = (pair.start_with(config.clone()), pair.start_with(config));
    assert!(pair.client(first).has_0rtt() && !pair.client(second).has_0rtt());
    pair.drive();
    assert!(facts(pair.client(first)).resumed && !facts(pair.client(second)).resumed);
}

#[test]
fn a_token_is_used_once_and_new_tokens_are_kept() {
    let token = Bytes::from_static(b"a token");
    let remembered = Remembered { token: Some(token.clone()), ..Remembered::default() };
    let (_, tokens, inbox) =
        Setup::default().client().for_connection("localhost", remembered).unwrap();
    assert_eq!(tokens.take("localhost"), Some(token.clone()));
    assert_eq!(tokens.take("localhost"), None);
    tokens.insert("localhost", token.clone());
    assert_eq!(tokens.take("localhost"), None);
    assert_eq!(inbox.take_tokens(), [token]);
    assert!(inbox.take_tokens().is_empty());
}

#[test]
fn the_newest_4_tokens_of_a_server_are_kept() {
    let setup = Setup::default();
    let (_, tokens, inbox) =
        setup.client().for_connection("localhost", Remembered::default()).unwrap();
    for number in 0..100 {
        tokens.insert("localhost", Bytes::from(vec![number]));
    }
    assert_eq!(inbox.take_tokens(), (96..100).map(|number| vec![number]).collect::<Vec<_>>());
    assert!(!inbox.has_ticket_and_token());
}

#[test]
fn damaged_transport_parameters_fail_before_connecting() {
    let setup = Setup::default();
    let mut found = setup.resumption();
    found.transport_parameters = Bytes::from_static(&[0x04, 0x09, 0x00]);
    let made = setup.client().for_connection("localhost", resuming(found));
    assert!(matches!(made, Err(TlsError::BadSession(_))));
}

#[test]
fn a_session_of_tls_over_tcp_does_not_resume_over_quic() {
    let setup = Setup::default();
    let mut found = setup.resumption();
    found.session = crate::support::tcp::session(&setup);
    let mut pair = setup.pair();
    let connected = pair.connect(resuming(found));
    let seen = facts(pair.client(connected.client));
    assert_eq!((seen.resumed, seen.early_data), (false, EarlyData::NotOffered));
}
