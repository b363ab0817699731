//! Invalid input: the program prints one sentence with the fix, and changes nothing.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use firstflight_testkit::free_port;

use crate::support::peer::certificate;
use crate::support::program::{PAGE, Serve, TEST_TIMEOUT, fetch, firstflight, run, site, text};

/// Runs the program, which must fail with this exit code and one sentence with these texts.
fn assert_refused(dir: &Path, arguments: &[&str], code: i32, expected: &[&str]) {
    let ended = run(firstflight(dir).current_dir(dir).args(arguments));
    assert_eq!((ended.code, &*ended.out), (Some(code), ""), "{arguments:?}: {ended:?}");
    // Errors of clap end with a hint about `--help`.
    let sentence = match ended.err.strip_suffix("\n\nFor more information, try '--help'.\n") {
        Some(sentence) => sentence.strip_prefix("error: "),
        None => ended.err.trim_end().strip_prefix("firstflight: "),
    };
    let sentence = sentence.unwrap_or_else(|| panic!("{arguments:?}: {ended:?}"));
    assert!(!sentence.contains('\n'), "one sentence: {sentence}");
    for debris in ["panicked", "backtrace", " { ", "Some(", "Os {"] {
        assert!(!sentence.contains(debris), "{sentence}");
    }
    for word in expected {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
    assert!(sentence.matches("(os error").count() <= 1, "a cause is named once: {sentence}");
}

#[test]
fn missing_files() {
    let site = site();
    let dir = site.path();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--root", "root", "--ticket-keys", "none"];
    for arguments in [
        &["keys", "list", "none"][..],
        &["keys", "rotate", "none"],
        &["keys", "rotate-encryption", "none"],
        &["keys", "list", "--config", "none"],
        &["ech", "record", "none", "a.test"],
        &["serve", "--check", "--config", "none"],
        &serve,
        &["health", "--config", "none"],
    ] {
        assert_refused(dir, arguments, 2, &["none", "No such file"]);
    }
}

#[test]
fn invalid_certificates_and_keys() {
    let site = site();
    let dir = site.path();
    certificate(dir);
    fs::rename(dir.join("key.pem"), dir.join("other-key.pem")).unwrap();
    certificate(dir);
    let cut = &text(&dir.join("cert.pem"))[..300];
    fs::write(dir.join("cut.pem"), cut).unwrap();
    let serve = |cert, key, expected: &[&str]| {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--root", "root"];
        assert_refused(dir, &[&listen[..], &["--cert", cert, "--key", key]].concat(), 2, expected);
    };
    serve("none.pem", "key.pem", &["certificate none.pem", "No such file", "give a file"]);
    serve("cert.pem", "none.pem", &["private key none.pem", "No such file", "give a file"]);
    serve("root", "key.pem", &["certificate root", "give a file"]);
    serve("root/index.html", "key.pem", &["root/index.html", "no certificate in PEM form"]);
    serve("cut.pem", "key.pem", &["cut.pem", "PEM"]);
    serve("cert.pem", "root/index.html", &["root/index.html", "no private key in PEM form"]);
    let fix = "give the key that the certificate was issued for";
    serve("cert.pem", "other-key.pem", &["other-key.pem", "cert.pem", fix]);
}

#[test]
fn invalid_addresses_and_content() {
    let site = site();
    let dir = site.path();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let serve = |listen, root, expected: &[&str]| {
        assert_refused(dir, &["serve", "--listen", listen, "--root", root], 2, expected);
    };
    serve(&address, "root", &[&address, "in use", "choose another port with --listen"]);
    serve("127.0.0.1", "root", &["127.0.0.1", "give an address such as"]);
    serve("192.0.2.1:0", "root", &["192.0.2.1:0", "give an address of this machine"]);
    serve("127.0.0.1:0", "none", &["none", "use a readable directory"]);
    assert_refused(dir, &["serve", "--listen", "127.0.0.1:0"], 2, &["give --root DIR", "[[site]]"]);
    let upstream = ["serve", "--listen", "127.0.0.1:0", "--upstream", "ftp://h"];
    assert_refused(dir, &upstream, 2, &["ftp://h", "http://HOST:PORT"]);
}

#[test]
fn invalid_configurations() {
    let site = site();
    let dir = site.path();
    for (content, expected) in [
        ("\n[early_data]\ndefault = \"lax\"\n", ["line 3", "`permissive`"]),
        ("[early_data]\nwhen_not_allowed = \"503\"\n", ["line 2", "`hold` or `425`"]),
        ("[limits]\nheader_size = 1\n", ["line 2", "1024 to 1048576"]),
        ("[early-data]\n", ["line 1", "`early_data`"]),
        ("[store]\nurl = \"http://h\"\n", ["line 2", "rediss://HOST:PORT"]),
        ("[tickets]\nkeys = \"store\"\n", ["line 2", "[store]"]),
    ] {
        fs::write(dir.join("bad.toml"), content).unwrap();
        let expected = [&["bad.toml"], &expected[..]].concat();
        assert_refused(dir, &["serve", "--check", "--config", "bad.toml"], 2, &expected);
        let serve = ["serve", "--listen", "127.0.0.1:0", "--root", "root", "--config", "bad.toml"];
        assert_refused(dir, &serve, 2, &expected);
    }
    let missing = ["serve", "--check", "--config", "none.toml"];
    assert_refused(dir, &missing, 2, &["none.toml", "No such file", "--config"]);
    let store = "[store]\nurl = \"rediss://127.0.0.1\"\n";
    fs::write(dir.join("ca.pem"), "no PEM").unwrap();
    for (content, expected) in [
        (format!("{store}ca_file = \"ca.pem\"\n"), ["ca.pem", "PEM"]),
        ("[tickets]\nkeys = \"file\"\nfile = \"none\"\n".to_owned(), ["none", "keys new"]),
    ] {
        fs::write(dir.join("bad.toml"), content).unwrap();
        assert_refused(dir, &["serve", "--check", "--config", "bad.toml"], 2, &expected);
    }
    fs::write(dir.join("good.toml"), format!("{store}[early_data]\ndefault = \"strict\"\n"))
        .unwrap();
    let good = ["serve", "--check", "--config", "good.toml", "root"];
    let good = run(firstflight(dir).current_dir(dir).args(good));
    assert_eq!((good.code, &*good.err), (Some(0), ""), "{good:?}");
    assert!(good.out.ends_with("good.toml: OK\n"), "{good:?}");
}

#[test]
fn a_check_refuses_what_serve_refuses_and_shows_certificates() {
    let site = site();
    let dir = site.path();
    certificate(dir);
    let address = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let route = "[[site.route]]\nroot = \"root\"\n";
    for (content, expected) in [
        (address.to_owned(), ["nothing to serve", "[[site]]"]),
        (format!("[[site]]\n{route}"), ["no address", "[[listener]]"]),
    ] {
        fs::write(dir.join("part.toml"), content).unwrap();
        for more in [&["--check"][..], &[]] {
            let arguments = [&["serve", "--config", "part.toml"], more].concat();
            assert_refused(dir, &arguments, 2, &expected);
        }
    }
    let files = "certificate = \"cert.pem\"\nkey = \"key.pem\"\n";
    let other = format!("[[site]]\nnames = [\"b.test\"]\n{route}");
    let whole = format!("{address}[[site]]\nnames = [\"a.test\"]\n{files}{route}{other}");
    fs::write(dir.join("whole.toml"), whole).unwrap();
    let checked = ["serve", "--check", "--config", "whole.toml"];
    let checked = run(firstflight(dir).current_dir(dir).args(checked));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let line = |name| checked.out.lines().find(|line| line.contains(name)).unwrap();
    assert!(line("a.test").contains("cert.pem, expires "), "{checked:?}");
    assert!(line("b.test").contains("development authority"), "{checked:?}");
}

#[test]
fn flags_of_a_certificate_that_no_site_uses_are_refused() {
    let site = site();
    let dir = site.path();
    certificate(dir);
    let own = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[site]]\ncertificate = \"cert.pem\"\n\
               key = \"key.pem\"\n[[site.route]]\nroot = \"root\"\n";
    let other = "[[site]]\nnames = [\"b.test\"]\n[[site.route]]\nroot = \"root\"\n";
    fs::write(dir.join("own.toml"), own).unwrap();
    fs::write(dir.join("some.toml"), format!("{own}{other}")).unwrap();
    let check = |file| ["serve", "--check", "--config", file];
    let files = ["--cert", "cert.pem", "--key", "key.pem"];
    for (flags, expected) in [
        (&files[..], ["--cert and --key", "each site"]),
        (&["--self-signed", "a.test"], ["--self-signed and --save-cert", "each site"]),
        (&["--save-cert", "new.pem"], ["--self-signed and --save-cert", "each site"]),
        (&["--acme-contact", "ops@example.org"], ["no site", "--acme NAME"]),
        (&["--acme-agree", "--acme-state", "state"], ["no site", "leave them out"]),
    ] {
        assert_refused(dir, &[&check("own.toml"), flags].concat(), 2, &expected);
    }
    let variables = [("FIRSTFLIGHT_CERT", "cert.pem"), ("FIRSTFLIGHT_KEY", "key.pem")];
    let ended = run(firstflight(dir).current_dir(dir).args(check("own.toml")).envs(variables));
    assert_eq!(ended.code, Some(0), "variables may be for other servers too: {ended:?}");
    let used = [&check("some.toml"), &files[..]].concat();
    let used = run(firstflight(dir).current_dir(dir).args(used));
    assert_eq!(used.code, Some(0), "{used:?}");
    assert!(!dir.join("new.pem").exists());
}

