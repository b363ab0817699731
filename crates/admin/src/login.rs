//! The login form for browsers.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use maud::html;
use tokio::time::timeout;

use crate::console;
use crate::guard::COOKIE_NAME;
use crate::response::{Body, HEADER_TIMEOUT, HTML, plain, text};
use crate::token::COOKIE_LIFETIME_SECS;

/// The response to a request without a valid token: a form for browsers, one line for programs.
pub(crate) fn unauthorized(headers: &http::HeaderMap, wrong: bool) -> Response<Body> {
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let browser = wrong || accepted.is_some_and(|accept| accept.contains("text/html"));
    let mut response = match browser {
        true => text(StatusCode::UNAUTHORIZED, HTML, form(wrong)),
        false => plain(
            StatusCode::UNAUTHORIZED,
            "a token is required; send `Authorization: Bearer` with the token in token_file",
        ),
    };
    // RFC 6750 section 3.
    let scheme = HeaderValue::from_static("Bearer realm=\"firstflight\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    response
}

/// Redirects a browser to the console, with its cookie. The cookie is for this host only, and scripts
/// cannot read it. It has no `Secure` attribute, because this listener has no TLS.
pub(crate) fn logged_in(cookie: &str) -> Response<Body> {
    to_console(&format!("{COOKIE_NAME}={cookie}; Max-Age={COOKIE_LIFETIME_SECS}; {COOKIE_RULES}"))
}

/// Redirects a browser to the form, and deletes its cookie.
pub(crate) fn logged_out() -> Response<Body> {
    to_console(&format!("{COOKIE_NAME}=; Max-Age=0; {COOKIE_RULES}"))
}

fn to_console(cookie: &str) -> Response<Body> {
    let mut response = plain(StatusCode::SEE_OTHER, "see the console");
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("./"));
    // Cannot fail: the cookie is made of digits and hexadecimal.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(SET_COOKIE, cookie);
    }
    response
}

/// Reads the token from the submitted form. Returns `None` if the body is not a form.
pub(crate) async fn read_form(headers: &http::HeaderMap, body: Incoming) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return None;
    }
    let body = timeout(HEADER_TIMEOUT, Limited::new(body, MAX_FORM_BYTES).collect());
    token_of(&body.await.ok()?.ok()?.to_bytes())
}

fn token_of(form: &Bytes) -> Option<String> {
    let (_, token) = form_urlencoded::parse(form).find(|(name, _)| name == "token")?;
    Some(token.trim().to_owned())
}

fn form(wrong: bool) -> String {
    let body = html! {
        main.login {
            h1 { "firstflight" }
            form method="post" action="login" {
                label for="token" { "Token" }
                input #token type="password" name="token" required autofocus
                    autocomplete="current-password" aria-describedby="token-help";
                p #token-help {
                    @if wrong {
                        strong role="alert" { "Wrong token. " }
                    }
                    "It is in the file that " code { "token_file" } " in section " code { "[admin]" }
                    " of the configuration names."
                }
                button { "Log in" }
            }
        }
    };
    console::document("firstflight: log in", false, body).into_string()
}

const COOKIE_RULES: &str = "Path=/; HttpOnly; SameSite=Strict";

/// The longest token fits, with each byte percent-encoded.
const MAX_FORM_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_read_from_the_form() {
        let token = |form: &'static str| token_of(&Bytes::from_static(form.as_bytes()));
        assert_eq!(token("token=abc%2B%2f1+").as_deref(), Some("abc+/1"));
        assert_eq!(token("other=1&token=abc").as_deref(), Some("abc"));
        assert_eq!(token("mytoken=abc"), None);
        assert_eq!(token("token=%ff").as_deref(), Some("\u{fffd}"), "which is no valid token");
        assert_eq!(token(""), None);
    }
}
