//! quinn's view of a server's crypto configuration: it starts the sessions of connections.

use std::sync::{Arc, Mutex, PoisonError};

use firstflight_tls::OpenedTicket;
use quinn_proto::ConnectionId;
use quinn_proto::crypto::{self, Keys, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;

use crate::initial::{self, VERSION_1};
use crate::server::ServerCrypto;
use crate::server_session::{EarlyDataJudge, ServerSession};

impl ServerCrypto {
    /// For one connection, whose early data `judge` decides about. `session`: the one that was
    /// fetched for it, where [`FirstFlightPreview::NeedsSession`](crate::FirstFlightPreview) requested one.
    pub fn for_connection(
        self: &Arc<Self>,
        judge: EarlyDataJudge,
        session: Option<OpenedTicket>,
    ) -> Arc<dyn crypto::ServerConfig> {
        self.one_connection(judge, session, false)
    }

    /// Like [`Self::for_connection`], for a client whose address is validated: tickets wait for its
    /// Finished.
    ///
    /// quinn sends such a client a NEW_TOKEN token in its first packet. Firefox's library (neqo)
    /// processes a ticket as soon as it has a token too, and drops it if HTTP/3's SETTINGS have not
    /// arrived. Without a validated address the token itself comes after the Finished.
    pub fn for_validated_client(
        self: &Arc<Self>,
        judge: EarlyDataJudge,
        session: Option<OpenedTicket>,
    ) -> Arc<dyn crypto::ServerConfig> {
        self.one_connection(judge, session, true)
    }

    fn one_connection(
        self: &Arc<Self>,
        judge: EarlyDataJudge,
        fetched: Option<OpenedTicket>,
        withholds_tickets: bool,
    ) -> Arc<dyn crypto::ServerConfig> {
        let judge = Mutex::new(Some(judge));
        Arc::new(OneConnection { crypto: self.clone(), judge, fetched, withholds_tickets })
    }
}

impl crypto::ServerConfig for ServerCrypto {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        match version {
            VERSION_1 => Ok(self.recent_initials.derive(dst_cid)),
            _ => Err(UnsupportedVersion),
        }
    }

    fn retry_tag(&self, _version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        initial::retry_tag(orig_dst_cid, &[packet])
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        Box::new(ServerSession::new(self, params, None, None, false))
    }
}

/// Created by [`ServerCrypto::for_connection`] and [`ServerCrypto::for_validated_client`].
struct OneConnection {
    crypto: Arc<ServerCrypto>,
    judge: Mutex<Option<EarlyDataJudge>>,
    fetched: Option<OpenedTicket>,
    withholds_tickets: bool,
}

impl crypto::ServerConfig for OneConnection {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        self.crypto.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.crypto.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        // The decider is for one connection; a second one with this configuration has none.
        let judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fetched = self.fetched.clone();
        let crypto = self.crypto.clone();
        Box::new(ServerSession::new(crypto, params, judge, fetched, self.withholds_tickets))
    }
}
