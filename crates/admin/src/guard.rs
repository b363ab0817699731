//! Access control, without I/O: requests come as heads, the time as an argument.

use std::net::IpAddr;

use firstflight_config::{AdminAddress, AdminSettings, ConfigError};
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use crate::AdminError;
use crate::token::Token;

/// Decides which requests are allowed.
#[derive(Debug)]
pub(crate) struct Guard {
    token: Option<Token>,
    /// Host names that are allowed in `Host`. `None` allows all.
    names: Option<Vec<String>>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `Host` is not a name of this server (RFC 9110 section 7.4).
    Misdirected,
    /// A page of another site made the browser send the request.
    OtherSite,
    /// The token is missing or wrong.
    Unauthorized,
}

impl Guard {
    /// Reads the token file, if there is one.
    ///
    /// # Errors
    /// [`AdminError`] if the settings or the token file are invalid.
    pub(crate) fn new(settings: &AdminSettings) -> Result<Self, AdminError> {
        settings.check().map_err(ConfigError::from)?;
        let token = settings.token_file.as_deref().map(Token::read).transpose()?;
        // The host name protects against DNS rebinding. Browsers cannot connect to a unix socket, and
        // a rebound page has neither the token nor the cookie.
        let any = token.is_some() || matches!(settings.address, AdminAddress::Unix(_));
        Ok(Self { token, names: (!any).then(|| settings.names.clone()) })
    }

    /// Checks the host name and the origin of a request, independent of the token.
    pub(crate) fn check_host(&self, head: &Parts) -> Result<(), Refusal> {
        if !self.names.as_ref().is_none_or(|names| is_known_host(head, names)) {
            return Err(Refusal::Misdirected);
        }
        // Navigation is harmless: the page with the link cannot read the response.
        match text(&head.headers, &SEC_FETCH_SITE) {
            Some("cross-site" | "same-site")
                if text(&head.headers, &SEC_FETCH_MODE) != Some("navigate") =>
            {
                Err(Refusal::OtherSite)
            }
            _ => Ok(()),
        }
    }

    /// Checks the token or the cookie of a request. `now` is in seconds since 1970.
    pub(crate) fn authorize(&self, head: &Parts, now: u64) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let by_token = bearer(&head.headers).is_some_and(|bearer| token.matches(bearer));
        match by_token || cookies(&head.headers).any(|cookie| token.verify_cookie(cookie, now)) {
            true => Ok(()),
            false => Err(Refusal::Unauthorized),
        }
    }

    /// Checks that a form was sent by a page of this server.
    ///
    /// # Errors
    /// [`Refusal::OtherSite`] if another site sent it.
    pub(crate) fn check_same_origin(&self, head: &Parts) -> Result<(), Refusal> {
        match is_cross_site(head) {
            true => Err(Refusal::OtherSite),
            false => Ok(()),
        }
    }

    /// Returns the cookie for a token from the login form, or `None` if the token is wrong.
    ///
    /// # Errors
    /// [`Refusal::OtherSite`] if another site sent the form.
    pub(crate) fn log_in(
        &self,
        head: &Parts,
        token: &str,
        now: u64,
    ) -> Result<Option<String>, Refusal> {
        self.check_same_origin(head)?;
        let expected = self.token.as_ref().filter(|own| own.matches(token.trim().as_bytes()));
        Ok(expected.map(|own| own.cookie(now)))
    }

    /// Whether requests need a token.
    pub(crate) fn needs_token(&self) -> bool {
        self.token.is_some()
    }
}

/// Whether `Host` is an IP address, `localhost`, or one of `names`. A page whose own name resolves to
/// this machine (DNS rebinding) makes the browser send that name.
fn is_known_host(head: &Parts, names: &[String]) -> bool {
    let from_uri = head.uri.authority().cloned();
    let from_header = || text(&head.headers, &HOST)?.parse::<Authority>().ok();
    let Some(authority) = from_uri.or_else(from_header) else { return false };
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
        || host == "localhost"
        || host.ends_with(".localhost")
        || names.iter().any(|name| name.eq_ignore_ascii_case(&host))
}