#[test]
fn a_directory_alone_is_served_on_the_default_address() {
    let site = site();
    let checked = run(firstflight(site.path()).args(["serve", "--check"]).arg(site.path()));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.out.contains("listener  127.0.0.1:8443  https"), "{checked:?}");
}

#[test]
fn a_health_check_with_a_timeout_of_zero_is_refused() {
    let site = site();
    let health = ["health", "--admin", "127.0.0.1:1", "--timeout", "0s"];
    assert_refused(site.path(), &health, 2, &["--timeout", "such as 5s"]);
}

#[test]
fn flags_of_curl_that_fetch_lacks_are_named_and_values_may_start_with_a_dash() {
    let site = site();
    let dir = site.path();
    assert_refused(
        dir,
        &["fetch", "--compressed", "https://a/"],
        2,
        &["curl has --compressed", "leave it out"],
    );
    assert_refused(dir, &["fetch", "-u", "a:b", "https://a/"], 2, &["curl has --user"]);
    let url = format!("https://127.0.0.1:{}/", free_port());
    let ended = run(firstflight(dir).args(["fetch", "-s", "-w", "--x %{http_code}", &url]));
    assert_eq!((ended.code, &*ended.out), (Some(7), "--x 000"), "{ended:?}");
}

#[test]
fn a_closed_pipe_ends_commands_quietly() {
    let site = site();
    for arguments in [&["doctor"][..], &["report", "--schema"], &["serve", "--check", "."]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = firstflight(site.path());
        command.current_dir(site.path()).args(arguments).stdout(writer);
        let ended = command.stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*err), (Some(141), ""), "{arguments:?}");
    }
}

