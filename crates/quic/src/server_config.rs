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
        Arc::new(OneConnection {
            crypto: self.clone(),
            judge: Mutex::new(Some(judge)),
            fetched: session,
        })
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
        Box::new(ServerSession::new(self, params, None, None))
    }
}

/// Created by [`ServerCrypto::for_connection`].
struct OneConnection {
    crypto: Arc<ServerCrypto>,
    judge: Mutex<Option<EarlyDataJudge>>,
    fetched: Option<OpenedTicket>,
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
        Box::new(ServerSession::new(self.crypto.clone(), params, judge, fetched))
    }
}
