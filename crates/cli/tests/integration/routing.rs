//! What a route does with requests before its handler, with curl: rewritten paths, redirects that
//! keep the path, users, rate limits, and clients behind trusted proxies.

use std::fs;
use std::path::Path;
use std::process::Command;

use firstflight_testkit::Upstream;

use crate::support::program::{Ended, Serve, run, site};

/// Serves these sections after a listener.
fn serve(dir: &Path, sections: &str) -> Serve {
    let head = "[[listener]]\naddress = \"127.0.0.1:0\"\n[tls]\nself_signed = [\"a.test\"]\n\
                save_self_signed = \"cert.pem\"\n";
    fs::write(dir.join("config.toml"), format!("{head}{sections}")).unwrap();
    Serve::configured(dir)
}

/// The status and the body of curl's request, and the `Location`, if there is one.
fn curl(dir: &Path, server: &Serve, path: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new("curl");
    command.current_dir(dir).args(["-sS", "--path-as-is", "--cacert", "cert.pem"]);
    command.args(["-w", "%{http_code} %header{location}"]).args(arguments);
    run(command.arg(format!("https://localhost:{}{path}", server.port())))
}

/// The same without the body.
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
        // Servers disagree about what the route's path is in these.
        ("/old//evil.test/", "400"),
        ("/app/../secret", "400"),
        ("/app/%2e%2e/secret", "400"),
        ("/app%2fx", "400"),
    ] {
        assert_eq!(status(dir, &server, path, &[]), expected, "{path}");
    }
    assert_eq!(upstream.requests().len(), 8);
}

/// One route with the path `/`, where no ambiguity about the route exists, is as strict.
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

#[test]
fn rfc7617_2_only_users_with_their_password_are_admitted() {
    let site = site();
    let dir = site.path();
    // Of `htpasswd -nbB -C 5 ann 'correct horse'`.
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
    // No other spelling is admitted, nor one in another case, which some file systems open.
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
    // Nobody is trusted: all are one client, whatever they say.
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
}