/// Runs the program with these streams, and returns its exit code and the messages.
fn with_streams(dir: &Path, arguments: &[&str], out: Stdio, err: Stdio) -> (Option<i32>, String) {
    let mut command = firstflight(dir);
    command.current_dir(dir).args(arguments).stdin(Stdio::null()).stdout(out).stderr(err);
    let ended = command.output().unwrap();
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

/// Opens `/dev/full`, where every write fails with ENOSPC.
fn full_device() -> Stdio {
    fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn a_full_standard_output_is_an_error() {
    let site = site();
    let dir = site.path();
    let url = format!("http://127.0.0.1:{}/", closes_after(b"HTTP/1.1 204 No Content\r\n\r\n"));
    let page = format!("http://127.0.0.1:{}/", closes_after(b"HTTP/1.1 200 OK\r\n\r\npage"));
    for (arguments, expected) in [
        (&["completions", "bash"][..], 2),
        (&["manual"], 2),
        (&["try", "--once", "--json", "--listen", "127.0.0.1:0", "root"], 2),
        (&["fetch", "-w", "%{http_code}", &url], 23),
        (&["fetch", &page], 23),
    ] {
        let (code, err) = with_streams(dir, arguments, full_device(), Stdio::piped());
        assert_eq!(code, Some(expected), "{arguments:?}: {err}");
        assert!(err.contains("No space left on device"), "{arguments:?}: {err}");
    }
}

#[test]
fn a_full_standard_error_changes_no_exit_code() {
    let site = site();
    let dir = site.path();
    for (arguments, expected) in [
        (&["keys", "list", "/nonexistent"][..], 2),
        (&["fetch", "--compressed", "http://127.0.0.1:1/"], 2),
        (&["fetch", "http://127.0.0.1:1/"], 7),
        (&["fetch", "-w", "%{nonsense}", "http://127.0.0.1:1/"], 7),
        (&["health", "--admin", "127.0.0.1:1"], 1),
    ] {
        let (code, _) = with_streams(dir, arguments, Stdio::null(), full_device());
        assert_eq!(code, Some(expected), "{arguments:?}");
    }
}

#[test]
fn flags_of_fetch_that_contradict_each_other() {
    let site = site();
    let dir = site.path();
    let fetch = |flags: &[&str]| {
        run(firstflight(dir).current_dir(dir).args(["fetch", "http://127.0.0.1:1/"]).args(flags))
    };
    for (flags, expected) in [
        (&["-I", "-d", "x"][..], "leave out one, or add -G"),
        (&["--tcp-fastopen", "--http3"], "cannot be used with"),
        (&["--tcp-fastopen", "--http3-only"], "cannot be used with"),
        (&["--ssl-sessions-key", "key"], "--ssl-sessions <FILE>"),
        (&["--no-second-connection"], "--tls-earlydata"),
    ] {
        let ended = fetch(flags);
        assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{flags:?}: {ended:?}");
        assert!(ended.err.contains(expected), "{flags:?}: {ended:?}");
    }
    // As with curl, this is a HEAD with a query.
    assert_eq!(fetch(&["-I", "-G", "-d", "x"]).code, Some(7));
}

#[test]
fn warnings_of_fetch_are_not_printed_with_silent() {
    let site = site();
    let dir = site.path();
    let url = format!("http://127.0.0.1:{}/", closes_after(b"HTTP/1.1 204 No Content\r\n\r\n"));
    for (flags, expected) in [
        (&["-o", "a", "-o", "b"][..], "more -o than URLs"),
        (&["-w", "%{nonsense}"], "unknown --write-out variable: 'nonsense'"),
    ] {
        let fetch = |more: &[&str]| {
            let mut command = firstflight(dir);
            run(command.current_dir(dir).arg("fetch").args(flags).args(more).arg(&url))
        };
        let loud = fetch(&[]);
        assert!(loud.code == Some(0) && loud.err.contains(expected), "{flags:?}: {loud:?}");
        let silent = fetch(&["-s"]);
        assert_eq!((silent.code, &*silent.err), (Some(0), ""), "{flags:?}");
    }
}

#[test]
fn a_jar_passphrase_must_be_utf8_and_a_key_file_overrides_it() {
    let site = site();
    let dir = site.path();
    let fetch = |passphrase: &[u8], flags: &[&str]| {
        let mut command = firstflight(dir);
        command.current_dir(dir).args(["fetch", "--ssl-sessions", "jar", "https://127.0.0.1:1/"]);
        command.env("FIRSTFLIGHT_SESSIONS_PASSPHRASE", OsStr::from_bytes(passphrase));
        run(command.args(flags))
    };
    let key = ["--ssl-sessions-key", "key"];
    let ended = fetch(b"\xff", &[]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("is not UTF-8; choose another passphrase"), "{ended:?}");
    assert!(!dir.join("jar").exists());
    for passphrase in [&b"phrase"[..], b"\xff", b""] {
        assert_eq!(fetch(passphrase, &key).code, Some(7), "{passphrase:?}");
        assert!(dir.join("key").exists());
    }
}

#[test]
fn invalid_flags_of_lab_serve() {
    let site = site();
    let dir = site.path();
    let lab = |arguments: &[&str], expected: &[&str]| {
        assert_refused(dir, &[&["lab"], arguments].concat(), 2, expected);
    };
    lab(&["--serve", "--samples", "3"], &["--serve", "measures nothing", "leave out --samples"]);
    let axes = ["--serve", "--kind", "full", "--no-costs", "--fail-if", "p50(full) > 1s"];
    lab(&axes, &["leave out the axes, --no-costs, --fail-if"]);
    let compression = ["--certificate-compression", "on"];
    for mode in [&["--serve"][..], &["--enter", "1"]] {
        let expected = ["leave out --certificate-compression"];
        lab(&[mode, &compression].concat(), &expected);
    }
    lab(&["--serve", "--browser", "firefox"], &["leave out --browser", "--enter"]);
    let visits = ["--enter", "1", "--browser", "firefox", "--visits", "3"];
    lab(&visits, &["leave out --page, --visits"]);
    let two = ["--enter", "1", "--browser", "firefox,chromium"];
    lab(&two, &["--enter starts one browser"]);
    lab(&["--enter", "1", "--captures", "none", "-o", "x"], &["--output, --captures"]);
    lab(&["--serve", "--enter", "1"], &["--serve", "--enter", "leave one of them out"]);
    lab(&["--serve", "--server", "apache"], &["unknown server \"apache\"", "firstflight"]);
    lab(&["--serve", "--profile", "5g-to-mars"], &["5g-to-mars", "round-trip time"]);
    lab(&["--enter", "1", "--rtt", "3"], &["--enter enters a running lab", "the networks"]);
    lab(&["--enter", "1"], &["process 1 is not a lab", "firstflight lab --serve"]);
    lab(&["--enter", "one"], &["one", "--enter"]);
}

#[test]
fn unusable_ticket_keys() {
    let site = site();
    let dir = site.path();
    let new = ["keys", "new", "keys"];
    let made = run(firstflight(dir).current_dir(dir).args(new));
    assert_eq!(made.code, Some(0), "{made:?}");
    let file = dir.join("keys");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&file).unwrap();
    assert_refused(dir, &new, 2, &["keys exists already", "choose another name"]);
    assert_eq!(fs::read(&file).unwrap(), before, "untouched");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--root", "root", "--ticket-keys", "keys"];
    for mode in [0o640, 0o604] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        assert_refused(dir, &serve, 2, &["keys can be read by others", "`chmod 600 keys`"]);
    }
    assert_refused(dir, &["keys", "rotate", "keys"], 2, &["chmod 600"]);
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, &before[..before.len() / 2]).unwrap();
    assert_refused(dir, &serve, 2, &["keys line ", "[[key]]"]);
    fs::remove_file(&file).unwrap();
    assert_refused(dir, &serve, 2, &["keys", "No such file", "`firstflight keys new`"]);
}

