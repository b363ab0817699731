//! The server side: configuration, contexts, and connections whose early data is undecided.

use std::sync::Arc;
use std::time::Duration;

use boring::ssl::{AlpnError, Ssl, SslContext, SslContextBuilder, SslSessionCacheMode};
use boring_sys as ffi;
use foreign_types::ForeignType;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::buffers::Phase;
use crate::connection::{Role, TlsConnection};
use crate::context::allows_http2;
use crate::identity::{self, ACME_TLS_ALPN, ChallengeCertificates};
use crate::stream::StartOutcome;
use crate::{
    CipherPolicy, CipherPreference, EchKeys, Identities, KeyLog, OpenedTicket, TicketSealer,
    TlsError, TlsStream, Version, compression, context, offered_flight, ticket,
};

/// Configuration of an [`Acceptor`].
#[derive(Clone)]
pub struct AcceptorConfig {
    /// Certificate chains and keys.
    pub identities: Identities,
    /// Whether certificates are compressed for clients that offer it (RFC 8879).
    pub compress_certificates: bool,
    /// The oldest version that is negotiated.
    pub min_version: Version,
    /// The newest version that is negotiated.
    pub max_version: Version,
    /// Ciphers and groups. Without a list, [`CipherPreference`] selects the TLS 1.2 ciphers.
    pub ciphers: CipherPolicy,
    /// Whether the server's or the client's cipher order decides.
    pub cipher_preference: CipherPreference,
    /// Application protocols in order of preference. Empty: ALPN is ignored.
    pub alpn: Vec<Vec<u8>>,
    /// Whether tickets allow early data and early data is accepted. A single connection can refuse
    /// it by the argument of [`Acceptor::connection`].
    pub early_data: bool,
    /// Seals tickets. `None`: no tickets are issued, so no session is resumed.
    pub sealer: Option<Arc<dyn TicketSealer>>,
    /// How many tickets each full TLS 1.3 handshake issues. A resumed one issues one, in place of the
    /// one that the client used.
    pub tickets: usize,
    /// Whether tickets tell clients that they are valid for all names of the certificate, where all of
    /// them lead to entries that accept them ([`IdentityEntry::ticket_group`](crate::IdentityEntry);
    /// draft-ietf-tls-cross-sni-resumption).
    pub tickets_across_names: bool,
    /// How long a ticket is valid, at most 7 days (RFC 8446 section 4.6.1). The sealer has to keep
    /// its keys for as long.
    pub ticket_lifetime: Duration,
    /// Decrypts encrypted ClientHellos (RFC 9849). The inner ClientHello then selects the
    /// certificate and everything else.
    pub ech: Option<EchKeys>,
    /// Receives the connections' secrets.
    pub key_log: Option<Arc<dyn KeyLog>>,
    /// Certificates for TLS-ALPN-01 validation by an ACME authority (RFC 8737). A validation
    /// connection has no ticket, no early data and no application data. Its protocol is
    /// [`ACME_TLS_ALPN`]; close it after the handshake.
    pub challenges: Option<Arc<dyn ChallengeCertificates>>,
}

