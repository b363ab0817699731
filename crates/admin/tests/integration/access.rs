//! Access control over real sockets, and the header fields of every response.

use crate::client::{Response, TOKEN, TestAdmin, write_token};
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
async fn loopback_needs_no_token_and_refuses_unknown_host_names() {
    let admin = TestAdmin::without_token(Scene::quiet()).await;
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
    // A name in the request target counts like one in Host (RFC 9112 section 3.2.2).
    let absolute =
        "GET http://rebound.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(admin.raw(absolute).await.status, 421);
}

#[tokio::test]
async fn every_response_has_security_headers() {
    let dir = tempfile::tempdir().unwrap();
    for admin in [
        TestAdmin::without_token(Scene::quiet()).await,
        TestAdmin::with_token(&dir, Scene::quiet()).await,
    ] {
        for path in PATHS {
            for lines in [&[][..], &["Host: rebound.example"], &["Accept: text/html"]] {
                assert_security_headers(&admin.get(path, lines).await);
            }
            assert_security_headers(&admin.send("POST", path, &[], "x=1").await);
        }
    }
}

fn assert_security_headers(response: &Response) {
    let policy = response.field("content-security-policy");
    assert!(policy.starts_with("default-src 'none';"), "{response:?}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(response.field("x-content-type-options"), "nosniff");
    assert_eq!(response.field("cache-control"), "no-store");
    assert_eq!(response.field("cross-origin-resource-policy"), "same-origin");
    assert!(!response.head.to_ascii_lowercase().contains("access-control"), "{response:?}");
}

#[tokio::test]
async fn only_get_and_head_are_allowed() {
    let admin = TestAdmin::without_token(Scene::quiet()).await;
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"] {
        let response = admin.send(method, "/", &[], "").await;
        assert_eq!((response.status, response.field("allow")), (405, "GET, HEAD"), "{method}");
    }
    let head = admin.send("HEAD", "/metrics", &[], "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn requests_without_the_token_see_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let scene = Scene::quiet();
    scene.state(|state| state.server.not_ready_because = Some("draining".to_owned()));
    let admin = TestAdmin::with_token(&dir, scene).await;
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
    // Probes need no token, and get no reason.
    let (anonymous, authorized) = (admin.get("/readyz", &[]).await, [&*bearer(TOKEN)]);
    assert_eq!((anonymous.status, anonymous.body.trim()), (503, "not ready"));
    assert_eq!(admin.get("/readyz", &authorized).await.body.trim(), "draining");
    assert_eq!(admin.get("/livez", &[]).await.status, 200);
    for path in ["/", "/metrics", "/status.json"] {
        assert_eq!(admin.get(path, &authorized).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_browser_logs_in_and_out() {
    let dir = tempfile::tempdir().unwrap();
    let admin = TestAdmin::with_token(&dir, Scene::quiet()).await;
    let form = admin.get("/", &["Accept: text/html,*/*"]).await;
    assert!(form.body.contains("<form method=\"post\" action=\"login\">"), "{}", form.body);
    let urlencoded = "Content-Type: application/x-www-form-urlencoded";
    let wrong = admin.send("POST", "/login", &[urlencoded], "token=wrong").await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.body.contains("Wrong token") && wrong.field("set-cookie").is_empty());
    let right_form = format!("token={TOKEN}");
    let elsewhere = ["Origin: http://rebound.example", urlencoded];
    assert_eq!(admin.send("POST", "/login", &elsewhere, &right_form).await.status, 403);
    let own = format!("Origin: http://{}", admin.address);
    let right = admin.send("POST", "/login", &[&own, urlencoded], &right_form).await;
    assert_eq!((right.status, right.field("location")), (303, "./"));
    let cookie = right.field("set-cookie").to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains("Domain") && !cookie.contains(TOKEN), "{cookie}");
    let sent = format!("Cookie: {}", cookie.split(';').next().unwrap());
    let page = admin.get("/", &[&sent]).await;
    assert!(page.status == 200 && page.body.contains("Log out"), "{page:?}");
    // A form on a page of another site.
    for elsewhere in ["Origin: http://rebound.example", "Sec-Fetch-Site: cross-site"] {
        let lines = [&sent, elsewhere, "Sec-Fetch-Mode: navigate"];
        let refused = admin.send("POST", "/logout", &lines, "").await;
        assert!(refused.status == 403 && refused.field("set-cookie").is_empty(), "{refused:?}");
    }
    let out = admin.send("POST", "/logout", &[&sent, &own], "").await;
    assert!(out.status == 303 && out.field("set-cookie").contains("Max-Age=0"), "{out:?}");
}

#[tokio::test]
async fn no_response_contains_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let admin = TestAdmin::with_token(&dir, Scene::quiet()).await;
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
async fn a_reload_applies_a_new_token_but_not_an_invalid_one() {
    let dir = tempfile::tempdir().unwrap();
    let admin = TestAdmin::with_token(&dir, Scene::quiet()).await;
    let other = TOKEN.replace('c', "d");
    write_token(&dir, &other);
    admin.handle.prepare(&admin.settings).unwrap().apply();
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
async fn a_public_address_is_refused_without_a_token() {
    let settings = AdminSettings::new(AdminAddress::Tcp(([0, 0, 0, 0], 0).into()));
    let error = Admin::bind(settings, Scene::quiet()).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("token_file"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_accepts_any_host_name() {
    let dir = tempfile::tempdir().unwrap();
    let settings = AdminSettings::new(AdminAddress::Unix(dir.path().join("admin.sock")));
    let admin = TestAdmin::start(settings, Scene::quiet()).await;
    assert_eq!(admin.get("/metrics", &["Host: firstflight"]).await.status, 200);
}

#[tokio::test]
async fn heads_and_forms_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let admin = TestAdmin::with_token(&dir, Scene::quiet()).await;
    let bomb = format!("X-Bomb: {}", "x".repeat(100_000));
    assert_eq!(admin.get("/livez", &[&bomb]).await.status, 431);
    let form = format!("token={}", "x".repeat(100_000));
    let urlencoded = "Content-Type: application/x-www-form-urlencoded";
    assert_eq!(admin.send("POST", "/login", &[urlencoded], &form).await.status, 401);
    assert_eq!(
        admin.send("POST", "/login", &["Content-Type: text/plain"], "token=x").await.status,
        401
    );
    // Other requests still work.
    assert_eq!(admin.get("/livez", &[]).await.status, 200);
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}
