//! The session jar on disk: errors, persistence and concurrent use.

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

use crate::support::{ClientDir, Server, ServerBehaviour};

#[test]
fn a_jar_is_private_and_reveals_no_host_names() {
    let dir = dir_with_tickets(4);
    let bytes = fs::read(dir.path("jar")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.starts_with("firstflight session jar 1, key file\n"), "{text}");
    assert!(!text.contains("jar.test"));
    for name in ["jar", "key", "jar.lock"] {
        assert_eq!(fs::metadata(dir.path(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn rfc8446_c_4_each_ticket_is_handed_out_once() {
    let dir = dir_with_tickets(6);
    let mut seen = HashSet::new();
    while let Some(ticket) = take(&dir.jar()) {
        assert!(seen.insert(ticket), "handed out twice");
    }
    assert_eq!(seen.len(), 6);
}

#[test]
fn address_tokens_and_quic_sessions_round_trip() {
    let dir = ClientDir::new();
    let trust = TrustId::of(&Trust::Anyone).unwrap();
    let parameters = bytes::Bytes::from_static(&[1, 2, 0x40, 3]);
    let mut quic = tickets(2);
    for ticket in &mut quic {
        ticket.alpn = Some(b"h3".to_vec());
        ticket.transport_parameters = Some(parameters.clone());
    }
    let token = |text: &'static str| Token::new(origin(), trust.clone(), text.into());
    // A token is kept even without a session.
    dir.jar().put(&[], &[token("first")], &mut Vec::new()).unwrap();
    dir.jar().put(&quic[..1], &[token("second")], &mut Vec::new()).unwrap();
    assert_eq!((dir.jar().count().unwrap(), dir.jar().count_tokens().unwrap()), (1, 2));
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(take_all(&dir.jar()));
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
fn a_jar_encrypted_under_another_key_is_refused_and_kept() {
    let dir = dir_with_tickets(3);
    let before = fs::read(dir.path("jar")).unwrap();
    let error = open(&dir, JarKey::File(dir.path("other"))).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
    assert!(!dir.path("other").exists(), "no useless key is created");
    Jar::open(&dir.path("other-jar"), JarKey::File(dir.path("other"))).unwrap();
    let error = open(&dir, JarKey::File(dir.path("other"))).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
    assert!(error.to_string().contains("--ssl-sessions-key"), "{error}");
    let error = open(&dir, JarKey::Passphrase("secret".into())).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
    assert_eq!(fs::read(dir.path("jar")).unwrap(), before);
    assert_eq!(dir.jar().count().unwrap(), 3);
}

#[test]
fn only_its_own_passphrase_opens_a_jar() {
    let dir = ClientDir::new();
    let with = |phrase: &str| open(&dir, JarKey::Passphrase(phrase.into()));
    with("secret").unwrap().put(&tickets(1), &[], &mut Vec::new()).unwrap();
    assert_eq!(with("secret").unwrap().count().unwrap(), 1);
    assert!(matches!(with("guess").unwrap_err(), JarError::OtherKey(_)));
    with("secret").unwrap().put(&tickets(2), &[], &mut Vec::new()).unwrap();
    assert_eq!(with("secret").unwrap().count().unwrap(), 2);
    let error = open(&dir, JarKey::File(dir.path("key"))).unwrap_err();
    assert!(matches!(error, JarError::OtherKey(_)), "{error}");
}

#[test]
fn open_jars_read_a_recreated_jar_with_another_salt() {
    let dir = ClientDir::new();
    let open = || open(&dir, JarKey::Passphrase("secret".into())).unwrap();
    let (first, second) = (open(), open());
    first.put(&tickets(1), &[], &mut Vec::new()).unwrap();
    assert_eq!(second.count().unwrap(), 1);
    fs::remove_file(dir.path("jar")).unwrap();
    open().put(&tickets(2), &[], &mut Vec::new()).unwrap();
    assert_eq!((first.count().unwrap(), second.count().unwrap()), (2, 2));
}

/// Earlier versions used age. The error says how to remove jar and key, and both are kept.
#[test]
fn age_files_of_earlier_versions_are_refused_and_kept() {
    let dir = ClientDir::new();
    let jar = b"age-encryption.org/v1\n-> X25519 CJM36AHmTbdHSuOQL+NESqyVQE75f2e610iRdLPEN20\n";
    let key = "# firstflight: opens the session jar; keep it to yourself\nAGE-SECRET-KEY-1QQPQ\n";
    fs::write(dir.path("key"), key).unwrap();
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let error = open(&dir, JarKey::File(dir.path("key"))).unwrap_err();
    assert!(matches!(error, JarError::AgeKey(_)), "{error}");
    assert!(error.to_string().contains("(rm "), "{error}");
    fs::write(dir.path("jar"), jar).unwrap();
    let both = format!("(rm {} {})", dir.path("jar").display(), dir.path("key").display());
    let only = format!("(rm {})", dir.path("jar").display());
    for (key, remove) in [
        (JarKey::File(dir.path("key")), &both),
        (JarKey::File(dir.path("none")), &only),
        (JarKey::Passphrase("secret".into()), &only),
    ] {
        let error = open(&dir, key).unwrap_err();
        assert!(matches!(error, JarError::AgeJar { .. }), "{error}");
        assert!(error.to_string().contains(remove.as_str()), "{error}");
    }
    assert_eq!(fs::read(dir.path("jar")).unwrap(), jar);
    assert_eq!(fs::read_to_string(dir.path("key")).unwrap(), key);
    assert!(!dir.path("none").exists());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let dir = dir_with_tickets(1);
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = open(&dir, JarKey::File(dir.path("key"))).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(dir.path("key"), "not a key").unwrap();
    let error = open(&dir, JarKey::File(dir.path("key"))).unwrap_err();
    assert!(matches!(error, JarError::BadKey { line: 1, .. }), "{error}");
}

#[test]
fn an_unwritable_path_is_reported_on_open() {
    let dir = ClientDir::new();
    fs::write(dir.path("file"), "").unwrap();
    for place in ["none/jar", "file/jar"] {
        let error = Jar::open(&dir.path(place), JarKey::File(dir.path("key"))).unwrap_err();
        assert!(error.to_string().contains(place), "{error}");
    }
}

#[test]
fn threads_share_a_jar_without_loss_or_duplicates() {
    let dir = dir_with_tickets(12);
    let taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..6).map(|_| scope.spawn(|| [take(&dir.jar()), take(&dir.jar())])).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).flatten().collect()
    });
    assert_eq!(taken.len(), 12);
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 12);
    assert_eq!(dir.jar().count().unwrap(), 0);
}

/// Runs this test again in child processes, each of which takes three tickets and stores one.
#[test]
fn processes_share_a_jar_without_loss_or_duplicates() {
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
    let dir = dir_with_tickets(15);
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "jar::processes_share_a_jar_without_loss_or_duplicates",
                    "--nocapture",
                ])
                .env(CHILD, dir.path("jar").parent().unwrap())
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
    assert_eq!(dir.jar().count().unwrap(), 15 - 12 + 4);
}

