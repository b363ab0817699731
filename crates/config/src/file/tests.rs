use firstflight_store::{Address, Topology};
use firstflight_tickets::Schedule;
use proptest::prelude::*;

use std::time::Duration;

use firstflight_store::StoreConfig;

use super::*;
use crate::{KeySource, Policy};

fn parse(text: &str) -> Result<ServerConfig, String> {
    ServerConfig::parse(text, Path::new("f.toml")).map_err(|error| error.to_string())
}

#[test]
fn an_empty_file_has_the_defaults() {
    let file = parse("").unwrap();
    assert_eq!(file.limits, Limits::default());
    assert!(file.early_data.enabled);
    assert_eq!(file.early_data.policy, Policy::default());
}

fn store(text: &str) -> StoreConfig {
    parse(text).unwrap().store.unwrap()
}

#[test]
fn the_store_section_is_read() {
    assert!(parse("").unwrap().store.is_none());
    let plain = store("[store]\nurl = \"redis://127.0.0.1\"");
    assert_eq!(plain.topology, Topology::Single(Address::Tcp("127.0.0.1".into(), 6379)));
    assert_eq!((plain.budget, plain.connections), (Duration::from_millis(25), 2));
    assert!(plain.shared.confirmation.is_zero(), "no replica, no failover");
    let full = store(
        "[early_data]\nfreshness = \"4s\"\n[store]\nmode = \"sentinel\"\n\
         url = [\"rediss://a\", \"rediss://b:1\"]\nmaster = \"m\"\n\
         server_name = \"store\"\ndatabase = 3\nbudget = \"5ms\"\nconnections = 4\n\
         replicas = 1\nprefix = \"p\"\nclock_margin = \"2s\"",
    );
    let sentinels = vec![Address::Tcp("a".into(), 26379), Address::Tcp("b".into(), 1)];
    assert_eq!(full.topology, Topology::Sentinel { sentinels, master: "m".into() });
    assert_eq!(full.tls.unwrap().server_name.as_deref(), Some("store"));
    assert_eq!((full.database, full.connections, full.replicas), (3, 4, 1));
    assert_eq!(full.shared.freshness, Duration::from_secs(4), "that of early data");
    assert_eq!(full.shared.clock_margin, Duration::from_secs(2));
    let cluster = store("[store]\nmode = \"cluster\"\nurl = [\"redis://a\", \"redis://b\"]");
    assert!(matches!(cluster.topology, Topology::Cluster { seeds } if seeds.len() == 2));
}

#[test]
fn the_tickets_section_is_read() {
    let tickets = |text: &str| parse(text).unwrap().tickets;
    assert_eq!(tickets("").keys, KeySource::Punctured);
    assert_eq!(tickets("[store]\nurl = \"unix:///s\"").keys, KeySource::Process);
    let process = "[tickets]\nkeys = \"process\"";
    assert_eq!(tickets(process).keys, KeySource::Process);
    let punctured = "[tickets]\nkeys = \"punctured\"\n";
    assert_eq!(tickets(punctured).keys, KeySource::Punctured);
    let with_store = parse(&format!("{punctured}[store]\nurl = \"unix:///s\"")).unwrap_err();
    assert!(with_store.contains("for a process alone"), "{with_store}");
    let file = tickets("[tickets]\nkeys = \"file\"\nfile = \"k\"\nzone = \"eu-west\"");
    assert_eq!(file.keys, KeySource::File("k".into()));
    assert_eq!(file.zone.as_deref(), Some("eu-west"));
    let shared = tickets(
        "[store]\nurl = \"unix:///s\"\n[tickets]\nkeys = \"store\"\nsingle_use = true\n\
         key_encryption_file = \"kek\"\nrotation = \"1h\"\nnode = \"a\"",
    );
    let schedule =
        Schedule::new(Duration::from_secs(3600), Schedule::default().lifetime()).unwrap();
    assert_eq!(shared.keys, KeySource::Store { key_encryption: "kek".into(), schedule });
    assert!(shared.single_use && shared.node.as_deref() == Some("a"));
}

#[test]
fn the_http3_section_is_read() {
    let http3 = |text: &str| parse(text).unwrap().http3;
    assert_eq!(http3(""), Http3Settings::default());
    assert!(!http3("[http3]\nenabled = false").enabled);
    assert_eq!(http3("[http3]\nalt_svc = false").alt_svc, None);
    let full = http3("[http3]\nalt_svc = \"1h\"\ninitial_mtu = 1400\ntoken_lifetime = \"1h\"");
    let handshakes = http3("[http3]\nretry_above = 0\nrefuse_above = 7");
    assert_eq!((handshakes.retry_above, handshakes.refuse_above), (0, 7));
    let hour = Some(Duration::from_secs(3600));
    assert_eq!((full.alt_svc, full.initial_mtu, full.token_lifetime), (hour, 1400, hour));
}

