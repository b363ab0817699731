use std::path::PathBuf;

use http::Request;

use super::*;

#[test]
fn a_page_under_a_name_of_its_own_is_misdirected() {
    let guard = open(&["ops.example.test"]);
    for ours in [
        "localhost",
        "LOCALHOST:9090",
        "localhost.:9090",
        "console.localhost",
        "127.0.0.1:9090",
        "[::1]:9090",
        "192.0.2.7",
        "ops.example.test:9090",
        "OPS.example.test",
    ] {
        assert_eq!(guard.may_ask(&head(&[("host", ours)])), Ok(()), "{ours}");
    }
    for foreign in [
        "rebound.example",
        "localhost.rebound.example",
        "127.0.0.1.rebound.example",
        "notlocalhost",
        "example.test",
        "",
        "a b",
        "localhost@rebound.example:80:80",
    ] {
        let refusal = Err(Refusal::Misdirected);
        assert_eq!(guard.may_ask(&head(&[("host", foreign)])), refusal, "{foreign}");
    }
    assert_eq!(guard.may_ask(&head(&[])), Err(Refusal::Misdirected));
}

#[test]
fn where_a_token_is_asked_for_any_name_will_do() {
    assert_eq!(closed().may_ask(&head(&[("host", "ops.example.test")])), Ok(()));
    let settings = AdminSettings::new(AdminAddress::Unix(PathBuf::from("socket")));
    let guard = Guard::new(&settings).unwrap();
    assert_eq!(guard.may_ask(&head(&[("host", "whatever")])), Ok(()));
    assert_eq!(guard.may_look(&head(&[]), 0), Ok(()));
}

#[test]
fn other_sites_may_link_and_no_more() {
    let guard = open(&[]);
    let ask = |site, mode| {
        guard.may_ask(&head(&[
            ("host", "localhost"),
            ("sec-fetch-site", site),
            ("sec-fetch-mode", mode),
        ]))
    };
    assert_eq!(ask("cross-site", "navigate"), Ok(()));
    assert_eq!(ask("same-origin", "cors"), Ok(()));
    assert_eq!(ask("none", "navigate"), Ok(()));
    assert_eq!(ask("cross-site", "no-cors"), Err(Refusal::OtherSite));
    assert_eq!(ask("same-site", "cors"), Err(Refusal::OtherSite));
}

#[test]
fn a_token_opens_as_a_header_and_as_a_cookie() {
    let guard = closed();
    let look = |headers: &[(&'static str, &str)], now| guard.may_look(&head(headers), now);
    assert_eq!(look(&[("authorization", &format!("Bearer {TOKEN}"))], 0), Ok(()));
    assert_eq!(look(&[("authorization", &format!("bearer  {TOKEN} "))], 0), Ok(()));
    let cookie = guard.log_in(&head(&[]), TOKEN, 0).unwrap().unwrap();
    let sent = format!("theme=dark; {COOKIE_NAME}={cookie}; other=1");
    assert_eq!(look(&[("cookie", &sent)], 1), Ok(()));
    let refused = Err(Refusal::Unauthorised);
    assert_eq!(look(&[("cookie", &sent)], 13 * 3600), refused);
    assert_eq!(look(&[], 0), refused);
    // The token is not the cookie's value, nor any other scheme's word.
    for (name, value) in [
        ("cookie", format!("{COOKIE_NAME}={TOKEN}")),
        ("cookie", format!("x{COOKIE_NAME}={cookie}")),
        ("authorization", TOKEN.to_owned()),
        ("authorization", format!("Basic {TOKEN}")),
        ("authorization", format!("Bearer {TOKEN}x")),
        ("authorization", "Bearer".to_owned()),
    ] {
        assert_eq!(look(&[(name, &value)], 0), refused, "{name}: {value}");
    }
}

#[test]
fn the_form_is_our_own_pages() {
    let guard = closed();
    let log_in = |headers: &[(&'static str, &str)], token| guard.log_in(&head(headers), token, 0);
    let own =
        [("host", "ops:9090"), ("origin", "http://ops:9090"), ("sec-fetch-site", "same-origin")];
    assert!(log_in(&own, TOKEN).unwrap().is_some());
    assert!(log_in(&own, "wrong").unwrap().is_none());
    for foreign in [
        [("host", "ops:9090"), ("origin", "http://elsewhere:9090")],
        [("host", "ops:9090"), ("origin", "null")],
        [("host", "ops:9090"), ("sec-fetch-site", "cross-site")],
        [("host", "ops:9090"), ("sec-fetch-site", "same-site")],
    ] {
        assert_eq!(log_in(&foreign, TOKEN), Err(Refusal::OtherSite));
    }
    assert_eq!(open(&[]).log_in(&head(&[]), TOKEN, 0), Ok(None));
}

/// On loopback, without a token.
fn open(names: &[&str]) -> Guard {
    let mut settings = AdminSettings::new(AdminAddress::Tcp(([127, 0, 0, 1], 0).into()));
    settings.names = names.iter().map(|name| (*name).to_owned()).collect();
    Guard::new(&settings).unwrap()
}

fn closed() -> Guard {
    Guard { token: Some(Token::new(TOKEN)), names: None }
}

fn head(headers: &[(&'static str, &str)]) -> Parts {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
