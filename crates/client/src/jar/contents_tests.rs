use proptest::prelude::*;

use super::*;

fn entry(host: &str, trust: &str, issued: u64, early_data: bool) -> Entry {
    Entry {
        scheme: "https".into(),
        host: host.into(),
        port: 443,
        trust: trust.into(),
        alpn: Some("h2".into()),
        version: "TLSv1.3".into(),
        early_data,
        issued,
        expires: issued + 7200,
        session: format!("{host}{issued}{early_data}"),
        further_names: Vec::new(),
        transport_parameters: None,
    }
}

fn token(host: &str, trust: &str, received: u64) -> TokenEntry {
    TokenEntry {
        host: host.into(),
        port: 443,
        trust: trust.into(),
        received,
        token: format!("{host}{received}"),
    }
}

fn origin(host: &str) -> Origin {
    Origin { scheme: "https".into(), host: host.into(), port: 443 }
}

fn take(contents: &mut Contents, host: &str, trust: &str, early_data: bool) -> Option<Entry> {
    take_for(Transport::Tcp, contents, host, trust, early_data)
}

fn take_for(
    transport: Transport,
    contents: &mut Contents,
    host: &str,
    trust: &str,
    early_data: bool,
) -> Option<Entry> {
    let query = JarQuery {
        origin: &origin(host),
        trust: &TrustId(trust.into()),
        tcp: None,
        quic: None,
        versions: (Version::Tls12, Version::Tls13),
        early_data,
    };
    contents.take(&query, transport, &[b"h2".to_vec()])
}

fn take_token(contents: &mut Contents, host: &str, trust: &str) -> Option<u64> {
    let token = contents.take_token(&origin(host), &TrustId(trust.into()))?;
    Some(token.received)
}

#[test]
fn rfc8446_c_4_a_ticket_is_taken_once_newest_first() {
    let mut contents = Contents::default();
    contents.add(entry("a", "system", 1, true));
    contents.add(entry("a", "system", 3, false));
    contents.add(entry("a", "system", 2, true));
    assert_eq!(take(&mut contents, "a", "system", true).unwrap().issued, 2);
    assert_eq!(take(&mut contents, "a", "system", false).unwrap().issued, 3);
    assert_eq!(take(&mut contents, "a", "system", false).unwrap().issued, 1);
    assert!(take(&mut contents, "a", "system", false).is_none());
}

#[test]
fn a_session_is_used_only_with_the_same_host_and_trust() {
    let mut contents = Contents::default();
    contents.add(entry("a", "anyone", 1, true));
    assert!(take(&mut contents, "a", "system", true).is_none());
    assert!(take(&mut contents, "b", "anyone", true).is_none());
    assert!(take(&mut contents, "a", "anyone", true).is_some());
}

#[test]
fn rfc8446_4_6_1_no_ticket_outlives_its_lifetime_or_a_week() {
    let mut contents = Contents::default();
    contents.add(entry("a", "system", 1000, true));
    contents.add(Entry { expires: u64::MAX, ..entry("b", "system", 1000, true) });
    contents.expire(1000 + 7200);
    assert!(take(&mut contents, "a", "system", true).is_none());
    contents.expire(1000 + MAX_AGE_SECONDS - 1);
    assert_eq!(contents.len(), 1);
    contents.expire(1000 + MAX_AGE_SECONDS);
    assert_eq!(contents.len(), 0);
}

#[test]
fn a_garbled_entry_does_not_affect_the_others() {
    let good = serde_json::to_value(entry("a", "system", 1, true)).unwrap();
    let bad = serde_json::json!({"host": 7});
    let file = JarFile { version: VERSION, sessions: vec![bad.clone(), good], tokens: vec![bad] };
    let mut contents = Contents::from_bytes(&serde_json::to_vec(&file).unwrap()).unwrap();
    assert_eq!((contents.len(), contents.tokens()), (3, 0));
    assert_eq!(contents.drop_unreadable(), 2);
    assert!(take(&mut contents, "a", "system", true).is_some());
}

