//! The session jar on disk: what it refuses, what it keeps, and several users at a time.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::OnceLock;

use firstflight_client::{
    Jar, JarError, JarKey, JarMatch, JarQuery, Origin, Ticket, Token, TrustId,
};
use firstflight_tls::{Session, Trust, Version};
use proptest::prelude::*;

use crate::support::{Home, Manner, Server};

#[test]
fn a_jar_is_closed_to_others_and_names_nobody() {
    let home = filled(4);
    let bytes = fs::read(home.path("jar")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.starts_with("firstflight session jar 1, key file\n"), "{text}");
    assert!(!text.contains("jar.test"));
    for name in ["jar", "key", "jar.lock"] {
        assert_eq!(fs::metadata(home.path(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn rfc8446_c_4_each_ticket_comes_out_once() {
    let home = filled(6);
    let mut seen = HashSet::new();
    while let Some(ticket) = take(&home.jar()) {
        assert!(seen.insert(ticket), "handed out twice");
    }
    assert_eq!(seen.len(), 6);
}

#[test]
fn address_tokens_and_sessions_for_quic_come_back_as_they_were() {
    let home = Home::new();
    let trust = TrustId::of(&Trust::Anyone).unwrap();
    let parameters = bytes::Bytes::from_static(&[1, 2, 0x40, 3]);
    let mut quic = tickets(2);
    for ticket in &mut quic {
        ticket.alpn = Some(b"h3".to_vec());
        ticket.transport_parameters = Some(parameters.clone());
    }
    let token = |text: &'static str| Token::new(origin(), trust.clone(), text.into());
    // A token is kept also where there is no session.
    home.jar().put(&[], &[token("first")], &mut Vec::new()).unwrap();
    home.jar().put(&quic[..1], &[token("second")], &mut Vec::new()).unwrap();
    assert_eq!((home.jar().count().unwrap(), home.jar().count_tokens().unwrap()), (1, 2));
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(take_all(&home.jar()));
    }
    assert!(found.iter().all(|found| found.tcp.is_none()), "{found:?}");
    let tokens: Vec<_> =
        found.iter().filter_map(|found| Some(found.token.as_ref()?.bytes.clone())).collect();
    assert_eq!(tokens, ["second", "first"]);
    let ticket = found[0].quic.as_ref().unwrap();
    assert_eq!(ticket.transport_parameters.as_ref(), Some(&parameters));
    assert!(found[1].quic.is_none());
}

#[test]
fn a_jar_of_another_key_is_refused_and_kept() {
    let home = filled(3);
    let before = fs::read(home.path("jar")).unwrap();
    let error = open(&home, JarKey::File(home.path("other"))).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
    assert!(!home.path("other").exists(), "no key is made that opens nothing");
    Jar::open(&home.path("other-jar"), JarKey::File(home.path("other"))).unwrap();
    let error = open(&home, JarKey::File(home.path("other"))).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
    assert!(error.to_string().contains("--ssl-sessions-key"), "{error}");
    let error = open(&home, JarKey::Passphrase("secret".into())).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
    assert_eq!(fs::read(home.path("jar")).unwrap(), before);
    assert_eq!(home.jar().count().unwrap(), 3);
}

#[test]
fn a_passphrase_opens_what_it_closed() {
    let home = Home::new();
    let with = |phrase: &str| open(&home, JarKey::Passphrase(phrase.into()));
    with("secret").unwrap().put(&tickets(1), &[], &mut Vec::new()).unwrap();
    assert_eq!(with("secret").unwrap().count().unwrap(), 1);
    assert!(matches!(with("guess").unwrap_err(), JarError::OtherKey(_)));
    with("secret").unwrap().put(&tickets(2), &[], &mut Vec::new()).unwrap();
    assert_eq!(with("secret").unwrap().count().unwrap(), 2);
    let error = open(&home, JarKey::File(home.path("key"))).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
}

#[test]
fn a_jar_removed_and_made_again_has_another_salt() {
    let home = Home::new();
    let open = || open(&home, JarKey::Passphrase("secret".into())).unwrap();
    let (one, two) = (open(), open());
    one.put(&tickets(1), &[], &mut Vec::new()).unwrap();
    assert_eq!(two.count().unwrap(), 1);
    fs::remove_file(home.path("jar")).unwrap();
    open().put(&tickets(2), &[], &mut Vec::new()).unwrap();
    assert_eq!((one.count().unwrap(), two.count().unwrap()), (2, 2));
}

/// Earlier versions sealed by age: what to do is said at once for jar and key, and both are kept.
#[test]
fn what_earlier_versions_left_is_refused_and_kept() {
    let home = Home::new();
    let jar = b"age-encryption.org/v1\n-> X25519 CJM36AHmTbdHSuOQL+NESqyVQE75f2e610iRdLPEN20\n";
    let key = "# firstflight: opens the session jar; keep it to yourself\nAGE-SECRET-KEY-1QQPQ\n";
    fs::write(home.path("key"), key).unwrap();
    fs::set_permissions(home.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let error = open(&home, JarKey::File(home.path("key"))).unwrap_err();
    assert!(matches!(error, JarError::AgeKey(_)), "{error}");
    assert!(error.to_string().contains("(rm "), "{error}");
    fs::write(home.path("jar"), jar).unwrap();
    let both = format!("(rm {} {})", home.path("jar").display(), home.path("key").display());
    let only = format!("(rm {})", home.path("jar").display());
    for (key, remove) in [
        (JarKey::File(home.path("key")), &both),
        (JarKey::File(home.path("none")), &only),
        (JarKey::Passphrase("secret".into()), &only),
    ] {
        let error = open(&home, key).unwrap_err();
        assert!(matches!(error, JarError::AgeJar { .. }), "{error}");
        assert!(error.to_string().contains(remove.as_str()), "{error}");
    }
    assert_eq!(fs::read(home.path("jar")).unwrap(), jar);
    assert_eq!(fs::read_to_string(home.path("key")).unwrap(), key);
    assert!(!home.path("none").exists());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let home = filled(1);
    fs::set_permissions(home.path("key"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = open(&home, JarKey::File(home.path("key"))).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(home.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(home.path("key"), "not a key").unwrap();
    let error = open(&home, JarKey::File(home.path("key"))).unwrap_err();
    assert!(matches!(error, JarError::BadKey { line: 1, .. }), "{error}");
}

#[test]
fn a_place_that_cannot_be_written_is_named_before_anything_is_sent() {
    let home = Home::new();
    fs::write(home.path("file"), "").unwrap();
    for place in ["none/jar", "file/jar"] {
        let error = Jar::open(&home.path(place), JarKey::File(home.path("key"))).unwrap_err();
        assert!(error.to_string().contains(place), "{error}");
    }
}

#[test]
fn threads_share_a_jar_without_loss_or_doubles() {
    let home = filled(12);
    let taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..6).map(|_| scope.spawn(|| [take(&home.jar()), take(&home.jar())])).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).flatten().collect()
    });
    assert_eq!(taken.len(), 12);
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 12);
    assert_eq!(home.jar().count().unwrap(), 0);
}

/// Runs itself as other processes: each takes three tickets and puts one of its own in.
#[test]
fn processes_share_a_jar_without_loss_or_doubles() {
    const CHILD: &str = "FIRSTFLIGHT_TEST_JAR";
    if let Some(folder) = std::env::var_os(CHILD) {
        let folder = std::path::PathBuf::from(folder);
        let jar = Jar::open(&folder.join("jar"), JarKey::File(folder.join("key"))).unwrap();
        for _ in 0..3 {
            println!("took {}", hex::encode(take(&jar).expect("enough for all")));
        }
        let mut own = tickets(1);
        own[0].origin.host = format!("child{}.test", std::process::id());
        jar.put(&own, &[], &mut Vec::new()).unwrap();
        return;
    }
    let home = filled(15);
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "jar::processes_share_a_jar_without_loss_or_doubles",
                    "--nocapture",
                ])
                .env(CHILD, home.path("jar").parent().unwrap())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut taken = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        taken.extend(text.lines().filter_map(|line| Some(line.split_once("took ")?.1.to_owned())));
    }
    assert_eq!(taken.len(), 12);
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 12);
    assert_eq!(home.jar().count().unwrap(), 15 - 12 + 4);
}

