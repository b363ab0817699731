use std::sync::Arc;
use std::time::Duration;

use firstflight_quic::ClientCrypto;
use firstflight_tls::{CipherPolicy, Connector, ConnectorConfig, KeyLog, TlsError, Trust, Version};
use http::{Method, StatusCode};

use crate::{ClientError, Jar, Resolver, TrustId, quic};

/// Makes transfers, each on its own connection.
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) connector: Connector,
    /// `None` if QUIC is off.
    pub(crate) quic: Option<Arc<ClientCrypto>>,
    pub(crate) trust: TrustId,
}

impl Client {
    /// Checks the configuration.
    ///
    /// # Errors
    /// [`ClientError::Tls`] for an invalid TLS setting, [`ClientError::Jar`], [`ClientError::Usage`]
    /// for HTTP/3 only without TLS 1.3.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let connector = Connector::new(config.tcp_tls_config())?;
        let tls13 = config.versions.1 == Version::Tls13;
        if config.http == HttpVersions::Three && !tls13 {
            let text = "HTTP/3 needs TLS 1.3; remove --tls-max or --http3-only";
            return Err(ClientError::Usage(text.to_owned()));
        }
        let quic = match config.http.uses_quic() && tls13 {
            true => Some(ClientCrypto::new(config.quic_tls_config())?),
            false => None,
        };
        let trust = TrustId::of(&config.trust)?;
        Ok(Self { config, connector, quic, trust })
    }
}

/// Which versions of HTTP a client uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/3, or [`HttpVersions::Two`] if TCP connects first. QUIC has a head start; TCP is tried
    /// after 200 ms or when QUIC has failed. The request goes to the winner. Early data over QUIC is
    /// sent before the winner is known, so only requests with a safe method use it here; if TCP wins,
    /// they are sent again over TCP.
    ThreeFirst,
    /// Only HTTP/3.
    Three,
    /// HTTP/2, or HTTP/1.1 if the server prefers it.
    #[default]
    Two,
    /// Only HTTP/1.1.
    One,
}

impl HttpVersions {
    /// Returns the ALPN names offered over TCP, in order of preference; empty if TCP is not used.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Two | Self::ThreeFirst => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::One => vec![b"http/1.1".to_vec()],
            Self::Three => Vec::new(),
        }
    }

    /// Whether QUIC is used.
    pub fn uses_quic(self) -> bool {
        matches!(self, Self::Three | Self::ThreeFirst)
    }
}

/// The configuration of a client.
pub struct ClientConfig {
    /// Trusted certificate authorities.
    pub trust: Trust,
    /// Oldest and newest version of TLS. QUIC needs 1.3.
    pub versions: (Version, Version),
    /// Ciphers and groups.
    pub ciphers: CipherPolicy,
    /// An ECHConfigList (RFC 9849), as published in the server's DNS record.
    pub ech_configs: Option<Vec<u8>>,
    /// Versions of HTTP.
    pub http: HttpVersions,
    /// Whether to use TCP Fast Open (RFC 7413). Ignored when QUIC and TCP race: data in the SYN cannot
    /// be withdrawn.
    pub fast_open: bool,
    /// Which requests may be sent as early data; needs a jar with a session.
    pub early_data: EarlyPolicy,
    /// Whether to open a second connection, without early data, if a first flight with early data
    /// over TCP stays unanswered for 200 ms or 1.5 round trips. Safe methods only.
    pub second_connection: bool,
    /// Name resolution.
    pub resolver: Resolver,
    /// Timeout of name resolution and handshakes together.
    pub connect_timeout: Option<Duration>,
    /// Timeout of the whole transfer.
    pub max_time: Option<Duration>,
    /// Maximum number of redirections to follow; `None`: a redirection is the final response.
    pub redirects: Option<u32>,
    /// Whether a status of 400 or more is an error.
    pub fail: bool,
    /// The jar of sessions and address tokens.
    pub jar: Option<Jar>,
    /// Where to log TLS secrets.
    pub key_log: Option<Arc<dyn KeyLog>>,
}

impl ClientConfig {
    /// The defaults: the system's certificate authorities, TLS 1.2 and 1.3, HTTP/2 or 1.1, no early
    /// data, no jar, no timeouts.
    pub fn new() -> Self {
        Self {
            trust: Trust::System,
            versions: (Version::Tls12, Version::Tls13),
            ciphers: CipherPolicy::default(),
            ech_configs: None,
            http: HttpVersions::default(),
            fast_open: false,
            early_data: EarlyPolicy::default(),
            second_connection: true,
            resolver: Resolver::default(),
            connect_timeout: None,
            max_time: None,
            redirects: None,
            fail: false,
            jar: None,
            key_log: None,
        }
    }

    pub(crate) fn tcp_tls_config(&self) -> ConnectorConfig {
        ConnectorConfig {
            min_version: self.versions.0,
            max_version: self.versions.1,
            ciphers: self.ciphers.clone(),
            alpn: self.http.alpn(),
            trust: self.trust.clone(),
            ed25519: false,
            compressed_certificates: false,
            ech_configs: self.ech_configs.clone(),
            key_log: self.key_log.clone(),
        }
    }

    pub(crate) fn quic_tls_config(&self) -> ConnectorConfig {
        ConnectorConfig {
            min_version: Version::Tls13,
            alpn: vec![quic::ALPN.to_vec()],
            ..self.tcp_tls_config()
        }
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Which requests may be sent as early data, which an attacker can replay (RFC 8446 section 8, RFC 8470
/// section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyPolicy {
    /// No requests.
    #[default]
    Never,
    /// Requests with a safe method.
    SafeMethods,
    /// All requests: the caller knows that executing one twice does no harm.
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

/// Whether a method is safe (RFC 9110 section 9.2.1).
pub fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// Whether the request has to be sent again after the handshake: a 425 to a request that was early
/// data (RFC 8470 section 5.2). Otherwise a 425 is a final response.
pub(crate) fn is_retryable_425(status: StatusCode, was_early: bool) -> bool {
    was_early && status == StatusCode::TOO_EARLY
}

/// Whether a new connection without early data can succeed after this error: the server now uses an
/// older TLS version (RFC 8446 appendix D.3) or another protocol.
pub(crate) fn can_retry_without_early_data(error: &TlsError) -> bool {
    matches!(error, TlsError::RetryWithoutEarlyData | TlsError::AlpnChanged { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_9_2_1_the_policy_decides_about_unsafe_methods() {
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
        assert!(is_retryable_425(StatusCode::TOO_EARLY, true));
        assert!(!is_retryable_425(StatusCode::TOO_EARLY, false));
        assert!(!is_retryable_425(StatusCode::OK, true));
    }
}