#[test]
fn other_format_versions_are_refused() {
    for version in ["0", "1", "3"] {
        let bytes = format!(r#"{{"version":{version},"sessions":[],"tokens":[]}}"#);
        let reason = Contents::from_bytes(bytes.as_bytes()).unwrap_err();
        assert!(reason.contains(&format!("version {version}")), "{reason}");
    }
}

#[test]
fn rfc9000_7_4_1_tcp_and_quic_sessions_are_separate() {
    let mut contents = Contents::default();
    let quic = Entry { transport_parameters: Some("AA".into()), ..entry("a", "system", 1, true) };
    contents.add(quic);
    contents.add(entry("a", "system", 2, true));
    for (transport, issued) in [(Transport::Quic, 1), (Transport::Tcp, 2)] {
        let own = take_for(transport, &mut contents, "a", "system", true).unwrap();
        assert_eq!(own.issued, issued);
        assert!(take_for(transport, &mut contents, "a", "system", true).is_none());
    }
}

#[test]
fn tcp_sessions_do_not_evict_quic_sessions() {
    let mut contents = Contents::default();
    let quic = Entry { transport_parameters: Some("AA".into()), ..entry("a", "system", 0, true) };
    contents.add(quic);
    for at in 1..100 {
        contents.add(entry("a", "system", at, true));
    }
    assert!(take_for(Transport::Quic, &mut contents, "a", "system", true).is_some());
    assert_eq!(contents.len(), MAX_SESSIONS_PER_ORIGIN);
}

#[test]
fn sessions_and_tokens_of_unverified_servers_replace_no_verified_ones() {
    let mut contents = Contents::default();
    contents.add(entry("a", "system", 1, true));
    contents.add_token(token("a", "system", 1));
    for at in 2..20 {
        contents.add(entry("a", "anyone", at, true));
        contents.add_token(token("a", "anyone", at));
    }
    assert!(take(&mut contents, "a", "system", true).is_some());
    assert_eq!(take_token(&mut contents, "a", "system"), Some(1));
}

#[test]
fn rfc9000_8_1_3_a_token_is_taken_once_newest_first_and_by_its_origin() {
    let mut contents = Contents::default();
    for at in [2, 9, 4] {
        contents.add_token(token("a", "system", at));
    }
    assert_eq!(take_token(&mut contents, "a", "anyone"), None);
    assert_eq!(take_token(&mut contents, "b", "system"), None);
    let mut reloaded = Contents::from_bytes(&contents.to_bytes()).unwrap();
    let taken: Vec<_> = (0..4).map(|_| take_token(&mut reloaded, "a", "system")).collect();
    assert_eq!(taken, [Some(9), Some(4), Some(2), None]);
    contents.expire(2 + MAX_AGE_SECONDS);
    assert_eq!(contents.tokens(), 2);
}

#[test]
fn tokens_are_limited_and_the_newest_are_kept() {
    let mut contents = Contents::default();
    for at in 0..20 {
        contents.add_token(token("a", "system", at));
    }
    assert_eq!(contents.tokens(), MAX_TOKENS_PER_ORIGIN);
    assert_eq!(take_token(&mut contents, "a", "system"), Some(19));
    for at in 0..1000 {
        contents.add_token(token(&at.to_string(), "system", at));
    }
    assert_eq!(contents.tokens(), MAX_TOKENS);
    assert_eq!(take_token(&mut contents, "999", "system"), Some(999));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Contents::from_bytes(&bytes);
    }

    #[test]
    fn any_session_is_opened_or_refused(session in "[A-Za-z0-9+/]{0,400}") {
        let parameters = Some(session.clone());
        let one = Entry { session, ..entry("a", "system", 1, true) };
        let _ = Entry { transport_parameters: parameters, ..one }.into_ticket();
    }

    #[test]
    fn the_jar_is_bounded_and_keeps_the_newest(
        hosts in proptest::collection::vec((0..60u8, 0..1000u64), 1..900)
    ) {
        let mut contents = Contents::default();
        let mut newest = std::collections::HashMap::new();
        for (at, (host, _)) in hosts.iter().enumerate() {
            contents.add(entry(&host.to_string(), "system", at as u64, true));
            newest.insert(*host, at as u64);
        }
        prop_assert!(contents.len() <= MAX_SESSIONS);
        let reloaded = Contents::from_bytes(&contents.to_bytes()).unwrap();
        prop_assert_eq!(&reloaded.entries, &contents.entries);
        let last = hosts.last().unwrap().0;
        let got = take(&mut contents, &last.to_string(), "system", true).unwrap();
        prop_assert_eq!(got.issued, newest[&last]);
        let of_last = contents.entries.iter().filter(|e| e.host == last.to_string()).count();
        prop_assert!(of_last < MAX_SESSIONS_PER_ORIGIN);
    }
}
