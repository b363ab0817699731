//! Each request is matched once: to a site, a route and its rules, by one snapshot.

pub(crate) mod early;
pub(crate) mod routes;
pub(crate) mod sites;
pub(crate) mod validation;

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{Limits, Listener, WhenNotAllowed};
use firstflight_quic::ServerCrypto;
use firstflight_tls::{Acceptor, Identities};
use firstflight_upstream::Pool;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;

use self::early::RouteRules;
use self::sites::{PresentedCertificates, SiteMatch, Sites};
use crate::certificates::SiteCertificate;
use crate::context::{BodyError, ConnectionFacts, ResponseBody};
use crate::handler::RequestContext;
use crate::handler::proxy::Pools;
use crate::handler::response::plain;

/// A configuration, ready to serve: all that a reload replaces. Connections keep the one under
/// which they were accepted for their handshake and their early requests; later requests take the
/// newest.
pub(crate) struct Snapshot {
    /// From 1 on, one more with each reload.
    pub(crate) number: u64,
    /// Which certificate was shown to whom.
    pub(crate) identities: Identities,
    pub(crate) acceptor: Acceptor,
    /// `None`: no HTTP/3.
    pub(crate) quic: Option<QuicConfig>,
    /// `None`: ping-pong, without HTTP.
    pub(crate) sites: Option<Arc<Sites>>,
    pub(crate) pools: Pools,
    pub(crate) limits: Limits,
    pub(crate) keep_alive: bool,
    /// Whether early data is accepted at all.
    pub(crate) early_data: bool,
    pub(crate) when_not_allowed: WhenNotAllowed,
    /// Each site's certificate, for those who look.
    pub(crate) certificates: Vec<SiteCertificate>,
    pub(crate) alt_svc: Option<Duration>,
}

/// What QUIC connections are told, as one configuration has it.
pub(crate) struct QuicConfig {
    pub(crate) crypto: Arc<ServerCrypto>,
    /// With cryptography that refuses early data.
    pub(crate) server: quinn::ServerConfig,
}

/// A request's site, route and rules by one snapshot, matched once. Every later stage receives it.
pub(crate) struct RequestMatch {
    /// `None`: the snapshot serves no HTTP.
    site: Option<SiteMatch>,
}

impl Snapshot {
    /// Starts what goes on beside the connections. Inside a tokio runtime.
    pub(crate) fn begin(&self) {
        self.pools.values().for_each(Pool::start);
    }

    /// What responses over TCP say about HTTP/3 on the same port (RFC 7838 section 3). `None`:
    /// nothing.
    pub(crate) fn alt_svc(&self, listener: &Listener, port: u16) -> Option<HeaderValue> {
        self.quic.as_ref().filter(|_| listener.http3)?;
        let age = self.alt_svc?.as_secs();
        HeaderValue::from_str(&format!("h3=\":{port}\"; ma={age}")).ok()
    }

    /// Whether a site has this name; any is known where no site has names.
    pub(crate) fn knows(&self, host: &str) -> bool {
        self.sites.as_ref().is_none_or(|sites| sites.knows(host))
    }
}

impl QuicConfig {
    /// What a connection with this cryptography is told.
    pub(crate) fn for_connection(
        &self,
        crypto: Arc<dyn quinn::crypto::ServerConfig>,
    ) -> quinn::ServerConfig {
        let mut config = self.server.clone();
        config.crypto = crypto;
        config
    }
}

impl RequestMatch {
    /// Matches a request that came on a connection, by `snapshot`. `identities`: the certificates
    /// that the client was shown one of.
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

    /// Whether the request may run from early data. It depends on nothing but the request and the
    /// time.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        self.site.as_ref().is_none_or(|site| site.may_run_early(request))
    }

    /// What its route demands of it; `None`: no route handles it.
    pub(crate) fn rules(&self) -> Option<&RouteRules> {
        self.site.as_ref()?.rules()
    }

    /// Handles the request. `None`: the client went away and needs no response.
    pub(crate) async fn handle<B>(
        &self,
        request: Request<B>,
        context: &RequestContext<'_>,
    ) -> Option<Response<ResponseBody>>
    where
        B: Body<Data = bytes::Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        match &self.site {
            Some(site) => site.handle(request, context).await,
            None => Some(plain(StatusCode::NOT_FOUND)),
        }
    }
}
