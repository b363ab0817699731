use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_quic::ClientCrypto;
use firstflight_tls::{CipherPolicy, Connector, ConnectorConfig, KeyLog, TlsError, Trust, Version};
use http::{Method, StatusCode};

use crate::transfer::Transfer;
use crate::{ClientError, Jar, Listener, Report, Request, Resolver, TrustId, quic};

/// Makes transfers, each on a connection of its own.
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) connector: Connector,
    /// `None`: QUIC is not used.
    pub(crate) quic: Option<Arc<ClientCrypto>>,
    pub(crate) trust: TrustId,
}

impl Client {
    /// Checks the configuration.
    ///
    /// # Errors
    /// [`ClientError::Tls`] with the setting that is not taken, [`ClientError::Jar`],
    /// [`ClientError::Usage`] for HTTP/3 alone without TLS 1.3.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let connector = Connector::new(config.over_tcp())?;
        let tls13 = config.versions.1 == Version::Tls13;
        if config.http == HttpVersions::Three && !tls13 {
            let text = "HTTP/3 needs TLS 1.3; leave --tls-max out, or --http3-only";
            return Err(ClientError::Usage(text.to_owned()));
        }
        let quic = match config.http.over_quic() && tls13 {
            true => Some(ClientCrypto::new(config.over_quic())?),
            false => None,
        };
        let trust = TrustId::of(&config.trust)?;
        Ok(Self { config, connector, quic, trust })
    }

    /// Makes a request and hands its response to `listener` as it comes in. What went wrong is in
    /// the report, together with all that was reached before.
    pub async fn fetch(&self, request: Request, listener: &mut dyn Listener) -> Report {
        let mut transfer = Transfer::new(self, &request, listener);
        let result = match self.config.max_time {
            None => transfer.run(request).await,
            Some(after) => match tokio::time::timeout(after, transfer.run(request)).await {
                Ok(result) => result,
                Err(_) => Err(ClientError::Timeout { phase: "the transfer", after }),
            },
        };
        let settled = transfer.store_sessions();
        let mut report = transfer.into_report();
        report.error = result.and(settled).err();
        report.marks.end.get_or_insert_with(Instant::now);
        report
    }
}

/// Which versions of HTTP a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/3, or those of [`HttpVersions::Two`] where TCP is there first: QUIC gets a start, TCP
    /// is tried beside it after 200 ms or once QUIC has failed. The request is handed to the one
    /// that wins. As early data over QUIC it leaves before that is known, so that happens with safe
    /// methods alone, and where TCP wins after all it is sent again there.
    ThreeFirst,
    /// HTTP/3 alone.
    Three,
    /// HTTP/2, or HTTP/1.1 where the server prefers it.
    #[default]
    Two,
    /// HTTP/1.1 alone.
    One,
}

impl HttpVersions {
    /// The protocols that are offered over TCP, as ALPN names them, in order of preference; empty:
    /// TCP is not used.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Two | Self::ThreeFirst => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::One => vec![b"http/1.1".to_vec()],
            Self::Three => Vec::new(),
        }
    }

    /// Whether QUIC is used.
    pub fn over_quic(self) -> bool {
        matches!(self, Self::Three | Self::ThreeFirst)
    }
}

/// What a client is willing to do.
pub struct ClientConfig {
    /// Whom to trust.
    pub trust: Trust,
    /// Oldest and newest version of TLS. QUIC needs 1.3.
    pub versions: (Version, Version),
    /// Ciphers and groups.
    pub ciphers: CipherPolicy,
    /// Versions of HTTP.
    pub http: HttpVersions,
    /// Whether to put the first write into the SYN where the kernel has a cookie (RFC 7413). Not
    /// where QUIC and TCP race: what is said in the SYN could not be taken back.
    pub fast_open: bool,
    /// Which requests may be early data; needs a jar with a session.
    pub early_data: EarlyPolicy,
    /// Where names lead.
    pub resolver: Resolver,
    /// Limit for name, TCP and TLS, or name and QUIC, together.
    pub connect_timeout: Option<Duration>,
    /// Limit for everything.
    pub max_time: Option<Duration>,
    /// Redirections to follow; `None`: none, and they are answers like any other.
    pub redirects: Option<u32>,
    /// Whether a status of 400 and above is an error.
    pub fail: bool,
    /// Where sessions and address tokens come from and go to.
    pub jar: Option<Jar>,
    /// Where TLS secrets go.
    pub key_log: Option<Arc<dyn KeyLog>>,
}

