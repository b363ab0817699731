//! A server and a client, with tickets in the clear: fuzzing is to reach what is inside them.

use std::sync::{Arc, LazyLock};

use firstflight_tls::{
    Acceptor, AcceptorConfig, Connector, ConnectorConfig, Identity, KeyLog, OpenedTicket,
    TicketSealer, Trust, Version,
};

/// Seals nothing: a ticket is the session.
pub struct OpenSealer;

impl TicketSealer for OpenSealer {
    fn max_overhead(&self) -> usize {
        0
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        Some(session.to_vec())
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        OpenedTicket::Session(ticket.to_vec())
    }
}

/// A fresh certificate for localhost.
pub(crate) fn identity() -> Identity {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    Identity::from_pem(cert.as_bytes(), key.as_bytes()).expect("an identity")
}

/// A server of all versions, with early data.
pub fn acceptor() -> &'static Acceptor {
    static ACCEPTOR: LazyLock<Acceptor> = LazyLock::new(|| {
        let mut config = AcceptorConfig::new(identity());
        config.min_version = Version::Tls10;
        config.alpn = protocols();
        config.early_data = true;
        config.sealer = Some(Arc::new(OpenSealer));
        Acceptor::new(config).expect("a server")
    });
    &ACCEPTOR
}

/// A client of versions from TLS 1.0 up to `max`.
pub fn connector(max: Version, key_log: Option<Arc<dyn KeyLog>>) -> Connector {
    let mut config = ConnectorConfig::new(Trust::Anyone);
    config.min_version = Version::Tls10;
    config.max_version = max;
    config.alpn = protocols();
    config.key_log = key_log;
    Connector::new(config).expect("a client")
}

fn protocols() -> Vec<Vec<u8>> {
    vec![b"h2".to_vec(), b"http/1.1".to_vec()]
}
