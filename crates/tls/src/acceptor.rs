use std::sync::Arc;
use std::time::Duration;

use boring::ssl::{AlpnError, Ssl, SslContext, SslContextBuilder, SslSessionCacheMode};
use boring_sys as ffi;
use foreign_types::ForeignType;

use crate::challenge::{self, ACME_TLS_ALPN, ChallengeCertificates};
use crate::machine::{Machine, Role};
use crate::preference::is_good_for_http2;
use crate::{
    CipherPolicy, CipherPreference, Identities, KeyLog, TicketSealer, TlsError, Version, context,
    offer, ticket,
};

/// What a server is willing to do.
#[derive(Clone)]
pub struct AcceptorConfig {
    /// Certificate chains and keys.
    pub identities: Identities,
    /// Oldest version.
    pub min_version: Version,
    /// Newest version.
    pub max_version: Version,
    /// Ciphers and groups. The default of TLS 1.2 is that of [`CipherPreference`].
    pub ciphers: CipherPolicy,
    /// Whose order counts among them, where [`CipherPolicy`] names none.
    pub cipher_preference: CipherPreference,
    /// Application protocols in order of preference; empty: ALPN is ignored.
    pub alpn: Vec<Vec<u8>>,
    /// Whether tickets allow early data and early data is accepted. Each connection can still
    /// decline by [`Acceptor::machine`]'s argument.
    pub early_data: bool,
    /// Seals tickets; `None`: no tickets, so neither resumption nor early data.
    pub sealer: Option<Arc<dyn TicketSealer>>,
    /// How many tickets each TLS 1.3 handshake issues.
    pub tickets: usize,
    /// How long a ticket is good, at most 7 days (RFC 8446 section 4.6.1); as long as the sealer's
    /// keys are kept.
    pub ticket_lifetime: Duration,
    /// Where secrets go, if anywhere.
    pub key_log: Option<Arc<dyn KeyLog>>,
    /// What authorities that ask by TLS-ALPN-01 are shown (RFC 8737); `None`: there is nothing that
    /// they could ask for. A connection of theirs has no ticket, no early data and no application
    /// data; its protocol is [`ACME_TLS_ALPN`], and it is to be closed after its handshake.
    pub challenges: Option<Arc<dyn ChallengeCertificates>>,
}

impl AcceptorConfig {
    /// TLS 1.2 and 1.3, two tickets a handshake, no ALPN, no early data.
    pub fn new(identities: impl Into<Identities>) -> Self {
        Self {
            identities: identities.into(),
            min_version: Version::Tls12,
            max_version: Version::Tls13,
            ciphers: CipherPolicy::default(),
            cipher_preference: CipherPreference::default(),
            alpn: Vec::new(),
            early_data: false,
            sealer: None,
            tickets: 2,
            ticket_lifetime: Duration::from_secs(12 * 3600),
            key_log: None,
            challenges: None,
        }
    }
}

/// Makes server connections. Cheap to clone.
#[derive(Clone)]
pub struct Acceptor {
    context: SslContext,
    early_data: bool,
}

impl Acceptor {
    /// Checks the configuration and builds the context.
    ///
    /// # Errors
    /// [`TlsError`] with the setting that the library does not take.
    pub fn new(config: AcceptorConfig) -> Result<Self, TlsError> {
        let (context, early_data) = server_context(config, |_| ())?;
        Ok(Self { context, early_data })
    }

    /// Whether early data is accepted unless a connection declines it.
    pub(crate) fn takes_early_data(&self) -> bool {
        self.early_data
    }

