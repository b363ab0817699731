use std::sync::Arc;

use firstflight_tls::{
    Acceptor, AcceptorConfig, ConnectOptions, Connector, ConnectorConfig, Session, TlsConnection,
    Trust,
};

use super::{MarkSealer, Setup, identity};

/// A session of TLS over TCP from a server with the same ticket key.
pub(crate) fn session(setup: &Setup) -> Session {
    let mut config = AcceptorConfig::new(identity());
    config.alpn = setup.server_alpn.clone();
    config.early_data = true;
    config.sealer = Some(Arc::new(MarkSealer {
        key: setup.sealer_key,
        opens: setup.opens,
        sealed: Arc::default(),
    }));
    let mut server = Acceptor::new(config).unwrap().connection(true).unwrap();
    let mut config = ConnectorConfig::new(Trust::Anyone);
    config.alpn = setup.client_alpn.clone();
    let offer = ConnectOptions { host: "localhost".to_owned(), session: None, early_data: false };
    let mut client = Connector::new(config).unwrap().connection(&offer).unwrap();
    for _ in 0..4 {
        client.handshake().unwrap();
        carry(&mut client, &mut server);
        server.handshake().unwrap();
        carry(&mut server, &mut client);
    }
    server.write(b"x").unwrap();
    carry(&mut server, &mut client);
    client.read(&mut [0; 16]).unwrap();
    client.take_sessions().pop().expect("a ticket")
}

fn carry(from: &mut TlsConnection, to: &mut TlsConnection) {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    to.feed(&bytes);
}