/// Whether a page of another site sent the form. Programs other than browsers send neither field, and
/// are allowed.
fn is_cross_site(head: &Parts) -> bool {
    let site = text(&head.headers, &SEC_FETCH_SITE);
    let origin = text(&head.headers, &ORIGIN);
    let host = text(&head.headers, &HOST).unwrap_or_default();
    let other_host = |origin: &str| origin.split_once("://").is_none_or(|(_, from)| from != host);
    site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
        || origin.is_some_and(other_host)
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The cookie of a browser that has logged in.
pub(crate) const COOKIE_NAME: &str = "firstflight-admin";

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use http::Request;

    use super::*;

    #[test]
    fn a_rebound_host_name_is_misdirected() {
        let guard = without_token(&["ops.example.test"]);
        for known in [
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
            assert_eq!(guard.check_host(&head(&[("host", known)])), Ok(()), "{known}");
        }
        for unknown in [
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
            assert_eq!(guard.check_host(&head(&[("host", unknown)])), refusal, "{unknown}");
        }
        assert_eq!(guard.check_host(&head(&[])), Err(Refusal::Misdirected));
    }

    #[test]
    fn with_a_token_or_on_a_unix_socket_any_host_name_is_allowed() {
        assert_eq!(with_token().check_host(&head(&[("host", "ops.example.test")])), Ok(()));
        let settings = AdminSettings::new(AdminAddress::Unix(PathBuf::from("socket")));
        let guard = Guard::new(&settings).unwrap();
        assert_eq!(guard.check_host(&head(&[("host", "whatever")])), Ok(()));
        assert_eq!(guard.authorize(&head(&[]), 0), Ok(()));
    }

    #[test]
    fn other_sites_may_only_link() {
        let guard = without_token(&[]);
        let check = |site, mode| {
            guard.check_host(&head(&[
                ("host", "localhost"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
            ]))
        };
        assert_eq!(check("cross-site", "navigate"), Ok(()));
        assert_eq!(check("same-origin", "cors"), Ok(()));
        assert_eq!(check("none", "navigate"), Ok(()));
        assert_eq!(check("cross-site", "no-cors"), Err(Refusal::OtherSite));
        assert_eq!(check("same-site", "cors"), Err(Refusal::OtherSite));
    }

    #[test]
    fn the_token_is_accepted_as_a_header_and_as_a_cookie() {
        let guard = with_token();
        let authorize =
            |headers: &[(&'static str, &str)], now| guard.authorize(&head(headers), now);
        assert_eq!(authorize(&[("authorization", &format!("Bearer {TOKEN}"))], 0), Ok(()));
        assert_eq!(authorize(&[("authorization", &format!("bearer  {TOKEN} "))], 0), Ok(()));
        let cookie = guard.log_in(&head(&[]), TOKEN, 0).unwrap().unwrap();
        let sent = format!("theme=dark; {COOKIE_NAME}={cookie}; other=1");
        assert_eq!(authorize(&[("cookie", &sent)], 1), Ok(()));
        let refused = Err(Refusal::Unauthorized);
        assert_eq!(authorize(&[("cookie", &sent)], 13 * 3600), refused);
        assert_eq!(authorize(&[], 0), refused);
        // The token is neither the value of the cookie nor valid under another scheme.
        for (name, value) in [
            ("cookie", format!("{COOKIE_NAME}={TOKEN}")),
            ("cookie", format!("x{COOKIE_NAME}={cookie}")),
            ("authorization", TOKEN.to_owned()),
            ("authorization", format!("Basic {TOKEN}")),
            ("authorization", format!("Bearer {TOKEN}x")),
            ("authorization", "Bearer".to_owned()),
        ] {
            assert_eq!(authorize(&[(name, &value)], 0), refused, "{name}: {value}");
        }
    }

    #[test]
    fn the_login_form_of_another_site_is_refused() {
        let guard = with_token();
        let log_in =
            |headers: &[(&'static str, &str)], token| guard.log_in(&head(headers), token, 0);
        let own = [
            ("host", "ops:9090"),
            ("origin", "http://ops:9090"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert!(log_in(&own, TOKEN).unwrap().is_some());
        assert!(log_in(&own, "wrong").unwrap().is_none());
        for cross_site in [
            [("host", "ops:9090"), ("origin", "http://elsewhere:9090")],
            [("host", "ops:9090"), ("origin", "null")],
            [("host", "ops:9090"), ("sec-fetch-site", "cross-site")],
            [("host", "ops:9090"), ("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(log_in(&cross_site, TOKEN), Err(Refusal::OtherSite));
        }
        assert_eq!(without_token(&[]).log_in(&head(&[]), TOKEN, 0), Ok(None));
    }

    /// A guard on loopback, without a token.
    fn without_token(names: &[&str]) -> Guard {
        let mut settings = AdminSettings::new(AdminAddress::Tcp(([127, 0, 0, 1], 0).into()));
        settings.names = names.iter().map(|name| (*name).to_owned()).collect();
        Guard::new(&settings).unwrap()
    }

    fn with_token() -> Guard {
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
}
