//! Who may look, over real sockets, and what every response says to a browser.

use crate::client::{Answer, Running, TOKEN, loopback, write_token};
use crate::scene::Scene;
use firstflight_admin::Admin;
use firstflight_config::{AdminAddress, AdminSettings};

const PATHS: [&str; 11] = [
    "/",
    "/metrics",
    "/status.json",
    "/livez",
    "/readyz",
    "/console.css",
    "/console.js",
    "/icon.svg",
    "/nothing",
    "/login",
    "/..%2f..%2fetc/passwd",
];

#[tokio::test]
async fn loopback_needs_no_token_and_answers_no_other_name() {
    let admin = Running::open(Scene::quiet()).await;
    for (path, status) in [("/", 200), ("/metrics", 200), ("/status.json", 200), ("/nothing", 404)]
    {
        assert_eq!(admin.get(path, &[]).await.status, status, "{path}");
    }
    for path in PATHS {
        for host in ["Host: rebound.example", "Host: localhost.rebound.example:9090", "Host:"] {
            let response = admin.get(path, &[host]).await;
            assert_eq!(response.status, 421, "{path} {host}: {response:?}");
            assert!(!response.body.contains("edge-1"), "{response:?}");
        }
    }
    // In the request's target a name counts as in Host (RFC 9112 section 3.2.2).
    let absolute =
        "GET http://rebound.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(admin.raw(absolute).await.status, 421);
}

#[tokio::test]
async fn every_answer_keeps_other_pages_out() {
    let dir = tempfile::tempdir().unwrap();
    for admin in [Running::open(Scene::quiet()).await, Running::closed(&dir, Scene::quiet()).await]
    {
        for path in PATHS {
            for lines in [&[][..], &["Host: rebound.example"], &["Accept: text/html"]] {
                guarded(&admin.get(path, lines).await);
            }
            guarded(&admin.ask("POST", path, &[], "x=1").await);
        }
    }
}

fn guarded(response: &Answer) {
    let policy = response.field("content-security-policy");
    assert!(policy.starts_with("default-src 'none';"), "{response:?}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(response.field("x-content-type-options"), "nosniff");
    assert_eq!(response.field("cache-control"), "no-store");
    assert_eq!(response.field("cross-origin-resource-policy"), "same-origin");
    assert!(!response.head.to_ascii_lowercase().contains("access-control"), "{response:?}");
}

#[tokio::test]
async fn there_is_nothing_to_change() {
    let admin = Running::open(Scene::quiet()).await;
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"] {
        let response = admin.ask(method, "/", &[], "").await;
        assert_eq!((response.status, response.field("allow")), (405, "GET, HEAD"), "{method}");
    }
    let head = admin.ask("HEAD", "/metrics", &[], "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn with_a_token_strangers_see_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let scene = Scene::quiet();
    scene.state(|state| state.server.not_ready_because = Some("draining".to_owned()));
    let admin = Running::closed(&dir, scene).await;
    for path in ["/", "/metrics", "/status.json", "/events", "/events/page", "/nothing"] {
        let wrong = format!("Authorization: Bearer {}", TOKEN.replace('0', "1"));
        for lines in
            [&[][..], &[wrong.as_str()], &["Authorization: Basic YTpi"], &["Accept: text/html"]]
        {
            let response = admin.get(path, lines).await;
            assert_eq!(response.status, 401, "{path} {lines:?}");
            assert!(response.field("www-authenticate").starts_with("Bearer"), "{response:?}");
            assert!(!response.body.contains("edge-1"), "{response:?}");
        }
    }
    // Probes need no token, and learn no reason.
    let (stranger, known) = (admin.get("/readyz", &[]).await, [&*bearer(TOKEN)]);
    assert_eq!((stranger.status, stranger.body.trim()), (503, "not ready"));
    assert_eq!(admin.get("/readyz", &known).await.body.trim(), "draining");
    assert_eq!(admin.get("/livez", &[]).await.status, 200);
    for path in ["/", "/metrics", "/status.json"] {
        assert_eq!(admin.get(path, &known).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_browser_logs_in_and_out() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Running::closed(&dir, Scene::quiet()).await;
    let form = admin.get("/", &["Accept: text/html,*/*"]).await;
    assert!(form.body.contains("<form method=\"post\" action=\"login\">"), "{}", form.body);
    let urlencoded = "Content-Type: application/x-www-form-urlencoded";
    let wrong = admin.ask("POST", "/login", &[urlencoded], "token=wrong").await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.body.contains("That is not the token") && wrong.field("set-cookie").is_empty());
    let typed = format!("token={TOKEN}");
    let elsewhere = ["Origin: http://rebound.example", urlencoded];
    assert_eq!(admin.ask("POST", "/login", &elsewhere, &typed).await.status, 403);
    let own = format!("Origin: http://{}", admin.address);
    let right = admin.ask("POST", "/login", &[&own, urlencoded], &typed).await;
    assert_eq!((right.status, right.field("location")), (303, "./"));
    let cookie = right.field("set-cookie").to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains("Domain") && !cookie.contains(TOKEN), "{cookie}");
    let sent = format!("Cookie: {}", cookie.split(';').next().unwrap());
    let page = admin.get("/", &[&sent]).await;
    assert!(page.status == 200 && page.body.contains("Log out"), "{page:?}");
    // Another site's page, whose form a browser follows.
    for elsewhere in ["Origin: http://rebound.example", "Sec-Fetch-Site: cross-site"] {
        let lines = [&sent, elsewhere, "Sec-Fetch-Mode: navigate"];
        let refused = admin.ask("POST", "/logout", &lines, "").await;
        assert!(refused.status == 403 && refused.field("set-cookie").is_empty(), "{refused:?}");
    }
    let out = admin.ask("POST", "/logout", &[&sent, &own], "").await;
    assert!(out.status == 303 && out.field("set-cookie").contains("Max-Age=0"), "{out:?}");
}

#[tokio::test]
async fn no_answer_has_the_token_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Running::closed(&dir, Scene::quiet()).await;
    for path in PATHS {
        for path in [path.to_owned(), format!("{path}?token={TOKEN}")] {
            let response = admin.get(&path, &[&bearer(TOKEN)]).await;
            assert!(
                !response.head.contains(TOKEN) && !response.body.contains(TOKEN),
                "{response:?}"
            );
        }
    }
}