/// Two processes may both find that there is no key yet.
#[test]
fn one_key_is_made_when_many_begin_at_once() {
    let home = Home::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| home.jar().put(&tickets(1), &[], &mut Vec::new()).unwrap());
        }
    });
    assert_eq!(home.jar().count().unwrap(), 1, "the same ticket is kept once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_file_is_refused_and_kept(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let home = Home::new();
        home.jar();
        fs::write(home.path("jar"), &bytes).unwrap();
        let error = open(&home, JarKey::File(home.path("key"))).unwrap_err();
        prop_assert!(matches!(error, JarError::Damaged { .. }), "{}", error);
        prop_assert_eq!(fs::read(home.path("jar")).unwrap(), bytes);
    }

    #[test]
    fn a_jar_cut_short_or_changed_is_refused_and_kept(at in any::<prop::sample::Index>(), cut in any::<bool>()) {
        let home = filled(2);
        let mut bytes = fs::read(home.path("jar")).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= 0x10 }
        fs::write(home.path("jar"), &bytes).unwrap();
        prop_assert!(open(&home, JarKey::File(home.path("key"))).is_err());
        prop_assert_eq!(fs::read(home.path("jar")).unwrap(), bytes);
    }
}

fn open(home: &Home, key: JarKey) -> Result<Jar, JarError> {
    Jar::open(&home.path("jar"), key)
}

