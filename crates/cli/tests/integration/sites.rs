//! Several sites at one address, with curl, OpenSSL and `fetch`: certificates by name, stapled OCSP
//! responses, misdirected requests, content encodings, ranges, and redirects to HTTPS.

use std::fs;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::free_port;

use crate::support::program::{Ended, Serve, fetch, fields, run, site};

/// Writes `config.toml` with the sites `one.test` and `two.test`, each with a certificate of the
/// authority `ca.pem`. `more` is inserted before them.
fn two_sites(dir: &Path, more: &str) {
    openssl(
        dir,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
                  -subj /CN=authority -keyout ca.key -out ca.pem",
    );
    for name in ["one", "two"] {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("index.html"), format!("site {name}\n")).unwrap();
        fs::write(dir.join("names"), format!("subjectAltName=DNS:{name}.test\n")).unwrap();
        openssl(
            dir,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} \
             -keyout {name}.key -out {name}.csr"
            ),
        );
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 \
             -extfile names -out {name}.pem"
            ),
        );
    }
    let site = |name: &str, inside: &str| {
        format!(
            "[[site]]\nnames = [\"{name}.test\"]\ncertificate = \"{name}.pem\"\nkey = \
             \"{name}.key\"\n{inside}\n[[site.route]]\npath = \"/\"\nroot = \"{name}\"\n\
             precompressed = [\"br\", \"gzip\", \"zstd\"]\n"
        )
    };
    let one = site("one", "headers = { \"Strict-Transport-Security\" = \"max-age=600\" }");
    let private = "[[site.route]]\npath = \"/private\"\nstatus = 403\n";
    let two = site("two", "ocsp = \"two.ocsp\"");
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let text = format!("{listener}{more}{one}{private}{two}");
    fs::write(dir.join("config.toml"), text).unwrap();
    staple(dir);
}

/// Writes the authority's OCSP response for the second certificate, valid for a week.
fn staple(dir: &Path) {
    let serial = openssl(dir, "x509 -in two.pem -noout -serial").out;
    let serial = serial.trim().trim_start_matches("serial=").to_owned();
    let line = format!("V\t491231235959Z\t\t{serial}\tunknown\t/CN=two\n");
    fs::write(dir.join("index"), line).unwrap();
    openssl(dir, "ocsp -issuer ca.pem -cert two.pem -no_nonce -reqout two.req");
    openssl(
        dir,
        "ocsp -index index -CA ca.pem -rsigner ca.pem -rkey ca.key -reqin two.req \
                  -respout two.ocsp -ndays 7",
    );
}

fn openssl(dir: &Path, arguments: &str) -> Ended {
    let mut command = Command::new("openssl");
    let ended = run(command.current_dir(dir).args(arguments.split_whitespace()));
    assert_eq!(ended.code, Some(0), "openssl {arguments}: {ended:?}");
    ended
}

/// Runs curl with a name of the server.
fn curl(dir: &Path, server: &Serve, name: &str, path: &str, arguments: &[&str]) -> Ended {
    let port = server.port();
    let mut command = Command::new("curl");
    command.current_dir(dir).args(["-sS", "-i", "--cacert", "ca.pem", "--resolve"]);
    command.arg(format!("{name}:{port}:127.0.0.1"));
    run(command.args(arguments).arg(format!("https://{name}:{port}{path}")))
}

#[test]
fn each_name_has_its_certificate_and_its_files_over_tcp_and_quic() {
    let site = site();
    let dir = site.path();
    two_sites(dir, "");
    let server = Serve::configured(dir);
    for version in ["--http1.1", "--http2", "--http3-only"] {
        for name in ["one", "two"] {
            let port = server.port();
            let resolve = format!("{name}.test:{port}:127.0.0.1");
            let url = format!("https://{name}.test:{port}/");
            let arguments = [version, "--resolve", &resolve];
            let fetched = fetch(dir, &dir.join("ca.pem"), &url, &arguments);
            let seen = (fetched.ended.code, &*fetched.ended.out);
            assert_eq!(
                seen,
                (Some(0), &*format!("site {name}\n")),
                "{version} {:?}",
                fetched.ended
            );
        }
        // Clients with an unknown name get the first site's certificate, and reject it.
        let port = server.port();
        let resolve = format!("three.test:{port}:127.0.0.1");
        let url = format!("https://three.test:{port}/");
        let unrelated = fetch(dir, &dir.join("ca.pem"), &url, &[version, "--resolve", &resolve]);
        assert_eq!(fields(&unrelated.facts, "http_code"), "0", "{version} {:?}", unrelated.ended);
        assert!(unrelated.ended.err.to_lowercase().contains("mismatch"), "{:?}", unrelated.ended);
    }
    server.stop();
}