impl AcceptorConfig {
    /// TLS 1.2 and 1.3, two tickets per handshake, no ALPN, no early data.
    pub fn new(identities: impl Into<Identities>) -> Self {
        Self {
            identities: identities.into(),
            compress_certificates: false,
            min_version: Version::Tls12,
            max_version: Version::Tls13,
            ciphers: CipherPolicy::default(),
            cipher_preference: CipherPreference::default(),
            alpn: Vec::new(),
            early_data: false,
            sealer: None,
            tickets: 2,
            tickets_across_names: false,
            ticket_lifetime: Duration::from_secs(12 * 3600),
            ech: None,
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
    uses_up_tickets: bool,
}

impl Acceptor {
    /// Checks the configuration and builds the context.
    ///
    /// # Errors
    /// [`TlsError`] naming the setting that BoringSSL rejects.
    pub fn new(config: AcceptorConfig) -> Result<Self, TlsError> {
        let uses_up_tickets = config.sealer.as_ref().is_some_and(|sealer| sealer.uses_up_tickets());
        let (context, early_data) = server_context(config, |_| ())?;
        Ok(Self { context, early_data, uses_up_tickets })
    }

    /// Whether connections accept early data by default.
    pub(crate) fn accepts_early_data(&self) -> bool {
        self.early_data
    }

    /// Creates a connection. If `early_data` is false, this connection refuses early data, and the
    /// client sends its request again after the handshake. The tickets that the connection issues
    /// still allow early data, if the sealer does.
    ///
    /// # Errors
    /// Returns [`TlsError::Setup`] if there is no memory.
    pub fn connection(&self, early_data: bool) -> Result<TlsConnection, TlsError> {
        let ssl = Ssl::new(&self.context).map_err(TlsError::setup("a new connection"))?;
        // SAFETY: the connection is valid. Its configuration is not needed after the handshake, and
        // an idle connection should hold little memory.
        unsafe { ffi::SSL_set_shed_handshake_config(ssl.as_ptr(), 1) };
        if self.early_data && !early_data {
            // Tickets issued while the flag is off would not allow early data, so it is set anew
            // once the ClientHello has been processed (`TlsConnection::after_step`).
            // SAFETY: the connection is valid and not yet in its handshake.
            unsafe { ffi::SSL_set_early_data_enabled(ssl.as_ptr(), 0) };
        }
        let (tickets_undecided, ticket_unused) = (self.early_data, self.uses_up_tickets);
        TlsConnection::new(ssl, Role::Server { tickets_undecided, ticket_unused })
    }
}

/// Builds a server's context, and tells whether it accepts early data. `customize` is called last.
///
/// # Errors
/// [`TlsError`] naming the setting that BoringSSL rejects.
pub fn server_context(
    config: AcceptorConfig,
    customize: impl FnOnce(&mut SslContextBuilder),
) -> Result<(SslContext, bool), TlsError> {
    let mut builder =
        context::builder(config.min_version, config.max_version, &config.ciphers, config.key_log)?;
    config.cipher_preference.apply(&config.ciphers, config.min_version, &mut builder)?;
    let keep_psk_offers = config.sealer.as_ref().is_some_and(|sealer| sealer.uses_up_tickets());
    config.identities.install(
        &mut builder,
        config.challenges,
        keep_psk_offers,
        config.tickets_across_names,
    )?;
    if let Some(keys) = &config.ech {
        builder.set_ech_keys(keys.as_boring()).map_err(TlsError::setup("the ECH keys"))?;
    }
    if config.compress_certificates {
        compression::install(&mut builder)?;
    }
    // Sessions are in tickets only: a cache in the process would serve one node of a cluster only.
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
            match identity::is_challenge(ssl) {
                // A validation offers this protocol and no other.
                true => select_alpn(&context::alpn_wire(&[ACME_TLS_ALPN.to_vec()]), theirs),
                false if allows_http2(ssl) => select_alpn(&ours, theirs),
                false => select_alpn(&without_http2, theirs),
            }
        });
    }
    offered_flight::install(&mut builder);
    let lifetime = u32::try_from(config.ticket_lifetime.as_secs()).unwrap_or(u32::MAX);
    // SAFETY: the context is valid; these calls only store numbers in it.
    unsafe {
        ffi::SSL_CTX_set_timeout(builder.as_ptr(), lifetime);
        ffi::SSL_CTX_set_session_psk_dhe_timeout(builder.as_ptr(), lifetime);
    }
    // SAFETY: the context is valid.
    unsafe { ffi::SSL_CTX_set_early_data_enabled(builder.as_ptr(), early_data.into()) };
    customize(&mut builder);
    Ok((builder.build(), early_data))
}

/// Selects the first of our protocols that the client offers too. Without one in common the
/// handshake fails (RFC 7301 section 3.2).
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

/// A server's connection before its early data is accepted or refused.
///
/// Nothing is sent before [`Accepting::into_stream`] or [`Accepting::refuse_early_data`]. So the
/// decision can wait, for a store for instance, and early data can still be refused by TLS. The
/// client then resumes its session and sends its request again by itself (RFC 8446 section 4.2.10).
///
/// Until then only the ClientHello and what arrives with it is read, at most 52 KiB. The bytes are
/// buffered, because a refusal starts the handshake again from them.
pub struct Accepting<S> {
    acceptor: Acceptor,
    early_data: bool,
    stream: TlsStream<S>,
}

