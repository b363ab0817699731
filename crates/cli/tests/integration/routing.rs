//! What a route does with requests before its handler, and with responses after it, with curl:
//! rewritten paths, redirects that keep the path, users, rate limits, clients behind trusted proxies,
//! and compression, with a browser too.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::{Upstream, next_client, skipped_without};
use serde_json::json;

use crate::support::chromium::Browser;
use crate::support::program::{Ended, Running, Serve, fetch, fields, run, site, text, until};

/// Starts a server with a listener and these sections of the configuration.
fn serve(dir: &Path, sections: &str) -> Serve {
    let head = "[[listener]]\naddress = \"127.0.0.1:0\"\n[tls]\nself_signed = [\"a.test\"]\n\
                save_self_signed = \"cert.pem\"\n";
    fs::write(dir.join("config.toml"), format!("{head}{sections}")).unwrap();
    Serve::configured(dir)
}

/// Runs curl. Its output is the body, the status, and the `Location` if there is one.
fn curl(dir: &Path, server: &Serve, path: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new("curl");
    command.current_dir(dir).args(["-sS", "--path-as-is", "--cacert", "cert.pem"]);
    command.args(["-w", "%{http_code} %header{location}"]).args(arguments);
    run(command.arg(format!("https://localhost:{}{path}", server.port())))
}

/// The status of a request, and the `Location` if there is one.
fn status(dir: &Path, server: &Serve, path: &str, arguments: &[&str]) -> String {
    curl(dir, server, path, &[&["-o", "/dev/null"], arguments].concat()).out.trim().to_owned()
}

#[test]
fn paths_are_rewritten_for_the_upstream_and_kept_by_redirects() {
    let site = site();
    let dir = site.path();
    let upstream = Upstream::start();
    let server = serve(
        dir,
        &format!(
            "[[site]]\n\
             [[site.route]]\npath = \"/app\"\nupstream = \"app\"\nrewrite = \"/\"\n\
             [[site.route]]\npath = \"/v1\"\nupstream = \"app\"\nrewrite = \"/v2/api\"\n\
             [[site.route]]\npath = \"/old\"\nredirect = \"https://b.test/new/\"\n\
             keep_path = true\n\
             [[site.route]]\npath = \"/here\"\nredirect = \"/there\"\nstatus = 302\n\
             [upstream.app]\nservers = [{:?}]\n",
            upstream.url()
        ),
    );
    for version in ["--http1.1", "--http2"] {
        for path in ["/app/x?y=1", "/app", "/%61pp/%78/", "/v1/x"] {
            assert_eq!(status(dir, &server, path, &[version]), "200", "{path}");
        }
    }
    let expected = ["GET /x?y=1 - ", "GET / - ", "GET /%78/ - ", "GET /v2/api/x - "];
    assert_eq!(upstream.summaries(), [expected, expected].concat());
    for (path, expected) in [
        ("/old/a%20b?c", "308 https://b.test/new/a%20b?c"),
        ("/old", "308 https://b.test/new"),
        ("/here/x", "302 /there"),
        // Servers disagree about the route of these paths.
        ("/old//evil.test/", "400"),
        ("/app/../secret", "400"),
        ("/app/%2e%2e/secret", "400"),
        ("/app%2fx", "400"),
    ] {
        assert_eq!(status(dir, &server, path, &[]), expected, "{path}");
    }
    assert_eq!(upstream.requests().len(), 8);
}

/// The only route has the path `/`, so the route is never ambiguous, but the rules are as strict.
#[test]
fn a_rewrite_of_all_paths_does_not_leave_its_prefix() {
    let site = site();
    let dir = site.path();
    let upstream = Upstream::start();
    let route = "[[site]]\n[[site.route]]\nupstream = \"app\"\nrewrite = \"/public\"\n";
    let pool = format!("[upstream.app]\nservers = [{:?}]\n", upstream.url());
    let server = serve(dir, &format!("{route}{pool}"));
    assert_eq!(status(dir, &server, "/x", &[]), "200");
    for path in ["/../private", "/%2e%2e/private", "/..%2fprivate", "//private"] {
        assert_eq!(status(dir, &server, path, &[]), "400", "{path}");
    }
    assert_eq!(upstream.summaries(), ["GET /public/x - "]);
}

const LINE: &str = "the same line again\n";

