//! Encrypted ClientHello (RFC 9849) with keys from files: what is visible, early data and its copies over
//! TCP and QUIC, and a change of keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::{Recorder, program_path, resend, skipped_without};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::program::{
    Fetched, PAGE, Serve, fetch, fields, firstflight, run, self_signed, site, until,
};

/// Makes a key file, and returns the configuration that its record publishes.
fn new_key(dir: &Path, file: &str) -> String {
    let arguments = ["ech", "new", file, "--public-name", "cover.test"];
    let made = run(firstflight(dir).current_dir(dir).args(arguments));
    assert_eq!(made.code, Some(0), "{made:?}");
    let names = ["hidden.test", "hidden.test:8443"];
    let record = run(firstflight(dir).current_dir(dir).args(["ech", "record", file]).args(names));
    let lines: Vec<_> = record.out.lines().collect();
    let [usual, other] = lines[..] else { panic!("{record:?}") };
    let (head, list) = usual.split_once(" ech=\"").unwrap();
    assert_eq!(head, "hidden.test. 300 IN HTTPS 1 . alpn=\"h3,h2\"");
    let owner_and_target = "_8443._https.hidden.test. 300 IN HTTPS 1 hidden.test. ";
    assert!(other.starts_with(owner_and_target), "{other}");
    list.trim_end_matches('"').to_owned()
}

/// Serves `cover.test` and `hidden.test` with these key files.
fn configure(dir: &Path, files: &[&str]) {
    let mut text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[tls]\nech = {files:?}\n\
         [tickets]\nkeys = \"process\"\n"
    );
    let mut trusted = String::new();
    for name in ["cover", "hidden"] {
        text += &format!(
            "[[site]]\nnames = [\"{name}.test\"]\ncertificate = \"{name}.pem\"\n\
             key = \"{name}.key\"\n[[site.route]]\nroot = \"root\"\n"
        );
        if !dir.join(format!("{name}.pem")).exists() {
            let (certificate, key) = self_signed(&[&format!("{name}.test")]);
            fs::write(dir.join(format!("{name}.pem")), certificate).unwrap();
            fs::write(dir.join(format!("{name}.key")), key).unwrap();
        }
        trusted += &fs::read_to_string(dir.join(format!("{name}.pem"))).unwrap();
    }
    fs::write(dir.join("trusted.pem"), trusted).unwrap();
    fs::write(dir.join("config.toml"), text).unwrap();
}

/// Fetches `/` of `hidden.test` at this port, with ECH.
fn visit(dir: &Path, port: u16, list: &str, path: &str, more: &[&str]) -> Fetched {
    let url = format!("https://hidden.test:{port}{path}");
    let resolve = format!("hidden.test:{port}:127.0.0.1");
    let ech = format!("ecl:{list}");
    let flags = ["--ech", &ech, "--tls-earlydata", "--resolve", &resolve];
    fetch(dir, &dir.join("trusted.pem"), &url, &[&flags, more].concat())
}

#[test]
fn invalid_arguments_print_no_record_and_replace_no_key() {
    let site = site();
    let dir = site.path();
    new_key(dir, "a.ech");
    let before = fs::read(dir.join("a.ech")).unwrap();
    for (arguments, expected) in [
        (&["new", "a.ech", "--public-name", "cover.test"][..], "a.ech exists already; choose"),
        (&["record", "a.ech", "a.test", "b test"], "not a name"),
        (&["record", "a.ech", "a.test", "b.test:99999"], "not a port"),
        (&["record", "a.ech", "a.test", "--alpn", "h3 h2"], "such as h3,h2"),
    ] {
        let ended = run(firstflight(dir).current_dir(dir).arg("ech").args(arguments));
        assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{arguments:?}: {ended:?}");
        assert!(ended.err.contains(expected), "{arguments:?}: {ended:?}");
    }
    assert_eq!(fs::read(dir.join("a.ech")).unwrap(), before);
}