#[test]
fn curl_gets_421_for_a_misdirected_request() {
    let site = site();
    let dir = site.path();
    two_sites(dir, "");
    let server = Serve::configured(dir);
    for version in ["--http1.1", "--http2"] {
        let request = |host: &str| {
            let host = format!("Host: {host}");
            curl(dir, &server, "one.test", "/", &[version, "-H", &host]).out
        };
        let wrong = request("two.test");
        assert!(wrong.lines().next().unwrap().contains(" 421"), "{version}: {wrong}");
        let own = request("ONE.test:80");
        assert!(own.lines().next().unwrap().contains(" 200"), "{version}: {own}");
        assert!(own.contains("strict-transport-security: max-age=600"), "{own}");
        assert!(!own.to_lowercase().contains("\nserver:"), "{own}");
    }
    let private = curl(dir, &server, "one.test", "/private/x", &[]).out;
    assert!(private.contains(" 403") && private.ends_with("403 Forbidden\n"), "{private}");
    for path in ["/x/../private/x", "/%2e/private", "//private", "/private;x"] {
        let response = curl(dir, &server, "one.test", path, &["--path-as-is"]).out;
        assert!(response.lines().next().unwrap().contains(" 400"), "{path}: {response}");
    }
    server.stop();
}

#[test]
fn a_stapled_ocsp_response_goes_to_clients_that_request_it() {
    let site = site();
    let dir = site.path();
    two_sites(dir, "");
    let server = Serve::configured(dir);
    let requested =
        |name: &str, version: &str| {
            openssl(dir, &format!(
            "s_client -connect {} -servername {name}.test -status -{version} -CAfile ca.pem \
             -verify_return_error",
            server.address
        ))
        .out
        };
    for version in ["tls1_2", "tls1_3"] {
        let two = requested("two", version);
        assert!(two.contains("OCSP Response Status: successful"), "{version}: {two}");
        assert!(two.contains("Cert Status: good"), "{version}: {two}");
        let one = requested("one", version);
        assert!(one.contains("OCSP response: no response sent"), "{version}: {one}");
    }
    server.stop();
    // A response about another certificate is not stapled, and a warning is logged.
    fs::copy(dir.join("one.pem"), dir.join("two.pem")).unwrap();
    fs::copy(dir.join("one.key"), dir.join("two.key")).unwrap();
    let server = Serve::configured(dir);
    assert!(crate::support::program::text(&server.stderr).contains("about another certificate"));
    server.stop();
}

#[test]
fn curl_gets_encodings_ranges_and_not_modified() {
    let site = site();
    let dir = site.path();
    two_sites(dir, "");
    fs::write(dir.join("one/page.txt"), "0123456789\n".repeat(100)).unwrap();
    run(Command::new("gzip").current_dir(dir.join("one")).args(["-k", "page.txt"]));
    let server = Serve::configured(dir);
    let get = |arguments: &[&str]| curl(dir, &server, "one.test", "/page.txt", arguments).out;
    let gzip = get(&["--compressed", "-H", "Accept-Encoding: gzip"]);
    assert!(gzip.contains("content-encoding: gzip") && gzip.contains("vary: accept-encoding"));
    assert!(gzip.ends_with("0123456789\n"), "{gzip}");
    let range = get(&["-r", "5-8"]);
    assert!(range.contains(" 206") && range.ends_with("\r\n\r\n5678"), "{range}");
    let several = get(&["-r", "0-1,4-5"]);
    assert!(several.contains(" 200") && several.ends_with("0123456789\n"), "{several}");
    let whole = get(&[]);
    let tag = whole.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().trim();
    let unchanged = get(&["-H", &format!("If-None-Match: {tag}")]);
    assert!(unchanged.contains(" 304"), "{unchanged}");
    let stale = get(&["-r", "0-1", "-H", "If-Range: \"other\""]);
    assert!(stale.contains(" 200"), "{stale}");
    server.stop();
}

#[test]
fn plain_http_redirects_to_https_of_the_same_site_only() {
    let site = site();
    let dir = site.path();
    let plain = format!("127.0.0.1:{}", free_port());
    two_sites(dir, &format!("[[listener]]\naddress = \"{plain}\"\nprotocol = \"redirect\"\n"));
    let server = Serve::configured(dir);
    let request = |host: &str, path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "--path-as-is", "-X", "POST", "-H", &format!("Host: {host}")]);
        run(command.arg(format!("http://{plain}{path}"))).out
    };
    let port = server.port();
    for (path, location) in [("/a%20b?c=d", "/a%20b?c=d"), ("//two.test/x", "//two.test/x")] {
        let sent = request("One.test", path);
        assert!(sent.starts_with("HTTP/1.1 308 "), "{sent}");
        assert!(
            sent.contains(&format!("location: https://one.test:{port}{location}\r\n")),
            "{sent}"
        );
    }
    assert!(request("evil.test", "/").starts_with("HTTP/1.1 421 "));
    assert!(request("one.test@evil.test", "/").starts_with("HTTP/1.1 400 "));
    server.stop();
}