#[test]
fn passwords_are_read_from_their_files_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "hush\n").unwrap();
    let text = format!(
        "[store]\nurl = \"unix:///s\"\n\npassword_file = {:?}\n",
        path.display().to_string()
    );
    let allow = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&path, mode).unwrap();
    };
    allow(0o600);
    let config = store(&text);
    assert_eq!(config.password.as_deref(), Some("hush"));
    assert!(!format!("{config:?}").contains("hush"));
    allow(0o644);
    let error = parse(&text).unwrap_err();
    assert!(error.starts_with("f.toml, line 4: ") && error.contains("chmod 600"), "{error}");
}

#[test]
fn errors_of_store_and_tickets_name_the_line_and_what_is_allowed() {
    let store = "[store]\nurl = \"redis://h\"\n";
    for (text, line, words) in [
        ("[store]\nbudget = \"3ms\"".to_owned(), 1, "`url`"),
        ("[store]\nurl = \"http://h\"".into(), 2, "rediss://HOST:PORT"),
        ("[store]\nurl = \"redis://u:p@h\"".into(), 2, "password_file"),
        ("[store]\nurl = 7".into(), 2, "a list"),
        ("[store]\nurl = []".into(), 2, "no `url`"),
        ("[store]\nurl = [\"redis://a\", \"redis://b\"]".into(), 2, "\"sentinel\""),
        ("[store]\nmode = \"cluster\"\nurl = [\"redis://a\", \"rediss://b\"]".into(), 3, "none"),
        ("[store]\nmode = \"cluster\"\nurl = \"unix:///a\"".into(), 3, "redis://"),
        ("[store]\nmode = \"sentinel\"\nurl = \"redis://a\"".into(), 2, "master ="),
        (format!("{store}mode = \"replica\""), 3, "`single`"),
        (format!("{store}master = \"m\""), 3, "sentinel"),
        (format!("{store}sentinel_password_file = \"m\""), 3, "sentinel"),
        (format!("{store}ca_file = \"m\""), 3, "rediss://"),
        (format!("{store}server_name = \"m\""), 3, "rediss://"),
        (format!("{store}password_file = \"/none\""), 3, "readable"),
        (format!("{store}mode = \"cluster\"\ndatabase = 1"), 4, "database 0"),
        (format!("{store}budget = 3"), 3, "string"),
        (format!("{store}clock_margin = \"90s\""), 3, "1s to 60s"),
        (format!("{store}budget = \"2s\""), 3, "at most 1s"),
        (format!("{store}connections = 0"), 3, "1 to 64"),
        (format!("{store}username = \"u\""), 3, "password_file"),
        (format!("{store}[early_data]\nfreshness = \"2m\""), 4, "60s"),
        (format!("{store}password = \"hush\""), 3, "`password_file`"),
        ("[tickets]\nkeys = \"redis\"".into(), 2, "`process`"),
        ("[tickets]\nkeys = \"file\"".into(), 2, "file ="),
        ("[tickets]\nfile = \"k\"".into(), 2, "keys = \"file\""),
        ("[tickets]\nkeys = \"store\"".into(), 2, "[store]"),
        ("[tickets]\nsingle_use = true".into(), 2, "[store]"),
        ("[tickets]\nrotation = \"1h\"".into(), 2, "keys = \"store\""),
        ("[tickets]\nzone = \"\"".into(), 2, "1 to 64"),
        ("[tickets]\nnode = \"a b\"".into(), 2, "printable"),
        (format!("{store}[tickets]\nkeys = \"store\""), 4, "key_encryption_file"),
        (
            format!(
                "{store}[tickets]\nkeys = \"store\"\nkey_encryption_file = \"k\"\nrotation = \"1s\""
            ),
            6,
            "60 to 604800",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.starts_with(&format!("f.toml, line {line}: ")), "{text}: {error}");
        assert!(error.contains(words), "{text}: {error}");
        assert!(!error.contains('\n'), "one sentence: {error}");
    }
}