/// What an [`Accepting`] connection needs next.
#[derive(Debug, PartialEq, Eq)]
pub enum AcceptState {
    /// The session of the client's ticket has to be looked up by this key. Call
    /// [`Accepting::provide_session`], then [`Accepting::advance`] again.
    NeedsSession(Vec<u8>),
    /// TLS would accept early data. [`Accepting::into_stream`] accepts it,
    /// [`Accepting::refuse_early_data`] refuses it.
    EarlyData,
    /// The client's ticket was used before, so this becomes a full handshake. Returned once, before
    /// anything is sent. A copied flight never gets past this state. Call [`Accepting::advance`]
    /// again.
    TicketUsed,
    /// The handshake is complete, and there was no early data or it was refused.
    Complete,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Accepting<S> {
    /// Creates a connection on `io`. If `early_data` is false, early data is refused, as in
    /// [`Acceptor::connection`].
    ///
    /// # Errors
    /// Returns [`TlsError::Setup`] if there is no memory.
    pub fn new(acceptor: &Acceptor, io: S, early_data: bool) -> Result<Self, TlsError> {
        let mut stream = TlsStream::new(acceptor.connection(early_data)?, io, Phase::Early);
        if (early_data && acceptor.accepts_early_data()) || acceptor.uses_up_tickets {
            stream.keep_received(Vec::new());
        }
        Ok(Self { acceptor: acceptor.clone(), early_data, stream })
    }

    /// Continues until the caller has to decide or the handshake is complete. Cancel-safe.
    ///
    /// # Errors
    /// [`TlsError`]. The alert was sent if the socket accepted it.
    pub async fn advance(&mut self) -> Result<AcceptState, TlsError> {
        let outcome = loop {
            let outcome = std::future::poll_fn(|cx| self.stream.poll_start(cx)).await;
            let received = match self.stream.connection_mut().has_lost_ticket() {
                true => self.stream.take_received(),
                false => None,
            };
            let Some(received) = received else { break outcome? };
            self.restart(&received, self.early_data)?;
            self.stream.keep_received(received);
        };
        match outcome {
            StartOutcome::NeedsSession(id) => Ok(AcceptState::NeedsSession(id)),
            StartOutcome::TicketUsed => Ok(AcceptState::TicketUsed),
            StartOutcome::Done if self.stream.in_early_data() => Ok(AcceptState::EarlyData),
            StartOutcome::Done => {
                self.stream.take_received();
                self.stream.connection_mut().forget_session();
                Ok(AcceptState::Complete)
            }
        }
    }

    /// Provides the session that was looked up; see [`TlsConnection::provide_session`].
    pub fn provide_session(&mut self, session: OpenedTicket) {
        self.stream.connection_mut().provide_session(session);
    }

    /// What was negotiated so far.
    pub fn facts(&self) -> crate::Handshake {
        self.stream.facts()
    }

    /// When the last bytes were received, in microseconds since 1970 by [`crate::SteadyClock`]. At
    /// [`AcceptState::EarlyData`] this is just before BoringSSL measured the ticket's age.
    pub fn received_at(&self) -> i64 {
        self.stream.received_at()
    }

    /// The socket below.
    pub fn socket(&self) -> &S {
        self.stream.socket()
    }

    /// Restarts the handshake from the same bytes with early data refused. Continue with
    /// [`Accepting::advance`]. Does nothing unless the last state was [`AcceptState::EarlyData`].
    ///
    /// Tickets issued on the connection still allow early data. A key log then has lines of both
    /// handshakes, those of the effective one last.
    ///
    /// # Errors
    /// Returns [`TlsError::Setup`] if there is no memory.
    pub fn refuse_early_data(&mut self) -> Result<(), TlsError> {
        if !self.stream.in_early_data() {
            return Ok(());
        }
        let Some(received) = self.stream.take_received() else { return Ok(()) };
        self.restart(&received, false)
    }

    /// Restarts the handshake from the same bytes.
    fn restart(&mut self, received: &[u8], early_data: bool) -> Result<(), TlsError> {
        let mut connection: TlsConnection = self.acceptor.connection(early_data)?;
        if let Some(session) = self.stream.connection_mut().provided_session() {
            connection.provide_session(session);
            self.stream.connection_mut().forget_session();
        }
        connection.feed(received);
        // Dropping the old connection drops its unsent flight.
        *self.stream.connection_mut() = connection;
        Ok(())
    }

    /// Converts into the stream. At [`AcceptState::EarlyData`] this accepts the early data. Before
    /// the ClientHello is processed, early data is refused, and the handshake continues as the
    /// stream is read. The server's flight may still be unsent, so that it leaves together with a
    /// response.
    pub fn into_stream(mut self) -> TlsStream<S> {
        self.stream.take_received();
        self.stream.connection_mut().decline_early_data();
        if self.stream.in_early_data() {
            self.stream.connection_mut().forget_session();
        }
        self.stream.start_reading();
        self.stream
    }
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