/// A jar that is damaged, or encrypted under another key, is refused and left unchanged.
#[test]
fn unusable_session_jars() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    let url = format!("https://localhost:{}/index.html", server.port());
    let filled = fetch(dir, &server.cert, &url, &[]);
    assert_eq!(filled.ended.out, PAGE, "{:?}", filled.ended);
    let jar = dir.join("jar");
    let good = fs::read(&jar).unwrap();
    let assert_jar_refused = |content: &[u8], flags: &[&str], expected: &[&str]| {
        fs::write(&jar, content).unwrap();
        let fetch = ["fetch", "--cacert", "cert.pem", "--ssl-sessions", "jar", &url];
        assert_refused(dir, &[&fetch[..], flags].concat(), 2, expected);
        assert_eq!(fs::read(&jar).unwrap(), content, "byte for byte as it was");
    };
    let other = ["--ssl-sessions-key", "other-key"];
    assert_jar_refused(
        &good,
        &other,
        &["jar is encrypted under another key", "--ssl-sessions-key FILE"],
    );
    let damaged = ["jar is damaged", "remove it to start with an empty one"];
    for length in [1, 20, good.len() / 2, good.len() - 1] {
        assert_jar_refused(&good[..length], &[], &damaged);
    }
    let mut garbled = good.clone();
    *garbled.last_mut().unwrap() ^= 1;
    assert_jar_refused(&garbled, &[], &damaged);
    assert_jar_refused(b"these are no sessions\n", &[], &damaged);
    assert_jar_refused(&[0xff; 4096], &[], &damaged);
    let by_age = b"age-encryption.org/v1\n-> X25519 CJM36AHmTbdHSuOQL\n";
    assert_jar_refused(by_age, &[], &["jar was sealed with age", "rm jar", "one full handshake"]);
    // The restored jar still works.
    fs::write(&jar, &good).unwrap();
    let again = fetch(dir, &server.cert, &url, &["--tls-earlydata"]);
    assert_eq!(again.facts["early_data"], "accepted");
    assert_eq!(server.stop().len(), 2, "the refused calls sent nothing");
}