/// Serves a page, compressed on the fly except below `/plain`.
fn compressing(dir: &Path, upstream: &str) -> (Serve, String) {
    let page = LINE.repeat(1000);
    fs::write(dir.join("root/page.html"), &page).unwrap();
    fs::create_dir(dir.join("root/plain")).unwrap();
    fs::write(dir.join("root/plain/page.html"), &page).unwrap();
    let sections = format!(
        "[[site]]\n[[site.route]]\nroot = \"root\"\ncompress = true\n\
         [[site.route]]\npath = \"/plain\"\nroot = \"root\"\n\
         [[site.route]]\npath = \"/app\"\nupstream = \"app\"\ncompress = true\n\
         [upstream.app]\nservers = [{upstream:?}]\n"
    );
    (serve(dir, &sections), page)
}

#[test]
fn responses_are_compressed_on_the_fly_where_a_route_enables_it() {
    let site = site();
    let dir = site.path();
    let (server, page) = compressing(dir, "http://127.0.0.1:1");
    let format = ["-w", "\n%{size_download} %header{content-encoding} %header{vary}"];
    let get = |path, arguments: &[&str]| {
        let ended = curl(dir, &server, path, &[&format, arguments].concat());
        let (body, facts) = ended.out.rsplit_once('\n').unwrap();
        let (size, fields) = facts.split_once(' ').unwrap();
        assert!(body == page, "{path} {arguments:?}: {ended:?}");
        (size.parse::<usize>().unwrap(), fields.trim().to_ascii_lowercase())
    };
    for version in ["--http1.1", "--http2"] {
        for coding in ["gzip", "br", "zstd"] {
            let accept = format!("Accept-Encoding: {coding}");
            let (size, fields) = get("/page.html", &[version, "--compressed", "-H", &accept]);
            assert_eq!(fields, format!("{coding} accept-encoding"));
            assert!(size < page.len() / 10, "{coding}: {size}");
        }
        let (size, fields) = get("/page.html", &[version]);
        assert_eq!((size, &*fields), (page.len(), "accept-encoding"));
        let (size, fields) = get("/plain/page.html", &[version, "--compressed"]);
        assert_eq!((size, &*fields), (page.len(), ""));
    }
    // Over HTTP/3, the second time with early data.
    let url = format!("https://localhost:{}/page.html", server.port());
    for early in ["none", "accepted"] {
        let packed = dir.join("page.gz");
        let packed = packed.to_str().unwrap();
        let accept = ["-H", "Accept-Encoding: gzip", "-o", packed, "--tls-earlydata"];
        let fetched = fetch(dir, &server.cert, &url, &[&["--http3-only"], &accept[..]].concat());
        assert_eq!(fields(&fetched.facts, "http_code early_data"), format!("200 {early}"));
        let unpacked = run(Command::new("gzip").args(["-dc", packed]));
        assert!(unpacked.out == page, "{unpacked:?}");
    }
}

#[test]
fn rfc9110_ranges_conditions_and_head_work_with_compressed_responses() {
    let site = site();
    let dir = site.path();
    let (server, page) = compressing(dir, "http://127.0.0.1:1");
    let names = ["content-encoding", "etag", "accept-ranges", "content-range", "content-length"];
    let format = names.map(|name| format!("%header{{{name}}}")).join("|");
    let head = |arguments: &[&str]| {
        let format = format!("%{{http_code}}|{format}");
        let all = ["--http2", "-o", "out", "-H", "Accept-Encoding: br", "-w", &format];
        curl(dir, &server, "/page.html", &[&all, arguments].concat()).out
    };
    let whole = head(&[]);
    let tag = whole.split('|').nth(2).unwrap().to_owned();
    assert!(tag.starts_with("W/\""), "{whole}");
    assert_eq!(whole, format!("200|br|{tag}|||"));
    assert_eq!(head(&["-I"]), whole, "HEAD");
    let condition = format!("If-None-Match: {tag}");
    assert_eq!(head(&["-H", &condition]), format!("304||{tag}|||"));
    // A range is one of the file, never of its compressed form.
    let length = page.len();
    let strong = &tag[2..];
    let part = head(&["-r", "0-99"]);
    assert_eq!(part, format!("206||{strong}|bytes|bytes 0-99/{length}|100"));
    // A client with a part of the compressed form gets the whole response.
    assert_eq!(head(&["-r", "0-99", "-H", &format!("If-Range: {tag}")]), whole);
}