    /// A new connection. With `early_data` false, early data is declined for it alone, and the
    /// client sends its request again after the handshake; tickets still allow it next time.
    ///
    /// # Errors
    /// [`TlsError::Setup`] when there is no memory.
    pub fn machine(&self, early_data: bool) -> Result<Machine, TlsError> {
        let ssl = Ssl::new(&self.context).map_err(TlsError::setup("a new connection"))?;
        if self.early_data && !early_data {
            // Not SSL_set_early_data_enabled(0): tickets issued on this connection would then
            // promise none. The flag is put back once the ClientHello has been judged.
            // SAFETY: the connection is valid and not yet in its handshake.
            unsafe { ffi::SSL_set_early_data_enabled(ssl.as_ptr(), 0) };
        }
        Machine::new(ssl, Role::Server { restore_early_data: self.early_data })
    }
}

/// The context of a server, and whether it takes early data. `shape` has the last word on it.
///
/// # Errors
/// [`TlsError`] with the setting that the library does not take.
pub fn server_context(
    config: AcceptorConfig,
    shape: impl FnOnce(&mut SslContextBuilder),
) -> Result<(SslContext, bool), TlsError> {
    let mut builder =
        context::builder(config.min_version, config.max_version, &config.ciphers, config.key_log)?;
    config.cipher_preference.apply(&config.ciphers, config.min_version, &mut builder)?;
    config.identities.install(&mut builder, config.challenges)?;
    // Sessions live in tickets only: a cache in the process would answer for one node alone.
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    let early_data = config.early_data && config.sealer.is_some();
    match config.sealer {
        Some(sealer) => ticket::install(&mut builder, sealer, config.tickets)?,
        None => {
            builder.set_options(boring::ssl::SslOptions::NO_TICKET);
        }
    }
    if !config.alpn.is_empty() {
        let ours = context::alpn_wire(&config.alpn);
        let without_http2: Vec<_> = config.alpn.into_iter().filter(|name| name != b"h2").collect();
        let without_http2 = context::alpn_wire(&without_http2);
        builder.set_alpn_select_callback(move |ssl, theirs| {
            match challenge::is_answered(ssl) {
                // The only one that it offers.
                true => select_alpn(&context::alpn_wire(&[ACME_TLS_ALPN.to_vec()]), theirs),
                false if is_good_for_http2(ssl) => select_alpn(&ours, theirs),
                false => select_alpn(&without_http2, theirs),
            }
        });
    }
    offer::install(&mut builder);
    let lifetime = u32::try_from(config.ticket_lifetime.as_secs()).unwrap_or(u32::MAX);
    // SAFETY: the context is valid; these calls only store numbers in it.
    unsafe {
        ffi::SSL_CTX_set_timeout(builder.as_ptr(), lifetime);
        ffi::SSL_CTX_set_session_psk_dhe_timeout(builder.as_ptr(), lifetime);
    }
    // SAFETY: the context is valid.
    unsafe { ffi::SSL_CTX_set_early_data_enabled(builder.as_ptr(), early_data.into()) };
    shape(&mut builder);
    Ok((builder.build(), early_data))
}

/// Our first protocol that the client offers too; none in common ends the handshake, as RFC 7301
/// section 3.2 demands.
fn select_alpn<'a>(ours: &[u8], theirs: &'a [u8]) -> Result<&'a [u8], AlpnError> {
    protocols(ours)
        .find_map(|our| protocols(theirs).find(|their| *their == our))
        .ok_or(AlpnError::ALERT_FATAL)
}

fn protocols(mut wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&length, rest) = wire.split_first()?;
        let (name, after) = rest.split_at_checked(length.into())?;
        wire = after;
        Some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7301_3_2_server_preference_decides_and_no_overlap_is_fatal() {
        let ours = context::alpn_wire(&[b"h2".to_vec(), b"http/1.1".to_vec()]);
        let theirs = context::alpn_wire(&[b"http/1.1".to_vec(), b"h2".to_vec()]);
        assert_eq!(select_alpn(&ours, &theirs).unwrap(), b"h2");
        assert!(select_alpn(&ours, b"\x03foo").is_err());
        assert!(select_alpn(&ours, b"\xffh2").is_err());
    }
}