fn filled(count: usize) -> Home {
    let home = Home::new();
    home.jar().put(&tickets(count), &[], &mut Vec::new()).unwrap();
    home
}

fn take(jar: &Jar) -> Option<Vec<u8>> {
    Some(take_all(jar).tcp?.session.to_bytes().unwrap())
}

fn take_all(jar: &Jar) -> JarMatch {
    let wanted = JarQuery {
        origin: &origin(),
        trust: &TrustId::of(&Trust::Anyone).unwrap(),
        tcp: Some(&[b"http/1.1".to_vec()]),
        quic: Some(&[b"h3".to_vec()]),
        versions: (Version::Tls12, Version::Tls13),
        early_data: true,
    };
    jar.take(&wanted, &mut Vec::new()).unwrap()
}

fn origin() -> Origin {
    Origin { scheme: "https".into(), host: "jar.test".into(), port: 443 }
}

/// Different sessions from real handshakes, made once.
fn tickets(count: usize) -> Vec<Ticket> {
    static SESSIONS: OnceLock<Vec<Session>> = OnceLock::new();
    let sessions = SESSIONS.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(make_sessions(16))
    });
    let trust = TrustId::of(&Trust::Anyone).unwrap();
    sessions[..count]
        .iter()
        .map(|session| Ticket {
            origin: origin(),
            trust: trust.clone(),
            alpn: Some(b"http/1.1".to_vec()),
            session: session.clone(),
            transport_parameters: None,
        })
        .collect()
}

async fn make_sessions(count: usize) -> Vec<Session> {
    use firstflight_client::{Request, connect_tls, http_get};
    use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig};
    let server = Server::start(Manner::default()).await;
    let mut config = ConnectorConfig::new(Trust::Anyone);
    config.alpn = vec![b"http/1.1".to_vec()];
    let connector = Connector::new(config).unwrap();
    let offer = ConnectOptions { host: "localhost".into(), ..ConnectOptions::default() };
    let mut sessions = Vec::new();
    while sessions.len() < count {
        let connected = connect_tls(&connector, &offer, server.address, false).await.unwrap();
        let response = http_get(connected, &Request::get(server.url("/")), 100).await.unwrap();
        match response.sessions.is_empty() {
            true => {
                sessions.extend(response.exchange.close(std::time::Duration::from_secs(5)).await);
            }
            false => sessions.extend(response.sessions),
        }
    }
    sessions
}