impl ClientConfig {
    /// The machine's authorities, TLS 1.2 and 1.3, HTTP/2 or 1.1, no early data, no jar, no limits.
    pub fn new() -> Self {
        Self {
            trust: Trust::System,
            versions: (Version::Tls12, Version::Tls13),
            ciphers: CipherPolicy::default(),
            http: HttpVersions::default(),
            fast_open: false,
            early_data: EarlyPolicy::default(),
            resolver: Resolver::default(),
            connect_timeout: None,
            max_time: None,
            redirects: None,
            fail: false,
            jar: None,
            key_log: None,
        }
    }

    pub(crate) fn over_tcp(&self) -> ConnectorConfig {
        ConnectorConfig {
            min_version: self.versions.0,
            max_version: self.versions.1,
            ciphers: self.ciphers.clone(),
            alpn: self.http.alpn(),
            trust: self.trust.clone(),
            ed25519: false,
            key_log: self.key_log.clone(),
        }
    }

    pub(crate) fn over_quic(&self) -> ConnectorConfig {
        ConnectorConfig {
            min_version: Version::Tls13,
            alpn: vec![quic::ALPN.to_vec()],
            ..self.over_tcp()
        }
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Which requests may travel as early data, where whoever records the first flight can have it
/// run again (RFC 8446 section 8, RFC 8470 section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyPolicy {
    /// None.
    #[default]
    Never,
    /// Those with a safe method.
    SafeMethods,
    /// All: the caller knows that running one twice does no harm.
    AnyMethod,
}

impl EarlyPolicy {
    /// Whether a request with this method may be early data.
    pub fn allows(self, method: &Method) -> bool {
        match self {
            Self::Never => false,
            Self::SafeMethods => is_safe(method),
            Self::AnyMethod => true,
        }
    }
}

/// Whether a method is safe: asks, and changes nothing (RFC 9110 section 9.2.1).
pub fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// Whether a response asks for the request once more after the handshake: 425 to a request that
/// was early data (RFC 8470 section 5.2). To one that was not, 425 is a response like any other.
pub(crate) fn too_early(status: StatusCode, was_early: bool) -> bool {
    was_early && status == StatusCode::TOO_EARLY
}

/// Whether a failure is fixed by a fresh connection without early data: the server has gone back
/// to an older version (RFC 8446 appendix D.3) or to another protocol.
pub(crate) fn fixed_without_early_data(error: &TlsError) -> bool {
    matches!(error, TlsError::RetryWithoutEarlyData | TlsError::AlpnChanged { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_9_2_1_safe_methods_alone_are_early_by_default() {
        for (method, safe) in [
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::OPTIONS, true),
            (Method::TRACE, true),
            (Method::POST, false),
            (Method::PUT, false),
            (Method::DELETE, false),
            (Method::PATCH, false),
            (Method::CONNECT, false),
        ] {
            assert_eq!(EarlyPolicy::SafeMethods.allows(&method), safe, "{method}");
            assert!(EarlyPolicy::AnyMethod.allows(&method));
            assert!(!EarlyPolicy::Never.allows(&method));
        }
    }

    #[test]
    fn rfc8470_5_2_only_an_early_request_is_retried() {
        assert!(too_early(StatusCode::TOO_EARLY, true));
        assert!(!too_early(StatusCode::TOO_EARLY, false));
        assert!(!too_early(StatusCode::OK, true));
    }
}
