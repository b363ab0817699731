//! The development authority: the stores that trust it, and its name constraints.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use serde_json::Value;

use firstflight_testkit::{faketime_library, skipped_without};

use crate::support::chromium::Browser;
use crate::support::firefox::{Firefox, INSECURE};
use crate::support::program::{Ended, PAGE, Serve, firstflight, run, site, text, until};

const HOME: &str = ".local/share/firstflight/authority";

/// A server with a development certificate for localhost and app.test.
fn serve(dir: &Path) -> Serve {
    serve_in(dir, &[])
}

fn serve_in(dir: &Path, environment: &[(&str, &str)]) -> Serve {
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\n\
                  [[site]]\nnames = [\"localhost\", \"app.test\"]\n\
                  [[site.route]]\nroot = \"root\"\n";
    fs::write(dir.join("config.toml"), config).unwrap();
    Serve::configured_with(dir, &[], environment)
}

fn authority(dir: &Path, arguments: &[&str]) -> Ended {
    run(firstflight(dir).arg("authority").args(arguments))
}

/// Signs a certificate for these names with the authority's key, as an attacker with the key could.
fn forge(dir: &Path, names: &[&str]) -> (String, String) {
    let secret = fs::read_to_string(dir.join(HOME).join("authority.key")).unwrap();
    let shown = authority(dir, &["show", "--json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    let mut signer = CertificateParams::default();
    signer.distinguished_name.push(DnType::CommonName, shown["name"].as_str().unwrap());
    let issuer = Issuer::new(signer, KeyPair::from_pem(&secret).unwrap());
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names).unwrap();
    params.use_authority_key_identifier_extension = true;
    let made = params.signed_by(&key, &issuer).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (cert, secret) = (path("forged.pem"), path("forged.key"));
    fs::write(&cert, made.pem()).unwrap();
    fs::write(&secret, key.serialize_pem()).unwrap();
    (cert, secret)
}

#[test]
fn serve_fetch_and_curl_with_a_development_certificate() {
    let site = site();
    let dir = site.path();
    let server = serve(dir);
    let port = server.port();
    let fetch = |url: &str, arguments: &[&str]| {
        let fixed = format!("app.test:{port}:127.0.0.1");
        run(firstflight(dir).args(["fetch", "--resolve", &fixed, url]).args(arguments))
    };
    for host in ["localhost", "127.0.0.1", "app.test"] {
        for http in ["--http2", "--http3-only"] {
            let got = fetch(&format!("https://{host}:{port}/"), &[http]);
            assert_eq!((got.code, &*got.out), (Some(0), PAGE), "{host} {http}: {got:?}");
        }
    }
    let url = format!("https://localhost:{port}/");
    assert_eq!(fetch(&url, &["--no-authority"]).code, Some(60));
    let bench = |more: &[&str]| {
        let flags = ["--samples", "1", "--kind", "full", "--tls", "1.3", "--witness", "kernel"];
        let mut command = firstflight(dir);
        command.args(["bench", &url, "--output"]).arg(dir.join("bench")).args(flags).args(more);
        run(&mut command)
    };
    assert_eq!(bench(&[]).code, Some(0), "{:?}", bench(&[]));
    assert!(bench(&["--no-authority"]).err.contains("certificate was not accepted"));
    let mut curl = Command::new("curl");
    curl.args(["-sS", &url]).env("CURL_CA_BUNDLE", dir.join(HOME).join("authority.pem"));
    assert_eq!(run(&mut curl).out, PAGE);
    let stderr = fs::read_to_string(&server.stderr).unwrap();
    let notices = stderr.lines().filter(|line| line.contains("development authority")).count();
    assert_eq!(notices, 1, "{stderr}");
    assert!(stderr.contains("firstflight authority trust"), "{stderr}");
}

#[test]
fn a_key_that_others_may_read_is_neither_used_nor_trusted() {
    let site = site();
    let dir = site.path();
    serve(dir).stop();
    let key = dir.join(HOME).join("authority.key");
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let server = serve(dir);
    let stderr = fs::read_to_string(&server.stderr).unwrap();
    assert!(stderr.contains("chmod go= ") && stderr.contains("self-signed"), "{stderr}");
    let url = format!("https://localhost:{}/", server.port());
    let got = run(firstflight(dir).args(["fetch", "-v", &url]));
    assert_eq!(got.code, Some(60), "{got:?}");
    assert!(got.err.contains("the development authority is not trusted"), "{}", got.err);
    let shown = authority(dir, &[]);
    assert!(shown.code == Some(2) && shown.err.contains("chmod go= "), "{shown:?}");
    assert!(authority(dir, &["remove"]).out.contains("removed "));
    assert!(authority(dir, &[]).out.contains("no development authority"));
}

#[test]
fn a_development_certificate_is_renewed_before_it_expires() {
    if skipped_without(&["faketime"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let clock = dir.join("clock");
    fs::write(&clock, "+0d").unwrap();
    let library = faketime_library();
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    let server = serve_in(dir, &environment);
    let serial_number = || {
        let script = format!(
            "openssl s_client -connect {} </dev/null 2>/dev/null | openssl x509 -noout -serial",
            server.address
        );
        let serial = run(Command::new("sh").args(["-c", &script])).out;
        assert!(serial.starts_with("serial="), "{serial:?}; {}", text(&server.stderr));
        serial
    };
    let first = serial_number();
    // At half of its lifetime the certificate stays. About once a second, the server checks its
    // clock and then its certificates: when it logs the second step, it has handled the first.
    for (step, clock_now) in ["+84h", "+85h"].into_iter().enumerate() {
        fs::write(&clock, clock_now).unwrap();
        let seen = || text(&server.stderr).matches("clock was set").count() > step;
        assert!(until(seen), "{}", text(&server.stderr));
    }
    assert_eq!(serial_number(), first);
    fs::write(&clock, "+126h").unwrap();
    let signed = || text(&server.stderr).contains("has signed a new certificate");
    assert!(until(signed), "{}", text(&server.stderr));
    assert_ne!(serial_number(), first);
}

#[test]
fn serve_check_creates_no_authority() {
    let site = site();
    let dir = site.path();
    let root = dir.join("root");
    let checked = run(firstflight(dir).args(["serve", "--check"]).arg(root));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!dir.join(HOME).exists());
    assert_eq!(authority(dir, &["trust", "--dry-run"]).code, Some(2));
    assert!(!dir.join(HOME).exists());
}

#[test]
fn json_output_is_a_single_value() {
    let site = site();
    let dir = site.path();
    serve(dir).stop();
    for arguments in [
        &["show"][..],
        &["trust", "--dry-run"],
        &["untrust", "--dry-run"],
        &["remove", "--dry-run"],
        &["remove"],
        &["show"],
    ] {
        let shown = authority(dir, &[arguments, &["--json"]].concat());
        let value: Value = serde_json::from_str(&shown.out).unwrap_or_else(|error| {
            panic!("{arguments:?}: {error}: {shown:?}");
        });
        if arguments[0] == "remove" {
            assert!(value["stores"].is_array(), "{value}");
            assert_eq!(value["files"].as_array().map(Vec::len), Some(2), "{value}");
        }
    }
    assert!(!dir.join(HOME).exists());
}

#[test]
fn a_store_that_does_not_exist_is_named_and_no_authority_is_created() {
    let site = site();
    let dir = site.path();
    let text = authority(dir, &["trust", "--only", "firefox"]);
    assert_eq!((text.code, &*text.err), (Some(1), ""), "{text:?}");
    assert_eq!(text.out, "nothing to do: found no certificate store of firefox\n");
    let json = authority(dir, &["trust", "--only", "firefox", "--json"]);
    assert_eq!((json.code, &*json.out), (Some(1), "[]\n"));
    assert!(!dir.join(HOME).exists());
    // A key is not removed while other stores trust it.
    let only = authority(dir, &["remove", "--only", "firefox"]);
    assert!(only.code == Some(2) && only.err.contains("--only"), "{only:?}");
}

/// A script that hides the system's certificate store and all browsers in its own namespace.
const WITHOUT_STORES: &str = r#"
set -eu
program=/usr/sbin/update-ca-certificates
[ ! -e $program ] || mount --bind /dev/null $program
PATH=/nowhere "$1" authority trust
"#;

#[test]
fn an_authority_is_created_where_there_is_no_store() {
    let site = site();
    let dir = site.path();
    let mut command = Command::new("unshare");
    command.arg("--mount").args((!geteuid().is_root()).then_some("--map-root-user"));
    command.args(["sh", "-c", WITHOUT_STORES, "sh", crate::support::program::PROGRAM]);
    command.env("HOME", dir).env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("neither the system's certificate store nor"), "{ended:?}");
    assert!(dir.join(HOME).join("authority.pem").exists());
}

#[test]
fn rfc5280_4_2_1_10_name_constraints_exclude_public_names() {
    let site = site();
    let dir = site.path();
    serve(dir).stop();
    let pem = dir.join(HOME).join("authority.pem");
    let openssl = |cert: &str| {
        let mut command = Command::new("openssl");
        run(command.arg("verify").arg("-CAfile").arg(&pem).arg(cert))
    };
    let fetch = |server: &Serve, host: &str| {
        let port = server.port();
        let (url, fixed) = (format!("https://{host}:{port}/"), format!("{host}:{port}:127.0.0.1"));
        run(firstflight(dir).args(["fetch", "--resolve", &fixed, &url]))
    };
    let start = |cert: &str, key: &str| Serve::files(dir, &["--cert", cert, "--key", key]);
    for bad in ["example.com", "8.8.8.8"] {
        let (cert, key) = forge(dir, &[bad, "localhost"]);
        let judged = openssl(&cert);
        assert!(judged.err.contains("permitted subtree violation"), "{bad}: {judged:?}");
        let server = start(&cert, &key);
        for host in [bad, "localhost"] {
            let refused = fetch(&server, host);
            assert_eq!(refused.code, Some(60), "{host}: {refused:?}");
        }
        server.stop();
    }
    // Certificates for permitted names are valid, so only the names of those above are wrong.
    let (cert, key) = forge(dir, &["app.test", "10.1.2.3", "localhost"]);
    assert_eq!(openssl(&cert).code, Some(0));
    let server = start(&cert, &key);
    for host in ["app.test", "10.1.2.3"] {
        assert_eq!(fetch(&server, host).code, Some(0), "{host}");
    }
}

#[test]
fn chromium_trusts_an_installed_authority_within_its_name_constraints() {
    if skipped_without(&["chromium"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let server = serve(dir);
    let port = server.port();
    let rules = "MAP app.test 127.0.0.1, MAP example.com 127.0.0.1";
    let url = |host: &str| format!("https://{host}:{port}/");
    let mut before = Browser::open(dir, rules);
    assert_eq!(before.refusal(&url("localhost")), "net::ERR_CERT_AUTHORITY_INVALID");
    drop(before);
    let trusted = authority(dir, &["trust", "--only", "chromium"]);
    assert!(trusted.code == Some(0) && trusted.out.contains("now trusts it"), "{trusted:?}");
    let again = authority(dir, &["trust", "--only", "chromium"]);
    assert!(again.out.contains("already trusts it"), "{again:?}");
    let mut after = Browser::open(dir, rules);
    for host in ["localhost", "127.0.0.1", "app.test"] {
        after.go(&url(host));
        after.wait_for_text("document.body.innerText", PAGE.trim());
    }
    let (cert, key) = forge(dir, &["example.com"]);
    let forbidden = Serve::files(dir, &["--cert", &cert, "--key", &key]);
    let refusal = after.refusal(&format!("https://example.com:{}/", forbidden.port()));
    assert!(refusal.starts_with("net::ERR_CERT"), "{refusal:?}");
    drop(after);
    let untrusted = authority(dir, &["untrust", "--only", "chromium"]);
    assert!(untrusted.out.contains("no longer trusts it"), "{untrusted:?}");
    assert!(Browser::open(dir, rules).refusal(&url("localhost")).starts_with("net::ERR_CERT"));
}

#[test]
fn firefox_trusts_an_installed_authority_within_its_name_constraints() {
    if skipped_without(&["firefox-esr"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let server = serve(dir);
    let port = server.port();
    let names = "app.test, example.com";
    let url = |host: &str| format!("https://{host}:{port}/");
    let refused = Err(INSECURE.to_owned());
    assert_eq!(Firefox::open(dir, names).go(&url("localhost")), refused);
    let trusted = authority(dir, &["trust", "--only", "firefox"]);
    assert!(trusted.code == Some(0) && trusted.out.contains("now trusts it"), "{trusted:?}");
    let mut after = Firefox::open(dir, names);
    for host in ["localhost", "127.0.0.1", "app.test"] {
        assert_eq!(after.go(&url(host)).as_deref().map(str::trim), Ok(PAGE.trim()), "{host}");
    }
    let (cert, key) = forge(dir, &["example.com"]);
    let forbidden = Serve::files(dir, &["--cert", &cert, "--key", &key]);
    assert_eq!(after.go(&format!("https://example.com:{}/", forbidden.port())), refused);
    drop(after);
    let untrusted = authority(dir, &["untrust", "--json", "--only", "firefox"]);
    let untrusted: Value = serde_json::from_str(&untrusted.out).unwrap();
    assert_eq!(
        (&untrusted[0]["store"], &untrusted[0]["outcome"]),
        (&"firefox".into(), &"done".into())
    );
    assert_eq!(Firefox::open(dir, names).go(&url("localhost")), refused);
}

/// A script that mounts a copy of the system's certificate store in its own namespace.
const IN_A_COPY: &str = r#"
set -eu
cp -a /etc/ssl/certs "$1/certs"
mkdir -p "$1/local" /usr/local/share/ca-certificates
mount --bind "$1/certs" /etc/ssl/certs
mount --bind "$1/local" /usr/local/share/ca-certificates
get() { curl -sS "https://localhost:$2/" 2>&1 | head -n 1; }
get "$@"
"$3" authority trust --only system
get "$@"
"$3" authority untrust --only system
get "$@"
"$3" authority trust --only system >/dev/null
chmod 644 "$1/.local/share/firstflight/authority/authority.key"
"$3" authority remove | grep '^system'
ls "$1/local"
"#;

#[test]
fn the_system_trusts_an_installed_authority() {
    let site = site();
    let dir = site.path();
    let server = serve(dir);
    let mut command = Command::new("unshare");
    // An unprivileged user is root in a user namespace.
    command.arg("--mount").args((!geteuid().is_root()).then_some("--map-root-user"));
    command.args(["sh", "-c", IN_A_COPY, "sh"]).arg(dir).arg(server.port());
    command.arg(crate::support::program::PROGRAM).env("HOME", dir).env_remove("XDG_DATA_HOME");
    command.env_remove("CURL_CA_BUNDLE").env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    let ended = run(&mut command);
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines.len(), 6, "{ended:?}");
    assert!(lines[0].contains("(60)") && lines[4].contains("(60)"), "{ended:?}");
    assert!(lines[1].ends_with("now trusts it"), "{ended:?}");
    assert_eq!(format!("{}\n", lines[2]), PAGE);
    assert!(lines[3].ends_with("no longer trusts it"), "{ended:?}");
    // Also with a key that others may read.
    assert!(lines[5].ends_with("no longer trusts it"), "{ended:?}");
}
