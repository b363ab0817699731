//! Who may look, and by which requests. Sans-IO: requests come in as heads, time as an argument.

use std::net::IpAddr;

use firstflight_config::{AdminAddress, AdminSettings, ConfigError};
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use crate::AdminError;
use crate::token::Token;

/// The rules of one set of settings.
#[derive(Debug)]
pub(crate) struct Guard {
    token: Option<Token>,
    /// Names in `Host` that count; `None`: all do.
    names: Option<Vec<String>>,
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its `Host` is not a name of ours (RFC 9110 section 7.4).
    Misdirected,
    /// A page of somebody else had a browser send it.
    OtherSite,
    /// It brings no token, or a wrong one.
    Unauthorised,
}

impl Guard {
    /// Reads the token, if there is one.
    ///
    /// # Errors
    /// [`AdminError`].
    pub(crate) fn new(settings: &AdminSettings) -> Result<Self, AdminError> {
        settings.check().map_err(ConfigError::from)?;
        let token = settings.token_file.as_deref().map(Token::read).transpose()?;
        // No browser reaches a unix socket. Where a token is requested, a page under a name of its
        // own has neither that nor our cookie.
        let any = token.is_some() || matches!(settings.address, AdminAddress::Unix(_));
        Ok(Self { token, names: (!any).then(|| settings.names.clone()) })
    }

    /// Whether somebody's request may be answered at all, whoever he is.
    pub(crate) fn may_ask(&self, head: &Parts) -> Result<(), Refusal> {
        if !self.names.as_ref().is_none_or(|names| is_ours(head, names)) {
            return Err(Refusal::Misdirected);
        }
        // A link that is followed is no harm: its page sees nothing of the response.
        match text(&head.headers, &SEC_FETCH_SITE) {
            Some("cross-site" | "same-site")
                if text(&head.headers, &SEC_FETCH_MODE) != Some("navigate") =>
            {
                Err(Refusal::OtherSite)
            }
            _ => Ok(()),
        }
    }

    /// Whether it may see anything. `now`: seconds since 1970.
    pub(crate) fn may_look(&self, head: &Parts, now: u64) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let by_token = bearer(&head.headers).is_some_and(|given| token.is(given));
        match by_token || cookies(&head.headers).any(|cookie| token.made(cookie, now)) {
            true => Ok(()),
            false => Err(Refusal::Unauthorised),
        }
    }

    /// Whether a form may be sent by this request.
    ///
    /// # Errors
    /// [`Refusal::OtherSite`] if it was another page's.
    pub(crate) fn may_send(&self, head: &Parts) -> Result<(), Refusal> {
        match is_foreign(head) {
            true => Err(Refusal::OtherSite),
            false => Ok(()),
        }
    }

    /// The cookie for a token that was typed into the form; `None` for a wrong one.
    ///
    /// # Errors
    /// [`Refusal::OtherSite`] if the form was another page's.
    pub(crate) fn log_in(
        &self,
        head: &Parts,
        given: &str,
        now: u64,
    ) -> Result<Option<String>, Refusal> {
        self.may_send(head)?;
        let token = self.token.as_ref().filter(|token| token.is(given.trim().as_bytes()));
        Ok(token.map(|token| token.cookie(now)))
    }

    /// Whether a token is requested.
    pub(crate) fn asks_for_token(&self) -> bool {
        self.token.is_some()
    }
}

/// Whether `Host` is this machine by its address, `localhost`, or one of `names`. A page whose own
/// name resolves to this machine (DNS rebinding) has its browser say that name.
fn is_ours(head: &Parts, names: &[String]) -> bool {
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

/// Whether a form was sent from another site's page. Programs say nothing, and may.
fn is_foreign(head: &Parts) -> bool {
    let site = text(&head.headers, &SEC_FETCH_SITE);
    let origin = text(&head.headers, &ORIGIN);
    let own = text(&head.headers, &HOST).unwrap_or_default();
    let elsewhere = |origin: &str| origin.split_once("://").is_none_or(|(_, from)| from != own);
    site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
        || origin.is_some_and(elsewhere)
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

/// Under which name a browser keeps that it has logged in.
pub(crate) const COOKIE_NAME: &str = "firstflight-admin";

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
