//! Two sessions without packets: CRYPTO bytes are passed between them as quinn passes them.

use std::io::Cursor;
use std::sync::Arc;

use firstflight_quic::{Handshake, Remembered, ResumptionInbox};
use quinn_proto::crypto::{self, Session};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{Side, TransportError};

use super::Setup;

/// Packet number spaces, as indices.
pub(crate) const INITIAL: usize = 0;
pub(crate) const HANDSHAKE: usize = 1;
pub(crate) const DATA: usize = 2;

/// One end: a session, and its CRYPTO bytes to send in each space.
pub(crate) struct Peer {
    pub(crate) session: Box<dyn Session>,
    pub(crate) space: usize,
    pub(crate) out: [Vec<u8>; 3],
}

impl Peer {
    pub(crate) fn new(session: Box<dyn Session>) -> Self {
        let mut peer = Self { session, space: INITIAL, out: Default::default() };
        peer.write();
        peer
    }

    /// Collects the session's output, as quinn does after each packet.
    pub(crate) fn write(&mut self) {
        loop {
            let (mut bytes, before) = (Vec::new(), self.space);
            if self.session.write_handshake(&mut bytes).is_some() {
                self.space += 1;
                if self.space == DATA {
                    assert!(self.session.next_1rtt_keys().is_some());
                }
            }
            self.out[before].extend_from_slice(&bytes);
            if bytes.is_empty() && before == self.space {
                return;
            }
        }
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let is_first_report = self.session.read_handshake(bytes)?;
        self.write();
        Ok(is_first_report)
    }

    pub(crate) fn facts(&self) -> Handshake {
        *self.session.handshake_data().expect("handshake data").downcast().expect("ours")
    }

    pub(crate) fn complete(&self) -> bool {
        !self.session.is_handshaking()
    }
}

pub(crate) struct Peers {
    pub(crate) client: Peer,
    pub(crate) server: Peer,
    pub(crate) inbox: ResumptionInbox,
}

impl Peers {
    /// `accepts` is the decision of the server's judge about early data.
    pub(crate) fn new(setup: &Setup, remembered: Remembered, accepts: bool) -> Self {
        let config = setup.server().for_connection(Box::new(move |_| accepts), None);
        Self::with_server(setup, remembered, config)
    }

    pub(crate) fn with_server(
        setup: &Setup,
        remembered: Remembered,
        config: Arc<dyn crypto::ServerConfig>,
    ) -> Self {
        let (client, inbox) = client(setup, remembered);
        Self { client, server: server(config), inbox }
    }

    /// Delivers all output, in pieces of the sizes that `sizes` returns.
    pub(crate) fn exchange(
        &mut self,
        sizes: &mut impl FnMut() -> usize,
    ) -> Result<(), TransportError> {
        for _ in 0..4 {
            hand_over(&mut self.client, &mut self.server, sizes)?;
            hand_over(&mut self.server, &mut self.client, sizes)?;
        }
        Ok(())
    }

    pub(crate) fn complete(&mut self) {
        self.exchange(&mut || usize::MAX).unwrap();
        assert!(self.client.complete() && self.server.complete());
    }
}

pub(crate) fn client(setup: &Setup, remembered: Remembered) -> (Peer, ResumptionInbox) {
    let (config, _, inbox) = setup.client().for_connection("localhost", remembered).unwrap();
    let session = config.start_session(1, "localhost", &parameters(Side::Server)).unwrap();
    (Peer::new(session), inbox)
}

pub(crate) fn server(config: Arc<dyn crypto::ServerConfig>) -> Peer {
    Peer::new(config.start_session(1, &parameters(Side::Client)))
}

/// The ClientHello that a client would send.
pub(crate) fn client_hello(setup: &Setup, remembered: Remembered) -> Vec<u8> {
    std::mem::take(&mut client(setup, remembered).0.out[INITIAL])
}

/// Transport parameters with some limits, as `reader` receives them.
pub(crate) fn parameters(reader: Side) -> TransportParameters {
    let wire = [0x04, 0x02, 0x44, 0x00, 0x06, 0x02, 0x44, 0x00, 0x08, 0x01, 0x10, 0x09, 0x01, 0x10];
    TransportParameters::read(reader, &mut Cursor::new(wire)).unwrap()
}

fn hand_over(
    from: &mut Peer,
    to: &mut Peer,
    sizes: &mut impl FnMut() -> usize,
) -> Result<(), TransportError> {
    for space in INITIAL..=DATA {
        let bytes = std::mem::take(&mut from.out[space]);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let size = sizes().clamp(1, rest.len());
            to.read(&rest[..size])?;
            rest = &rest[size..];
        }
    }
    Ok(())
}