/// Starts a server that reads once from each connection, sends these bytes and closes. Returns its
/// port.
fn closes_after(response: &'static [u8]) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(response);
            let _ = client.shutdown(Shutdown::Write);
            // Unread data would reset the connection, and the client would lose the response.
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
    port
}

#[test]
fn servers_that_close_during_an_exchange() {
    let site = site();
    let dir = site.path();
    let https = |response: &'static [u8]| format!("https://127.0.0.1:{}/", closes_after(response));
    let http = |response: &'static [u8]| format!("http://127.0.0.1:{}/", closes_after(response));
    assert_refused(dir, &["fetch", "-k", &https(b"")], 35, &["closed the connection", "handshake"]);
    // A record that is longer than what follows.
    assert_refused(
        dir,
        &["fetch", "-k", &https(b"\x16\x03\x03\x00\x7a\x02\x00")],
        35,
        &["handshake"],
    );
    assert_refused(dir, &["fetch", "-k", &https(b"HTTP/1.1 400 No\r\n\r\n")], 35, &["TLS"]);
    assert_refused(dir, &["fetch", &http(b"")], 52, &["closed the connection without a response"]);
    let short = http(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    assert_refused(dir, &["fetch", &short], 18, &["ended the response before the end of the body"]);
}

#[test]
fn a_failed_handshake_does_not_change_the_jar() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    let url = format!("https://localhost:{}/index.html", server.port());
    assert_eq!(fetch(dir, &server.cert, &url, &[]).ended.out, PAGE);
    let broken = format!("https://localhost:{}/", closes_after(b""));
    assert_eq!(fetch(dir, &server.cert, &broken, &[]).ended.code, Some(35));
    let again = fetch(dir, &server.cert, &url, &["--tls-earlydata"]);
    assert_eq!(again.facts["early_data"], "accepted", "{:?}", again.ended);
}

