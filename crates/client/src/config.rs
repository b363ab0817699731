use std::sync::Arc;
use std::time::Duration;

use firstflight_tls::{CipherPolicy, ConnectorConfig, KeyLog, Trust, Version};

use crate::{EarlyPolicy, Jar, Resolver, quic};

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
