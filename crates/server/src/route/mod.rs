//! Matches each request to a site, a route and its rules, by one snapshot.

pub(crate) mod client;
pub(crate) mod early;
mod guards;
pub(crate) mod routes;
pub(crate) mod sites;
pub(crate) mod validation;

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{IpNetwork, Limits, Listener, WhenNotAllowed};
use firstflight_quic::ServerCrypto;
use firstflight_tls::{Acceptor, EchKeys, Identities};
use firstflight_upstream::Pool;
use http::{HeaderValue, Request, Response, StatusCode};

use self::routes::ReadyRoute;
use self::sites::{PresentedCertificates, SiteMatch, Sites};
use crate::certificates::SiteCertificate;
use crate::context::{ConnectionFacts, ResponseBody};
use crate::handler::proxy::Pools;
use crate::handler::response::plain;

/// A configuration that is ready to serve. A reload replaces it as a whole. A connection keeps the
/// snapshot under which it was accepted for its handshake and its early requests; later requests
/// use the newest one.
pub(crate) struct Snapshot {
    /// Starts at 1 and grows by one with each reload.
    pub(crate) number: u64,
    /// The certificates, by server name.
    pub(crate) identities: Identities,
    pub(crate) acceptor: Acceptor,
    /// `None`: HTTP/3 is disabled.
    pub(crate) quic: Option<QuicConfig>,
    /// `None`: ping-pong, without HTTP.
    pub(crate) sites: Option<Arc<Sites>>,
    pub(crate) pools: Pools,
    pub(crate) ech: Option<EchKeys>,
    pub(crate) limits: Limits,
    pub(crate) trusted_proxies: Vec<IpNetwork>,
    pub(crate) keep_alive: bool,
    /// Whether early data is enabled.
    pub(crate) early_data: bool,
    pub(crate) when_not_allowed: WhenNotAllowed,
    /// Each site's certificate, for status and metrics.
    pub(crate) certificates: Vec<SiteCertificate>,
    pub(crate) alt_svc: Option<Duration>,
}

/// The QUIC settings of one configuration.
pub(crate) struct QuicConfig {
    pub(crate) crypto: Arc<ServerCrypto>,
    /// Its cryptography refuses early data.
    pub(crate) server: quinn_proto::ServerConfig,
}

/// A request's site, route and rules, matched once by one snapshot.
pub(crate) struct RequestMatch {
    /// `None`: the snapshot does not serve HTTP.
    site: Option<SiteMatch>,
}

impl Snapshot {
    /// Starts the pools' background tasks. Needs a tokio runtime.
    pub(crate) fn start(&self) {
        self.pools.values().for_each(Pool::start);
    }

    /// The `Alt-Svc` field of responses over TCP, which offers HTTP/3 on the same port (RFC 7838
    /// section 3).
    pub(crate) fn alt_svc(&self, listener: &Listener, port: u16) -> Option<HeaderValue> {
        self.quic.as_ref().filter(|_| listener.http3)?;
        let age = self.alt_svc?.as_secs();
        HeaderValue::from_str(&format!("h3=\":{port}\"; ma={age}")).ok()
    }

    /// Whether a site has this name. Without named sites, every host is known.
    pub(crate) fn is_known_host(&self, host: &str) -> bool {
        self.sites.as_ref().is_none_or(|sites| sites.is_known_host(host))
    }
}

impl QuicConfig {
    /// The configuration of one connection, with this cryptography.
    pub(crate) fn for_connection(
        &self,
        crypto: Arc<dyn quinn_proto::crypto::ServerConfig>,
    ) -> quinn_proto::ServerConfig {
        let mut config = self.server.clone();
        config.crypto = crypto;
        config
    }
}

impl RequestMatch {
    /// Matches a request by `snapshot`. `identities`: the certificates from which the client's one
    /// was selected.
    pub(crate) fn new<B>(
        snapshot: &Snapshot,
        request: &Request<B>,
        facts: &ConnectionFacts,
        identities: &Identities,
    ) -> Self {
        let server_name = facts.tls.server_name.as_deref();
        let presented = PresentedCertificates { server_name, identities };
        let site = snapshot.sites.as_ref().map(|sites| sites.find(request, &presented));
        Self { site }
    }

    /// Whether the request may run as early data. Depends only on the request and the time.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        self.site.as_ref().is_none_or(|site| site.may_run_early(request))
    }

    /// The route that handles the request.
    pub(crate) fn route(&self) -> Option<&ReadyRoute> {
        self.site.as_ref()?.route()
    }

    /// The response if no route handles the request.
    pub(crate) fn refusal(&self) -> Response<ResponseBody> {
        self.site.as_ref().map_or_else(|| plain(StatusCode::NOT_FOUND), SiteMatch::refusal)
    }
}
