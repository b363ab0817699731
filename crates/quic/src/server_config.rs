//! Implements quinn's server configuration, which starts the TLS session of each connection.

use std::sync::{Arc, Mutex, PoisonError};

use firstflight_tls::{Handshake, OpenedTicket};
use quinn_proto::ConnectionId;
use quinn_proto::crypto::{self, Keys, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;

use crate::initial::{self, VERSION_1};
use crate::server::ServerCrypto;
use crate::server_session::{EarlyDataJudge, ServerSession};

/// Called once with what a connection has negotiated, as soon as it can send 1-RTT packets.
pub type NegotiationObserver = Box<dyn FnOnce(Handshake) + Send + Sync>;

/// What a server knows about a connection before it starts.
#[derive(Default)]
pub struct ConnectionOptions {
    /// The session that was looked up for its ticket, if
    /// [`FirstFlightPreview::NeedsSession`](crate::FirstFlightPreview) requested that.
    pub session: Option<OpenedTicket>,
    /// Whether the client's address is validated. A client whose early data is accepted then gets a
    /// second ticket, after its Finished.
    ///
    /// quinn sends such a client a NEW_TOKEN token in its first packet. Firefox's library (neqo)
    /// processes a ticket as soon as it has a token too, and drops both if HTTP/3's SETTINGS have not
    /// arrived. Without a validated address the token itself comes after the Finished.
    pub address_validated: bool,
    /// Called while quinn processes the end of the ClientHello. quinn itself reports the handshake data
    /// only after it has sent the server's first flight.
    pub observer: Option<NegotiationObserver>,
}

impl ServerCrypto {
    /// Creates quinn's configuration for one connection. `judge` decides about its early data; for
    /// `session` see [`ConnectionOptions`].
    pub fn for_connection(
        self: &Arc<Self>,
        judge: EarlyDataJudge,
        session: Option<OpenedTicket>,
    ) -> Arc<dyn crypto::ServerConfig> {
        self.with_options(judge, ConnectionOptions { session, ..ConnectionOptions::default() })
    }

    /// As [`ServerCrypto::for_connection`], with all options.
    pub fn with_options(
        self: &Arc<Self>,
        judge: EarlyDataJudge,
        options: ConnectionOptions,
    ) -> Arc<dyn crypto::ServerConfig> {
        let settings = Mutex::new(Some((judge, options)));
        Arc::new(OneConnection { crypto: self.clone(), settings })
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
        Box::new(ServerSession::new(self, params, None, ConnectionOptions::default()))
    }
}

/// Created by [`ServerCrypto::with_options`].
struct OneConnection {
    crypto: Arc<ServerCrypto>,
    settings: Mutex<Option<(EarlyDataJudge, ConnectionOptions)>>,
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
        // The judge is for one connection; a second one with this configuration has none.
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (judge, options) = settings.unzip();
        let options = options.unwrap_or_default();
        Box::new(ServerSession::new(self.crypto.clone(), params, judge, options))
    }
}
