//! Checks the client's rate and credentials before a route's handler runs.

mod auth;
mod rate;

use std::net::IpAddr;

use firstflight_config::Route;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use self::auth::BasicAuth;
use self::rate::RateLimiter;
use crate::ServerError;
use crate::context::{ResponseBody, monotonic};
use crate::handler::response::plain;

/// The guards of one route.
pub(crate) struct Guards {
    rate: Option<RateLimiter>,
    auth: Option<BasicAuth>,
}

impl Guards {
    /// The guards that a route's settings require. Returns `None` if they require none.
    ///
    /// # Errors
    /// [`ServerError::Config`].
    pub(crate) fn new(route: &Route) -> Result<Option<Self>, ServerError> {
        let rate = route.rate_limit.as_ref().map(RateLimiter::new);
        let auth = route.users.as_deref().map(BasicAuth::new).transpose()?;
        Ok((rate.is_some() || auth.is_some()).then_some(Self { rate, auth }))
    }

    /// Checks a request. The rate comes first, so that it also limits the guessing of passwords.
    ///
    /// # Errors
    /// The response: 429 (Too Many Requests, RFC 6585 section 4) or 401 (Unauthorized).
    pub(crate) async fn check(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
    ) -> Result<(), Response<ResponseBody>> {
        let refusal = if let Some(rate) = &self.rate
            && let Err(wait) = rate.count(client, monotonic())
        {
            let mut response = plain(StatusCode::TOO_MANY_REQUESTS);
            let seconds = HeaderValue::from(wait.as_secs() + 1);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
            response
        } else if let Some(auth) = &self.auth
            && !auth.admits(headers).await
        {
            auth::challenge()
        } else {
            return Ok(());
        };
        Err(refusal)
    }
}