#[tokio::test]
async fn another_token_is_taken_up_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Running::closed(&dir, Scene::quiet()).await;
    let other = TOKEN.replace('c', "d");
    write_token(&dir, &other);
    admin.handle.prepare(&admin.settings).unwrap().take_up();
    assert_eq!(admin.get("/", &[&bearer(TOKEN)]).await.status, 401);
    assert_eq!(admin.get("/", &[&bearer(&other)]).await.status, 200);
    write_token(&dir, "short");
    assert!(admin.handle.prepare(&admin.settings).is_err());
    assert_eq!(admin.get("/", &[&bearer(&other)]).await.status, 200);
    let mut moved = admin.settings.clone();
    moved.address = AdminAddress::Tcp(([127, 0, 0, 2], 1).into());
    let error = admin.handle.prepare(&moved).map(drop).unwrap_err().to_string();
    assert!(error.contains("cannot change"), "{error}");
}

#[tokio::test]
async fn another_process_takes_over_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let unix = AdminAddress::Unix(dir.path().join("admin.sock"));
    for address in [loopback(), unix] {
        let old = Running::start(AdminSettings::new(address), Scene::quiet()).await;
        let next = Scene::quiet();
        next.state(|state| state.server.host = "next.example.test".to_owned());
        let socket = old.handle.socket().unwrap();
        let admin = Admin::adopt(old.settings.clone(), socket, next).unwrap();
        assert_eq!(admin.name(), old.address);
        let task = tokio::spawn(admin.run(std::future::pending()));
        old.handle.leave();
        // The first one may have waited for a connection when it was told.
        for _ in 0..20 {
            assert_eq!(old.get("/livez", &[]).await.status, 200);
        }
        assert!(old.get("/", &[]).await.body.contains("next.example.test"));
        let address = old.address.clone();
        drop(old);
        tokio::task::yield_now().await;
        if let Some(path) = address.strip_prefix("unix:") {
            assert!(std::path::Path::new(path).exists(), "the socket's file stays");
        }
        task.abort();
    }
}

#[tokio::test]
async fn an_address_that_others_reach_is_refused_without_a_token() {
    let settings = AdminSettings::new(AdminAddress::Tcp(([0, 0, 0, 0], 0).into()));
    let error = Admin::bind(settings, Scene::quiet()).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("token_file"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_is_asked_by_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let settings = AdminSettings::new(AdminAddress::Unix(dir.path().join("admin.sock")));
    let admin = Running::start(settings, Scene::quiet()).await;
    assert_eq!(admin.get("/metrics", &["Host: firstflight"]).await.status, 200);
}

#[tokio::test]
async fn heads_and_forms_have_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Running::closed(&dir, Scene::quiet()).await;
    let bomb = format!("X-Bomb: {}", "x".repeat(100_000));
    assert_eq!(admin.get("/livez", &[&bomb]).await.status, 431);
    let form = format!("token={}", "x".repeat(100_000));
    let urlencoded = "Content-Type: application/x-www-form-urlencoded";
    assert_eq!(admin.ask("POST", "/login", &[urlencoded], &form).await.status, 401);
    assert_eq!(
        admin.ask("POST", "/login", &["Content-Type: text/plain"], "token=x").await.status,
        401
    );
    // Still there, for who behaves.
    assert_eq!(admin.get("/livez", &[]).await.status, 200);
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}