/// An application that writes a page slowly: its first part is flushed through the encoder.
#[test]
fn the_encoder_does_not_hold_back_what_an_application_has_written() {
    let site = site();
    let dir = site.path();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let (server, _) = compressing(dir, &upstream);
    for encoding in ["gzip", "br", "zstd"] {
        let accept = format!("Accept-Encoding: {encoding}");
        let output = dir.join(encoding);
        let mut command = Command::new("curl");
        command.current_dir(dir).args(["-sSN", "--cacert", "cert.pem", "--compressed"]);
        command.args(["-H", &accept]).arg(format!("https://localhost:{}/app", server.port()));
        command.stdout(fs::File::create(&output).unwrap());
        let mut client = Running::start(&mut command);
        let mut app = next_client(&listener);
        let mut request = BufReader::new(app.try_clone().unwrap()).lines();
        while request.next().unwrap().unwrap() != "" {}
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
        app.write_all(format!("{head}{}", chunk("first part\n")).as_bytes()).unwrap();
        assert!(until(|| text(&output) == "first part\n"), "{encoding}: {:?}", text(&output));
        app.write_all(format!("{}0\r\n\r\n", chunk("second part\n")).as_bytes()).unwrap();
        assert!(client.wait().unwrap().success());
        assert_eq!(text(&output), "first part\nsecond part\n", "{encoding}");
    }
}

