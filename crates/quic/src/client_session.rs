use std::any::Any;
use std::sync::{Arc, PoisonError};

use boring_sys as ffi;
use bytes::Bytes;
use firstflight_tls::{EarlyData, EarlyDataReason, Handshake, KeyLog, quic_support};
use foreign_types::ForeignType;
use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};

use crate::early_bytes::CountingKey;
use crate::initial;
use crate::resumption::{Prepared, Resumption, ResumptionInbox};
use crate::session::{self, Handshaking, INTERNAL_ERROR, Step};

/// A client's connection.
pub(crate) struct ClientSession {
    tls: Handshaking,
    sessions: quic_support::SessionInbox,
    inbox: ResumptionInbox,
    /// The server's transport parameters on the connection that is resumed.
    remembered: Option<TransportParameters>,
    early_data_offered: bool,
    /// Why the server refused early data.
    refusal: Option<EarlyDataReason>,
    handshake_data_reported: bool,
}

impl ClientSession {
    /// Creates the ClientHello immediately, because quinn requests the early keys first.
    pub(crate) fn new(
        prepared: Prepared,
        params: &TransportParameters,
        inbox: ResumptionInbox,
        log: Option<Arc<dyn KeyLog>>,
    ) -> Result<Self, TransportError> {
        let Prepared { ssl, sessions, parameters } = prepared;
        if parameters.is_none() {
            // Without the server's limits no early data can be sent.
            // SAFETY: the connection is valid and its handshake has not started.
            unsafe { ffi::SSL_set_early_data_enabled(ssl.as_ptr(), 0) };
        }
        let mut session = Self {
            tls: Handshaking::new(ssl, Side::Client, &session::to_wire(params), log),
            sessions,
            inbox,
            remembered: parameters,
            early_data_offered: false,
            refusal: None,
            handshake_data_reported: false,
        };
        session.advance()?;
        session.early_data_offered = session.tls.in_early_data();
        session.tls.log_keys();
        Ok(session)
    }

    fn advance(&mut self) -> Result<(), TransportError> {
        loop {
            match self.tls.advance()? {
                Step::Done => return Ok(()),
                Step::NeedsSession => {
                    return Err(session::error(INTERNAL_ERROR, "a client has no tickets to open"));
                }
                Step::EarlyDataRefused => {
                    self.refusal = Some(quic_support::early_data_reason(&self.tls.ssl));
                    // SAFETY: the connection signals the refusal, the only state in which BoringSSL
                    // allows this call.
                    unsafe { ffi::SSL_reset_early_data_reject(self.tls.ssl.as_ptr()) };
                }
            }
        }
    }

    /// Moves received tickets to the inbox.
    fn collect(&self) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.is_empty() {
            return;
        }
        let wire = self.tls.peer_parameters().unwrap_or_default();
        let transport_parameters = Bytes::copy_from_slice(wire);
        for session in sessions.drain(..) {
            let transport_parameters = transport_parameters.clone();
            self.inbox.add(Resumption { session, transport_parameters });
        }
    }

    fn accepted(&self) -> bool {
        // SAFETY: the connection is valid, and the call only reads.
        unsafe { ffi::SSL_early_data_accepted(self.tls.ssl.as_ptr()) == 1 }
    }

    fn facts(&self) -> Handshake {
        let early_data = match (self.early_data_offered, self.refusal) {
            (false, _) => EarlyData::NotOffered,
            (true, Some(_)) => EarlyData::Refused,
            (true, None) if self.tls.is_complete() && self.accepted() => EarlyData::Accepted,
            (true, None) => EarlyData::Pending,
        };
        let reason = self.refusal.unwrap_or_else(|| quic_support::early_data_reason(&self.tls.ssl));
        quic_support::client_handshake(&self.tls.ssl, early_data, reason)
    }
}

impl crypto::Session for ClientSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        initial::initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        if !self.handshake_data_reported {
            return None;
        }
        Some(Box::new(self.facts()))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let (header, packet) = self.tls.early_keys()?;
        Some((header, Box::new(CountingKey::new(packet, self.inbox.early_counter()))))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(self.refusal.is_none() && self.accepted())
    }

    fn is_handshaking(&self) -> bool {
        !self.tls.is_complete()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.tls.provide(buf)?;
        self.advance()?;
        self.tls.log_keys();
        self.collect();
        let is_first_report = !self.handshake_data_reported && self.tls.is_complete();
        self.handshake_data_reported |= is_first_report;
        Ok(is_first_report)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        match self.tls.peer_parameters() {
            Some(wire) => session::from_wire(Side::Client, wire).map(Some),
            None => Ok(self.remembered),
        }
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.tls.write(buf)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.tls.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        initial::is_valid_retry(orig_dst_cid, header, payload)
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
