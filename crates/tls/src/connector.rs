use std::sync::{Arc, LazyLock, PoisonError};

use boring::ex_data::Index;
use boring::ssl::{
    Ssl, SslContext, SslContextBuilder, SslRef, SslSession, SslSessionCacheMode,
    SslSignatureAlgorithm,
};
use boring_sys as ffi;
use foreign_types::ForeignType;

use crate::connection::{Role, TlsConnection};
use crate::context::Slot;
use crate::session::{SessionInbox, keep_newest};
use crate::{CipherPolicy, KeyLog, Session, TlsError, Trust, Version, compression, context, trust};

/// Configuration of a [`Connector`].
#[derive(Clone)]
pub struct ConnectorConfig {
    /// The oldest version that is offered.
    pub min_version: Version,
    /// The newest version that is offered.
    pub max_version: Version,
    /// Ciphers and groups.
    pub ciphers: CipherPolicy,
    /// Application protocols in order of preference. Empty: no ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// The authorities to trust.
    pub trust: Trust,
    /// Whether Ed25519 certificates are accepted too (RFC 8422 section 5.10, RFC 8446 section
    /// 4.2.3). Browsers and BoringSSL's defaults do not offer them.
    pub ed25519: bool,
    /// Whether certificate compression by Brotli is offered (RFC 8879).
    pub compressed_certificates: bool,
    /// An ECHConfigList (RFC 9849 section 4): what the server's DNS record says about encrypting the
    /// ClientHello.
    pub ech_configs: Option<Vec<u8>>,
    /// Receives the connections' secrets.
    pub key_log: Option<Arc<dyn KeyLog>>,
}

impl ConnectorConfig {
    /// TLS 1.2 and 1.3, no ALPN.
    pub fn new(trust: Trust) -> Self {
        Self {
            min_version: Version::Tls12,
            max_version: Version::Tls13,
            ciphers: CipherPolicy::default(),
            alpn: Vec::new(),
            trust,
            ed25519: false,
            compressed_certificates: false,
            ech_configs: None,
            key_log: None,
        }
    }
}

/// BoringSSL's defaults, followed by Ed25519.
const WITH_ED25519: [SslSignatureAlgorithm; 10] = [
    SslSignatureAlgorithm::ECDSA_SECP256R1_SHA256,
    SslSignatureAlgorithm::RSA_PSS_RSAE_SHA256,
    SslSignatureAlgorithm::RSA_PKCS1_SHA256,
    SslSignatureAlgorithm::ECDSA_SECP384R1_SHA384,
    SslSignatureAlgorithm::RSA_PSS_RSAE_SHA384,
    SslSignatureAlgorithm::RSA_PKCS1_SHA384,
    SslSignatureAlgorithm::RSA_PSS_RSAE_SHA512,
    SslSignatureAlgorithm::RSA_PKCS1_SHA512,
    SslSignatureAlgorithm::RSA_PKCS1_SHA1,
    SslSignatureAlgorithm::ED25519,
];

/// Options of one client connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The server's host name or address, for SNI (host names only, RFC 6066 section 3) and
    /// certificate verification.
    pub host: String,
    /// A session to resume.
    pub session: Option<Session>,
    /// Whether to offer early data if the session allows it.
    pub early_data: bool,
}

/// Makes client connections. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    context: SslContext,
}

static SESSION_INBOX: Slot<SessionInbox> =
    Slot::new(|| Ssl::new_ex_index().expect("an index for the sessions of a connection"));

impl Connector {
    /// Checks the configuration and builds the context.
    ///
    /// # Errors
    /// [`TlsError`] naming the setting that BoringSSL rejects, or the file of certificate
    /// authorities that cannot be read.
    pub fn new(config: ConnectorConfig) -> Result<Self, TlsError> {
        Ok(Self { context: client_context(config, |_| ())? })
    }

