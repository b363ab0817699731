use std::any::Any;
use std::sync::Arc;

use boring::ssl::Ssl;
use firstflight_tls::{EarlyDataReason, Handshake, OpenedTicket, quic_support};
use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};

use crate::initial;
use crate::parameters::early_data_context;
use crate::server::ServerCrypto;
use crate::server_config::{ConnectionOptions, NegotiationObserver};
use crate::session::{self, Handshaking, INTERNAL_ERROR, Step};

/// Decides whether a connection's early data is accepted. Called once, if TLS would accept it (the
/// ticket is valid, its binder verified, its age within BoringSSL's bounds), before anything is
/// sent. If it returns false, the handshake is restarted from the same ClientHello with early data
/// refused.
pub type EarlyDataJudge = Box<dyn FnOnce(&Handshake) -> bool + Send + Sync>;

/// A server's connection.
pub(crate) struct ServerSession {
    crypto: Arc<ServerCrypto>,
    tls: Handshaking,
    parameters: Vec<u8>,
    early_data_context: Vec<u8>,
    /// Decides about early data; taken when called.
    judge: Option<EarlyDataJudge>,
    /// The bytes received before the judge's decision, if the handshake may have to be restarted.
    received_client_hello: Option<Vec<u8>>,
    handshake_data_reported: bool,
    observer: Option<NegotiationObserver>,
}

impl ServerSession {
    pub(crate) fn new(
        crypto: Arc<ServerCrypto>,
        params: &TransportParameters,
        judge: Option<EarlyDataJudge>,
        options: ConnectionOptions,
    ) -> Self {
        let parameters = session::to_wire(params);
        let early_data_context = early_data_context(&parameters, &crypto.settings);
        crypto.remember_context(&early_data_context);
        let mut ssl = crypto.connection(&early_data_context).expect("it fails only without memory");
        let ConnectionOptions { session, address_validated, observer } = options;
        prepare(&mut ssl, judge.is_some(), session);
        if address_validated {
            quic_support::issue_second_ticket(&mut ssl);
        }
        let mut tls = Handshaking::new(ssl, Side::Server, &parameters, crypto.key_log.clone());
        tls.withholds_last_ticket = address_validated;
        let may_restart = judge.is_some() || crypto.uses_up_tickets();
        Self {
            crypto,
            tls,
            parameters,
            early_data_context,
            judge,
            received_client_hello: may_restart.then(Vec::new),
            handshake_data_reported: false,
            observer,
        }
    }

    fn advance(&mut self) -> Result<(), TransportError> {
        loop {
            match self.tls.advance()? {
                Step::Done | Step::EarlyDataRefused => return Ok(()),
                // The session was not looked up: continue with a full handshake.
                Step::NeedsSession => {
                    quic_support::provide_session(&mut self.tls.ssl, OpenedTicket::Ignored)
                }
            }
        }
    }

    /// Uses up the ticket and calls the judge, once the ClientHello has been processed.
    fn decide(&mut self) -> Result<(), TransportError> {
        if quic_support::early_data_reason(&self.tls.ssl) == EarlyDataReason::Unknown {
            return Ok(());
        }
        let (judge, received_client_hello) =
            (self.judge.take(), self.received_client_hello.take().unwrap_or_default());
        while !quic_support::use_up(&mut self.tls.ssl) {
            self.restart_handshake(&received_client_hello, judge.is_some())?;
        }
        let decided = match judge {
            Some(judge) if self.tls.in_early_data() => {
                match judge(&quic_support::server_handshake(&self.tls.ssl)) {
                    true => Ok(()),
                    false => self.restart_handshake(&received_client_hello, false),
                }
            }
            _ => Ok(()),
        };
        quic_support::forget_session(&self.tls.ssl);
        quic_support::decide_early_data_of_tickets(&mut self.tls.ssl, self.crypto.early_data);
        decided
    }

    /// Restarts the handshake from the same bytes. Drops the old connection with its flight, secrets
    /// and key log lines.
    fn restart_handshake(
        &mut self,
        received_client_hello: &[u8],
        early_data: bool,
    ) -> Result<(), TransportError> {
        let mut ssl = (self.crypto.connection(&self.early_data_context))
            .map_err(|error| session::error(INTERNAL_ERROR, &error.to_string()))?;
        // A ticket that the first connection has used up cannot be opened again.
        let session = quic_support::provided_session(&self.tls.ssl);
        prepare(&mut ssl, early_data, session);
        quic_support::forget_session(&self.tls.ssl);
        let log = self.crypto.key_log.clone();
        self.tls = Handshaking::new(ssl, Side::Server, &self.parameters, log);
        self.tls.provide(received_client_hello)?;
        self.advance()
    }
}

/// Refuses early data if needed, and provides the session that is already known.
fn prepare(ssl: &mut Ssl, early_data: bool, session: Option<OpenedTicket>) {
    if !early_data {
        quic_support::decline_early_data(ssl);
    }
    if let Some(session) = session {
        quic_support::provide_session(ssl, session);
    }
}

impl crypto::Session for ServerSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        let known = self.crypto.recent_initials.take(dst_cid);
        known.unwrap_or_else(|| initial::initial_keys(dst_cid, side))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        if !self.handshake_data_reported {
            return None;
        }
        Some(Box::new(quic_support::server_handshake(&self.tls.ssl)))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.tls.early_keys()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        !self.tls.is_complete()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.tls.provide(buf)?;
        if let Some(received_client_hello) = &mut self.received_client_hello {
            received_client_hello.extend_from_slice(buf);
        }
        self.advance()?;
        self.decide()?;
        self.tls.log_keys();
        let is_first_report =
            !self.handshake_data_reported && self.tls.ssl.selected_alpn_protocol().is_some();
        self.handshake_data_reported |= is_first_report;
        if is_first_report && let Some(observer) = self.observer.take() {
            observer(quic_support::server_handshake(&self.tls.ssl));
        }
        Ok(is_first_report)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.tls.peer_parameters().map(|wire| session::from_wire(Side::Server, wire)).transpose()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.tls.write(buf)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.tls.next_1rtt_keys()
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only servers send Retry packets.
        false
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.tls.export(output, label, context)
    }
}