/// Two processes may both find that there is no key yet.
#[test]
fn concurrent_first_uses_create_one_key() {
    let dir = ClientDir::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| dir.jar().put(&tickets(1), &[], &mut Vec::new()).unwrap());
        }
    });
    assert_eq!(dir.jar().count().unwrap(), 1, "the same ticket is kept once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_file_is_refused_and_kept(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let dir = ClientDir::new();
        dir.jar();
        fs::write(dir.path("jar"), &bytes).unwrap();
        let error = open(&dir, JarKey::File(dir.path("key"))).unwrap_err();
        prop_assert!(matches!(error, JarError::Damaged { .. }), "{}", error);
        prop_assert_eq!(fs::read(dir.path("jar")).unwrap(), bytes);
    }

    #[test]
    fn a_jar_cut_short_or_changed_is_refused_and_kept(at in any::<prop::sample::Index>(), cut in any::<bool>()) {
        let dir = dir_with_tickets(2);
        let mut bytes = fs::read(dir.path("jar")).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= 0x10 }
        fs::write(dir.path("jar"), &bytes).unwrap();
        prop_assert!(open(&dir, JarKey::File(dir.path("key"))).is_err());
        prop_assert_eq!(fs::read(dir.path("jar")).unwrap(), bytes);
    }
}

fn open(dir: &ClientDir, key: JarKey) -> Result<Jar, JarError> {
    Jar::open(&dir.path("jar"), key)
}

fn dir_with_tickets(count: usize) -> ClientDir {
    let dir = ClientDir::new();
    dir.jar().put(&tickets(count), &[], &mut Vec::new()).unwrap();
    dir
}

fn take(jar: &Jar) -> Option<Vec<u8>> {
    Some(take_all(jar).tcp?.session.to_bytes().unwrap())
}

fn take_all(jar: &Jar) -> JarMatch {
    let query = JarQuery {
        origin: &origin(),
        trust: &TrustId::of(&Trust::Anyone).unwrap(),
        tcp: Some(&[b"http/1.1".to_vec()]),
        quic: Some(&[b"h3".to_vec()]),
        versions: (Version::Tls12, Version::Tls13),
        early_data: true,
    };
    jar.take(&query, &mut Vec::new()).unwrap()
}

fn origin() -> Origin {
    Origin { scheme: "https".into(), host: "jar.test".into(), port: 443 }
}

/// Distinct sessions from real handshakes, which are made once.
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
    let server = Server::start(ServerBehaviour::default()).await;
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