#[test]
fn browsers_read_compressed_pages() {
    if skipped_without(&["chromium"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let (server, page) = compressing(dir, "http://127.0.0.1:1");
    let mut browser = Browser::open(dir, "");
    browser.call("Security.setIgnoreCertificateErrors", json!({ "ignore": true }));
    browser.go(&format!("https://localhost:{}/page.html", server.port()));
    browser.wait_for_text("document.body.innerText", page[page.len() - LINE.len()..].trim_end());
    let sizes = "(({ encodedBodySize: sent, decodedBodySize: read }) => ({ sent, read }))\
                 (performance.getEntriesByType('navigation')[0])";
    let sizes = browser.eval(sizes);
    assert_eq!(sizes["read"], page.len(), "{sizes}");
    assert!(sizes["sent"].as_u64().unwrap() < page.len() as u64 / 10, "{sizes}");
}

#[test]
fn rfc7617_2_only_users_with_their_password_are_admitted() {
    let site = site();
    let dir = site.path();
    // Printed by `htpasswd -nbB -C 5 ann 'correct horse'`.
    let hash = "$2y$05$P.l7.1wPAXgV3hxPYVPdOuVOQnpWAN6QHlv3ZMpky4SRkm5295N7K";
    fs::write(dir.join("users"), format!("ann:{hash}\n")).unwrap();
    let server = serve(
        dir,
        "[[site]]\n[[site.route]]\nroot = \"root\"\n\
         [[site.route]]\npath = \"/index.html\"\nroot = \"root\"\nusers = \"users\"\n",
    );
    let as_user = |user| status(dir, &server, "/index.html", &["-u", user]);
    for version in ["--http1.1", "--http2"] {
        assert_eq!(status(dir, &server, "/", &[version]), "200");
        let refused = curl(dir, &server, "/index.html", &["-i", version]).out.to_ascii_lowercase();
        assert!(refused.contains("www-authenticate: basic realm="), "{refused}");
        assert!(refused.ends_with("401 "), "{refused}");
        // Twice: the second time it is remembered.
        for _ in 0..2 {
            assert_eq!(
                status(dir, &server, "/index.html", &[version, "-u", "ann:correct horse"]),
                "200"
            );
        }
    }
    for wrong in ["ann:correct", "ann:", "bob:correct horse", "ann:correct horse "] {
        assert_eq!(as_user(wrong), "401", "{wrong}");
    }
    // Other spellings of the path do not bypass the rule.
    for path in ["/%69ndex.html", "//index.html", "/x/../index.html", "/index.html/"] {
        let status = status(dir, &server, path, &[]);
        assert!(["401", "400"].contains(&&*status), "{path}: {status}");
    }
}

#[test]
fn rfc6585_4_each_client_has_its_rate_and_trusted_proxies_name_it() {
    let site = site();
    let dir = site.path();
    let upstream = Upstream::start();
    let route = "[[site]]\n[[site.route]]\nupstream = \"app\"\n\
                 rate_limit = { requests = 2, per = \"24h\" }\n";
    let pool = format!("[upstream.app]\nservers = [{:?}]\n", upstream.url());
    let statuses = |server: &Serve, forwarded: &str| {
        let field = format!("X-Forwarded-For: {forwarded}");
        let status = |_| status(dir, server, "/", &["-H", &field]);
        (0..3).map(status).collect::<Vec<_>>().join(" ")
    };
    // Without trusted proxies, all requests are of one client, whatever X-Forwarded-For contains.
    let server = serve(dir, &format!("{route}{pool}"));
    assert_eq!(statuses(&server, "192.0.2.1"), "200 200 429");
    assert_eq!(statuses(&server, "192.0.2.2"), "429 429 429");
    let limited = curl(dir, &server, "/", &["-i"]).out.to_ascii_lowercase();
    let wait = limited.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!((43_000..=43_201).contains(&wait.trim().parse::<u32>().unwrap()), "{limited}");
    server.stop();
    let seen = upstream.requests().len();
    assert_eq!(seen, 2);
    let server = serve(dir, &format!("[proxies]\ntrusted = [\"127.0.0.0/8\"]\n{route}{pool}"));
    assert_eq!(statuses(&server, "192.0.2.1"), "200 200 429");
    assert_eq!(statuses(&server, "192.0.2.2, 127.0.0.9"), "200 200 429");
    assert_eq!(statuses(&server, "192.0.2.3, 192.0.2.1"), "429 429 429");
    let clients: Vec<_> = upstream.requests()[seen..]
        .iter()
        .map(|request| request.headers["x-forwarded-for"].clone())
        .collect();
    assert_eq!(clients, ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"]);
    let log = server.stop();
    assert_eq!(log[log.len() - 9]["client"], "192.0.2.1");
    let executed = log.iter().filter(|line| line["executed"] == true).count();
    assert_eq!(executed, upstream.requests().len());
}

/// Runs a client. The upstream sends Early Hints, and withholds its response until the client has
/// received `hints`. Returns the heads and the body that the client received.
fn hinted(dir: &Path, listener: &TcpListener, client: &mut Command, hints: &str) -> String {
    let (output, heads) = (dir.join("body"), dir.join("heads"));
    // curl writes to this file at once.
    fs::write(&heads, "").unwrap();
    client.current_dir(dir).args(["-D", "heads"]);
    let mut client = Running::start(client.stdout(fs::File::create(&output).unwrap()));
    let mut app = next_client(listener);
    let mut request = BufReader::new(app.try_clone().unwrap()).lines();
    while request.next().unwrap().unwrap() != "" {}
    let hint =
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload; as=style\r\nX-No: 1\r\n\r\n";
    app.write_all(hint.as_bytes()).unwrap();
    assert!(until(|| text(&heads).contains(hints)), "{:?}", text(&heads));
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n";
    app.write_all(response.as_bytes()).unwrap();
    assert!(client.wait().unwrap().success());
    text(&heads) + &text(&output)
}

#[test]
fn rfc8297_early_hints_reach_clients_before_the_response() {
    let site = site();
    let dir = site.path();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool =
        format!("[upstream.app]\nservers = [\"http://{}\"]\n", listener.local_addr().unwrap());
    let server = serve(
        dir,
        &format!(
            "[[site]]\n[[site.route]]\nupstream = \"app\"\nearly_hints = true\n\
             [[site.route]]\npath = \"/off\"\nupstream = \"app\"\n{pool}"
        ),
    );
    let url = |path: &str| format!("https://localhost:{}{path}", server.port());
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.current_dir(dir).args(["-sSN", "--cacert", "cert.pem"]).args(arguments);
        command
    };
    let hint = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload; as=style\r\n\r\n";
    let seen = hinted(dir, &listener, &mut curl(&["--http1.1", &url("/")]), hint);
    assert!(seen.starts_with(&format!("{hint}HTTP/1.1 200 OK\r\n")), "{seen}");
    assert!(seen.ends_with("\r\n\r\npage\n") && seen.matches("HTTP/1.1").count() == 2, "{seen}");
    // Clients that cannot take hints, and clients of routes without them, get only the response.
    // The server does not support the ALPN protocol of HTTP/1.0.
    let [root, off] = ["/", "/off"].map(url);
    for arguments in
        [&["--http2", &root][..], &["--http1.0", "--no-alpn", &root], &["--http1.1", &off]]
    {
        let seen = hinted(dir, &listener, &mut curl(arguments), "");
        assert!(!seen.contains("103") && seen.ends_with("page\n"), "{arguments:?}: {seen}");
    }
}