#[test]
fn errors_name_file_line_and_allowed_values() {
    for (text, line, words) in [
        ("[early_data]\ndefault = \"lax\"", 2, "`permissive`"),
        ("\n[early_data]\nwhen_not_allowed = \"503\"", 3, "`hold` or `425`"),
        ("[early_data]\nenable = true", 2, "`enabled`"),
        ("[limit]\n", 1, "`limits`"),
        ("[limits]\nheader_timeout = \"soon\"", 2, "10s"),
        ("[limits]\nheader_timeout = \"-1s\"", 2, "10s"),
        ("[limits]\nheader_timeout = \"1h\"", 2, "30s"),
        ("\n[limits]\nheader_size = 10", 3, "1024 to 1048576"),
        ("\n[limits]\nmemory = 1000", 3, "1048576 bytes or more"),
        ("[limits]\nconnections = 0", 2, "1 or more"),
        ("[early_data.paths]\n\"/a\" = \"strict\"\n\"/a?b\" = \"strict\"", 3, "\"/api\""),
        ("[early_data.paths]\n\"/a\" = \"Strict\"", 2, "`strict`"),
        ("[http3]\nalt_svc = 3", 2, "or false"),
        ("[http3]\nalt_svc = \"long\"", 2, "10s"),
        ("[http3]\ninitial_mtu = 1199", 2, "1200 to 1452"),
        ("[http3]\nenabled = true\ninitial_mtu = 9000", 3, "1200 to 1452"),
        ("[http3]\ntoken_lifetime = \"0s\"", 2, "more than 0s"),
        ("[http3]\nrefuse_above = 0", 2, "1 or more"),
        ("[http3]\nretry_above = 5000", 2, "less than refuse_above (5000)"),
        ("[http3]\nrefuse_above = 9\nretry_above = 9", 3, "less than refuse_above (9)"),
        ("\n[http3]\nrefuse_above = 1000", 2, "retry_above (1000) must be less"),
        ("[upstream.a]\nservers = [\"http://h\", \"http://h:80\"]", 2, "listed twice"),
        (
            "[upstream.a]\nservers = [\"http://h\"]\n[upstream.a.health_check]\ninterval = \"0s\"",
            4,
            "more than 0s",
        ),
        (
            "[upstream.a]\nservers = [\"http://h\"]\nretry = { tries = 0 }",
            3,
            "tries must be at least 1",
        ),
        ("[http3]\nmtu = 1400", 2, "`initial_mtu`"),
        ("[early_data\n", 1, ""),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(&format!("f.toml, line {line}: ")), "{text}: {error}");
        assert!(error.contains(words), "{text}: {error}");
        assert!(!error.contains('\n'), "one sentence: {error}");
    }
}

#[test]
fn all_errors_of_a_section_are_reported_at_once() {
    for (text, lines) in [
        ("[limits]\nstreams = 0\nconnections = 0\nidle_timeout = \"0s\"", 2..=4),
        ("[http3]\ninitial_mtu = 1\ntoken_lifetime = \"0s\"\nretry_above = 9999", 2..=4),
        ("[upstream.a]\nservers = []\nrequests = 0\nbody_timeout = \"0s\"", 2..=4),
        ("[store]\nurl = \"redis://h\"\nserver_name = \"h\"\nmaster = \"m\"", 3..=4),
        ("[store]\nurl = \"redis://h\"\nclock_margin = \"0s\"\nbudget = \"2s\"", 3..=4),
        (
            "[store]\nurl = \"redis://h\"\nmode = \"sentinel\"\nmaster = \"m\"\n\
             password_file = \"/none\"\nsentinel_password_file = \"/none\"",
            5..=6,
        ),
    ] {
        let errors = parse(text).unwrap_err();
        let found: Vec<_> = errors.lines().map(|line| line.split(':').next().unwrap()).collect();
        let expected: Vec<_> = lines.map(|line| format!("f.toml, line {line}")).collect();
        assert_eq!(found, expected, "{errors}");
    }
}

#[test]
fn the_files_of_the_store_are_reread() {
    let dir = tempfile::tempdir().unwrap();
    let [password, sentinel_password, ca] =
        ["password", "sentinel", "ca"].map(|name| dir.path().join(name));
    for file in [&password, &sentinel_password] {
        std::fs::write(file, "hush").unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(file, private).unwrap();
    }
    let config = parse(&format!(
        "[store]\nurl = \"rediss://h\"\nmode = \"sentinel\"\nmaster = \"m\"\n\
         password_file = {password:?}\nsentinel_password_file = {sentinel_password:?}\n\
         ca_file = {ca:?}"
    ));
    let files = config.unwrap().files();
    for file in [password, sentinel_password, ca] {
        assert!(files.contains(&file), "{files:?}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "[\\PC\n]{0,200}") {
        let _ = parse(&text);
    }
}