/// Pseudorandom bytes, the same in each run.
fn noise(seed: u32) -> impl Iterator<Item = u8> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    })
}

#[test]
fn a_megabyte_of_random_bytes_as_client_hello() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    for seed in 1..=20 {
        let mut bytes: Vec<u8> = noise(seed).take(1 << 20).collect();
        if seed % 2 == 0 {
            // The headers of the record and of the ClientHello are valid.
            bytes[..9].copy_from_slice(&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]);
        }
        let mut tcp = TcpStream::connect(server.address).unwrap();
        tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        tcp.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        // The server may close before it has read everything.
        let _ = tcp.write_all(&bytes);
        let _ = tcp.shutdown(Shutdown::Write);
        let mut response = Vec::new();
        let end = tcp.read_to_end(&mut response).map_err(|error| error.kind());
        let reset = Err(std::io::ErrorKind::ConnectionReset);
        assert!(end.is_ok() || end == reset, "closed, not left hanging: {end:?}");
        assert!(response.len() < 100, "an alert at most: {response:?}");
    }
    let url = format!("https://localhost:{}/index.html", server.port());
    assert_eq!(fetch(dir, &server.cert, &url, &[]).ended.out, PAGE);
    let stderr = text(&server.stderr);
    assert!(stderr.lines().count() < 10, "invalid connections do not fill the log: {stderr}");
    assert_eq!(server.stop().len(), 1);
}