    /// Creates a connection.
    ///
    /// # Errors
    /// [`TlsError::BadHost`], [`TlsError::BadEchConfigs`], or [`TlsError::BadSession`] if the session
    /// cannot be used here.
    pub fn connection(&self, offer: &ConnectOptions) -> Result<TlsConnection, TlsError> {
        let (ssl, inbox) = client_connection(&self.context, offer)?;
        TlsConnection::new(ssl, Role::Client { inbox })
    }
}

/// The ECHConfigList of a context. BoringSSL itself stores it on connections only.
static ECH_CONFIGS: LazyLock<Index<SslContext, Vec<u8>>> =
    LazyLock::new(|| SslContext::new_ex_index().expect("an index for ECH configurations"));

/// Builds a client's context. `customize` is called last.
///
/// # Errors
/// As [`Connector::new`].
pub fn client_context(
    config: ConnectorConfig,
    customize: impl FnOnce(&mut SslContextBuilder),
) -> Result<SslContext, TlsError> {
    let mut builder =
        context::builder(config.min_version, config.max_version, &config.ciphers, config.key_log)?;
    trust::install(&config.trust, &mut builder)?;
    if !config.alpn.is_empty() {
        builder
            .set_alpn_protos(&context::alpn_wire(&config.alpn))
            .map_err(TlsError::setup("the application protocols"))?;
    }
    if config.ed25519 {
        builder
            .set_verify_algorithm_prefs(&WITH_ED25519)
            .map_err(TlsError::setup("the signature algorithms"))?;
    }
    if config.compressed_certificates {
        compression::offer(&mut builder)?;
    }
    // The caller stores sessions, not BoringSSL: a ticket is used once, by one process.
    builder.set_session_cache_mode(SslSessionCacheMode::CLIENT | SslSessionCacheMode::NO_INTERNAL);
    builder.set_new_session_callback(|ssl: &mut SslRef, session: SslSession| {
        if let Some(inbox) = ssl.ex_data(*SESSION_INBOX) {
            let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
            keep_newest(&mut inbox, Session::new(session));
        }
    });
    if let Some(configs) = config.ech_configs {
        builder.set_ex_data(*ECH_CONFIGS, configs);
    }
    customize(&mut builder);
    Ok(builder.build())
}

/// Creates a client's connection, and the inbox for its sessions.
///
/// # Errors
/// As [`Connector::connection`].
pub fn client_connection(
    context: &SslContext,
    offer: &ConnectOptions,
) -> Result<(Ssl, SessionInbox), TlsError> {
    let mut ssl = Ssl::new(context).map_err(TlsError::setup("a new connection"))?;
    let bad_host = |_| TlsError::BadHost(offer.host.clone());
    match offer.host.parse() {
        Ok(address) => ssl.param_mut().set_ip(address).map_err(bad_host)?,
        Err(_) => {
            ssl.set_hostname(&offer.host).map_err(bad_host)?;
            ssl.param_mut().set_host(&offer.host).map_err(bad_host)?;
        }
    }
    let inbox = SessionInbox::default();
    ssl.set_ex_data(*SESSION_INBOX, inbox.clone());
    trust::track_trust_anchor(&mut ssl);
    if let Some(configs) = context.ex_data(*ECH_CONFIGS) {
        ssl.set_ech_config_list(configs).map_err(|_| TlsError::BadEchConfigs)?;
    }
    if let Some(session) = &offer.session {
        let early = offer.early_data && session.early_data_capable();
        let session = if early { session.for_early_data()? } else { session.clone() };
        // SAFETY: BoringSSL created the session in this process, by a handshake or from bytes.
        // Both give it the X.509 method that every context here has.
        unsafe { ssl.set_session(session.as_boring()) }
            .map_err(|stack| TlsError::BadSession(crate::error::reasons(&stack)))?;
    }
    // SAFETY: the connection is valid.
    unsafe { ffi::SSL_set_early_data_enabled(ssl.as_ptr(), offer.early_data.into()) };
    Ok((ssl, inbox))
}
