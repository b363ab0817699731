//! The form in which a browser's user gives the token.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use maud::html;
use tokio::time::timeout;

use crate::console;
use crate::guard::COOKIE_NAME;
use crate::response::{Body, HTML, plain, text};
use crate::token::COOKIE_LIFE;

/// For who brings no token: a form for browsers, a line for programs.
pub(crate) fn unauthorised(headers: &http::HeaderMap, wrong: bool) -> Response<Body> {
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let browser = wrong || accepted.is_some_and(|accept| accept.contains("text/html"));
    let mut response = match browser {
        true => text(StatusCode::UNAUTHORIZED, HTML, form(wrong)),
        false => plain(
            StatusCode::UNAUTHORIZED,
            "a token is needed; send `Authorization: Bearer` with the one in token_file",
        ),
    };
    // RFC 6750 section 3.
    let scheme = HeaderValue::from_static("Bearer realm=\"firstflight\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    response
}

/// Sends a browser to the console, with its cookie. It is for this host alone, and no script sees
/// it; that it should travel over TLS only cannot be said by who does not speak it.
pub(crate) fn welcome(cookie: &str) -> Response<Body> {
    to_console(&format!("{COOKIE_NAME}={cookie}; Max-Age={COOKIE_LIFE}; {COOKIE_RULES}"))
}

/// Sends a browser to the form, and has it drop its cookie.
pub(crate) fn farewell() -> Response<Body> {
    to_console(&format!("{COOKIE_NAME}=; Max-Age=0; {COOKIE_RULES}"))
}

fn to_console(cookie: &str) -> Response<Body> {
    let mut response = plain(StatusCode::SEE_OTHER, "see the console");
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("./"));
    // Made of digits and hexadecimal.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(SET_COOKIE, cookie);
    }
    response
}

/// The token that was typed into the form; `None`: it is not our form.
pub(crate) async fn typed(headers: &http::HeaderMap, body: Incoming) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return None;
    }
    let body =
        timeout(super::service::HEADER_TIMEOUT, Limited::new(body, MAX_FORM_BYTES).collect());
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
                        strong role="alert" { "That is not the token. " }
                    }
                    "It is in the file that " code { "token_file" } " names, in the section "
                    code { "[admin]" } " of the configuration."
                }
                button { "Log in" }
            }
        }
    };
    console::document("firstflight: log in", false, body).into_string()
}

const COOKIE_RULES: &str = "Path=/; HttpOnly; SameSite=Strict";

/// Bytes; the longest token with each byte escaped fits.
const MAX_FORM_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_taken_out_of_the_form() {
        let token = |form: &'static str| token_of(&Bytes::from_static(form.as_bytes()));
        assert_eq!(token("token=abc%2B%2f1+").as_deref(), Some("abc+/1"));
        assert_eq!(token("other=1&token=abc").as_deref(), Some("abc"));
        assert_eq!(token("mytoken=abc"), None);
        assert_eq!(token("token=%ff").as_deref(), Some("\u{fffd}"), "which is nobody's");
        assert_eq!(token(""), None);
    }
}