#[test]
fn invalid_flags_of_the_lab() {
    let site = site();
    let dir = site.path();
    let lab = |flags: &[&str], expected: &[&str]| {
        assert_refused(dir, &[&["lab"], flags].concat(), 2, expected)
    };
    lab(&["--server", "apache"], &["apache", "allowed are firstflight, nginx, haproxy"]);
    lab(&["--rtt", "0"], &["--rtt", "0.01 to 10000 milliseconds"]);
    lab(&["--rtt", "20,fast"], &["fast", "0.01 to 10000 milliseconds"]);
    lab(&["--rtt=-1"], &["-1", "0.01 to 10000 milliseconds"]);
    lab(&["--tls", "1.4"], &["1.4", "allowed are 1.0, 1.1, 1.2 or 1.3"]);
    lab(&["--kind", "half"], &["half", "full", "resumed", "0-RTT"]);
    lab(&["--workload", "post"], &["post", "ping-pong", "get"]);
    lab(&["--tfo", "maybe"], &["maybe", "on or off"]);
    lab(&["--samples", "0"], &["--samples", "1..=100000"]);
    lab(&["--http", "4"], &["4", "allowed are 1.1, 2, 3"]);
    lab(&["--group", "X448"], &["X448", "X25519MLKEM768"]);
    lab(&["--certificate", "dsa"], &["dsa", "ecdsa-p256"]);
    lab(&["--size", "2k"], &["2k", "10k"]);
    lab(&["--profile", "6g"], &["6g", "cable"]);
    lab(&["--experiment", "best"], &["best", "ping-pong", "middlebox"]);
    lab(&["--experiment", "get", "--tls", "1.3"], &["--experiment defines axes and networks"]);
    lab(&["--server-cmd", "app"], &["{port}"]);
    lab(&["--fail-if", "p50(0rtt) > 1.1*old"], &["firstflight report --compare"]);
    fs::write(dir.join("own.toml"), "[profile.x]\nrtt = 5\n").unwrap();
    lab(&["--profile", "own.toml"], &["own.toml", "line 2", "rtt_ms"]);
    lab(&["--profile", "20,0"], &["\"0\"", "0.01 to 120000 milliseconds"]);
    fs::write(dir.join("own.toml"), "[profile.x]\nrtt_ms = 0\n").unwrap();
    lab(&["--profile", "own.toml"], &["own.toml", "line 1", "rtt_ms is at least 0.01"]);
    fs::write(dir.join("own.toml"), "[profile.x]\nrtt_ms = 0\nkind = \"addition\"\n").unwrap();
    lab(&["--profile", "own.toml"], &["own.toml has only additions", "own.toml,cable+x"]);
    lab(&["-o", "root/index.html/x"], &["root/index.html/x", "choose one with --output"]);
}