#[test]
fn rfc9849_early_data_runs_once_in_a_flight_that_hides_its_server_name() {
    let site = site();
    let dir = site.path();
    let list = new_key(dir, "cover.ech");
    assert_eq!(fs::metadata(dir.join("cover.ech")).unwrap().permissions().mode() & 0o777, 0o600);
    let again = ["ech", "new", "cover.ech", "--public-name", "cover.test"];
    assert_eq!(run(firstflight(dir).current_dir(dir).args(again)).code, Some(2));
    configure(dir, &["cover.ech"]);
    let server = Serve::configured(dir);
    let recorder = Recorder::start(server.address);
    let port = recorder.address().port();
    // Only one connection, so that the recorder's latest flight belongs to it.
    for early in ["none", "accepted"] {
        let path = format!("/?{early}");
        let fetched = visit(dir, port, &list, &path, &["--no-second-connection"]);
        assert_eq!(fetched.ended.out, PAGE, "{:?}", fetched.ended);
        assert_eq!(fetched.facts["early_data"], early, "{:?}", fetched.ended);
        let flight = recorder.flight();
        let shows = |name: &str| flight.windows(name.len()).any(|bytes| bytes == name.as_bytes());
        assert!(shows("cover.test") && !shows("hidden.test"));
    }
    assert_eq!(resend(server.address, &recorder.flight(), 20, 2), 20);
    // Over QUIC, past the recorder.
    for early in ["none", "accepted"] {
        let fetched = visit(dir, server.address.port(), &list, "/?quic", &["--http3-only"]);
        assert_eq!(fetched.ended.out, PAGE, "{:?}", fetched.ended);
        assert_eq!(fetched.facts["early_data"], early, "{:?}", fetched.ended);
    }
    let log = server.stop();
    let executed =
        log.iter().filter(|line| line["target"] == "/?accepted" && line["executed"] == true);
    assert_eq!(executed.count(), 1, "{log:#?}");
}

/// A client with another TLS library: Go's.
#[test]
fn quic_go_hides_the_server_name_in_full_resumed_and_early_connections() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let list = new_key(dir, "cover.ech");
    configure(dir, &["cover.ech"]);
    let server = Serve::configured(dir);
    for (flags, expected) in
        [(&[][..], "200 true false"), (&[], "200 true true"), (&["-early"], "200 true true")]
    {
        let mut command = Command::new(program_path("quic-go"));
        command.current_dir(dir).args(["client", "-session", "session", "-name", "hidden.test"]);
        command.args(["-ech", &list, "-cacert", "trusted.pem", "-port", &server.port()]);
        let ended = run(command.args(flags).arg("/?go"));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let result: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
        assert_eq!(fields(&result, "status ech resumed"), expected, "{result}");
    }
    let log = server.stop();
    assert!(log.iter().all(|line| line["host"] == "hidden.test"), "{log:#?}");
    assert_eq!(log[2]["early_data"], "accepted", "{log:#?}");
}

#[test]
fn rfc9849_6_1_6_a_reload_changes_keys_and_clients_get_the_new_one() {
    let site = site();
    let dir = site.path();
    let [old, new] = ["old.ech", "new.ech"].map(|file| new_key(dir, file));
    configure(dir, &["old.ech"]);
    let server = Serve::configured(dir);
    let port = server.address.port();
    let loads = |list: &str| visit(dir, port, list, "/", &[]).ended.code == Some(0);
    assert!(loads(&old) && !loads(&new));
    let reload = |files: &[&str]| {
        configure(dir, files);
        kill(Pid::from_raw(server.pid() as i32), Signal::SIGHUP).unwrap();
    };
    // While resolvers have the old record, both work.
    reload(&["new.ech", "old.ech"]);
    assert!(until(|| loads(&new)));
    assert!(loads(&old));
    reload(&["new.ech"]);
    assert!(until(|| !loads(&old)));
    for http in ["--http2", "--http3-only"] {
        let refused = visit(dir, port, &old, "/", &[http]).ended;
        assert!(refused.err.contains("could not decrypt the ClientHello (ECH)"), "{refused:?}");
        assert!(refused.err.contains(&format!("ecl:{new}")), "{http}: {refused:?}");
        assert_eq!(refused.code, Some(35), "{refused:?}");
    }
    // Without a certificate for the public name, `serve --check` warns.
    let other = ["ech", "new", "other.ech", "--public-name", "elsewhere.test"];
    assert_eq!(run(firstflight(dir).current_dir(dir).args(other)).code, Some(0));
    configure(dir, &["other.ech"]);
    let check = ["serve", "--check", "--config", "config.toml"];
    let checked = run(firstflight(dir).current_dir(dir).args(check));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.err.contains("no certificate covers elsewhere.test"), "{checked:?}");
    fs::write(dir.join("other.ech"), "no key").unwrap();
    let checked = run(firstflight(dir).current_dir(dir).args(check));
    assert!(checked.code == Some(2) && checked.err.contains("other.ech"), "{checked:?}");
}
